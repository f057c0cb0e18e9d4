// Where in a tensor something sits: the extreme of each cell, signed or by size, and the mean size of each row.
let signedColours = true;

function heatMapBlock(block) {
  const canvas = h("canvas", { class: "heat", role: "img", "aria-label": `${block.title}, ${block.about}; the cells stand in the table below` });
  let extreme = 0;
  for (const one of block.values) if (Math.abs(one) > extreme) extreme = Math.abs(one);
  const draw = () => drawHeat(canvas, block, extreme);
  keepDrawn(canvas, draw);
  const switches = h("span");
  const turn = (one) => {
    if (one) signedColours = one === "signed";
    switches.replaceChildren(segments("Colours", [["signed", "signed"], ["size", "size"]], signedColours ? "signed" : "size", turn));
    if (one) drawOne(canvas);
  };
  if (block.signed) turn();
  const legend = h("div", { class: "axis" }, h("span", null, block.about), h("span", null, block.signed ? `blue −${figure(extreme)} … red +${figure(extreme)}` : `up to ${figure(extreme)}`));
  const lines = () => Array.from({ length: block.rows }, (_, row) => [row, ...block.values.slice(row * block.columns, Math.min((row + 1) * block.columns, row * block.columns + 64))]);
  return h("div", { class: "blk tall" }, h("header", null, h("h3", null, block.title), block.signed ? switches : null), canvas, legend,
    behind(["row", ...Array.from({ length: Math.min(64, block.columns) }, (_, i) => String(i))], lines));
}

function drawHeat(canvas, block, extreme) {
  const [pen, width] = sharp(canvas, Math.round(Math.max(40, Math.min(260, block.rows * 8)))), height = canvas.clientHeight;
  const side = block.means && block.columns > 1 ? 30 : 0, image = new ImageData(block.columns, block.rows);
  for (let i = 0; i < block.values.length; i++) image.data.set(heatColour(block.values[i], extreme, block.signed && signedColours), i * 4);
  const small = new OffscreenCanvas(block.columns, block.rows);
  small.getContext("2d").putImageData(image, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(small, 0, 0, width - side - (side ? 4 : 0), height);
  if (side) drawRowMeans(pen, block, width - side, side, height);
}

function heatColour(value, extreme, isSigned) {
  if (Number.isNaN(value)) return [...colours.unjudged, 255];
  const share = extreme ? Math.sqrt(Math.abs(value) / extreme) : 0; // small errors are to be seen, too
  const to = isSigned ? colours[value < 0 ? "neg" : "pos"] : colours[share < 0.5 ? "r2" : "r5"];
  const from = !isSigned && share >= 0.5 ? colours.r2 : colours["heat-lo"], at = isSigned ? share : share < 0.5 ? share * 2 : share * 2 - 1;
  return [...from.map((one, i) => Math.round(one + (to[i] - one) * Math.min(1, at))), 255];
}

function drawRowMeans(pen, block, x, wide, height) {
  const means = Array.from({ length: block.rows }, (_, row) => {
    let sum = 0;
    for (let i = 0; i < block.columns; i++) sum += Math.abs(block.values[row * block.columns + i]) || 0;
    return sum / block.columns;
  });
  const most = Math.max(...means) || 1, high = height / block.rows;
  pen.fillStyle = paint("ink-3");
  means.forEach((one, row) => pen.fillRect(x, row * high, (wide * one) / most, Math.max(0.5, high - 0.5)));
}
