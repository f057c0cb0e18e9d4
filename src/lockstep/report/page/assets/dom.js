// Elements. Names come from strangers: they become text nodes here, never markup.
const byId = (id) => document.getElementById(id);

function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) setProperty(element, name, value);
  element.append(...children.flat(3).filter((one) => one != null && one !== false));
  return element;
}

function setProperty(element, name, value) {
  if (value == null || (value === false && !name.startsWith("aria"))) return;
  if (name === "class") element.className = value;
  else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
  else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else element.setAttribute(name, value === true && !name.startsWith("aria") ? "" : String(value));
}

function icon(name) {
  const space = "http://www.w3.org/2000/svg";
  const drawing = document.createElementNS(space, "svg"), path = document.createElementNS(space, "path");
  const filled = page.filled.includes(name);
  const set = (element, values) => { for (const [key, value] of Object.entries(values)) element.setAttribute(key, value); };
  set(drawing, { viewBox: "0 0 12 12", class: "icon", "aria-hidden": "true" });
  set(path, { d: page.icons[name] || page.icons.none, fill: filled ? "currentColor" : "none", stroke: "currentColor",
    "stroke-width": "1.5", "stroke-linejoin": "round", "stroke-linecap": "round" });
  drawing.append(path);
  return drawing;
}

// A name in its own direction of reading, so that it cannot turn that of the words beside it.
const name = (text, properties) => h("bdi", properties, text);

const kindLine = (row, ...more) => {
  const kind = kindOf(row);
  return h("span", { class: "kline", "data-colour": kind.colour }, icon(kind.icon), kind.name, ...more);
};

function segments(label, choices, chosen, choose) {
  const buttons = choices.map(([value, words]) =>
    h("button", { type: "button", "aria-pressed": value === chosen, onclick: () => choose(value) }, words));
  return h("div", { class: "seg", role: "group", "aria-label": label }, buttons);
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // a page opened from disk may not use the clipboard
    const area = h("textarea", { "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

function copyButton(button) {
  button.wired = true;
  button.addEventListener("click", async () => {
    await copyText(button.previousElementSibling.textContent);
    button.textContent = "Copied";
    button.classList.add("done");
    setTimeout(() => { button.textContent = "Copy"; button.classList.remove("done"); }, 1400);
  });
  return button;
}
