// Modules by path, each with the worst of its phases; a module that is chosen filters the table.
const tree = { nodes: [], open: new Set(), list: null, focus: 0, lines: [] };

function mountTree(area, place) {
  tree.parts = area.parts;
  tree.classes = new Map(area.classes);
  const all = h("button", { type: "button", class: "btn", hidden: true, onclick: () => change({ module: null }) }, "Show all");
  place.append(h("header", null, h("h2", null, area.title), all));
  if (!rows || !rows.count) { place.append(h("p", { class: "empty" }, area.empty)); return; }
  tree.list = h("div", { class: "tree", role: "tree", "aria-label": area.title });
  place.append(h("div", { class: "tree-head", "aria-hidden": "true" }, h("span", null, "module"), h("span", { class: "parts" }, area.parts.map(([, one]) => h("span", null, one))), h("span", null, rows.scaled ? "worst" : rows.unit)), tree.list);
  findNodes();
  tree.open.add("");
  for (const row of rows.marked.slice(0, 3)) openTo(cell("module", row));
  if (!rows.marked.length) for (const node of tree.nodes) if (node.depth < 2) tree.open.add(node.path);
  drawTree();
  onView(() => { all.hidden = state.module === null; drawTree(); });
  tree.list.addEventListener("keydown", treeKey);
}

const above = (path) => (path.includes(".") ? path.slice(0, path.lastIndexOf(".")) : path ? "" : null);
function openTo(path) { for (let one = above(path); one !== null; one = above(one)) tree.open.add(one); }

function findNodes() { // a row counts for its module and all around it
  const nodes = new Map(), names = columns.get("module").names, codes = columns.get("module").codes;
  const nodeOf = (path) => {
    let node = nodes.get(path);
    if (!node) {
      const parent = above(path);
      node = { path, worst: new Map(), most: NaN, children: [], depth: path ? path.split(".").length : 0, marked: false };
      nodes.set(path, node);
      if (parent !== null) nodeOf(parent).children.push(node);
    }
    return node;
  };
  nodeOf("");
  for (const one of tree.classes.keys()) nodeOf(one);
  const perName = names.map(() => new Map()), most = new Float64Array(names.length).fill(NaN);
  for (let row = 0; row < rows.count; row++) {
    const worst = perName[codes[row]], phase = cell("phase", row), before = worst.get(phase);
    if (before === undefined || louder(row, before)) worst.set(phase, row);
    if (!(valueOf(row) <= most[codes[row]]) && !Number.isNaN(valueOf(row))) most[codes[row]] = valueOf(row);
  }
  names.forEach((path, number) => {
    for (let one = path; one !== null; one = above(one)) {
      const node = nodeOf(one);
      if (!(most[number] <= node.most) && !Number.isNaN(most[number])) node.most = most[number];
      for (const [phase, row] of perName[number]) if (!node.worst.has(phase) || louder(row, node.worst.get(phase))) node.worst.set(phase, row);
    }
  });
  for (const row of rows.marked) for (let one = cell("module", row); one !== null; one = above(one)) nodeOf(one).marked = true;
  tree.nodes = [...nodes.values()];
  tree.root = nodes.get("");
}

function drawTree() {
  const focused = tree.list.contains(document.activeElement);
  const lines = [], add = (node) => { lines.push(node); if (tree.open.has(node.path)) node.children.forEach(add); };
  add(tree.root);
  tree.lines = lines;
  tree.focus = Math.min(tree.focus, lines.length - 1);
  tree.list.replaceChildren(...lines.map(nodeElement));
  if (focused) tree.list.children[tree.focus].focus();
}

function nodeElement(node, at) {
  const isOpen = tree.open.has(node.path);
  const own = node.path ? node.path.slice(node.path.lastIndexOf(".") + 1) : "(model)";
  const words = tree.parts.map(([phase]) => { const row = node.worst.get(phase); return row === undefined ? null : `${phase} ${kindOf(row).name} ${valueWords(valueOf(row))}`; }).filter(Boolean).join(", ");
  return h("div", {
    class: node.marked ? "node on-path" : "node", role: "treeitem", tabindex: at === tree.focus ? 0 : -1, "aria-level": node.depth + 1, "aria-selected": state.module === (node.path || "(model)") || (state.module === null ? false : state.module === node.path),
    "aria-expanded": node.children.length ? isOpen : null, "aria-label": `${own}${words ? ": " + words : ""}`, style: { "--d": node.depth }, title: tail(node.path, 300) + (tree.classes.get(node.path) ? ` · ${tree.classes.get(node.path)}` : ""),
    onclick: (event) => { tree.focus = at; if (event.target.classList.contains("tw")) toggleNode(node); else chooseModule(node); },
  }, h("span", { class: "n" }, h("span", { class: "tw" }, node.children.length ? (isOpen ? "▾" : "▸") : ""), name(tail(own, 60))),
  h("span", { class: "cells" }, tree.parts.map(([phase]) => phaseCell(node.worst.get(phase)))), h("span", { class: "w" }, valueWords(node.most)));
}

function phaseCell(row) {
  if (row === undefined) return h("i", { class: "no" });
  return h("i", { class: rows.isMarked[row] ? "o" : null, style: { "--c": rows.isMarked[row] ? paint("fault") : rowColour(row) } });
}

function toggleNode(node) {
  if (!tree.open.delete(node.path)) tree.open.add(node.path);
  drawTree();
}

function chooseModule(node) {
  if (node.children.length && !tree.open.has(node.path)) tree.open.add(node.path);
  change({ module: node.path === "" || state.module === node.path ? null : node.path });
}

function treeKey(event) {
  const node = tree.lines[tree.focus], isOpen = tree.open.has(node.path);
  const moves = { ArrowDown: 1, ArrowUp: -1 };
  if (event.key in moves) tree.focus = Math.max(0, Math.min(tree.lines.length - 1, tree.focus + moves[event.key]));
  else if (event.key === "ArrowRight" && node.children.length) { if (isOpen) tree.focus += 1; else tree.open.add(node.path); }
  else if (event.key === "ArrowLeft") { if (isOpen && node.children.length) tree.open.delete(node.path); else tree.focus = Math.max(0, tree.lines.findIndex((one) => one.path === above(node.path))); }
  else if (event.key === "Enter" || event.key === " ") chooseModule(node);
  else return;
  event.preventDefault();
  event.stopPropagation();
  drawTree();
}
