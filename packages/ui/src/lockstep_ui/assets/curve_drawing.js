// Curves that each have steps of their own, on one axis; steps that matter are marked.
const shownValue = (value) => (value === null ? NaN : value === "infinite" ? Infinity : value === "-infinite" ? -Infinity : value);

function curveBox(canvas, height) { return { x: 60, y: 10, wide: canvas.clientWidth - 72, high: height - 32 }; }

function curveAxes(drawn) {
  const within = (one) => !drawn.range || (one >= drawn.range[0] && one <= drawn.range[1]);
  const steps = drawn.lines.flatMap((one) => one.steps.filter(within)), values = drawn.lines.flatMap((one) => one.values.filter((_, i) => within(one.steps[i])));
  const across = drawn.range ? { log: false, low: drawn.range[0], high: Math.max(drawn.range[1], drawn.range[0] + 1) } : axisOf(steps, false);
  return [across, axisOf(values, drawn.log), steps];
}

function drawCurves(canvas, drawn) {
  const [pen, width, height] = sharp(canvas, drawn.high), box = curveBox(canvas, height), [across, axis, steps] = curveAxes(drawn);
  pen.clearRect(0, 0, width, height);
  if (!axis || !across) { write(pen, drawn.empty, width / 2, height / 2, "ink-3", "center"); return; }
  drawGrid(pen, box, axis, 5);
  for (const [value, words] of wholeTicks(ticksOf(across, Math.max(2, box.wide / 90)), steps)) write(pen, words, box.x + box.wide * shareOf(across, value), height - 6, "ink-3", "center");
  pen.save();
  pen.beginPath();
  pen.rect(box.x, box.y - 4, box.wide, box.high + 8);
  pen.clip();
  for (const line of drawn.lines) drawCurve(pen, line, box, across, axis, drawn.log);
  for (const mark of drawn.marks) drawMark(pen, mark, box, across);
  if (drawn.at !== undefined) { pen.fillStyle = paint("ink-3"); pen.fillRect(box.x + box.wide * shareOf(across, drawn.at), box.y, 1, box.high); }
  if (drawn.held) { pen.globalAlpha = 0.12; pen.fillStyle = paint("accent"); pen.fillRect(Math.min(...drawn.held), box.y, Math.abs(drawn.held[1] - drawn.held[0]), box.high); }
  pen.restore();
}

function drawCurve(pen, line, box, across, axis, log) {
  pen.strokeStyle = pen.fillStyle = paint(lineColour(line.colour));
  pen.setLineDash(line.colour ? [6, 3] : []);
  pen.lineWidth = 1.6;
  pen.beginPath();
  let open = false;
  line.values.forEach((value, i) => {
    if (!Number.isFinite(value) || (log && value <= 0)) { open = false; return; }
    const x = box.x + box.wide * shareOf(across, line.steps[i]), y = box.y + box.high * (1 - shareOf(axis, value));
    if (open) pen.lineTo(x, y); else pen.moveTo(x, y);
    if (line.steps.length < 60) pen.fillRect(x - 1.5, y - 1.5, 3, 3);
    open = true;
  });
  pen.stroke();
  pen.setLineDash([]);
}

function drawMark(pen, mark, box, across) { // a line with a word: colour alone says nothing
  const x = box.x + box.wide * shareOf(across, mark.step), right = x > box.x + box.wide * 0.75;
  pen.strokeStyle = paint(mark.colour);
  pen.lineWidth = 1.4;
  pen.setLineDash(mark.dashed ? [2, 3] : []);
  pen.beginPath(); pen.moveTo(x, box.y); pen.lineTo(x, box.y + box.high); pen.stroke();
  pen.setLineDash([]);
  write(pen, mark.words, x + (right ? -4 : 4), box.y + 10 + 13 * mark.row, mark.colour, right ? "right" : "left", true);
}

// Hovering tells the numbers, a click goes on with a step, dragging shows a part, a double click all.
function wireCurves(canvas, drawn, tell, pick, redraw) {
  const stepAt = (event) => {
    const [across, , steps] = curveAxes(drawn), box = curveBox(canvas, drawn.high);
    if (!across || !steps.length) return undefined;
    const wanted = across.low + ((event.offsetX - box.x) / box.wide) * (across.high - across.low);
    return steps.reduce((best, one) => (Math.abs(one - wanted) < Math.abs(best - wanted) ? one : best), steps[0]);
  };
  let from = null;
  canvas.addEventListener("pointerdown", (event) => { from = event.offsetX; });
  canvas.addEventListener("pointermove", (event) => {
    drawn.at = stepAt(event);
    drawn.held = from !== null && event.buttons & 1 && Math.abs(event.offsetX - from) > 6 ? [from, event.offsetX] : null;
    if (drawn.at !== undefined) tell(drawn.at);
    redraw();
  });
  canvas.addEventListener("pointerleave", () => { drawn.at = undefined; drawn.held = null; from = null; redraw(); });
  canvas.addEventListener("pointerup", (event) => {
    const { held } = drawn, [across] = curveAxes(drawn), box = curveBox(canvas, drawn.high);
    from = null;
    drawn.held = null;
    if (held && across) {
      const stepOf = (x) => across.low + ((x - box.x) / box.wide) * (across.high - across.low);
      drawn.range = [Math.min(...held), Math.max(...held)].map(stepOf);
    } else { const step = stepAt(event); if (step !== undefined) pick(step); }
    redraw();
  });
  canvas.addEventListener("dblclick", () => { drawn.range = null; redraw(); });
}
