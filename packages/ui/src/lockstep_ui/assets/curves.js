// The page of curves: which runs, which number, the curves, their difference, and where they part.
const curves = { runs: [], chosen: [], name: "loss", names: [], data: null, log: false, states: new Map(), most: 8 };
const runName = (key) => (curves.runs.find((one) => one.key === key) || { name: key }).name;

async function start() {
  const place = byId("curves");
  place.append(h("p", { id: "said", class: "said", role: "alert", hidden: true }), h("section", { class: "card picker", id: "picker", "aria-label": "Runs" }), h("section", { class: "card chart-card", id: "chart", "aria-label": "Curves" }));
  const asked = new URLSearchParams(location.search), listed = await askFor("runs");
  Object.assign(curves, { runs: listed.runs, name: asked.get("name") || "loss" });
  const known = new Set(listed.runs.filter((one) => !one.problem).map((one) => one.key));
  curves.chosen = (asked.get("runs") || "").split(",").filter((one) => known.has(one)).slice(0, curves.most);
  if (!curves.chosen.length) curves.chosen = listed.runs.filter((one) => !one.problem).slice(0, 2).map((one) => one.key).reverse();
  mountClientKeys([["l", "logarithmic or linear", () => { curves.log = !curves.log; drawPage(); }], ["g", "to the graph at the first differing step", toFirst]]);
  drawPicker();
  await saying(showChosen)();
}

function drawPicker() {
  const lines = curves.runs.map((run) => {
    const at = curves.chosen.indexOf(run.key), box = h("input", { type: "checkbox", checked: at >= 0, disabled: Boolean(run.problem) || (at < 0 && curves.chosen.length >= curves.most) });
    box.addEventListener("change", () => { curves.chosen = box.checked ? [...curves.chosen, run.key] : curves.chosen.filter((one) => one !== run.key); drawPicker(); saying(showChosen)(); });
    const first = at > 0 ? h("button", { type: "button", class: "link first", onclick: (event) => { event.preventDefault(); curves.chosen = [run.key, ...curves.chosen.filter((one) => one !== run.key)]; drawPicker(); saying(showChosen)(); } }, "as reference") : at === 0 ? h("span", { class: "first dim" }, "reference") : null;
    return h("label", { class: run.problem ? "off" : null, title: run.problem || tail(run.name, 200) }, box, at >= 0 ? legendMark(at, at > 0) : null, name(tail(run.name, 60)), first);
  });
  byId("picker").replaceChildren(h("header", null, h("h2", null, "Runs"), h("span", { class: "dim" }, `up to ${curves.most}`)), h("div", { class: "scroll" }, lines.length ? lines : h("p", { class: "muted" }, "No recording lies there.")));
}

async function showChosen() {
  const runs = curves.chosen.join(",");
  curves.data = null;
  history.replaceState(null, "", "?" + new URLSearchParams({ runs, name: curves.name }));
  if (!runs) { byId("chart").replaceChildren(h("p", { class: "empty" }, "Choose a run.")); return; }
  const { names } = await askFor("curves/names", { runs });
  curves.names = names;
  if (names.length && !names.includes(curves.name)) curves.name = names[0];
  const data = await askFor("curves/data", { runs, name: curves.name });
  if (runs !== curves.chosen.join(",")) return;
  curves.data = data;
  drawPage();
  curves.chosen.slice(1).forEach(judge);
}

function judge(run) { // what is noise, only comparing can tell; it is asked for once
  const reference = curves.chosen[0], key = `${reference}/${run}`;
  if (curves.states.has(key) || curves.name !== "loss" || curves.isJudging) return;
  curves.states.set(key, {});
  curves.isJudging = true; // one after the other: each takes a process of its own
  listenTo(`compare/${key}/graph/events`, (state) => {
    const told = curves.states.get(key);
    curves.states.set(key, state);
    if (!state.progress || !told.progress) drawPage(); else tellProgress(run, state);
    if (state.progress) return "";
    curves.isJudging = false;
    curves.chosen.slice(1).forEach(judge);
    return "done";
  });
}

function tellProgress(run, state) { // without drawing all again
  const place = document.querySelector(`[data-progress="${run}"]`);
  if (place) place.textContent = ` ${state.progress.progress}`;
}

function drawPage() {
  const { data } = curves;
  if (!data) return;
  const select = h("select", { class: "field", "aria-label": "What is shown", id: "scalar" }, curves.names.map((one) => h("option", { value: one, selected: one === curves.name }, tail(one, 90))));
  select.addEventListener("change", () => { curves.name = select.value; saying(showChosen)(); });
  const readout = h("p", { class: "readout", role: "status" }, "Hover for numbers, click a step for its graph, drag for a part, double click for all.");
  const tell = (step) => readout.replaceChildren(h("b", null, `step ${step}`), ...data.lines.flatMap((line) => { const at = line.steps.indexOf(step); return at < 0 ? [] : [h("span", null, legendMark(curves.chosen.indexOf(line.run), curves.chosen.indexOf(line.run) > 0), name(tail(line.name, 30)), ` ${exactly(shownValue(line.values[at]))}`)]; }));
  const lines = data.lines.map((one) => ({ steps: one.steps, values: one.values.map(shownValue), colour: curves.chosen.indexOf(one.run) }));
  const apart = data.partings.map((one) => ({ steps: one.steps, values: one.values.map(shownValue), colour: curves.chosen.indexOf(one.run) }));
  const marks = marksOf(data);
  const main = { lines, marks, log: curves.log, high: 280, range: null, empty: "no finite number" }, below = { lines: apart, marks, log: false, high: 150, range: null, empty: "nothing to subtract: choose a second run" };
  const pictures = [main, below].map((drawn, i) => {
    const canvas = h("canvas", { role: "img", "aria-label": i ? "Difference to the reference; the numbers stand in the table below" : `${curves.name} of ${data.lines.map((one) => one.name).join(", ")}; the numbers stand in the table below` });
    keepDrawn(canvas, () => drawCurves(canvas, drawn));
    return canvas;
  });
  [main, below].forEach((drawn, i) => wireCurves(pictures[i], drawn, tell, pick, () => { const other = i ? main : below; other.range = drawn.range; other.at = drawn.at; pictures.forEach(drawOne); }));
  byId("chart").replaceChildren(
    h("header", null, h("h2", null, "Curves"), select, segments("Scale", [[false, "linear"], [true, "log"]], curves.log, (one) => { curves.log = one; drawPage(); })),
    h("div", { class: "partings" }, h("div"), data.partings.map(partingLine)),
    h("div", { class: "curve" }, pictures[0], h("div", { class: "axis" }, h("span", null, `${curves.name} over steps`))), readout,
    h("div", { class: "curve", hidden: curves.chosen.length < 2 }, h("h3", null, `Difference to ${runName(curves.chosen[0])}`), pictures[1],
      behind(["step", ...data.lines.map((one) => `${one.name} ${one.rank}`)], () => tableLines(data))));
  pictures.forEach(drawOne);
}

const exactly = (value) => (Number.isFinite(value) ? String(value) : figure(value)); // all digits: two runs may part in the last one

function tableLines(data) {
  const steps = [...new Set(data.lines.flatMap((one) => one.steps))].sort((a, b) => a - b), held = data.lines.map((one) => new Map(one.steps.map((step, i) => [step, one.values[i]])));
  return steps.map((step) => [step, ...held.map((one) => { const value = one.has(step) ? shownValue(one.get(step)) : NaN; return Number.isFinite(value) ? exactly(value) : value; })]);
}

const stateOf = (run) => curves.states.get(`${curves.chosen[0]}/${run}`) || {};
const beyondOf = (run) => { const { answer } = stateOf(run); return curves.name === "loss" && answer ? answer.loss : null; };

function marksOf(data) {
  const marks = [];
  for (const one of data.partings) {
    if (one.first === null) continue;
    marks.push({ step: one.first, words: `bits differ from step ${one.first}`, colour: "accent", dashed: true, row: marks.length % 4 });
    const beyond = beyondOf(one.run);
    if (beyond && beyond.step !== null) marks.push({ step: beyond.step, words: `beyond noise from step ${beyond.step}`, colour: "fault", dashed: false, row: marks.length % 4 });
  }
  return marks;
}

function partingLine(one) {
  const reference = curves.chosen[0], { answer, failed, progress } = stateOf(one.run), beyond = beyondOf(one.run), recorded = answer ? new Set(answer.steps.filter((two) => two.rank === one.rank).map((two) => two.step)) : new Set();
  const bits = !one.shared ? "the two share no step" : one.first === null ? `equal bit by bit at all ${whole(one.shared)} shared steps` : `the bits first differ at step ${one.first}`;
  const noise = curves.name !== "loss" ? "only losses are judged as noise or fault" : failed ? `could not be compared: ${failed}` : !answer ? `comparing, to tell noise from fault`
    : beyond.step !== null ? `step ${beyond.step} has the first loss that noise cannot explain (${beyond.words})` : beyond.judged ? `all ${whole(beyond.judged)} judged losses agree within noise` : "no loss was judged";
  const link = (step, words) => h("a", { href: `compare/${reference}/${one.run}/graph#${new URLSearchParams({ rank: one.rank, step })}` }, words);
  const first = one.first === null ? null : recorded.size && !recorded.has(one.first) ? h("span", { class: "dim" }, `step ${one.first} was not recorded: record --steps ${Math.max(0, one.first - 1)}:${one.first + 2}`) : link(one.first, `Graph at step ${one.first}`);
  const origin = answer && answer.origin ? link(answer.origin[1], `Graph at the first operator that differs, step ${answer.origin[1]}`) : null;
  return h("div", { class: "parting", "data-colour": beyond && beyond.step !== null ? "fault" : one.first === null ? "agree" : "noise" },
    h("p", null, h("b", null, name(one.name)), one.rank === "rank0" ? "" : ` ${one.rank}`, `: ${bits}.`), one.first === null && !(beyond && beyond.step !== null) ? null : h("p", { class: "muted" }, noise[0].toUpperCase() + noise.slice(1) + ".", answer || failed ? null : h("span", { "data-progress": one.run })),
    answer && answer.ends ? h("p", { class: "muted" }, `After the recorded steps: ${answer.ends}.`) : null,
    h("p", { class: "go" }, first, origin, h("a", { href: `compare/${reference}/${one.run}` }, "Report")));
}

function pick(step) {
  const other = curves.data.partings[0];
  if (other) location.assign(`compare/${curves.chosen[0]}/${other.run}/graph#${new URLSearchParams({ rank: other.rank, step })}`);
}

function toFirst() {
  const other = curves.data && curves.data.partings.find((one) => one.first !== null);
  if (other) pick(other.first); else tellAside("These runs do not part.");
}
