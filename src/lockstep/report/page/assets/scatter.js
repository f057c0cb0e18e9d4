// One metric over execution order, a dot a row; dragging filters the rows to a range.
const scatter = { area: null, canvas: null, drag: null };

function mountScatter(area, place) {
  scatter.area = area;
  if (!rows || !rows.count) { place.append(h("header", null, h("h2", null, area.title)), h("p", { class: "empty" }, area.empty)); return; }
  state.metric = area.metrics[0].column;
  const select = h("select", { class: "field", "aria-label": "Metric", id: "metric" }, area.metrics.map((one) => h("option", { value: one.column }, one.title)));
  select.addEventListener("change", () => { state.metric = select.value; drawOne(scatter.canvas); });
  const axis = h("span");
  const drawAxis = () => axis.replaceChildren(segments("Axis", [["log", "log"], ["linear", "linear"]], state.log ? "log" : "linear", (one) => setLog(one === "log")));
  scatter.drawAxis = drawAxis;
  scatter.canvas = h("canvas", { role: "img", "aria-label": `${area.title}; the table below has the same rows` });
  keepDrawn(scatter.canvas, drawScatter);
  const all = h("button", { type: "button", class: "btn", hidden: true, onclick: () => change({ range: null }) }, "Whole range");
  place.append(h("header", null, h("h2", null, area.title), all, select, axis), h("div", { class: "scatter" }, scatter.canvas));
  drawAxis();
  brush(scatter.canvas);
  onRow(() => drawOne(scatter.canvas));
  onView(() => { all.hidden = !state.range; drawOne(scatter.canvas); });
}

function setLog(log) {
  state.log = log;
  scatter.drawAxis();
  drawOne(scatter.canvas);
}

function nextMetric() {
  const { metrics } = scatter.area, select = byId("metric");
  select.selectedIndex = (select.selectedIndex + 1) % metrics.length;
  select.dispatchEvent(new Event("change"));
}

// A cosine is shown as how far it is from 1, so that small is good on every axis.
function metricValue(metric, column, row) {
  const value = column[row];
  return metric.falling ? Math.max(0, 1 - value) : value;
}

function drawScatter() {
  const { canvas, area } = scatter, [pen, width, height] = sharp(canvas, 216);
  const metric = area.metrics.find((one) => one.column === state.metric), column = columns.get(metric.column);
  const value = (row) => metricValue(metric, column, row);
  pen.clearRect(0, 0, width, height);
  const range = state.range && state.range[1] > state.range[0] ? state.range : [0, Math.max(1, rows.count - 1)];
  const axis = axisOf(Float64Array.from({ length: rows.count }, (_, row) => value(row)), state.log) || { log: state.log, low: -1, high: 1 };
  const box = { x: 52, y: 10, wide: width - 62, high: height - 58 };
  const rail = box.y + box.high + 8; // below a logarithmic axis lies what is equal
  Object.assign(scatter, { box, range });
  drawGrid(pen, box, axis);
  if (state.log) write(pen, "equal", box.x - 6, rail + 6, "ink-3", "right");
  drawSteps(pen, box, range, height);
  if (rows.scaled && metric.column === rows.value && (!state.log || axis.low <= 0)) drawLimit(pen, box, axis);
  const xOf = (row) => box.x + (box.wide * (row - range[0])) / (range[1] - range[0]);
  const yOf = (one) => (state.log && one === 0 ? rail + 2 : box.y + box.high * (1 - Math.min(1, shareOf(axis, one))));
  scatter.at = { xOf, yOf, value };
  drawDots(pen, range, xOf, yOf, value, box, rail);
  drawChosen(pen, xOf, yOf, value, box);
  if (scatter.drag) { pen.fillStyle = paint("accent"); pen.globalAlpha = 0.15; pen.fillRect(Math.min(...scatter.drag), box.y, Math.abs(scatter.drag[1] - scatter.drag[0]), box.high); pen.globalAlpha = 1; }
}

function drawSteps(pen, box, range, height) { // where phases and steps begin; a phase is named where its name fits
  const xOf = (row) => box.x + (box.wide * (row - range[0])) / (range[1] - range[0]);
  const few = range[1] - range[0] < 20000;
  let free = 0, step = null;
  for (const [from, to] of phaseRuns(range)) {
    const x = xOf(from), words = shortPhase(cell("phase", from)), isStep = code("step", from) !== step;
    step = code("step", from);
    pen.fillStyle = paint("line");
    if (isStep || few) pen.fillRect(Math.round(x), box.y, 1, box.high);
    if (pen.measureText(words).width < xOf(to) - x) write(pen, words, x + 2, height - 22, "ink-3");
    if (!isStep || x < free) continue;
    write(pen, `step ${cell("step", from)}`, x + 2, height - 7, "ink-3");
    free = x + pen.measureText(`step ${cell("step", from)}`).width + 14;
  }
}

function phaseRuns(range) { // first row and the one behind the last of each phase
  const runs = [], key = (row) => code("step", row) * 64 + code("phase", row);
  for (let row = range[0], from = row; row <= range[1]; row++) {
    if (row < range[1] && key(row + 1) === key(from)) continue;
    runs.push([from, row + 1]);
    from = row + 1;
  }
  return runs;
}

function drawLimit(pen, box, axis) {
  const y = box.y + box.high * (1 - shareOf(axis, 1));
  pen.strokeStyle = paint("agree");
  pen.setLineDash([4, 3]);
  pen.beginPath(); pen.moveTo(box.x, y); pen.lineTo(box.x + box.wide, y); pen.stroke();
  pen.setLineDash([]);
  write(pen, rows.unit.replace("× ", ""), box.x + 4, y - 4, "agree");
}

function drawDots(pen, range, xOf, yOf, value, box, rail) {
  const many = range[1] - range[0] > 12000, size = many ? 1.5 : 3;
  const taken = new Set(); // of many dots in one place one is drawn
  for (let row = range[0]; row <= range[1]; row++) {
    const one = value(row);
    if (Number.isNaN(one) || rows.isMarked[row]) continue;
    const x = xOf(row), y = one === Infinity ? box.y : yOf(one), place = Math.round(x) * 4096 + Math.round(y) + (shown[row] ? 2 ** 31 : 0);
    if (taken.has(place)) continue;
    taken.add(place);
    pen.globalAlpha = shown[row] ? 1 : 0.12;
    const colour = rowColour(row);
    if (state.log && one === 0) { pen.fillStyle = paint("r-eq"); pen.fillRect(x - 1, rail, 2, 5); }
    else if (!many && kindOf(row).colour === "inherited") { pen.strokeStyle = colour; pen.beginPath(); pen.arc(x, y, 2.2, 0, 7); pen.stroke(); }
    else { pen.fillStyle = colour; pen.fillRect(x - size / 2, y - size / 2, size, size); }
  }
  pen.globalAlpha = 1;
  for (const row of rows.marked) if (row >= range[0] && row <= range[1]) downTriangle(pen, xOf(row), Number.isNaN(value(row)) ? box.y : Math.max(box.y, yOf(value(row))), 5, true, paint("fault"));
}

function drawChosen(pen, xOf, yOf, value, box) {
  const { row } = state, x = xOf(row);
  if (row < 0 || x < box.x || x > box.x + box.wide) return;
  pen.fillStyle = pen.strokeStyle = paint("accent");
  pen.fillRect(Math.round(x), box.y, 1, box.high);
  const one = value(row);
  if (Number.isNaN(one)) return;
  pen.lineWidth = 2;
  pen.beginPath(); pen.arc(x, Math.max(box.y, yOf(one)), 7, 0, 7); pen.stroke();
  pen.lineWidth = 1;
}

function brush(canvas) {
  const xOf = (event) => Math.max(scatter.box.x, Math.min(scatter.box.x + scatter.box.wide, event.clientX - canvas.getBoundingClientRect().left));
  const rowOf = (x) => Math.round(scatter.range[0] + ((x - scatter.box.x) / scatter.box.wide) * (scatter.range[1] - scatter.range[0]));
  canvas.addEventListener("pointerdown", (event) => { scatter.drag = [xOf(event), xOf(event)]; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => { if (scatter.drag) { scatter.drag[1] = xOf(event); drawOne(canvas); } });
  canvas.addEventListener("pointercancel", () => { scatter.drag = null; drawOne(canvas); });
  canvas.addEventListener("pointerup", (event) => {
    if (!scatter.drag) return;
    const [from, to] = [...scatter.drag].sort((a, b) => a - b);
    scatter.drag = null;
    if (to - from > 6) change({ range: [rowOf(from), rowOf(to)] });
    else choose(nearestDot(event, canvas));
  });
}

function nearestDot(event, canvas) {
  const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top, { xOf, yOf, value } = scatter.at;
  let best = -1, least = 900;
  for (let row = scatter.range[0]; row <= scatter.range[1]; row++) {
    const dx = xOf(row) - x;
    if (Math.abs(dx) > 30 || !shown[row]) continue;
    const one = value(row), dy = (Number.isNaN(one) ? 0 : Math.max(scatter.box.y, yOf(one))) - y;
    const far = (dx * dx + dy * dy) * (rows.isMarked[row] ? 0.3 : 1);
    if (far < least) { least = far; best = row; }
  }
  return best;
}
