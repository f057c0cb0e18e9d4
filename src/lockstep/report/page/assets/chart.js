// Axes, curves and points on a canvas.
function axisOf(values, log) { // the range of what can be drawn
  let low = Infinity, high = -Infinity;
  for (const one of values) {
    if (!Number.isFinite(one) || (log && one <= 0)) continue;
    if (one < low) low = one;
    if (one > high) high = one;
  }
  if (low > high) return null;
  if (log) return { log, low: Math.floor(Math.log10(low) - 0.01), high: Math.ceil(Math.log10(high) + 0.01) };
  const room = (high - low || Math.abs(high) || 1) * 0.05;
  return { log, low: low - room, high: high + room };
}

const shareOf = (axis, value) => ((axis.log ? Math.log10(value) : value) - axis.low) / (axis.high - axis.low);

function axisFigure(value, step) { // as many digits as tell neighbours apart
  const size = Math.abs(value);
  if (size < step / 2) return "0";
  const digits = Math.min(15, Math.max(1, Math.floor(Math.log10(size) + 1e-9) - Math.floor(Math.log10(step) + 1e-9) + 1)), rounded = +value.toPrecision(digits);
  return size >= 0.001 && size < 1e5 ? String(rounded) : rounded.toExponential().replace("e+", "e");
}

function ticksOf(axis, most) {
  const span = axis.high - axis.low;
  if (axis.log) {
    const step = Math.max(1, Math.ceil(span / most));
    const found = [];
    for (let at = Math.ceil(axis.low / step) * step; at <= axis.high; at += step) found.push([10 ** at, at > -3 && at < 4 ? String(+(10 ** at).toPrecision(1)) : "1e" + at]);
    return found;
  }
  const rough = span / most, size = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].find((one) => one * size >= rough) * size;
  const found = [];
  for (let at = Math.ceil(axis.low / step) * step; at <= axis.high + step * 1e-9; at += step) found.push([at, axisFigure(at, step)]);
  return found;
}

function drawGrid(pen, box, axis, most = 5) {
  for (const [value, words] of ticksOf(axis, most)) {
    const y = box.y + box.high * (1 - shareOf(axis, value));
    if (y < box.y - 1 || y > box.y + box.high + 1) continue;
    pen.fillStyle = paint("line");
    pen.fillRect(box.x, Math.round(y), box.wide, 1);
    write(pen, words, box.x - 6, y + 4, "ink-3", "right");
  }
}

// Between whole numbers, as steps are, no tick stands.
const wholeTicks = (ticks, x) => (Array.from(x).every(Number.isInteger) ? ticks.filter(([at]) => Number.isInteger(+at.toPrecision(9))) : ticks);

const LINES = ["ink-3", "accent", "agree", "unjudged", "r2", "r4", "r1", "noise"];
const lineColour = (number) => LINES[number % LINES.length] === "noise" ? "r-noise" : LINES[number % LINES.length];

function chartBlock(block) {
  const canvas = h("canvas", { role: "img", "aria-label": `${block.title}: ${block.lines.map((one) => one.name).join(", ")}; the numbers stand in the table below` });
  keepDrawn(canvas, () => drawChart(canvas, block));
  const legend = block.lines.length > 1 ? h("div", { class: "legend" }, block.lines.map((one, i) => h("span", null, legendMark(i, one.dashed), name(tail(one.name, 40))))) : null;
  return h("div", { class: "blk" }, h("header", null, h("h3", null, block.title), legend), canvas, h("div", { class: "axis" }, h("span", null, block.x_title)),
    behind([block.x_title || "x", ...block.lines.map((one) => one.name)], () => Array.from(block.x, (x, i) => [x, ...block.lines.map((one) => one.values[i])])));
}

function legendMark(number, dashed) {
  const mark = h("i", { class: "swatch" });
  mark.style.setProperty("border-top", `2px ${dashed ? "dashed" : "solid"} ${paint(lineColour(number))}`);
  return mark;
}

function drawChart(canvas, block) {
  const [pen, width, height] = sharp(canvas, 150);
  const axis = axisOf(block.lines.flatMap((one) => Array.from(one.values)), block.log), across = axisOf(block.x, false);
  pen.clearRect(0, 0, width, height);
  if (!axis || !across) { write(pen, "no finite number", width / 2, height / 2, "ink-3", "center"); return; }
  const box = { x: 56, y: 6, wide: width - 66, high: height - 24 };
  drawGrid(pen, box, axis, 4);
  for (const [value, words] of wholeTicks(ticksOf(across, Math.max(2, box.wide / 80)), block.x)) write(pen, words, box.x + box.wide * shareOf(across, value), height - 4, "ink-3", "center");
  block.lines.forEach((line, number) => {
    pen.strokeStyle = pen.fillStyle = paint(lineColour(number));
    pen.setLineDash(line.dashed ? [5, 3] : []);
    pen.lineWidth = 1.5;
    pen.beginPath();
    let open = false;
    line.values.forEach((value, i) => {
      if (!Number.isFinite(value) || (block.log && value <= 0)) { open = false; return; }
      const x = box.x + box.wide * shareOf(across, block.x[i]), y = box.y + box.high * (1 - shareOf(axis, value));
      if (open) pen.lineTo(x, y); else pen.moveTo(x, y);
      if (line.values.length < 60) pen.fillRect(x - 1.5, y - 1.5, 3, 3);
      open = true;
    });
    pen.stroke();
  });
  pen.setLineDash([]);
}

function pointsBlock(block) { // two samples' quantiles: on the diagonal they are alike
  const canvas = h("canvas", { role: "img", "aria-label": `${block.title}: ${block.y_title} against ${block.x_title}; the numbers stand in the table below` });
  keepDrawn(canvas, () => {
    const [pen, width, height] = sharp(canvas, 150);
    const across = axisOf(block.x, false), axis = axisOf(block.y, false);
    pen.clearRect(0, 0, width, height);
    if (!axis || !across) return;
    const box = { x: 56, y: 6, wide: width - 66, high: height - 24 };
    drawGrid(pen, box, axis, 4);
    for (const [value, words] of ticksOf(across, 4)) write(pen, words, box.x + box.wide * shareOf(across, value), height - 4, "ink-3", "center");
    const at = (x, y) => [box.x + box.wide * shareOf(across, x), box.y + box.high * (1 - shareOf(axis, y))];
    const low = Math.max(across.low, axis.low), high = Math.min(across.high, axis.high);
    pen.strokeStyle = paint("agree"); pen.setLineDash([4, 3]); pen.beginPath(); pen.moveTo(...at(low, low)); pen.lineTo(...at(high, high)); pen.stroke(); pen.setLineDash([]);
    pen.fillStyle = paint("accent");
    block.x.forEach((x, i) => { const [left, top] = at(x, block.y[i]); pen.fillRect(left - 1.5, top - 1.5, 3, 3); });
  });
  return h("div", { class: "blk" }, h("header", null, h("h3", null, block.title)), canvas, h("div", { class: "axis" }, h("span", null, `across: ${block.x_title}; up: ${block.y_title}; dashed: equal`)),
    behind([block.x_title, block.y_title], () => Array.from(block.x, (x, i) => [x, block.y[i]])));
}

// The table behind a picture, made when it is asked for.
function behind(titles, lines) {
  const inside = h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "The numbers of the picture above" });
  const details = h("details", { class: "behind" }, h("summary", null, "As a table"), inside);
  details.addEventListener("toggle", () => { if (details.open && !inside.firstChild) inside.append(gridTable(titles, lines().slice(0, 1000))); });
  return details;
}

function gridTable(titles, lines, off = []) {
  return h("table", { class: "grid numbers" }, h("thead", null, h("tr", null, titles.map((one) => h("th", { scope: "col" }, one)))),
    h("tbody", null, lines.map((line, i) => h("tr", { class: off.includes(i) ? "off" : null }, line.map((one) => h("td", null, name(figure(one))))))));
}
