// Both runs in one pair of places: a pane for each, moved and scaled together. Only what is in sight is drawn.
const SVG = "http://www.w3.org/2000/svg";
const panes = [];

function s(tag, properties, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(properties || {})) if (value != null) element.setAttribute(key, value);
  element.append(...children.filter((one) => one != null));
  return element;
}

const paneSize = () => ({ wide: panes[0].box.clientWidth || 400, high: panes[0].box.clientHeight || 400 });

function mountPanes(place) {
  for (const [bit, title] of [[1, "reference"], [2, "candidate"]]) {
    const drawing = s("svg", { "aria-hidden": "true" });
    const box = h("div", { class: "pane" }, drawing);
    const subject = h("header", null, h("h2", null, title));
    place.append(h("section", { class: "card pane-card", "aria-label": `Graph of the ${title}; the tree holds the same for keys` }, subject, box));
    panes.push({ bit, drawing, box });
    wirePane(box);
  }
  graphListeners.view.push(drawPanes);
  new ResizeObserver(() => { if (graph.count) moved(); }).observe(panes[0].box);
}

function wirePane(box) {
  let held = null;
  box.addEventListener("pointerdown", (event) => { if (event.button === 0) held = { x: event.clientX, y: event.clientY, moved: false }; });
  box.addEventListener("pointermove", (event) => {
    if (!held || !(event.buttons & 1)) return;
    const x = event.clientX - held.x, y = event.clientY - held.y;
    if (!held.moved && Math.abs(x) + Math.abs(y) < 5) return;
    if (!held.moved) box.setPointerCapture(event.pointerId);
    Object.assign(held, { x: event.clientX, y: event.clientY, moved: true });
    graph.view.x -= x / graph.view.zoom;
    graph.view.y -= y / graph.view.zoom;
    moved();
  });
  box.addEventListener("click", (event) => {
    const wasMoved = held && held.moved, target = event.target.closest("[data-node]");
    held = null;
    if (wasMoved || !target) return;
    const node = Number(target.getAttribute("data-node"));
    if (event.target.closest("[data-toggle]")) saying(toggle)(node); else saying(choose)(node, [], false);
  });
  box.addEventListener("dblclick", (event) => { const target = event.target.closest("[data-node]"); if (target && target.hasAttribute("data-inside")) saying(toggle)(Number(target.getAttribute("data-node"))); });
  box.addEventListener("wheel", (event) => {
    event.preventDefault();
    const step = event.deltaMode ? 20 : 1, rect = box.getBoundingClientRect();
    if (event.ctrlKey || event.metaKey) { zoomBy(event.deltaY < 0 ? 1.15 : 1 / 1.15, [event.clientX - rect.left, event.clientY - rect.top]); return; }
    graph.view.x += (event.shiftKey ? event.deltaY : event.deltaX) * step / graph.view.zoom;
    graph.view.y += (event.shiftKey ? 0 : event.deltaY) * step / graph.view.zoom;
    moved();
  }, { passive: false });
}

let drawWaits = false;
function drawPanes() { // once a frame
  if (drawWaits) return;
  drawWaits = true;
  requestAnimationFrame(() => { drawWaits = false; panes.forEach(drawPane); });
}

function drawPane({ bit, drawing, box }) {
  const { view } = graph, wide = box.clientWidth, high = box.clientHeight;
  drawing.setAttribute("viewBox", `${view.x} ${view.y} ${wide / view.zoom} ${high / view.zoom}`);
  const seen = graph.boxes.filter((one) => one.y < view.y + high / view.zoom && one.y + one.high > view.y && one.x < view.x + wide / view.zoom && one.x + one.wide > view.x);
  const frames = seen.filter((one) => one.is_open), leaves = seen.filter((one) => !one.is_open);
  const lines = graph.edges.filter((one) => one[4] & bit && Math.min(one[1], one[3]) < view.y + high / view.zoom && Math.max(one[1], one[3]) > view.y);
  lines.sort((a, b) => isChosenLine(a) - isChosenLine(b));
  drawing.replaceChildren(s("g", null, ...frames.map((one) => drawFrame(one, bit))), s("g", null, ...lines.map(drawLine)), s("g", null, ...leaves.map((one) => drawBox(one, bit))));
  box.dataset.drawn = String(leaves.length);
}

const isChosenLine = (line) => line[5] === graph.node || line[6] === graph.node;

function drawLine(line) {
  const [x, y, toX, toY, , , , half] = line, gap = toY - y;
  let path;
  if (gap >= 0 && gap < 90) path = `M${x} ${y}C${x} ${y + gap / 2} ${toX} ${toY - gap / 2} ${toX} ${toY}`;
  else { // past what lies between, on the right
    const out = Math.max(x, toX) + half + 10 + Math.min(60, Math.abs(gap) * 0.04);
    path = `M${x + half} ${y - 14}C${out} ${y} ${out} ${toY - 20} ${toX + half - 24} ${toY}`;
  }
  return s("path", { d: path, class: isChosenLine(line) ? "flow chosen" : "flow" });
}

const kindWords = (box) => { const kind = kindAt(box.kind); return kind === null ? "no tensor" : kind.name + (typeof box.margin === "number" && box.margin > 0 ? ` · ${times(box.margin)}` : box.margin === "infinite" ? " · ∞×" : ""); };

function common(box, bit, classes) {
  const kind = kindAt(box.kind), isThere = box.sides & bit;
  return { class: classes + (isThere ? "" : " missing") + (box.node === graph.node ? " chosen" : ""), "data-node": box.node, "data-inside": box.inside ? "" : null,
    "data-colour": kind ? kind.colour : "none", "data-kind": kind ? kind.name : "none" };
}

function drawFrame(box, bit) {
  return s("g", common(box, bit, "frame"), s("rect", { x: box.x, y: box.y, width: box.wide, height: box.high, rx: 8 }),
    ...headOf(box, bit, box.y + 19, box.wide), s("title", null, titleOf(box, bit)));
}

function drawBox(box, bit) {
  const isThere = box.sides & bit, words = isThere ? kindWords(box) : `not in the ${bit === 1 ? "reference" : "candidate"}`;
  return s("g", common(box, bit, "box"), s("rect", { x: box.x, y: box.y, width: box.wide, height: box.high, rx: 6 }),
    s("rect", { class: "side", x: box.x, y: box.y + 5, width: 3, height: box.high - 10 }),
    ...headOf(box, bit, box.y + 18, box.wide), s("text", { class: "words", x: box.x + 12, y: box.y + 35 }, words), s("title", null, titleOf(box, bit)));
}

const titleOf = (box, bit) => `${box.module || "(model)"} / ${box.operator || box.label}: ${box.sides & bit ? kindWords(box) : "no partner here"}`;

function headOf(box, bit, y, wide) { // a sign, a name, and what opens or closes
  const sign = icon((kindAt(box.kind) || { icon: "none" }).icon), letters = Math.floor((wide - (box.inside ? 62 : 44)) / 6.9);
  for (const [key, value] of Object.entries({ x: box.x + 11, y: y - 10, width: 12, height: 12 })) sign.setAttribute(key, value);
  const label = s("text", { class: "name", x: box.x + 29, y }, tail(box.label, Math.max(6, letters)));
  if (!box.inside) return [sign, label];
  const turn = s("g", { "data-toggle": "" }, s("rect", { class: "hit", x: box.x + wide - 34, y: y - 16, width: 30, height: 24 }), s("text", { class: "turn", x: box.x + wide - 19, y }, box.is_open ? "−" : "+"));
  return [sign, label, turn];
}
