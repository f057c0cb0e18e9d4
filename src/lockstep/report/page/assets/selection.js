// One state that every area reads: the chosen row, what is filtered, how it is sorted.
const state = { row: -1, kinds: new Set(), module: null, query: "", range: null, notUnderstood: [], sort: null, down: false, metric: "", log: true, spread: new Set() };
let view = new Int32Array(0); // the rows of the table, in its order
let shown = new Uint8Array(0); // by row, whether it passes the filters

const listeners = { row: [], view: [] };
const onRow = (act) => listeners.row.push(act);
const onView = (act) => listeners.view.push(act);

function choose(row, from) {
  if (row < 0 || row >= rows.count || row === state.row) return;
  state.row = row;
  for (const act of listeners.row) act(from);
}

function change(values) {
  Object.assign(state, values);
  findView();
  for (const act of listeners.view) act();
}

// `layer_norm`, `phase:backward`, `>100`, `cosine<0.5`, `rel>1e-3`: every word must hold.
const BOUND = /^([\p{L}\p{N}_ ]*?)(<=|>=|<|>|=)([-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|inf|nan))$/u;
const HOLDS = { "<": (x, y) => x < y, ">": (x, y) => x > y, "<=": (x, y) => x <= y, ">=": (x, y) => x >= y, "=": (x, y) => Object.is(x, y) || x === y };

function testOf(word) {
  const bound = word.match(BOUND);
  if (bound) {
    const limit = numberOf(bound[3]), holds = HOLDS[bound[2]], column = bound[1] && numberColumn(bound[1]);
    if (Number.isNaN(limit) && bound[3] !== "nan") return null;
    if (!bound[1]) return (row) => holds(valueOf(row), limit);
    return column ? (row) => holds(columns.get(column)[row], limit) : null;
  }
  if (/[<>]/.test(word) && !columns.get("operator").names.some((one) => one.toLowerCase().includes(word))) return null;
  const [, key, rest] = word.match(/^(phase|op|operator|role|step|module|kind|rank|dtype|tensor|source):(.*)$/) || [null, null, word];
  const fields = key ? [key === "op" ? "operator" : key] : ["module", "operator", "role", "tensor", "kind"];
  const tests = fields.map((field) => holding(field, rest));
  return (row) => tests.some((test) => test(row));
}

// `cosine < 0.5` is one word, and so is `> 100`.
function wordsOf(query) {
  const closed = query.toLowerCase().replace(/([<>]=?)\s+/g, "$1").replace(/(\S+)\s+(?=[<>])/g, (all, word) => (numberColumn(word) ? word : all));
  return closed.split(/\s+/).filter(Boolean);
}

const numberOf = (text) => (/inf$/.test(text) ? (text[0] === "-" ? -Infinity : Infinity) : Number(text));

// The column of numbers that is called so, by its own name or by its title in the table: `rel`, `rel_l2`, `max_abs`.
function numberColumn(typed) {
  const plain = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}]/gu, ""), wanted = plain(typed);
  const named = [...columns.keys()].filter((one) => !columns.get(one).codes).map((one) => [one, [one, table.area?.columns.find((column) => column.column === one)?.title ?? one].map(plain)]);
  const found = named.find(([, names]) => names.includes(wanted)) || named.find(([, names]) => names.some((one) => one.startsWith(wanted)));
  return found && found[0];
}

function holding(field, text) { // each distinct name is looked at once, not each row
  const column = columns.get(field);
  if (!column.codes) return (row) => String(column[row]) === text;
  const found = column.names.map((one) => one.toLowerCase().includes(text));
  return (row) => found[column.codes[row]];
}

function findView() {
  const words = wordsOf(state.query), made = words.map(testOf);
  state.notUnderstood = words.filter((_, i) => !made[i]);
  const tests = made.filter(Boolean);
  if (state.module !== null) {
    const column = columns.get("module"), inside = column.names.map((one) => one === state.module || one.startsWith(state.module + "."));
    tests.push((row) => inside[column.codes[row]]);
  }
  if (state.range) tests.push((row) => row >= state.range[0] && row <= state.range[1]);
  const wanted = kindCodes.map((one) => state.kinds.has(one.name)), kind = columns.get("kind").codes;
  shown = new Uint8Array(rows.count);
  const found = [];
  for (let row = 0; row < rows.count; row++) {
    if (!wanted[kind[row]] || !tests.every((test) => test(row))) continue;
    shown[row] = 1;
    found.push(row);
  }
  view = Int32Array.from(found);
  if (state.sort) view.sort(comparing(state.sort, state.down));
}

function comparing(title, down) { // what is not known comes last either way
  const column = columns.get(title), sign = down ? -1 : 1;
  if (column.codes) {
    const place = [];
    column.names.map((one, i) => [one, i]).sort((a, b) => (a[0] < b[0] ? -1 : 1)).forEach(([, i], at) => { place[i] = at; });
    return (a, b) => sign * (place[column.codes[a]] - place[column.codes[b]]) || a - b;
  }
  return (a, b) => {
    const x = column[a], y = column[b];
    if (x === y) return a - b;
    if (Number.isNaN(x)) return Number.isNaN(y) ? a - b : 1;
    return Number.isNaN(y) ? -1 : sign * (x < y ? -1 : 1);
  };
}

const isFiltered = () => view.length < rows.count;
function clearFilters() {
  change({ module: null, query: "", range: null, kinds: new Set(kinds.keys()) });
}

// The chosen row stands in the address, so that a link leads to it.
function linkRow() {
  const follow = () => { const asked = location.hash.match(/^#pair-(\d+)$/); if (asked) choose(Number(asked[1])); };
  follow();
  onRow(() => history.replaceState(null, "", `#pair-${state.row}`));
  window.addEventListener("hashchange", follow);
}

function nextSite(by) { // to the neighbour in execution order that is not filtered out
  let place = state.row < 0 ? -1 : placeOf[siteOf[state.row]];
  do place += by; while (place >= 0 && place < order.length && !shown[sites[order[place]].row]);
  if (place >= 0 && place < order.length) choose(sites[order[place]].row);
}

function nextRow(by) {
  const at = view.indexOf(state.row);
  const next = at < 0 ? 0 : Math.max(0, Math.min(view.length - 1, at + by));
  if (view.length) choose(view[next]);
}

function nextMarked() {
  const at = rows.marked.indexOf(state.row);
  if (rows.marked.length) choose(rows.marked[(at + 1) % rows.marked.length]);
}
