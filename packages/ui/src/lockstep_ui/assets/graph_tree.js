// The same as a tree for keys and screen readers; lines are asked for as they come into sight.
const LINE = 26, CHUNK = 200;
const lines = { list: null, body: null, known: new Map(), count: 0, version: 0, waiting: new Set() };

function mountGraphTree(place) {
  lines.body = h("div", { class: "lines" });
  lines.list = h("div", { class: "tree", role: "tree", tabindex: 0, id: "lines", "aria-label": "Modules and operators of both runs" }, lines.body);
  place.append(h("section", { class: "card tree-card", "aria-label": "Tree" }, h("header", null, h("h2", null, "Modules and operators"),
    h("button", { type: "button", class: "btn", onclick: () => saying(openAll)(true) }, "Open all"), h("button", { type: "button", class: "btn", onclick: () => saying(openAll)(false) }, "Close all")), lines.list));
  lines.list.addEventListener("scroll", () => requestAnimationFrame(drawLines), { passive: true });
  lines.list.addEventListener("keydown", lineKey);
  lines.list.addEventListener("click", (event) => {
    const row = event.target.closest("[data-node]");
    if (!row) return;
    const node = Number(row.dataset.node);
    if (event.target.closest(".tw")) saying(toggle)(node); else saying(choose)(node);
  });
  new ResizeObserver(drawLines).observe(lines.list);
  graphListeners.tree.push(() => { lines.known.clear(); lines.waiting.clear(); lines.version++; revealLine(); drawLines(); });
}

const inSight = () => [Math.max(0, Math.floor(lines.list.scrollTop / LINE) - 4), Math.ceil((lines.list.scrollTop + lines.list.clientHeight) / LINE) + 4];

function revealLine() {
  const top = graph.line * LINE, { list } = lines;
  lines.body.style.setProperty("height", Math.max(lines.count, graph.line + 1) * LINE + "px");
  if (top < list.scrollTop + LINE || top > list.scrollTop + list.clientHeight - 2 * LINE) list.scrollTop = Math.max(0, top - list.clientHeight / 3);
}

async function fetchLines(chunk) {
  const { version } = lines;
  lines.waiting.add(chunk);
  const found = await askGraph("tree", { open: graph.text, first: chunk * CHUNK, count: CHUNK });
  if (version !== lines.version) return;
  lines.count = found.count;
  found.lines.forEach((line, i) => lines.known.set(chunk * CHUNK + i, line));
  drawLines();
}

function drawLines() {
  if (!graph.count) return;
  const [from, until] = inSight(), to = Math.min(until, lines.count || until), shown = [];
  lines.body.style.setProperty("height", Math.max(lines.count, lines.known.size ? 0 : graph.line + 1) * LINE + "px");
  for (let at = from; at < to; at++) {
    const line = lines.known.get(at);
    if (line) shown.push(lineElement(line, at));
    else if (!lines.waiting.has(Math.floor(at / CHUNK))) saying(fetchLines)(Math.floor(at / CHUNK));
  }
  lines.body.replaceChildren(...shown);
  const active = shown.find((one) => one.getAttribute("aria-selected") === "true");
  if (active) lines.list.setAttribute("aria-activedescendant", active.id); else lines.list.removeAttribute("aria-activedescendant");
}

const SIDES = { 1: "reference alone", 2: "candidate alone" };

function lineElement(line, at) {
  const kind = kindAt(line.kind), words = [kind ? kind.name : "", SIDES[line.sides]].filter(Boolean).join(", ");
  return h("div", {
    class: "node line", role: "treeitem", id: `line-${line.node}`, "data-node": line.node, "data-colour": kind ? kind.colour : "none", "aria-level": line.depth + 1,
    "aria-expanded": line.inside ? line.is_open : null, "aria-selected": line.node === graph.node, "aria-label": `${line.label}: ${words}`, title: tail(`${line.module || "(model)"} / ${line.operator}`, 300),
    style: { "--d": Math.min(line.depth, 12), top: at * LINE + "px" },
  }, h("span", { class: "n" }, h("span", { class: "tw" }, line.inside ? (line.is_open ? "▾" : "▸") : ""), h("span", { class: "sign" }, icon(kind ? kind.icon : "none")), name(tail(line.label, 60))),
  h("span", { class: "of" }, SIDES[line.sides] ? (line.sides === 1 ? "ref" : "cand") : line.inside ? String(line.inside) : ""));
}

function lineKey(event) {
  const line = lines.known.get(graph.line), go = (at) => { const to = lines.known.get(at); if (to) saying(choose)(to.node); };
  if (!line) return;
  const above = () => { let at = graph.line; while (at > 0 && (lines.known.get(at) || { depth: 0 }).depth >= line.depth) at--; return at; };
  const acts = {
    ArrowDown: () => go(graph.line + 1), ArrowUp: () => go(graph.line - 1), Home: () => go(0), End: () => go(lines.count - 1),
    ArrowRight: () => { if (!line.inside) return; if (line.is_open) go(graph.line + 1); else saying(toggle)(line.node); },
    ArrowLeft: () => { if (line.inside && line.is_open) saying(toggle)(line.node); else go(above()); },
    Enter: () => saying(choose)(line.node), " ": () => line.inside && saying(toggle)(line.node),
  };
  if (!acts[event.key]) return;
  event.preventDefault();
  acts[event.key]();
}
