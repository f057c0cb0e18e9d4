// Parallel coordinates: an axis a setting or a result, a line a run; dragging along an axis filters by it.
const parallel = { canvas: null, axes: [], held: null };

function axesOfRuns() {
  return all.columns.filter((one) => one.isSetting || ["last loss", "lowest loss", "steps"].includes(one.name)).sort((a, b) => !a.isSetting - !b.isSetting).map((column) => {
    const values = all.runs.filter((one) => !one.problem).map(column.of).filter((one) => one != null);
    const numbers = values.length > 0 && values.every((one) => typeof one === "number"), names = numbers ? [] : [...new Set(values.map(String))].sort();
    const log = numbers && values.every((one) => one > 0) && Math.max(...values) / Math.min(...values) > 50;
    const scaled = values.map((one) => (log ? Math.log10(one) : one));
    return { column, numbers, names, log, low: numbers ? Math.min(...scaled) : 0, high: numbers ? Math.max(...scaled) : Math.max(1, names.length - 1), count: new Set(values.map(String)).size };
  }).filter((one) => one.count > 1).slice(0, 10);
}

function axisValue(columnName, run) { // from 0 below to 1 above; null where a run has none
  const axis = parallel.axes.find((one) => one.column.name === columnName), value = run.problem || !axis ? null : axis.column.of(run);
  if (value == null) return null;
  const at = axis.numbers ? (axis.log ? Math.log10(value) : value) : axis.names.indexOf(String(value));
  return axis.high > axis.low ? (at - axis.low) / (axis.high - axis.low) : 0.5;
}

function drawParallel(place) {
  parallel.axes = axesOfRuns();
  place.hidden = parallel.axes.length < 2;
  if (place.hidden) { place.replaceChildren(); return; }
  const canvas = h("canvas", { role: "img", "aria-label": `Settings and results of all runs: ${parallel.axes.map((one) => one.column.name).join(", ")}; the table above holds the numbers` });
  parallel.canvas = canvas;
  canvas.style.setProperty("min-width", `${160 + 90 * (parallel.axes.length - 1)}px`); // on a phone it is scrolled, not pressed together
  keepDrawn(canvas, () => paintParallel(canvas));
  wireParallel(canvas);
  place.replaceChildren(h("header", null, h("h2", null, "Settings and results"), h("span", { class: "dim" }, "drag along an axis to filter"), all.ranges.size ? h("button", { type: "button", class: "btn", onclick: clearRuns }, "Clear the filter") : null), h("div", { class: "curve lines" }, canvas));
  drawOne(canvas);
}

const parallelBox = (canvas) => ({ top: 34, high: 190, x: (i) => 70 + (i * (canvas.clientWidth - 160)) / Math.max(1, parallel.axes.length - 1) });

function paintParallel(canvas) {
  const [pen, width, height] = sharp(canvas, 250), box = parallelBox(canvas);
  pen.clearRect(0, 0, width, height);
  const seen = new Set(seenRuns().map((one) => one.key)), runs = all.runs.filter((one) => !one.problem);
  for (const pass of [0, 1, 2]) for (const run of runs) { // what is filtered out lies below, what is picked above
    const isPicked = run.key === all.picked || run.key === all.reference, own = isPicked ? 2 : seen.has(run.key) ? 1 : 0;
    if (own === pass) paintRun(pen, run, box, own);
  }
  const letters = Math.max(6, Math.floor((width - 160) / Math.max(1, parallel.axes.length - 1) / 7));
  parallel.axes.forEach((axis, i) => {
    const x = box.x(i), range = all.ranges.get(axis.column.name);
    pen.fillStyle = paint("line-strong");
    pen.fillRect(x, box.top, 1, box.high);
    write(pen, tail(axis.column.name, letters), x, 14, "ink", "center", true);
    const ends = axis.numbers ? [[1, figure(axis.log ? 10 ** axis.high : axis.high)], [0, figure(axis.log ? 10 ** axis.low : axis.low)]] : axis.names.slice(0, 12).map((one, at) => [axis.names.length > 1 ? at / (axis.names.length - 1) : 0.5, tail(one, letters)]);
    for (const [share, words] of ends) write(pen, words, x + 5, box.top + box.high * (1 - share) + (share === 1 ? -4 : share === 0 ? 13 : 4), "ink-2");
    if (range) { pen.globalAlpha = 0.25; pen.fillStyle = paint("accent"); pen.fillRect(x - 7, box.top + box.high * (1 - range[1]), 15, Math.max(3, box.high * (range[1] - range[0]))); pen.globalAlpha = 1; }
  });
}

function paintRun(pen, run, box, own) {
  pen.strokeStyle = paint(own === 2 ? (run.key === all.reference ? "ink" : "fault") : own === 1 ? "accent" : "line");
  pen.lineWidth = own === 2 ? 2.4 : 1.3;
  pen.globalAlpha = own === 1 ? 0.75 : 1;
  pen.beginPath();
  let open = false;
  parallel.axes.forEach((axis, i) => {
    const at = axisValue(axis.column.name, run);
    if (at === null) { open = false; return; }
    const y = box.top + box.high * (1 - at);
    if (open) pen.lineTo(box.x(i), y); else pen.moveTo(box.x(i), y);
    if (!open || i === parallel.axes.length - 1) pen.arc(box.x(i), y, 1.5, 0, 7);
    open = true;
  });
  pen.stroke();
  pen.globalAlpha = 1;
}

function wireParallel(canvas) {
  const shareAt = (event) => { const box = parallelBox(canvas); return Math.max(0, Math.min(1, 1 - (event.offsetY - box.top) / box.high)); };
  const axisAt = (event) => { const box = parallelBox(canvas), near = parallel.axes.map((one, i) => [Math.abs(box.x(i) - event.offsetX), one]).sort((a, b) => a[0] - b[0])[0]; return near && near[0] < 24 ? near[1] : null; };
  canvas.addEventListener("pointerdown", (event) => { const axis = axisAt(event); if (axis) { parallel.held = { axis, from: shareAt(event) }; canvas.setPointerCapture(event.pointerId); } });
  canvas.addEventListener("pointermove", (event) => {
    const { held } = parallel;
    canvas.style.setProperty("cursor", axisAt(event) ? "ns-resize" : "default");
    if (!held) return;
    const to = shareAt(event);
    all.ranges.set(held.axis.column.name, [Math.min(held.from, to), Math.max(held.from, to)]);
    drawOne(canvas);
  });
  canvas.addEventListener("pointerup", (event) => {
    const { held } = parallel;
    parallel.held = null;
    if (!held) return;
    if (Math.abs(shareAt(event) - held.from) < 0.02) all.ranges.delete(held.axis.column.name);
    drawRuns();
  });
}

function pickRun(key) {
  all.picked = key;
  if (parallel.canvas && parallel.canvas.isConnected) drawOne(parallel.canvas);
}
