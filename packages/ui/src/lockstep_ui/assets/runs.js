// All runs: what differs between them, side by side as rows and as lines across axes; they come and grow by themselves.
const all = { runs: [], same: [], most: 0, reference: null, sort: null, down: false, filter: "", columns: [], picked: null, ranges: new Map(), asked: new Set() };

async function start(data) {
  byId("plain").hidden = true;
  all.reference = new URLSearchParams(location.search).get("reference");
  if (data.sort) { all.down = data.sort.startsWith("-"); all.sort = data.sort.replace(/^-/, ""); }
  const place = byId("runs");
  place.append(h("p", { id: "said", class: "said", role: "alert", hidden: true }), h("section", { class: "card", id: "live", "aria-label": "Followed now", hidden: true }), h("section", { class: "card", id: "list", "aria-label": "Runs" }), h("section", { class: "card", id: "lines", "aria-label": "Settings and results" }), h("dialog", { id: "notes", "aria-label": "Tags and note" }));
  mountClientKeys([["/", "filter", () => byId("filter").focus()], ["c", "curves of the newest two", () => location.assign("curves")], ["Esc", "clear filters", clearRuns]]);
  Object.assign(all, await askFor("runs"));
  const wanted = all.sort && columnsOfRuns().every((one) => one.name !== all.sort);
  drawRuns();
  if (wanted) tellAside(`There is no column ${all.sort} to sort by.`);
  listenTo("runs/events", (found) => {
    if (found.failed) { tellAside(found.failed); return; }
    all.live = found.live;
    drawLive();
    const there = JSON.stringify(found.runs);
    if (there !== all.text) { all.text = there; Object.assign(all, found); if (!byId("notes").open) drawRuns(); }
  });
}

function drawLive() { // what `lockstep watch` and `follow` hold; a pause is at the end of a step
  const place = byId("live");
  place.hidden = !all.live.length;
  place.replaceChildren(h("header", null, h("h2", null, "Followed now")), h("div", { class: "scroll-x" }, h("table", { class: "grid runs" }, h("tbody", null, all.live.map((one) => h("tr", { "data-live": one.key }, h("td", { class: "live" }, one.paused ? "❚❚ paused" : "● training"), h("td", null, `since ${one.started.slice(11, 19)} UTC`),
    h("td", null, h("button", { type: "button", class: "btn", onclick: saying(async () => { Object.assign(one, await sendTo(`live/${one.key}/${one.paused ? "go-on" : "pause"}`, {})); drawLive(); }) }, one.paused ? "Continue" : "Pause")), h("td", null, h("code", null, name(tail(one.command || "a training", 160))))))))));
}

function clearRuns() {
  all.filter = "";
  all.ranges.clear();
  drawRuns();
}

// Settings whose value is not the same everywhere, each once: of `lr` and `optimizer.lr` that are alike, the shorter name.
function varyingSettings(sound, names) {
  const kept = new Map();
  for (const [key, values] of names) {
    if (values.size < 2 && !(sound.length > 1 && sound.some((one) => !(key in one.settings)))) continue;
    const alike = JSON.stringify(sound.map((one) => one.settings[key] ?? null)), other = kept.get(alike);
    if (other === undefined || key.length < other.length) kept.set(alike, key);
  }
  return [...kept.values()];
}

const stepsOf = (run) => (run.trained == null ? whole(run.steps) : `${whole(run.steps)} of ${whole(run.trained)}`);

// Results first, then settings that vary; what all runs share tells none from another and stands below the table.
function columnsOfRuns() {
  const sound = all.runs.filter((one) => !one.problem), names = new Map();
  for (const run of sound) for (const [key, value] of Object.entries(run.settings)) { if (!names.has(key)) names.set(key, new Set()); names.get(key).add(String(value)); }
  if (names.has(all.sort)) all.asked.add(all.sort);
  const varying = varyingSettings(sound, names).slice(0, 8), shown = varying.concat([...all.asked].filter((one) => !varying.includes(one)));
  all.settings = [...names.keys()];
  const settings = shown.map((key) => ({ name: key, of: (run) => run.settings[key], isSetting: true }));
  const results = ["last loss", "lowest loss"].filter((key) => sound.some((one) => key in one.results)).map((key) => ({ name: key, of: (run) => run.results[key] }));
  const steps = { name: "steps", of: (run) => run.trained ?? run.steps, text: stepsOf, title: "recorded, of those that were trained" };
  const isSame = sound.length > 1 && new Set(sound.map(stepsOf)).size === 1 && all.sort !== "steps";
  all.same = sound.length < 2 ? [] : [...(isSame ? [["steps", stepsOf(sound[0])]] : []), ...[...names].filter(([key, values]) => values.size === 1 && !shown.includes(key) && sound.every((one) => key in one.settings)).map(([key]) => [key, sound[0].settings[key]])];
  return [{ name: "run", of: (run) => run.name }, ...results, ...settings, ...(isSame ? [] : [steps]), { name: "made (UTC)", of: (run) => run.made.slice(0, 16).replace("T", " ") }, { name: "tags", of: (run) => run.tags.join(", ") }];
}

function seenRuns() {
  const text = all.filter.toLowerCase();
  return all.runs.filter((run) => {
    const words = `${run.name} ${run.command} ${run.tags.join(" ")} ${run.note} ${run.problem}`.toLowerCase();
    return words.includes(text) && [...all.ranges].every(([column, range]) => { const at = axisValue(column, run); return at !== null && at >= range[0] && at <= range[1]; });
  });
}

function sortedRuns(runs) {
  const column = all.columns.find((one) => one.name === all.sort);
  if (!column) return runs;
  const sign = all.down ? -1 : 1;
  return [...runs].sort((a, b) => {
    const one = column.of(a), other = column.of(b);
    if (one == null || other == null) return (one == null) - (other == null); // what is not known comes last either way
    if (typeof one === "number" && typeof other === "number") return sign * (one - other);
    return sign * String(one).localeCompare(String(other), "en", { numeric: true });
  });
}

function drawRuns() {
  all.columns = columnsOfRuns();
  const active = document.activeElement, focused = active && active.id === "filter" ? [active.selectionStart, active.selectionEnd] : null;
  byId("list").replaceChildren(...runsTable(sortedRuns(seenRuns())));
  if (focused) { byId("filter").focus(); byId("filter").setSelectionRange(...focused); }
  drawParallel(byId("lines"));
}
