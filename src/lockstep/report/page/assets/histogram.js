// Counts of both in common bins, on a logarithmic scale: tails matter here.
function histogramBlock(block) {
  const canvas = h("canvas", { role: "img", "aria-label": `${block.title}; the counts stand in the table below` });
  keepDrawn(canvas, () => drawHistogram(canvas, block));
  const legend = block.candidate ? h("div", { class: "legend" }, h("span", null, h("i", { class: "swatch" }), block.names[0]), h("span", null, h("i", { class: "swatch dashed" }), block.names[1])) : null;
  const label = (i) => (block.labels.length ? block.labels[i] : figure(block.edges[i]));
  const last = block.labels.length ? block.labels.at(-1) : figure(block.edges.at(-1));
  const lines = () => Array.from(block.reference, (count, i) => [block.labels.length ? label(i) : `${label(i)} … ${figure(block.edges[i + 1])}`, count, ...(block.candidate ? [block.candidate[i]] : [])]);
  return h("div", { class: "blk" }, h("header", null, h("h3", null, block.title), legend), canvas,
    h("div", { class: "axis" }, h("span", null, label(0)), h("span", null, "count, log"), h("span", null, last)),
    behind(["from … to", ...(block.candidate ? block.names : ["count"])], lines));
}

function drawHistogram(canvas, block) {
  const [pen, width, height] = sharp(canvas, 92), bins = block.reference.length;
  pen.clearRect(0, 0, width, height);
  const most = Math.max(1, ...block.reference, ...(block.candidate || [])), high = (count) => (count > 0 ? 4 + ((height - 8) * Math.log1p(count)) / Math.log1p(most) : 0);
  const x = (i) => (width * i) / bins;
  pen.fillStyle = paint("r-eq");
  block.reference.forEach((count, i) => pen.fillRect(x(i), height - high(count), width / bins - 0.5, high(count)));
  outline(pen, block.reference, x, high, height, "ink-3", []);
  if (block.candidate) outline(pen, block.candidate, x, high, height, "accent", [4, 2]);
}

function outline(pen, counts, x, high, height, colour, dash) {
  pen.strokeStyle = paint(colour);
  pen.lineWidth = 1.5;
  pen.setLineDash(dash);
  pen.beginPath();
  pen.moveTo(0, height);
  counts.forEach((count, i) => { pen.lineTo(x(i), height - high(count)); pen.lineTo(x(i + 1), height - high(count)); });
  pen.lineTo(x(counts.length), height);
  pen.stroke();
  pen.setLineDash([]);
  pen.lineWidth = 1;
}
