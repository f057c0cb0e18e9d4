// Asking the page's own server; what it refuses is said on the page, once.
async function askFor(address, values) {
  const query = values ? "?" + new URLSearchParams(values) : "";
  let answer, found;
  try {
    answer = await fetch(address + query, { headers: { accept: "application/json" } });
    found = await answer.json();
  } catch {
    throw new Error("lockstep ui does not answer any more; start it again");
  }
  if (!answer.ok) throw new Error(found.failed || `the server answers ${answer.status}`);
  return found;
}

const tellAside = (words) => { const place = byId("said"); if (place) { place.textContent = words; place.hidden = !words; } };

// An act that asks: what goes wrong is said, what was said before goes.
const saying = (act) => async (...given) => {
  try { const made = await act(...given); tellAside(""); return made; } catch (error) { tellAside(error.message); return undefined; }
};

// What the server tells by itself, each time that it changes; a page that nobody sees does not hold the line.
function listenTo(address, hear) {
  let source = null;
  const open = () => {
    if (source || document.hidden) return;
    source = new EventSource(address);
    source.onmessage = (event) => { const found = JSON.parse(event.data); if (hear(found) === "done") close(); };
    source.onerror = () => { if (source && source.readyState === EventSource.CLOSED) { tellAside("lockstep ui does not answer any more; start it again"); source = null; } };
  };
  let ended = false;
  const close = () => { ended = true; if (source) source.close(); source = null; };
  document.addEventListener("visibilitychange", () => { if (ended) return; if (document.hidden && source) { source.close(); source = null; } else open(); });
  open();
  return close;
}

async function sendTo(address, value) {
  let answer, found;
  try {
    answer = await fetch(address, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(value) });
    found = await answer.json();
  } catch {
    throw new Error("lockstep ui does not answer any more; start it again");
  }
  if (!answer.ok) throw new Error(found.failed || `the server answers ${answer.status}`);
  return found;
}
