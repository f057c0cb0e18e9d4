// Reads the data, then draws every area into its place.
const MOUNT = {
  Strip: (area, place) => mountStrip(area, place),
  Work(area) {
    mountTree(area.tree, byId("tree"));
    mountScatter(area.scatter, byId("scatter"));
    mountTable(area.table, byId("table"));
    mountSelected(area.selected, byId("selected"));
  },
};

async function start() {
  const island = byId("island");
  page = await readIsland(island.textContent);
  island.remove();
  document.documentElement.classList.add("script");
  readRows();
  readColours();
  if (rows && rows.count) {
    findSites();
    state.kinds = new Set(kinds.keys());
    state.row = rows.selected;
    findView();
  }
  page.areas.forEach((area, number) => { const place = document.querySelector(`[data-area="${number}"]`); if (place && MOUNT[area.is]) MOUNT[area.is](area, place); });
  page.charts.forEach((block, number) => { const place = document.querySelector(`[data-block="${number}"]`); if (place) place.append(blockElement(block)); });
  document.querySelectorAll(".copy").forEach((one) => { if (!one.wired) copyButton(one); });
  mountKeys();
  if (rows && rows.count) linkRow();
  for (const one of ["(prefers-color-scheme: dark)", "print"]) matchMedia(one).addEventListener("change", recolour);
  drawAll();
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => { // the answer and the first rows stand in the HTML already
  document.querySelector("main").prepend(h("p", { class: "card empty", role: "alert" }, `The interactive part of this page cannot be shown here (${error.message}); a current browser can.`));
});
