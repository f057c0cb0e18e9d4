// The data of the page: base64, deflated; see island.py for the layout.
const ARRAYS = { f8: Float64Array, i4: Int32Array, u1: Uint8Array };

async function readIsland(text) {
  const packed = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const raw = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(raw.buffer).getUint32(0, true);
  const value = JSON.parse(new TextDecoder().decode(raw.subarray(4, 4 + length)));
  return revived(value, raw.subarray(4 + length));
}

function revived(value, blocks) {
  if (Array.isArray(value)) {
    for (let i = 0; i < value.length; i++) if (typeof value[i] === "object") value[i] = revived(value[i], blocks);
    return value;
  }
  if (value === null || typeof value !== "object") return value;
  const keys = Object.keys(value);
  if (keys.length === 1 && keys[0] === "$") return marked(value.$, blocks);
  const made = {};
  for (const key of keys) made[key.startsWith("$") ? key.slice(1) : key] = revived(value[key], blocks);
  return made;
}

function marked(value, blocks) {
  if (typeof value === "string") return { nan: NaN, inf: Infinity, "-inf": -Infinity }[value];
  const [kind, at, size] = value, Kind = ARRAYS[kind], width = Kind.BYTES_PER_ELEMENT;
  const bytes = new Uint8Array(size * width);
  for (let plane = 0; plane < width; plane++) {
    const start = at + plane * size;
    for (let i = 0; i < size; i++) bytes[i * width + plane] = blocks[start + i];
  }
  return new Kind(bytes.buffer);
}
