// The row that is chosen: its own columns, then what was kept of it.
function mountSelected(area, place) {
  const back = h("button", { type: "button", class: "btn", onclick: nextMarked, hidden: !rows || !rows.marked.length }, rows && rows.marked.length > 1 ? "Next origin" : "To the origin");
  const detail = h("div", { class: "detail", tabindex: 0, role: "group", "aria-label": `${area.title}: what is known of it` });
  place.append(h("header", null, h("h2", null, area.title), back), detail);
  const draw = () => {
    if (!rows || state.row < 0) { detail.replaceChildren(h("p", { class: "muted" }, area.empty)); return; }
    detail.replaceChildren(...detailParts(state.row));
    detail.scrollTop = 0;
  };
  onRow(draw);
  draw();
}

function detailParts(row) {
  const blocks = rows.details.get(row) || rows.details.get(sameInSteps(row).find((one) => rows.details.has(one))) || [];
  return [detailTitle(row), tilesOf(row), sideBySide(row), ...blocks.map(blockElement), ...overSteps(row), linksOf(row)].filter(Boolean);
}

function detailTitle(row) {
  const tensor = cell("tensor", row), at = rows.marked.indexOf(row), several = rows.marked.length > 1 && at >= 0 ? ` · ${at + 1} of ${rows.marked.length}` : "";
  const value = valueOf(row);
  return h("div", { class: "wide" }, kindLine(row, h("span", { class: "muted" }, ` ${value === 0 || Number.isNaN(value) || !rows.scaled ? "" : `${times(value)} ${rows.unit.replace("× ", "")}`}${several}`)),
    h("p", { class: "name" }, name(`${moduleOf(row)} / ${cell("operator", row)} #${cell("call", row)}`)),
    h("p", { class: "muted" }, `${when(row)} · ${titled(cell("role", row))}`, tensor ? [" · ", h("code", null, name(tensor))] : `.${cell("index", row)}`, ` · ${cell("dtype", row)} ${cell("shape", row)}`),
    h("p", { class: "muted" }, cell("reason", row)),
    cell("source", row) ? h("p", { class: "dim" }, "called at ", h("code", null, name(cell("source", row)))) : null);
}

const TILES = [["rel_l2", "rel error"], ["cosine", "cosine"], ["max_abs", "max abs"], ["max_ulp", "max ulp"], ["norm", "norm"], ["mean", "mean"], ["minimum", "min"], ["maximum", "max"], ["nan_count", "NaN"], ["inf_count", "inf"], ["zero_count", "zeros"], ["subnormal_count", "subnormal"]];
function tilesOf(row) {
  const found = TILES.filter(([column]) => columns.has(column));
  return found.length ? h("dl", { class: "tiles wide" }, found.map(([column, title]) => h("div", null, h("dt", null, title), h("dd", null, figure(cell(column, row)))))) : null;
}

const SIDES = ["norm", "mean", "minimum", "maximum"];
function sideBySide(row) { // what the recordings say of both, also where no tensor was kept
  if (!columns.has("reference_norm") || hasGrid(row)) return null;
  const lines = SIDES.map((one) => { const a = cell(`reference_${one}`, row), b = cell(`candidate_${one}`, row); return [one, a, b, Number.isNaN(b - a) ? "–" : signed(b - a)]; });
  const both = cell("reference_dtype", row) && cell("candidate_dtype", row);
  const off = lines.map((one, i) => (both && !Object.is(one[1], one[2]) && kindOf(row).rank > 2 ? i : -1)).filter((i) => i >= 0);
  return titledBlock("", gridTable(["", "reference", "candidate", "difference"], lines, off));
}
const hasGrid = (row) => (rows.details.get(row) || []).some((one) => one.is === "Grid");

// The same tensor in other steps, where the page is of one recording.
const SAME = ["rank", "phase", "module", "operator", "call", "role", "index", "tensor"];
function sameInSteps(row) {
  const same = [];
  if (!rows.scaled) for (let other = 0; other < rows.count; other++) if (SAME.every((one) => code(one, other) === code(one, row))) same.push(other);
  return same;
}

function overSteps(row) {
  const same = sameInSteps(row), x = same.map((one) => cell("step", one));
  if (new Set(x).size < 2) return [];
  const line = (title, value, dashed) => ({ name: title, values: same.map(value), dashed });
  const of = (one) => (at) => cell(one, at), around = (by) => (at) => cell("mean", at) + by * cell("std", at);
  const spread = [line("minimum", of("minimum")), line("mean", of("mean")), line("maximum", of("maximum"))];
  if (columns.has("std")) spread.push(line("mean − deviation", around(-1), true), line("mean + deviation", around(1), true));
  const lies = same.some((at) => cell("minimum", at) < cell("maximum", at)) ? [spread] : [];
  return [[line("norm", of("norm"))], ...lies].map((lines, at) => chartBlock({ title: at ? "Values over steps, from statistics" : "Norm over steps", x, lines, x_title: "step", log: false }));
}

// Where the tensor comes from and where it goes.
function linksOf(row) {
  const producer = columns.get("producer");
  if (!producer) return null;
  const found = [];
  if (producer[row] >= 0) found.push([producer[row], `made by ${site(producer[row])}, ${when(producer[row])}`]);
  for (let other = row + 1; other < rows.count && found.length < 6; other++) if (producer[other] === row) found.push([other, `goes to ${site(other)}, ${when(other)}`]);
  return found.length ? BLOCKS.Links({ title: "Where it comes from and goes", rows: found }) : null;
}
