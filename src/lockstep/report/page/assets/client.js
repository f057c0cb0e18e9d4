// Of a page that a server keeps up to date: reads what it was given, answers to keys, and hands over to `start`.
let page;

function mountClientKeys(keys) { // each: how it is shown, what it does in words, and by which key
  const dialog = byId("keys"), acts = new Map(keys.map(([key, , act]) => [key, act]));
  const shown = [...keys, ["t", "light or dark"], ["?", "this list"]];
  byId("keys-list").append(...shown.flatMap(([key, words]) => [h("dt", null, h("kbd", null, key)), h("dd", null, words)]));
  byId("show-keys").addEventListener("click", () => dialog.showModal());
  byId("close-keys").addEventListener("click", () => dialog.close());
  byId("theme").addEventListener("click", turnClientTheme);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open || event.defaultPrevented) return;
    if (event.target.matches("input,select,textarea")) { if (event.key === "Escape") event.target.blur(); return; }
    const act = { ...Object.fromEntries(acts), t: turnClientTheme, "?": () => dialog.showModal() }[event.key];
    if (act) { act(); event.preventDefault(); }
  });
}

function turnClientTheme() {
  const root = document.documentElement, dark = getComputedStyle(root).colorScheme === "dark" || (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.theme = dark ? "light" : "dark";
  readColours();
  drawAll();
}

async function startClient() {
  const island = byId("island");
  page = await readIsland(island.textContent);
  island.remove();
  document.documentElement.classList.add("script");
  readColours();
  await start(page);
  for (const one of ["(prefers-color-scheme: dark)", "print"]) matchMedia(one).addEventListener("change", () => { readColours(); drawAll(); });
  document.documentElement.dataset.ready = "yes";
}

startClient().catch((error) => document.querySelector("main").prepend(h("p", { class: "card empty", role: "alert" }, `This page cannot be shown here (${error.message}).`)));
