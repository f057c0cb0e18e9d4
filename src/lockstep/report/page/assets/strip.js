// Every site in execution order, one tick each: where the runs part, and how far that spreads.
const strip = { left: 62, top: 34, gap: 6 };

function mountStrip(area, place) {
  const sub = h("span", { class: "sub" });
  place.append(h("header", null, h("h2", null, area.title, sub), h("div", { class: "chips", role: "group", "aria-label": "Show kinds", id: "chips" })));
  if (!rows || !rows.count) { place.append(h("p", { class: "empty" }, area.empty)); return; }
  const canvas = h("canvas", { tabindex: 0, role: "slider", "aria-label": "Sites in execution order", "aria-valuemin": 1, "aria-valuemax": sites.length });
  const readout = h("div", { class: "readout", "aria-live": "polite" });
  place.append(h("div", { class: "strip-body" }, h("div", { class: "strip-scroll", tabindex: lanes.length > 4 ? 0 : null }, canvas), scale()), readout);
  const draw = keepDrawn(canvas, () => { const isFirst = !canvas.layout; drawStrip(canvas); if (isFirst) showLane(canvas); });
  const tell = () => { sayRow(readout, state.row); sayPlace(canvas); };
  onRow(() => { drawOne(draw); tell(); showLane(canvas); });
  onView(() => { drawOne(draw); drawChips(); sub.textContent = stripWords(); });
  canvas.addEventListener("pointermove", (event) => { const row = rowAt(canvas, event); if (row >= 0) sayRow(readout, row); });
  canvas.addEventListener("pointerleave", tell);
  canvas.addEventListener("click", (event) => choose(rowAt(canvas, event)));
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Home") choose(sites[order[0]].row); else if (event.key === "End") choose(sites[order.at(-1)].row); else return;
    event.preventDefault();
  });
  drawChips();
  sub.textContent = stripWords();
  tell();
}

const stripWords = () => {
  const ranks = columns.get("rank").names.length, steps = new Set(lanes.map((lane) => lane.step)).size;
  return `${whole(sites.length)} sites in execution order${steps > 1 ? `, ${whole(steps)} steps` : ""}${ranks > 1 ? ` of ${ranks} ranks` : ""}`;
};

function showLane(canvas) { // of many steps, the one of the chosen row
  if (state.row < 0 || !canvas.layout) return;
  const inside = canvas.parentElement, top = strip.top + sites[siteOf[state.row]].lane * canvas.layout.pitch;
  if (top < inside.scrollTop + strip.top || top + 2 * canvas.layout.pitch > inside.scrollTop + inside.clientHeight) inside.scrollTop = Math.max(0, top - inside.clientHeight / 2);
}

function drawChips() {
  const counts = new Map([...kinds.keys()].map((one) => [one, 0]));
  for (let row = 0; row < rows.count; row++) { const { name } = kindOf(row); counts.set(name, counts.get(name) + 1); }
  byId("chips").replaceChildren(...[...kinds.values()].filter((kind) => counts.get(kind.name)).map((kind) =>
    h("button", { type: "button", class: "chip", "data-colour": kind.colour, "aria-pressed": state.kinds.has(kind.name), onclick: () => toggleKind(kind.name) },
      icon(kind.icon), kind.name, h("b", null, whole(counts.get(kind.name))))));
}

function toggleKind(kind) {
  const wanted = new Set(state.kinds);
  if (!wanted.delete(kind)) wanted.add(kind);
  change({ kinds: wanted });
  const place = [...byId("chips").children].find((one) => one.textContent.startsWith(kind));
  if (place) place.focus();
}

function scale() {
  if (!rows.scaled) return null;
  const steps = [["r-eq", "0"], ["r-noise", "≤1"], ["r0", "1"], ["r1", "10"], ["r2", "100"], ["r3", "1e3"], ["r4", "1e4"], ["r5", "1e5"]];
  return h("div", { class: "scale" }, "off by", steps.map(([colour, words]) =>
    h("div", null, h("i", { style: { background: `var(--${colour})` } }), words)), `${rows.unit}; paler: inherited`);
}

function sayRow(place, row) {
  if (row < 0) { place.replaceChildren("Nothing is selected."); return; }
  place.replaceChildren(kindLine(row, valueOf(row) > 0 ? h("span", null, ` · ${valueWords(valueOf(row))} ${rows.unit.replace("× ", "its ")}`) : null),
    h("code", null, name(tail(site(row), 90))), h("span", null, `${when(row)} · ${whole(placeOf[siteOf[row]] + 1)} of ${whole(sites.length)} sites`));
}

function sayPlace(canvas) {
  if (state.row < 0) return;
  canvas.setAttribute("aria-valuenow", placeOf[siteOf[state.row]] + 1);
  canvas.setAttribute("aria-valuetext", `${kindOf(state.row).name}, ${site(state.row)}, ${when(state.row)}`);
}

// Where things lie: phases stand below each other in all lanes, as wide as the fullest lane needs.
function stripLayout(width) {
  const most = new Map();
  for (const { parts } of lanes) for (const [phase, found] of parts) most.set(phase, Math.max(most.get(phase) || 0, found.length));
  const phases = PHASES.filter((one) => most.has(one)), sum = phases.reduce((all, one) => all + most.get(one), 0);
  const least = 14, room = Math.max(10, width - strip.left - strip.gap * (phases.length - 1) - least * phases.length);
  let x = strip.left;
  const found = new Map();
  for (const phase of phases) {
    const wide = least + (room * most.get(phase)) / sum;
    found.set(phase, { x, wide, each: wide / most.get(phase) });
    x += wide + strip.gap;
  }
  const tall = lanes.length <= 4 ? 42 : lanes.length <= 200 ? 16 : 5;
  return { phases: found, tall, pitch: tall + (tall > 10 ? (lanes.length <= 4 ? 12 : 4) : 1) };
}

function drawStrip(canvas) {
  const width = canvas.clientWidth;
  const layout = (canvas.layout = stripLayout(width));
  const [pen, , height] = sharp(canvas, strip.top + lanes.length * layout.pitch);
  pen.clearRect(0, 0, width, height);
  let free = 0;
  for (const [phase, { x, wide }] of layout.phases) {
    const words = wide > 70 ? phase : shortPhase(phase);
    pen.font = fonts.bold;
    if (x < free || pen.measureText(words).width > wide + 4) continue;
    write(pen, words, x, 11, "ink-2", "left", true);
    free = x + pen.measureText(words).width + 6;
  }
  lanes.forEach((lane, number) => drawLane(pen, layout, lane, strip.top + number * layout.pitch, number));
  drawMarks(pen, layout, width);
}

function drawLane(pen, layout, lane, y, number) {
  const label = severalRanks() ? `${lane.step}·${columns.get("rank").names[lane.rank]}` : `step ${lane.step}`;
  if (layout.tall > 10 || number % 8 === 0) write(pen, tail(label, 10), 0, y + Math.min(layout.tall, 42) / 2 + 4, "ink-3");
  for (const [phase, found] of lane.parts) {
    const { x, wide, each } = layout.phases.get(phase);
    pen.fillStyle = paint("sunken");
    pen.fillRect(x, y, wide, layout.tall);
    const loudest = new Map(); // narrower than a pixel: the worst is shown
    found.forEach((one, at) => {
      const pixel = each >= 1 ? x + at * each : Math.floor(x + at * each);
      const before = loudest.get(pixel);
      if (before === undefined || louder(sites[one].row, sites[before].row)) loudest.set(pixel, one);
    });
    const broad = each > 3 ? each - 1 : Math.max(1, each);
    for (const [pixel, one] of loudest) drawTick(pen, sites[one].row, pixel, y, broad, layout.tall);
  }
}

function drawTick(pen, row, x, y, broad, tall) {
  const value = valueOf(row);
  if (Number.isNaN(value)) { // not judged: a gap with a dot
    pen.fillStyle = paint("unjudged");
    pen.fillRect(x, y + tall - 3, broad, 2);
    return;
  }
  const share = value === 0 ? 0.16 : value <= 1 ? 0.3 : Math.min(1, 0.36 + 0.13 * Math.log10(value));
  const high = tall <= 16 ? tall : tall * share;
  pen.globalAlpha = shown[row] ? 1 : 0.15;
  pen.fillStyle = rowColour(row);
  pen.fillRect(x, y + tall - high, broad, high);
  pen.globalAlpha = 1;
}

function tickPlace(layout, number) {
  const { lane, phase } = sites[number], part = layout.phases.get(phase);
  return [part.x + (lanes[lane].parts.get(phase).indexOf(number) + 0.5) * part.each, strip.top + lane * layout.pitch];
}

function drawMarks(pen, layout, width) {
  const done = new Set();
  rows.marked.forEach((row, number) => {
    const [x, y] = tickPlace(layout, siteOf[row]);
    if (number > 200 || done.has(siteOf[row])) return;
    done.add(siteOf[row]);
    pen.fillStyle = paint(kindOf(row).colour === "setup" ? "r1" : "fault");
    pen.fillRect(x - 1, y - 3, 2, layout.tall + 3);
    downTriangle(pen, x, y - 5, 5, true, pen.fillStyle);
    if (number === 0) markName(pen, row, x, y, width);
  });
  if (state.row < 0) return;
  const [x, y] = tickPlace(layout, siteOf[state.row]);
  pen.fillStyle = paint("accent");
  pen.beginPath();
  pen.moveTo(x - 5, y + layout.tall + 9); pen.lineTo(x + 5, y + layout.tall + 9); pen.lineTo(x, y + layout.tall + 2);
  pen.fill();
}

function markName(pen, row, x, y, width) {
  const kind = kindOf(row).name, module = moduleOf(row);
  const longer = [`${kind}: ${tail(module, 24)} ${tail(shortOperator(cell("operator", row)), 24)}`, `${kind}: ${tail(module, 24)}`, `${kind}: ${lastParts(module, 8)}`];
  pen.font = fonts.bold;
  const widthOf = (one) => pen.measureText(one).width, room = Math.max(x, width - x) - 10;
  const words = longer.find((one) => widthOf(one) < room) || kind, wide = widthOf(words), left = x + 9 + wide < width;
  pen.fillStyle = paint("surface");
  if (y > strip.top) pen.fillRect(left ? x + 7 : x - 11 - wide, y - 12, wide + 4, 12);
  write(pen, words, left ? x + 9 : x - 9, y - 3, "fault", left ? "left" : "right", true);
}

function rowAt(canvas, event) {
  const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  const { phases, pitch } = canvas.layout, lane = lanes[Math.max(0, Math.min(lanes.length - 1, Math.floor((y - strip.top + 6) / pitch)))];
  for (const [phase, found] of lane.parts) {
    const part = phases.get(phase), at = Math.floor((x - part.x) / part.each);
    if (x < part.x - 3 || x > part.x + part.wide + 3) continue;
    const reach = Math.max(0, Math.ceil(3 / part.each)); // an origin within three pixels wins
    const near = found.slice(Math.max(0, at - reach), at + reach + 1).map((one) => sites[one].row).find((row) => rows.isMarked[row]);
    return near ?? sites[found[Math.max(0, Math.min(found.length - 1, at))]].row;
  }
  return -1;
}
