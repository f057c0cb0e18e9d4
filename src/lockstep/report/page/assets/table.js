// Every row, to sort and filter. Only the rows in sight are in the document.
const ROW = 30, HEAD = 28;
const TALLEST = 12e6; // a browser caps how tall an element may be: beyond, scrolling is mapped to rows
const table = { columns: [], pool: new Map() };

const WIDTHS = { kind: "118px", when: "58px", site: "minmax(150px,3fr)", text: "minmax(80px,.8fr)", bar: "116px", times: "66px", number: "78px", count: "60px" };
const givesWay = () => (rows.scaled ? ["number", "text", "kind", "when"] : ["text", "number", "kind", "when"]); // on narrow screens

function mountTable(area, place) {
  if (!rows || !rows.count) return;
  const count = h("span", { class: "sub" });
  table.area = area;
  table.search = h("input", { class: "field", type: "search", size: 26, placeholder: "Filter: phase:backward", "aria-label": "Filter: words, phase: op: role: step: module: kind:, >100, cosine<0.5, rel>1e-3", id: "filter" });
  table.search.addEventListener("input", () => change({ query: table.search.value }));
  table.head = h("div", { class: "tr th", role: "row" });
  table.body = h("div", { role: "rowgroup" });
  table.grid = h("div", { class: "rows", role: "grid", tabindex: 0, "aria-label": area.title }, h("div", { role: "rowgroup", class: "head" }, table.head), table.body);
  table.none = h("p", { class: "empty", hidden: true });
  place.replaceChildren(h("header", null, h("h2", null, area.title, count), columnMenu(), table.search), table.grid, table.none,
    h("div", { class: "foot" }, h("span", null, area.note), h("span", null, "↑ ↓ row · ← → site · o origin · / filter · ? keys")));
  table.grid.addEventListener("scroll", () => requestAnimationFrame(drawRows), { passive: true });
  table.grid.addEventListener("click", (event) => { const row = event.target.closest(".row"); if (row) choose(row.row, "table"); });
  new ResizeObserver(() => { fitColumns(); drawRows(); }).observe(table.grid);
  onView(() => { fitColumns(); layRows(); count.textContent = tableWords(); });
  onRow((from) => { if (from !== "table") reveal(); drawRows(); });
  fitColumns(); layRows(); reveal();
  count.textContent = tableWords();
}

function tableWords() {
  const ordered = state.sort ? `by ${table.area.columns.find((one) => one.column === state.sort).title}` : "in execution order";
  const odd = state.notUnderstood.length ? `; not understood: ${state.notUnderstood.map((one) => tail(one, 40)).join(" ")}` : "";
  return `${whole(view.length)}${isFiltered() ? ` of ${whole(rows.count)}` : ""}, ${ordered}${odd}`;
}

function columnMenu() {
  const boxes = table.area.columns.map((column) => {
    const box = h("input", { type: "checkbox", checked: column.shown });
    box.addEventListener("change", () => { column.shown = box.checked; column.asked = box.checked; fitColumns(); redrawRows(); });
    return h("label", null, box, column.title);
  });
  return h("details", { class: "menu" }, h("summary", { class: "btn" }, "Columns"), h("div", { tabindex: 0, role: "group", "aria-label": "Columns" }, boxes));
}

function fitColumns() { // columns that were asked for stay, and the table scrolls sideways
  const wide = table.grid.clientWidth, asked = table.area.columns.some((one) => one.asked);
  let found = table.area.columns.filter((one) => one.shown);
  const least = () => found.reduce((sum, one) => sum + 10 + parseInt(WIDTHS[one.form].replace("minmax(", ""), 10), 28);
  while (!asked && least() > wide && found.some((one) => givesWay().includes(one.form))) {
    const form = givesWay().find((one) => found.some((column) => column.form === one));
    const last = found.findLast((one) => one.form === form);
    found = found.filter((one) => one !== last);
  }
  table.grid.style.setProperty("--template", found.map((one) => WIDTHS[one.form]).join(" "));
  table.grid.style.setProperty("--wide", asked ? least() + "px" : "0");
  table.icons = !found.some((one) => one.form === "kind"); // then the icon stands before the name
  const same = found.length === table.columns.length && found.every((one, i) => one === table.columns[i]);
  table.columns = found;
  drawHead();
  const site = found.findIndex((one) => one.form === "site"), letters = site < 0 ? 26 : Math.max(10, Math.round(table.head.children[site].clientWidth / 12));
  const fits = table.letters === letters;
  table.letters = letters; // of a module's name: its end tells most, and its operator needs room too
  if (!same || !fits) redrawRows();
}

function drawHead() {
  const focused = table.head.contains(document.activeElement) ? document.activeElement.dataset.column : null;
  table.head.replaceChildren(...table.columns.map((one) => {
    const sorted = state.sort === sortedBy(one), direction = sorted ? (state.down ? "descending" : "ascending") : "none";
    const arrow = sorted ? (state.down ? " ↓" : " ↑") : "";
    return h("div", { role: "columnheader", "aria-sort": direction, class: isNumber(one) ? "num" : null },
      h("button", { type: "button", "data-column": one.column, onclick: () => sortBy(sortedBy(one)) }, one.title + arrow));
  }));
  if (focused) table.head.querySelector(`[data-column="${CSS.escape(focused)}"]`)?.focus();
}

const isNumber = (column) => ["number", "times", "count", "bar"].includes(column.form);
const sortedBy = (column) => column.column;
function sortBy(column) { // up, down, execution order
  if (state.sort !== column) change({ sort: column, down: columns.get(column).codes === undefined });
  else if (state.down === (columns.get(column).codes === undefined)) change({ down: !state.down });
  else change({ sort: null, down: false });
}

function layRows() {
  const tall = Math.min(view.length * ROW, TALLEST);
  table.body.style.setProperty("height", tall + "px");
  table.body.style.setProperty("position", "relative");
  table.grid.setAttribute("aria-rowcount", view.length + 1);
  table.none.hidden = view.length > 0;
  table.grid.hidden = view.length === 0;
  if (!view.length) {
    table.none.replaceChildren(h("b", null, "No pair passes the filter. "), h("button", { type: "button", class: "btn", onclick: clearFilters }, "Clear the filter"));
  }
  redrawRows();
}

function redrawRows() {
  table.body.replaceChildren();
  table.pool.clear();
  drawRows();
}

function drawRows() {
  const { grid, pool } = table, tall = Math.min(view.length * ROW, TALLEST), seen = grid.clientHeight - HEAD;
  const share = tall > seen ? Math.min(1, grid.scrollTop / (tall - seen)) : 0;
  const first = share * Math.max(0, view.length - seen / ROW); // of which row the top shows how much
  const from = Math.max(0, Math.floor(first) - 4), to = Math.min(view.length, Math.ceil(first + seen / ROW) + 4);
  const spare = [];
  for (const [at, element] of pool) if (at < from || at >= to) { spare.push(element); pool.delete(at); }
  for (let at = from; at < to; at++) {
    let element = pool.get(at);
    if (!element) {
      element = spare.pop() || newRow();
      pool.set(at, element);
      fillRow(element, view[at], at);
    }
    element.style.setProperty("top", (view.length * ROW > TALLEST ? grid.scrollTop + (at - first) * ROW : at * ROW) + "px");
    const selected = element.row === state.row;
    if (element.selected !== selected) element.setAttribute("aria-selected", (element.selected = selected));
  }
  for (const element of spare) element.remove();
  const active = [...pool.values()].find((one) => one.selected);
  if (active) grid.setAttribute("aria-activedescendant", active.id); else grid.removeAttribute("aria-activedescendant");
}

function newRow() {
  const element = h("div", { class: "tr row", role: "row" }, table.columns.map((column) => CELLS[column.form](column)));
  table.body.append(element);
  return element;
}

function fillRow(element, row, at) {
  element.row = row;
  element.id = `row-${row}`;
  element.setAttribute("aria-rowindex", at + 2);
  element.selected = undefined;
  table.columns.forEach((column, i) => element.children[i].fill(row));
}

const cellOf = (properties, children, fill) => { const element = h("div", { role: "gridcell", ...properties }, children); element.fill = fill; return element; };
const CELLS = {
  kind() {
    const at = cellOf({ class: "kind" }, [], (row) => { const kind = kindOf(row); at.dataset.colour = kind.colour; at.replaceChildren(icon(kind.icon), kind.name); });
    return at;
  },
  when() {
    const text = document.createTextNode("");
    return cellOf({}, [text], (row) => { text.data = `${cell("step", row)} ${shortPhase(cell("phase", row))}`; });
  },
  site() {
    const module = name(""), operator = name("", { class: "op" }), mark = h("span", { class: "kind-mark" });
    const at = cellOf({}, [mark, module, operator], (row) => {
      if (table.icons) { mark.dataset.colour = kindOf(row).colour; mark.replaceChildren(icon(kindOf(row).icon), h("span", { class: "sr" }, kindOf(row).name), " "); }
      module.textContent = lastParts(moduleOf(row), table.letters);
      operator.textContent = tail(shortOperator(cell("operator", row)), 60);
      at.title = tail(`${moduleOf(row)} / ${cell("operator", row)}`, 400);
    });
    return at;
  },
  bar(column) {
    const bar = h("i"), text = document.createTextNode("");
    return cellOf({ class: "bar" }, [bar, h("span", null, text)], (row) => {
      const value = cell(column.column, row);
      text.data = times(value);
      bar.style.setProperty("--c", rowColour(row));
      bar.style.setProperty("--w", value === 0 || Number.isNaN(value) ? "1px" : value <= 1 ? "4px" : Math.min(100, 10 + 15 * Math.log10(value)) + "%");
    });
  },
  times: (column) => numberCell(column, times),
  number: (column) => numberCell(column, figure),
  count: (column) => numberCell(column, figure),
  text(column) {
    const text = name("");
    return cellOf({ class: "dim" }, [text], (row) => { text.textContent = tail(cell(column.column, row), 120); });
  },
};

function numberCell(column, written) {
  const text = document.createTextNode("");
  return cellOf({ class: "num" }, [text], (row) => { text.data = written(cell(column.column, row)); });
}

function reveal() { // bring the chosen row into sight
  const at = view.indexOf(state.row), { grid } = table;
  if (at < 0) return;
  const seen = grid.clientHeight - HEAD, tall = Math.min(view.length * ROW, TALLEST), factor = tall / (view.length * ROW);
  const top = at * ROW * factor;
  if (top < grid.scrollTop + ROW || top > grid.scrollTop + seen - 2 * ROW) grid.scrollTop = Math.max(0, top - seen / 3);
}
