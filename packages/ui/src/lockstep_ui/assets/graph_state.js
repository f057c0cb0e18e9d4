// What of the graph is opened, chosen and in sight; every change asks the server for the part that is seen then.
const graph = {
  rank: "", step: 0, open: new Set(), text: "", node: 0, count: 0, boxes: [], edges: [], wide: 1, high: 1,
  view: { x: 0, y: 0, zoom: 1 }, band: [0, 0], version: 0, chosen: null,
};
const BOTH = 3;
const graphListeners = { view: [], tree: [], node: [] };
const tellGraph = (what) => graphListeners[what].forEach((act) => act());
const kindAt = (place) => (place < 0 ? null : page.kinds[place]);
const askGraph = (part, values) => askFor(`${page.base}/${part}`, { rank: graph.rank, step: graph.step, ...values });

function setOpen(nodes) { // as ranges, which a thousand opened nodes keep short
  graph.open = nodes;
  const sorted = [...nodes].sort((a, b) => a - b), parts = [];
  for (let i = 0; i < sorted.length; i++) {
    const first = sorted[i];
    while (sorted[i + 1] === sorted[i] + 1) i++;
    parts.push(first === sorted[i] ? String(first) : `${first}-${sorted[i]}`);
  }
  graph.text = parts.join(",");
}

async function showStep(rank, step) {
  Object.assign(graph, { rank, step, boxes: [], edges: [], chosen: null });
  byId("step").value = `${rank}\t${step}`;
  tellGraph("view");
  const found = await askGraph("start");
  graph.count = found.count;
  setOpen(new Set(found.open));
  graph.view.zoom = 1;
  await choose(found.node);
  location.replace("#" + new URLSearchParams({ rank, step, node: found.node }));
}

// Chooses a node, opens what is around it, and brings it to the middle.
async function choose(node, around = [], centred = true) {
  graph.node = node;
  if (around.some((one) => !graph.open.has(one))) setOpen(new Set([...graph.open, ...around]));
  history.replaceState(null, "", "#" + new URLSearchParams({ rank: graph.rank, step: graph.step, node }));
  const place = await askGraph("place", { node, open: graph.text });
  if (centred) centre(place);
  graph.line = place.line;
  const [chosen] = await Promise.all([askGraph("node", { node }), loadBoxes()]);
  if (graph.node !== node) return;
  graph.chosen = chosen;
  tellGraph("node");
  tellGraph("tree");
  tellGraph("view");
}

async function toggle(node) { // what is opened or closed stays where it is on the screen
  const before = graph.boxes.find((one) => one.node === node), open = new Set(graph.open);
  if (!open.delete(node)) open.add(node);
  setOpen(open);
  const place = await askGraph("place", { node, open: graph.text });
  if (before) { graph.view.x += place.x + place.wide / 2 - before.x - before.wide / 2; graph.view.y += place.y - before.y; } else centre(place);
  graph.line = (await askGraph("place", { node: graph.node, open: graph.text })).line;
  await loadBoxes();
  tellGraph("tree");
  tellGraph("view");
}

async function openAll(isOpen) {
  if (isOpen) { setOpen(new Set(Array.from({ length: graph.count }, (_, i) => i))); await choose(graph.node); return; }
  setOpen(new Set([0]));
  await choose(0);
}

function centre(place) {
  const { view } = graph, size = paneSize();
  view.x = place.x + place.wide / 2 - size.wide / view.zoom / 2;
  const tall = place.high * view.zoom > size.high * 0.8;
  view.y = tall ? place.y - 12 / view.zoom : place.y + place.high / 2 - size.high / view.zoom / 2;
}

async function loadBoxes() { // one screen more above and below, so that moving does not wait
  const version = ++graph.version, { view } = graph, high = paneSize().high / view.zoom;
  const band = [view.y - high, view.y + 2 * high];
  const found = await askGraph("boxes", { open: graph.text, top: band[0].toFixed(0), bottom: band[1].toFixed(0) });
  if (version !== graph.version) return;
  Object.assign(graph, found, { band });
  tellGraph("view");
}

let moveWaits = 0;
function moved() { // draws at once what is known, and asks for what has come into sight
  const { view, band } = graph, high = paneSize().high / view.zoom;
  view.x = Math.max(-0.5 * paneSize().wide / view.zoom, Math.min(graph.wide - 0.5 * paneSize().wide / view.zoom, view.x));
  view.y = Math.max(-0.5 * high, Math.min(graph.high - 0.5 * high, view.y));
  tellGraph("view");
  if (view.y >= band[0] && view.y + high <= band[1]) return;
  clearTimeout(moveWaits);
  moveWaits = setTimeout(saying(loadBoxes), 60);
}

function zoomBy(factor, at) {
  const { view } = graph, size = paneSize(), [x, y] = at || [size.wide / 2, size.high / 2];
  const zoom = Math.max(0.15, Math.min(2, view.zoom * factor));
  view.x += x / view.zoom - x / zoom;
  view.y += y / view.zoom - y / zoom;
  view.zoom = zoom;
  moved();
}

const toNext = saying(async (direction) => {
  const found = await askGraph("next", { node: graph.node, direction });
  if (found.node === null) throw new Error(direction === "back" ? "There is no difference before this." : "There is no difference behind this.");
  await choose(found.node, found.around);
});

// Along the flow: to a call that made a tensor of this one, or to one that takes one.
const follow = saying(async (way) => {
  const rows = graph.chosen ? graph.chosen.tensors : [], loud = [...rows].sort((a, b) => placeOf(a.kind) - placeOf(b.kind));
  const link = loud.flatMap((row) => row[way])[0];
  if (!link) throw new Error(way === "from" ? "Nothing recorded in this step made what enters here." : "Nothing recorded in this step takes what comes from here.");
  await choose(link.node, link.around);
});
const placeOf = (name) => page.kinds.findIndex((one) => one.name === name);
