// Pictures of one size, side by side; what their pixels are in numbers stands in the table.
function imagesBlock(block) {
  const { height, width, channels, values } = block, size = height * width * channels, count = values.length / size;
  const drawn = Array.from({ length: count }, (_, number) => {
    const canvas = h("canvas", { width, height, role: "img", "aria-label": `${block.title}: image ${number}` }), image = new ImageData(width, height);
    for (let at = 0; at < height * width; at++) {
      const from = number * size + at * channels;
      image.data.set([values[from], values[from + (channels > 1 ? 1 : 0)], values[from + (channels > 1 ? 2 : 0)], 255], at * 4);
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  });
  return h("div", { class: "blk" }, h("header", null, h("h3", null, name(block.title))), h("div", { class: "images" }, drawn),
    h("div", { class: "axis" }, h("span", null, block.about)), behind(block.titles, () => block.rows));
}
