// Canvases in the page's colours, sharp on any screen. What a canvas draws, a table or a text beside it says.
const COLOURS = ["bg", "surface", "sunken", "line", "line-strong", "ink", "ink-2", "ink-3", "accent", "fault", "agree",
  "unjudged", "r-eq", "r-noise", "r0", "r1", "r2", "r3", "r4", "r5", "heat-lo", "neg", "pos"];
const colours = {};
let fonts = {};

function readColours() { // a probe: custom properties keep `light-dark(...)` unresolved
  const probe = h("span", { hidden: true });
  document.body.append(probe);
  for (const one of COLOURS) {
    probe.style.color = `var(--${one})`;
    colours[one] = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  }
  const family = getComputedStyle(document.body).fontFamily;
  fonts = { plain: `11px ${family}`, bold: `600 11px ${family}` };
  probe.remove();
}

const paint = (one) => `rgb(${colours[one].join(",")})`;
const mixed = (a, b, share) => `rgb(${colours[a].map((one, i) => Math.round(one + (colours[b][i] - one) * share)).join(",")})`;

const NEGLIGIBLE = 1; // below the limit nothing is wrong
function rampName(value) {
  if (value === 0) return "r-eq";
  if (!(value > NEGLIGIBLE)) return "r-noise";
  return "r" + Math.max(0, Math.min(5, Math.floor(Math.log10(value))));
}

function rowColour(row) { // what is inherited is paler than what is new
  const kind = kindOf(row), value = valueOf(row);
  if (!rows.scaled) return paint(kind.colour === "fault" ? "fault" : "r-noise");
  if (kind.name === "bitwise equal") return paint("r-eq");
  if (Number.isNaN(value)) return paint("line-strong");
  if (kind.colour === "noise") return paint("r-noise");
  return kind.colour === "inherited" ? mixed(rampName(value), "surface", 0.55) : paint(rampName(value));
}

function sharp(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.style.setProperty("height", height + "px");
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.font = fonts.plain;
  return [pen, width, height];
}

function write(pen, text, x, y, colour, align = "left", bold = false) {
  pen.font = bold ? fonts.bold : fonts.plain;
  pen.fillStyle = paint(colour);
  pen.textAlign = align;
  pen.fillText(text, x, y);
}

function downTriangle(pen, x, y, size, filled, colour) {
  pen.beginPath();
  pen.moveTo(x - size, y - size);
  pen.lineTo(x + size, y - size);
  pen.lineTo(x, y + size);
  pen.closePath();
  if (filled) { pen.fillStyle = colour; pen.fill(); } else { pen.strokeStyle = colour; pen.stroke(); }
}

// Draws again when its canvas gets another width, or the page other colours.
const drawings = new Set();
const widths = new ResizeObserver((entries) => {
  for (const { target } of entries) if (target.clientWidth !== target.drawnWidth) drawOne(target);
});
function drawOne(canvas) {
  if (!canvas.isConnected || !canvas.clientWidth) return;
  canvas.drawnWidth = canvas.clientWidth;
  canvas.draw();
}
function keepDrawn(canvas, draw) {
  canvas.draw = draw;
  drawings.add(canvas);
  widths.observe(canvas);
  return canvas;
}
function drawAll() {
  for (const canvas of drawings) if (canvas.isConnected) drawOne(canvas); else drawings.delete(canvas);
}
