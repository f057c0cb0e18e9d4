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
