// Runs as a table: sorted, filtered, tagged; the chosen reference stands at the head of what others are compared with.
const referenceRun = () => all.runs.find((one) => one.key === all.reference && !one.problem) || null;

function runsTable(runs) {
  const field = h("input", { type: "search", class: "field", id: "filter", value: all.filter, placeholder: "Filter", title: "By name, tag, note or command", "aria-label": "Filter runs", autocomplete: "off" });
  field.addEventListener("input", () => { all.filter = field.value; drawRuns(); });
  const hidden = (all.settings || []).filter((one) => !all.columns.some((two) => two.name === one));
  const more = h("select", { class: "field", "aria-label": "Show one more setting" }, h("option", { value: "" }, "+ setting"), hidden.map((one) => h("option", { value: one }, tail(one, 60))));
  more.addEventListener("change", () => { all.asked.add(more.value); drawRuns(); });
  const growing = all.runs.filter((one) => one.growing).length, reference = referenceRun();
  const words = [`${whole(runs.length)}${runs.length === all.runs.length ? "" : ` of ${whole(all.runs.length)}`}`, growing ? `${growing} being recorded` : "", all.runs.length >= all.most ? `more than ${all.most}: give a folder with fewer` : ""].filter(Boolean).join(", ");
  const head = h("header", null, h("h2", null, "Runs ", h("span", { class: "sub" }, words)), reference ? h("span", { class: "chip" }, "reference ", h("b", null, name(tail(reference.name, 40))), h("button", { type: "button", class: "link", onclick: () => takeReference(null) }, "none")) : null, field, hidden.length ? more : null);
  if (!all.runs.length) return [head, h("p", { class: "empty" }, "No recording lies there yet: ", h("code", null, "lockstep record -o DIR -- CMD"), " makes one.")];
  const titles = all.columns.map((one) => h("th", { scope: "col", class: runs.some((run) => !run.problem && typeof one.of(run) === "number") ? "num" : null, title: one.title || null, "aria-sort": all.sort === one.name ? (all.down ? "descending" : "ascending") : "none" }, h("button", { type: "button", class: "sorts", onclick: () => sortRuns(one.name) }, tail(one.name, 40) + (all.sort === one.name ? (all.down ? " ↓" : " ↑") : ""))));
  titles.splice(1, 0, h("th", { scope: "col" }, reference ? `beside ${tail(reference.name, 24)}` : "compare"));
  const table = h("table", { class: "grid runs" }, h("thead", null, h("tr", null, titles)), h("tbody", null, runs.map((run) => runLine(run, reference))));
  return [head, runs.length ? h("div", { class: "scroll-x", tabindex: 0, role: "group", "aria-label": "All runs" }, table, sharedSettings()) : h("p", { class: "empty" }, h("b", null, "No run passes the filter. "), h("button", { type: "button", class: "btn", onclick: clearRuns }, "Clear the filter"))];
}

function sharedSettings() { // folded: it is looked at when somebody asks what the runs have in common
  if (!all.same.length) return null;
  const open = byId("same") ? byId("same").open : false;
  return h("details", { id: "same", open }, h("summary", null, `The same in all runs: ${whole(all.same.length)}`), h("dl", { class: "same" }, all.same.map(([key, value]) => h("div", null, h("dt", null, tail(key, 60)), h("dd", null, name(tail(String(value), 80)))))));
}

function sortRuns(column) {
  if (all.sort === column && all.down) all.sort = null;
  else if (all.sort === column) all.down = true;
  else Object.assign(all, { sort: column, down: false });
  drawRuns();
}

function takeReference(key) {
  all.reference = key;
  history.replaceState(null, "", key ? `?reference=${key}` : location.pathname);
  drawRuns();
}

function runLine(run, reference) {
  const line = h("tr", { class: run.problem ? "off" : null, "data-run": run.key });
  if (run.problem) {
    line.append(h("td", null, name(run.name)), h("td", { colspan: all.columns.length }, name(tail(run.problem, 300))));
    return line;
  }
  line.addEventListener("pointerenter", () => pickRun(run.key));
  line.addEventListener("pointerleave", () => pickRun(null));
  const cells = all.columns.map((column) => {
    const value = column.of(run);
    if (column.name === "tags") return h("td", { class: "tags-cell", "data-title": "tags" }, run.tags.map((one) => h("span", { class: "tag" }, name(one))), h("button", { type: "button", class: "link", "aria-label": `Tags and note of ${run.name}`, title: run.note || "Tags and note", onclick: () => editNotes(run) }, run.note ? "✎ note" : "✎"));
    if (column.name === "run") return h("td", { class: "run-cell" }, h("a", { href: `run/${run.key}`, title: tail(run.command, 400) }, name(tail(run.name, 60))), run.growing ? h("span", { class: "live" }, " ● being recorded") : null);
    const words = column.text ? column.text(run) : value === undefined ? null : tail(figure(typeof value === "boolean" ? String(value) : value), 40);
    return h("td", { class: typeof value === "number" ? "num" : null, "data-title": column.name, title: value == null ? null : column.title || tail(String(value), 200) }, words === null ? h("span", { class: "dim" }, "–") : name(words));
  });
  cells.splice(1, 0, h("td", { class: "beside" }, besideLinks(run, reference)));
  line.append(...cells);
  return line;
}

function besideLinks(run, reference) {
  if (!reference) return [h("button", { type: "button", class: "link", onclick: () => takeReference(run.key) }, "take as reference"), " ", h("a", { href: `spread?runs=${run.key}` }, "values")];
  if (run.key === reference.key) return h("b", null, "the reference");
  const pair = `compare/${reference.key}/${run.key}`;
  return [h("a", { href: `curves?runs=${reference.key},${run.key}` }, "curves"), " ", h("a", { href: `${pair}/graph` }, "graph"), " ", h("a", { href: `spread?runs=${reference.key},${run.key}` }, "values"), " ", h("a", { href: pair }, "report")];
}

function editNotes(run) {
  const dialog = byId("notes"), tags = h("input", { class: "field", id: "tags", value: run.tags.join(", "), "aria-label": "Tags, between commas" }), note = h("textarea", { class: "field", id: "note", rows: 5, maxlength: 4000, "aria-label": "Note" });
  note.value = run.note;
  const keep = saying(async () => {
    const kept = await sendTo(`notes/${run.key}`, { tags: tags.value.split(",").map((one) => one.trim()).filter(Boolean), note: note.value });
    Object.assign(run, kept);
    dialog.close();
    drawRuns();
  });
  dialog.replaceChildren(h("h2", null, "Tags and note of ", name(tail(run.name, 60))), run.problem ? h("p", null, run.problem) : "", h("label", { for: "tags" }, "Tags, between commas"), tags, h("label", { for: "note" }, "Note"), note,
    h("p", { class: "dim" }, "Kept in .lockstep-notes.json beside the run."), h("p", null, h("button", { type: "button", class: "btn", id: "keep", onclick: keep }, "Keep"), " ", h("button", { type: "button", class: "btn", onclick: () => dialog.close() }, "Cancel")));
  dialog.showModal();
}
