// The rows of the page: columns by name, kinds, and the sites that they lie at.
let page, rows, columns, kinds, kindCodes, values;

function readRows() {
  rows = page.rows;
  columns = new Map(rows ? rows.columns : []);
  kinds = new Map((rows ? rows.kinds : []).map((one) => [one.name, one]));
  if (!rows) return;
  const column = columns.get("kind");
  kindCodes = column.names.map((one) => kinds.get(one));
  values = columns.get(rows.value);
  rows.details = new Map(rows.details);
  rows.isMarked = new Uint8Array(rows.count);
  for (const row of rows.marked) rows.isMarked[row] = 1;
}

const kindOf = (row) => kindCodes[columns.get("kind").codes[row]];
const valueOf = (row) => values[row];

function cell(column, row) {
  const found = columns.get(column);
  if (found === undefined) return "";
  return found.codes ? found.names[found.codes[row]] : found[row];
}

const code = (column, row) => { const found = columns.get(column); return found.codes ? found.codes[row] : found[row]; };
const moduleOf = (row) => cell("module", row) || "(model)";
const when = (row) => `step ${cell("step", row)} · ${cell("phase", row)}` + (severalRanks() ? ` · ${cell("rank", row)}` : "");
const severalRanks = () => columns.get("rank").names.length > 1;
const site = (row) => `${moduleOf(row)} / ${shortOperator(cell("operator", row))}`;

// How much a row matters where several share a place.
const louder = (a, b) => {
  const first = kindOf(a).rank, second = kindOf(b).rank;
  return first !== second ? first > second : !(valueOf(a) <= valueOf(b));
};

// One tick each: a site sits where it *ends*, as a module that begins before the fault is not off before it.
let sites, siteOf, lanes;
const PHASES = ["init", "data", "forward", "backward", "optimizer"];
const SITE = ["module", "operator", "call"];

function findSites() {
  sites = []; siteOf = new Int32Array(rows.count); lanes = [];
  let known = new Map(), lane = null;
  for (let row = 0; row < rows.count; row++) {
    const step = code("step", row), rank = code("rank", row), phase = cell("phase", row);
    if (!lane || lane.step !== step || lane.rank !== rank) {
      lanes.push(lane = { step, rank, parts: new Map() });
      known = new Map();
    }
    const key = phase + "|" + SITE.map((one) => code(one, row)).join("|");
    let number = known.get(key);
    if (number === undefined) {
      known.set(key, number = sites.length);
      sites.push({ row, first: row, lane: lanes.length - 1, phase });
    }
    siteOf[row] = number;
    sites[number].last = row;
    if (louder(row, sites[number].row)) sites[number].row = row;
  }
  orderSites();
}

let order, placeOf;
function orderSites() { // within a lane phase by phase, within a phase by the last row
  const rank = (phase) => PHASES.indexOf(phase);
  order = sites.map((_, number) => number).sort((a, b) =>
    sites[a].lane - sites[b].lane || rank(sites[a].phase) - rank(sites[b].phase) || sites[a].last - sites[b].last);
  placeOf = new Int32Array(sites.length);
  order.forEach((number, place) => { placeOf[number] = place; });
  for (const number of order) {
    const { parts } = lanes[sites[number].lane], { phase } = sites[number];
    if (!parts.has(phase)) parts.set(phase, []);
    parts.get(phase).push(number);
  }
}
