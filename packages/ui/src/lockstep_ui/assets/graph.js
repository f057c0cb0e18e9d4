// The page of a graph: waits for the comparison, then shows the step of the origin with it in the middle.
async function start() {
  const place = byId("graph");
  place.append(h("p", { id: "said", class: "said", role: "alert", hidden: true }), h("section", { class: "card answer", id: "answer", "aria-label": "Verdict", role: "status" }));
  const answer = await answered();
  if (!answer) return;
  graph.answer = answer;
  showAnswer(answer);
  place.append(toolBar(answer));
  const work = h("div", { class: "graph-work" });
  place.append(work);
  mountGraphTree(work);
  const both = h("div", { class: "panes" });
  work.append(both);
  mountPanes(both);
  mountNode(place);
  mountClientKeys([
    ["n", "next difference", () => toNext("on")], ["p", "difference before", () => toNext("back")], ["o", "the first origin", saying(toOrigin)],
    ["u", "up the flow: what made this", () => follow("from")], ["d", "down the flow: what takes this", () => follow("to")], ["/", "search", () => byId("find").focus()],
    ["+", "larger", () => zoomBy(1.25)], ["-", "smaller", () => zoomBy(0.8)], ["Enter", "open or close what is chosen", () => graph.chosen && graph.chosen.inside && saying(toggle)(graph.node)],
  ]);
  const asked = new URLSearchParams(location.hash.slice(1)), first = answer.steps.find((one) => one.rank === asked.get("rank") && String(one.step) === asked.get("step"));
  const wanted = Number(asked.get("node"));
  if (first) await saying(showStep)(first.rank, first.step); else await saying(toOrigin)();
  if (first && wanted > 0 && wanted < graph.count) { const found = await saying(askGraph)("node", { node: wanted }); if (found) await saying(choose)(wanted, found.around); }
}

function answered() { // the comparison may take its time: how far it is stands there meanwhile
  const place = byId("answer");
  return new Promise((give) => listenTo(`${page.base}/events`, (state) => {
    if (state.failed) { place.replaceChildren(h("p", { class: "empty", role: "alert" }, `These two cannot be shown side by side: ${state.failed}`)); give(null); return "done"; }
    if (state.answer) { place.replaceChildren(); give(state.answer); return "done"; }
    const { progress: what, done, total } = state.progress || {};
    place.replaceChildren(h("p", { class: "empty" }, what ? `Comparing: ${what}, ${whole(done)} of ${whole(total)}` : "Comparing …"), total ? h("progress", { max: total, value: done, "aria-label": "How far comparing has come" }) : "");
    return "";
  }));
}

const COLOUR = { agree: "agree", diverged: "fault", incomparable: "unjudged", "other-precision": "setup" };

function showAnswer(answer) {
  const place = byId("answer"), first = answer.steps.find((one) => answer.origin && one.rank === answer.origin[0] && one.step === answer.origin[1]);
  place.dataset.colour = first && kindAt(first.worst) ? kindAt(first.worst).colour : COLOUR[answer.outcome] || "none";
  place.replaceChildren(); place.append(h("p", null, h("span", { class: "badge" }, answer.word), " ", name(answer.rest)),
    answer.not_compared.length ? h("details", null, h("summary", null, `${answer.not_compared.length} things were not compared`), h("ul", { class: "list" }, answer.not_compared.slice(0, 50).map((one) => h("li", null, name(one))))) : "");
}

async function toOrigin() {
  const { origin, steps } = graph.answer;
  if (!steps.length) throw new Error("No step was compared, so there is no graph.");
  const [rank, step] = origin || [steps[0].rank, steps[0].step];
  await showStep(rank, step);
}

function toolBar(answer) {
  const severalRanks = new Set(answer.steps.map((one) => one.rank)).size > 1;
  const select = h("select", { class: "field", id: "step", "aria-label": "Step" }, answer.steps.map((one) => {
    const kind = kindAt(one.worst);
    return h("option", { value: `${one.rank}\t${one.step}` }, `step ${one.step}${severalRanks ? `, ${one.rank}` : ""}: ${kind ? kind.name : "nothing"}`);
  }));
  select.addEventListener("change", () => { const [rank, step] = select.value.split("\t"); saying(showStep)(rank, Number(step)); });
  const field = h("input", { type: "search", class: "field", id: "find", placeholder: "Search modules and operators", "aria-label": "Search modules and operators", autocomplete: "off" });
  const hits = h("div", { class: "hits", id: "hits", hidden: true, role: "group", "aria-label": "Found" });
  let waits = 0;
  field.addEventListener("input", () => { clearTimeout(waits); waits = setTimeout(saying(() => search(field, hits)), 120); });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hits.hidden = true;
    if (event.key === "ArrowDown" || event.key === "Enter") { const first = hits.querySelector("button"); if (first) { event.preventDefault(); if (event.key === "Enter") first.click(); else first.focus(); } }
  });
  hits.addEventListener("keydown", (event) => {
    const to = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key], next = to && document.activeElement[to];
    if (event.key === "Escape") { hits.hidden = true; field.focus(); }
    if (to) { event.preventDefault(); (next || field).focus(); }
  });
  const button = (words, title, act) => h("button", { type: "button", class: "btn", title, onclick: act }, words);
  return h("div", { class: "card tools-bar", role: "toolbar", "aria-label": "Graph" }, select,
    button("← Difference", "Difference before (p)", () => toNext("back")), button("Difference →", "Next difference (n)", () => toNext("on")), button("Origin", "The first origin (o)", saying(toOrigin)),
    h("div", { class: "finding" }, field, hits), button("−", "Smaller (-)", () => zoomBy(0.8)), button("+", "Larger (+)", () => zoomBy(1.25)),
    h("div", { class: "legend" }, page.kinds.filter((one) => ["origin", "set-up differs", "inherited", "in tolerance", "bitwise equal", "no partner"].includes(one.name)).map((one) => h("span", { class: "kline", "data-colour": one.colour }, icon(one.icon), one.name))));
}

async function search(field, hits) {
  const text = field.value.trim();
  if (!text) { hits.hidden = true; return; }
  const found = await askGraph("find", { text });
  if (field.value.trim() !== text) return;
  hits.hidden = false;
  hits.replaceChildren(...found.found.map((one) => {
    const kind = kindAt(one.kind);
    return h("button", { type: "button", class: "hit-line", "data-colour": kind ? kind.colour : "none", onclick: () => { hits.hidden = true; saying(choose)(one.node, one.around); } },
      h("span", { class: "sign" }, icon(kind ? kind.icon : "none")), name(tail(`${one.module || "(model)"} / ${one.label}`, 70)), h("span", { class: "dim" }, kind ? ` ${kind.name}` : ""));
  }), h("p", { class: "dim" }, found.count ? `${whole(found.count)} found${found.count > found.found.length ? `, the first ${found.found.length} shown` : ""}` : "Nothing is called so."));
}
