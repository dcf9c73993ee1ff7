// Finds a phrase across tokens, and steps through where it stands.

import { element } from "./dom.js";

export function createSearch(view, store) {
  const input = element("input", { type: "search", placeholder: "Find in the text  /", "aria-label": "Find in the text", spellcheck: "false" });
  const count = element("output", { class: "soft", "aria-live": "polite" });
  const node = element("div", { class: "search", role: "search" }, count, input);
  const { text, starts } = joined(view.tokens);
  let places = [], at = -1;

  function find() {
    const wanted = input.value.toLowerCase();
    places = [];
    for (let from = wanted ? text.indexOf(wanted) : -1; from >= 0; from = text.indexOf(wanted, from + 1)) {
      const first = tokenAt(starts, from);
      if (!places.length || places[places.length - 1][0] !== first) places.push([first, tokenAt(starts, from + wanted.length - 1)]);
    }
    at = -1;
    store.update({ found: places.flatMap(([first, last]) => Array.from({ length: last - first + 1 }, (_, i) => first + i)) });
    if (places.length) step(1);
    else count.textContent = wanted ? "not found" : "";
  }

  function step(by) {
    if (!places.length) return;
    at = (at + by + places.length) % places.length;
    count.textContent = `${at + 1} of ${places.length}`;
    store.update({ token: places[at][1] });
  }

  input.addEventListener("input", find);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") step(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") input.blur();
  });
  return { node, focus: () => input.select() };
}

function joined(tokens) {
  const starts = [];
  let text = "";
  for (const token of tokens) {
    starts.push(text.length);
    text += token;
  }
  return { text: lower(text), starts };
}

// Lower case that keeps every character's place, also where one lowers to two.
function lower(text) {
  const plain = text.toLowerCase();
  return plain.length === text.length ? plain : Array.from({ length: text.length }, (_, i) => lowerUnit(text[i])).join("");
}

function lowerUnit(unit) {
  const small = unit.toLowerCase();
  return small.length === 1 ? small : unit;
}

function tokenAt(starts, place) {
  let low = 0, high = starts.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] <= place) low = middle;
    else high = middle - 1;
  }
  return low;
}
