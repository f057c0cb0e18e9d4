// The chosen node: its tensors in both runs as the comparison judged them, and where each comes from and goes to.
function mountNode(place) {
  const inside = h("div", { class: "node-body", id: "node" });
  place.append(h("section", { class: "card node-card", "aria-label": "Chosen call" }, inside));
  graphListeners.node.push(() => inside.replaceChildren(...nodeParts(graph.chosen)));
}

function nodeParts(found) {
  const kind = kindAt(found.kind), steps = found.around.length;
  const head = h("div", { class: "node-head" },
    h("p", null, kind ? h("span", { class: "kline", "data-colour": kind.colour }, icon(kind.icon), kind.name) : null, found.sides === BOTH ? null : h("b", null, ` ${SIDES[found.sides]}`),
      h("b", { class: "mono name" }, name(` ${found.module || (steps ? "(model)" : "")}`)), found.operator ? h("code", { class: "dim" }, name(` ${found.operator}`)) : name(found.label)),
    h("p", null, h("button", { type: "button", class: "btn", onclick: () => follow("from") }, "↑ Up the flow"), " ", h("button", { type: "button", class: "btn", onclick: () => follow("to") }, "↓ Down the flow")));
  if (!found.tensors.length) return [head, h("p", { class: "muted" }, found.inside ? `${found.inside} inside; no tensor of its own.` : "No tensor was recorded of it.")];
  const titles = ["", "tensor", "× noise floor", "difference", "tolerance", "max abs", "reference", "candidate", "comes from", "goes to"];
  const table = h("table", { class: "grid tensors" }, h("thead", null, h("tr", null, titles.map((one) => h("th", { scope: "col" }, one)))), h("tbody", null, found.tensors.map(tensorLine)));
  const told = new Map(); // many tensors have one reason
  for (const one of found.tensors) if (placeOf(one.kind) < placeOf("in tolerance") && one.reason) told.set(one.reason, [...(told.get(one.reason) || []), one.tensor]);
  const reasons = [...told].map(([reason, tensors]) => `${tensors.slice(0, 3).join(", ")}${tensors.length > 3 ? ` and ${tensors.length - 3} more` : ""}: ${reason}`);
  const sources = [...new Set(found.tensors.flatMap((one) => [one.reference, one.candidate]).map((one) => one && one.source).filter(Boolean))];
  return [head, sources.length ? h("p", { class: "dim" }, "in ", sources.slice(0, 2).map((one, i) => [i ? " and " : "", h("code", null, name(tail(one, 120)))])) : null,
    h("div", { class: "scroll tensors-scroll", tabindex: 0, role: "group", "aria-label": "Tensors of the chosen call" }, table),
    reasons.length ? h("ul", { class: "list" }, reasons.slice(0, 6).map((one) => h("li", null, name(tail(one, 500))))) : null].filter(Boolean);
}

function tensorLine(row) {
  const kind = page.kinds[placeOf(row.kind)], margin = row.margin === "infinite" ? Infinity : row.margin === null ? NaN : row.margin;
  return h("tr", null, h("td", { "data-colour": kind.colour }, h("span", { class: "kline", "data-colour": kind.colour }, icon(kind.icon), kind.name)), h("td", null, name(tail(row.tensor, 60)), h("span", { class: "dim" }, ` ${shortPhase(row.phase)}`)),
    h("td", null, times(margin)), h("td", null, figure(row.difference)), h("td", null, figure(row.tolerance)), h("td", null, figure(row.max_abs)), h("td", null, sideWords(row.reference)), h("td", null, sideWords(row.candidate)),
    h("td", null, flowLinks(row.from)), h("td", null, flowLinks(row.to)));
}

const sideWords = (side) => (side ? [`${side.dtype} [${side.shape.join(", ")}]`, h("span", { class: "dim" }, ` norm ${figure(side.norm)}`)] : h("span", { class: "dim" }, "not there"));

function flowLinks(links) {
  const shown = links.slice(0, 3).map((one) => h("button", { type: "button", class: "link", onclick: () => saying(choose)(one.node, one.around) }, name(tail(one.words, 34)), one.sides === BOTH ? "" : ` (${SIDES[one.sides]})`));
  return links.length > 3 ? [shown, h("span", { class: "dim" }, ` and ${links.length - 3} more`)] : shown;
}
