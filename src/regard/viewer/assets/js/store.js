// What is being looked at, in one place; part of it lives in the address, so that a view can be linked.

const NAMES = { layer: "l", head: "h", token: "t", direction: "d", scale: "s", aside: "a", source: "m", sort: "o", beside: "b", place: "z" };

export function createStore(initial, valid) {
  let state = { ...initial, ...valid(readHash(initial), initial) };
  const listeners = [];

  function update(patch) {
    const changed = Object.keys(patch).filter((name) => state[name] !== patch[name]);
    if (!changed.length) return;
    state = { ...state, ...patch };
    writeHash(state, initial);
    for (const listener of listeners) listener(state, new Set(changed));
  }

  window.addEventListener("hashchange", () => update({ ...initial, found: state.found, ...valid(readHash(initial), initial) }));
  return { get: () => state, update, listen: (listener) => listeners.push(listener) };
}

function readHash(initial) {
  const given = new URLSearchParams(location.hash.slice(1));
  const found = {};
  for (const [name, short] of Object.entries(NAMES)) {
    const text = given.get(short);
    if (text === null) continue;
    found[name] = typeof initial[name] === "number" ? Number(text) : typeof initial[name] === "boolean" ? text === "1" : text;
  }
  return found;
}

function writeHash(state, initial) {
  const parts = new URLSearchParams();
  for (const [name, short] of Object.entries(NAMES)) {
    if (name === "layer" || name === "head" || state[name] !== initial[name]) {
      parts.set(short, typeof state[name] === "boolean" ? Number(state[name]) : state[name]);
    }
  }
  history.replaceState(null, "", `#${parts}`);
}
