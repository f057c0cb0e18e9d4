// Numbers and names as they are read.
const grouped = new Intl.NumberFormat("en", { useGrouping: true });
const whole = (value) => grouped.format(value).replace(/,/g, "\u202f");

function figure(value) { // four digits; a dash for what is not known
  if (value == null || Number.isNaN(value)) return "–";
  if (typeof value === "string") return value;
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0 || (Number.isInteger(value) && Math.abs(value) < 1e9)) return String(value);
  const size = Math.abs(value);
  if (size >= 0.001 && size < 1e4) return String(+value.toPrecision(4));
  return value.toExponential(2).replace("e+", "e").replace(/\.?0+e/, "e");
}

function times(value) { // one digit is enough for how many times a limit
  if (Number.isNaN(value)) return "–";
  if (value === Infinity) return "∞×";
  if (value === 0) return "=";
  if (value < 0.095) return "<0.1×";
  if (value < 9.95) return value.toFixed(1) + "×";
  if (value < 999.5) return Math.round(value) + "×";
  return value.toExponential(0).replace("e+", "e") + "×";
}

const valueWords = (value) => (rows.scaled ? times(value) : figure(value));
const signed = (value) => (value > 0 ? "+" : "") + figure(value);
const shortOperator = (text) => text.replace(/^torch\.nn\.functional\./, "F.").replace(/^torch\.(nn\.)?/, "$1").replace(/^transformers\..*\./, "");
const tail = (text, most) => (text.length <= most ? text : "…" + text.slice(1 - most)); // the end of a path tells most
const middle = (text, most) => (text.length <= most ? text : text.slice(0, most / 3) + "…" + text.slice(1 + Math.ceil(most / 3) - most));
function lastParts(path, most) { // whole parts of a path from its end on
  const parts = path.split(".");
  let found = parts.pop();
  while (parts.length && found.length + parts.at(-1).length < most) found = `${parts.pop()}.${found}`;
  return tail(found, 2 * most);
}
const SHORT_PHASE = { forward: "fwd", backward: "bwd", optimizer: "opt" };
const shortPhase = (text) => SHORT_PHASE[text] || text;
const titled = (text) => text.replace(/_/g, " ");
