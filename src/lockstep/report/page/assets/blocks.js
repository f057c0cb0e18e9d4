// Blocks: what the details of a row, and any card, are made of.
const BLOCKS = {
  Sentences: (block) => titledBlock(block.title, block.sentences.length ? h("ul", { class: "list" }, block.sentences.map((one) => h("li", null, sentence(one)))) : h("p", { class: "muted" }, block.empty)),
  Facts: (block) => titledBlock(block.title, h("dl", { class: "why" }, block.facts.map(([term, words]) => h("div", null, h("dt", null, term), h("dd", null, sentence(words)))))),
  Grid: (block) => titledBlock(block.title, h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": block.title || "Numbers" }, gridTable(block.titles, block.rows, block.standing_out))),
  Tiles: (block) => h("dl", { class: "tiles" }, block.tiles.map(([term, value]) => h("div", null, h("dt", null, term), h("dd", null, figure(value))))),
  Chart: chartBlock,
  Points: pointsBlock,
  Histogram: histogramBlock,
  HeatMap: heatMapBlock,
  Images: imagesBlock,
  Code: codeBlock,
  Stack: stackBlock,
  Commands: commandsBlock,
  Note: (block) => h("p", { class: "note" }, sentence(block.words)),
  Links: (block) => titledBlock(block.title, h("ul", null, block.rows.map(([row, words]) => h("li", null, h("button", { type: "button", class: "link", onclick: () => choose(row) }, name(tail(words, 160))))))),
};

const blockElement = (block) => BLOCKS[block.is](block);
const titledBlock = (title, content) => h("div", { class: "blk" }, title ? h("header", null, h("h3", null, title)) : null, content);

function sentence(words) {
  if (typeof words === "string") return words;
  return words.map((one) => (typeof one === "string" ? one : h(one.mark === "code" ? "code" : "b", null, name(one.words))));
}

function codeBlock(block) {
  const lines = block.lines.map(([at, text]) => h("span", { class: block.standing_out.includes(at) ? "l hot" : "l" }, h("i", null, String(at)), text + "\n"));
  return h("figure", { class: "code" }, h("figcaption", null, h("code", null, name(block.where)), block.note), lines.length ? h("pre", { tabindex: 0, role: "group", "aria-label": `Source at ${block.where}` }, lines) : null);
}

// The user's own lines, with their text where it was kept; a run of library frames is folded.
function stackBlock(block) {
  const excerpts = new Map(block.excerpts), items = [];
  for (let i = 0; i < block.frames.length; i++) {
    const [, , isLibrary] = block.frames[i];
    if (!isLibrary) { items.push(frameItem(block.frames[i], excerpts)); continue; }
    const run = [];
    while (i < block.frames.length && block.frames[i][2]) run.push(block.frames[i++]);
    i--;
    items.push(run.length === 1 ? frameItem(run[0], excerpts) : h("li", null, h("details", null, h("summary", null, `${run.length} frames in libraries`), h("ol", null, run.map((one) => frameItem(one, excerpts))))));
  }
  return titledBlock(block.title, h("ol", { class: "stack" }, items));
}

function frameItem([where, inside, isLibrary], excerpts) {
  const excerpt = excerpts.get(where), words = [name(tail(where, 90)), inside ? ` in ${inside}` : ""];
  if (!excerpt) return h("li", { class: isLibrary ? "lib" : null }, words);
  return h("li", null, h("details", { open: excerpts.keys().next().value === where }, h("summary", null, words), codeBlock(excerpt)));
}

function commandsBlock(block) {
  return h("div", { class: "next" }, h("h3", null, block.title), h("ol", null, block.commands.map((one) => {
    const button = h("button", { type: "button", class: "copy", "aria-label": `Copy the command: ${one.title}` }, "Copy");
    const typed = h("div", { class: "cmd" }, h("code", null, one.command), button);
    copyButton(button);
    return h("li", null, h("p", null, one.title), one.command ? typed : null, one.words ? h("small", null, one.words) : null);
  })));
}
