// How the values of one parameter or gradient lie over steps: a heat map where they were counted, else their statistics.
const spread = { runs: [], chosen: [], names: [], at: 0 };

async function start() {
  const place = byId("spread"), asked = new URLSearchParams(location.search);
  place.append(h("p", { id: "said", class: "said", role: "alert", hidden: true }), h("section", { class: "card picker", id: "picker", "aria-label": "Parameters and gradients" }), h("section", { class: "card chart-card", id: "chart", "aria-label": "How values lie" }));
  spread.runs = (await askFor("runs")).runs;
  const known = new Set(spread.runs.filter((one) => !one.problem).map((one) => one.key));
  spread.chosen = (asked.get("runs") || "").split(",").filter((one) => known.has(one)).slice(0, 8);
  if (!spread.chosen.length) spread.chosen = [...known].slice(0, 1);
  mountClientKeys([["j", "next parameter or gradient", () => goSpread(1)], ["k", "the one before", () => goSpread(-1)]]);
  if (!spread.chosen.length) { byId("chart").replaceChildren(h("p", { class: "empty" }, "No recording lies there.")); return; }
  const { names } = await askFor("spread/names", { runs: spread.chosen.join(",") });
  spread.names = names;
  const wanted = names.findIndex(([what, one]) => what === asked.get("what") && one === asked.get("name"));
  drawNames("");
  if (names.length) await saying(showSpread)(Math.max(0, wanted)); else byId("chart").replaceChildren(h("p", { class: "empty" }, "No parameter and no gradient was recorded."));
}

function drawNames(text) {
  const shown = spread.names.map((one, at) => [at, one]).filter(([, [what, one]]) => `${what} ${one}`.toLowerCase().includes(text.toLowerCase())).slice(0, 400);
  const field = h("input", { type: "search", class: "field", id: "find", value: text, placeholder: "Filter", "aria-label": "Filter parameters and gradients" });
  field.addEventListener("input", () => { drawNames(field.value); const again = byId("find"); again.focus(); again.setSelectionRange(again.value.length, again.value.length); });
  byId("picker").replaceChildren(h("header", null, h("h2", null, "Values of"), field), h("div", { class: "scroll" }, shown.map(([at, [what, one]]) => h("button", { type: "button", class: "link pick", "data-at": at, "aria-pressed": at === spread.at, onclick: () => saying(showSpread)(at) }, h("span", { class: "dim" }, what === "gradient" ? "grad " : ""), name(tail(one, 60))))));
}

const goSpread = (by) => { const at = spread.at + by; if (spread.names[at]) saying(showSpread)(at); };

async function showSpread(at) {
  spread.at = at;
  const [what, one] = spread.names[at], runs = spread.chosen.join(",");
  history.replaceState(null, "", "?" + new URLSearchParams({ runs, what, name: one }));
  for (const button of document.querySelectorAll(".pick")) button.setAttribute("aria-pressed", Number(button.dataset.at) === at);
  const found = await askFor("spread/data", { runs, what, name: one });
  if (spread.at !== at) return;
  byId("chart").replaceChildren(h("header", null, h("h2", null, what === "gradient" ? "Gradient of " : "", name(tail(one, 80)))), ...found.runs.map((run) => h("div", { class: "curve" }, spreadOf(run))));
  drawAll();
}

function spreadOf(run) {
  if (!run.ranks.length) return h("p", { class: "muted" }, h("b", null, name(run.name)), ": has no such parameter or gradient.");
  return run.ranks.map((rank) => [h("h3", null, name(run.name), run.ranks.length > 1 ? ` ${rank.rank}` : "", h("span", { class: "sub" }, `${rank.dtype} [${rank.shape.join(", ")}]; batch and modules: `, h("a", { href: `run/${run.run}` }, "the run's page"))),
    rank.counts ? countsOf(rank.counts, rank.steps.length) : h("p", { class: "note" }, rank.without[0].toUpperCase() + rank.without.slice(1) + "."), bandsOf(rank)]);
}

function countsOf(found, of) { // a column a step, the largest values on top; each column adds up to all of its values
  const bins = found.counts[0].length, steps = found.steps.length, values = new Float64Array(bins * steps);
  found.counts.forEach((counts, step) => { const sum = counts.reduce((a, b) => a + b, 0) || 1; counts.forEach((count, bin) => { values[(bins - 1 - bin) * steps + step] = count / sum; }); });
  const beside = [found.outside ? `${whole(found.outside)} values lie outside of these edges` : "", found.sampled ? "counted in evenly spread parts of it" : "", of > steps ? `${steps} of ${of} steps were counted` : ""].filter(Boolean).join("; ");
  return h("div", null, heatMapBlock({ title: "Share of the values by step", rows: bins, columns: steps, values, signed: false, means: false, about: `across: steps ${found.steps[0]} to ${found.steps.at(-1)}; up: values from ${figure(found.edges[0])} to ${figure(found.edges.at(-1))}` }), beside ? h("p", { class: "dim" }, beside + ".") : null);
}

function bandsOf(rank) {
  const curve = (values, colour) => ({ steps: rank.steps, values: values.map(shownValue), colour });
  const drawn = { lines: [curve(rank.mean, 0), curve(rank.maximum, 1), curve(rank.minimum, 2)], marks: [], log: false, high: 170, range: null, empty: "no finite number" };
  const canvas = h("canvas", { role: "img", "aria-label": "Smallest, mean and largest value over steps; the numbers stand in the table below" });
  keepDrawn(canvas, () => drawCurves(canvas, drawn));
  const legend = h("div", { class: "legend" }, ["mean", "maximum", "minimum"].map((one, i) => h("span", null, legendMark(i, i > 0), one)));
  return h("div", { class: "blk" }, h("header", null, h("h3", null, "Over steps"), legend), canvas,
    behind(["step", "minimum", "mean", "maximum", "norm", "share of zeros"], () => rank.steps.map((step, i) => [step, ...["minimum", "mean", "maximum", "norm", "zeros"].map((one) => shownValue(rank[one][i]))])));
}
