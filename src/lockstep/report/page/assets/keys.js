// Keys for everything; in fields only Escape.
const KEYS = [
  [["←", "→"], "site before, after in execution order"], [["↑", "↓", "k", "j"], "row before, after in the table"], [["o"], "next origin"], [["/"], "filter"],
  [["1", "…", "9"], "show or hide a kind"], [["m"], "next metric"], [["l"], "logarithmic or linear"], [["t"], "light or dark"], [["Esc"], "close the menu; clear filters"], [["?"], "this list"],
];

function mountKeys() {
  const dialog = byId("keys");
  byId("keys-list").append(...KEYS.flatMap(([keys, words]) => [h("dt", null, keys.map((one) => [h("kbd", null, one), " "])), h("dd", null, words)]));
  byId("show-keys").addEventListener("click", () => dialog.showModal());
  byId("close-keys").addEventListener("click", () => dialog.close());
  byId("theme").addEventListener("click", turnTheme);
  document.addEventListener("keydown", (event) => { if (!event.ctrlKey && !event.metaKey && !event.altKey && !dialog.open && onKey(event)) event.preventDefault(); });
}

function onKey(event) {
  const { key, target } = event, inField = target.matches("input[type=search],select,textarea");
  if (key === "Escape" && closeMenus()) return true;
  if (key === "Escape") { if (inField) target.blur(); if (rows && rows.count) { byId("filter").value = ""; clearFilters(); } return true; }
  if (inField) return false;
  if (key === "?") { byId("keys").showModal(); return true; }
  if (key === "t") { turnTheme(); return true; }
  return rows && rows.count ? rowKey(key, target) : false;
}

function closeMenus() { // whether one was open
  const open = [...document.querySelectorAll("details.menu[open]")];
  for (const menu of open) { menu.open = false; menu.querySelector("summary").focus(); }
  return open.length > 0;
}

function rowKey(key, target) {
  const scrolls = target.closest("pre,.scroll,.strip-scroll,.detail,.menu"); // these move by arrows themselves
  const arrows = { ArrowRight: () => nextSite(1), ArrowLeft: () => nextSite(-1), ArrowDown: () => nextRow(1), ArrowUp: () => nextRow(-1) };
  const letters = { j: () => nextRow(1), k: () => nextRow(-1), o: nextMarked, "/": () => byId("filter").focus(), m: nextMetric, l: () => setLog(!state.log) };
  const act = (scrolls ? undefined : arrows[key]) || letters[key];
  if (act) { act(); return true; }
  if (/^[1-9]$/.test(key)) { const chip = byId("chips")?.children[key - 1]; if (chip) chip.click(); return Boolean(chip); }
  return false;
}

function turnTheme() {
  const root = document.documentElement, dark = getComputedStyle(root).colorScheme === "dark" || (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.theme = dark ? "light" : "dark";
  recolour();
}

function recolour() { // pictures, and what is coloured by a row's value
  readColours();
  drawAll();
  for (const act of listeners.view) act();
}
