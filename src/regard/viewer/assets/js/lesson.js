// The formula step by step, for one query of one head: bars over the keys, and switches that are felt at once.

import { element, tokenElement } from "./dom.js";
import { AS_IT_IS, stepsOf } from "./lesson_numbers.js";
import { plural, weightText } from "./numbers.js";

const MOST_KEYS = 16;
const MOST_MASKED = 3;
const OCTAVES = 3; // temperatures from 1/8 to 8
const HALF = 0.5; // the greatest norm a softmax Jacobian can have

// Shows a lesson in `root`. `data` has, for M keys: `tokens` (their texts), `scores` (q · k), `allowed`, `bias` (or
// null), `norms` (lengths of the values, or null); and `scale`, `dim` (d_k), `softcap` and `sink` (or null).
export function lesson(root, data) {
  const given = stepsOf(data, AS_IT_IS);
  const keys = shownKeys(given, data);
  const state = { ...AS_IT_IS };
  const parts = formula(data);
  const switches = switchesOf(data, state, refresh);
  const effects = effectsOf(data, given);
  const table = tableOf(data, given, keys);
  root.replaceChildren(element("div", { class: "lesson" }, parts.node, switches.node, effects.node, table.node));
  refresh();

  function refresh() {
    const now = stepsOf(data, state);
    parts.show(state);
    switches.show(state);
    effects.show(now);
    table.show(now, state);
  }
}

// The keys with the greatest logits, and a few masked ones that would have had a say, in the order of the text.
function shownKeys({ masked, logits }, { allowed }) {
  const order = Array.from(logits.keys()).sort((a, b) => logits[b] - logits[a] || a - b);
  const few = Math.max(MOST_MASKED, MOST_KEYS - order.filter((key) => allowed[key]).length);
  const out = order.filter((key) => !allowed[key]).slice(0, few);
  const rest = order.filter((key) => masked[key] !== -Infinity).slice(0, MOST_KEYS - out.length);
  return [...out, ...rest].sort((a, b) => a - b);
}

// The formula, in which what is switched off is struck out.
function formula({ dim }) {
  const scale = element("span", { class: "part" }, " / √", element("i", {}, "d"), element("sub", {}, "k"));
  const mask = element("span", { class: "part" }, " + mask");
  const temperature = element("span", { class: "part" }), opened = element("span", {});
  const node = element("p", { class: "formula" }, "softmax(", opened, "Q Kᵀ", scale, mask, temperature, ") V", element("small", {}, `d`, element("sub", {}, "k"), ` = ${dim}`));
  function show(state) {
    scale.classList.toggle("off", !state.scale);
    mask.classList.toggle("off", !state.mask);
    opened.textContent = state.temperature === 1 ? "" : "(";
    temperature.textContent = state.temperature === 1 ? "" : `) / ${short(state.temperature)}`;
  }
  return { node, show };
}

function switchesOf(data, state, changed) {
  const set = (patch) => changed(Object.assign(state, patch));
  const scale = element("button", { type: "button", "data-switch": "scale", onclick: () => set({ scale: !state.scale }) }, `Scale ${scaleText(data)}`);
  const mask = element("button", { type: "button", "data-switch": "mask", onclick: () => set({ mask: !state.mask }) }, "Mask");
  const slider = element("input", { type: "range", min: -OCTAVES, max: OCTAVES, step: 0.25, oninput: () => set({ temperature: 2 ** Number(slider.value) }) });
  const said = element("output", {});
  const reset = element("button", { type: "button", onclick: () => set({ ...AS_IT_IS }) }, "As it is");
  const node = element("div", { class: "switches" }, scale, mask, element("label", {}, "Temperature ", slider, said), reset);
  function show({ temperature, ...on }) {
    scale.setAttribute("aria-pressed", String(on.scale));
    mask.setAttribute("aria-pressed", String(on.mask));
    slider.value = String(Math.log2(temperature));
    slider.setAttribute("aria-valuetext", short(temperature));
    said.textContent = short(temperature);
    reset.disabled = on.scale && on.mask && temperature === 1;
  }
  return { node, show };
}

// Entropy, largest weight and gradient left, each with a mark where it stands with nothing switched.
function effectsOf(data, given) {
  const most = Math.max(Math.log(Math.max(2, data.scores.length)), given.entropy);
  const meters = [
    meter("Entropy", "nats", most, ({ entropy }) => entropy, given),
    meter("Largest weight", "", 1, ({ largest }) => largest, given),
    meter("Gradient left", "of ½", HALF, ({ gradient }) => gradient, given),
  ];
  const on = element("span", {});
  meters[1].note.replaceChildren(on);
  const verdict = element("p", { class: "verdict", "aria-live": "polite" });
  function show(now) {
    for (const one of meters) one.show(now);
    on.replaceChildren(...(now.largestKey < 0 ? [] : ["on ", tokenElement(data.tokens[now.largestKey])]));
    verdict.textContent = sentence(now, given);
  }
  return { node: element("div", { class: "effects" }, meters.map(({ node }) => node), verdict), show };
}

function meter(name, unit, most, of, given) {
  const value = element("b", { "data-effect": name }), bar = element("i", {}), mark = element("u", {}), note = element("small", {}, unit);
  mark.style.left = share(of(given), most);
  const node = element("div", { class: "meter" }, element("span", {}, name), element("div", {}, value, " ", note), element("div", { class: "track" }, bar, mark));
  function show(now) {
    value.textContent = small(of(now));
    bar.style.width = share(of(now), most);
  }
  return { node, note, show };
}

function sentence(now, given) {
  if (!Number.isFinite(now.gradient)) return "These scores are not finite: there is nothing to show.";
  if (now.largestKey < 0) return "The query may attend to nothing: its output is 0.";
  const left = given.gradient > 0 ? now.gradient / given.gradient : 1;
  const change = left < 0.01 ? "hardly any of the gradient is left" : left < 0.99 ? `${(100 * left).toFixed(0)} % of the gradient is left` : left > 1.01 ? `the gradient is ${left.toFixed(1)} times as great` : "";
  const state = now.largest > 0.99 ? "Softmax chooses one key" : `The weight lies on about ${short(Math.exp(now.entropy), 2)} keys (e to the entropy)`;
  return `${state}${change ? `: ${change}` : ""}.`;
}

// One row a key, one column a step: read across, it is what becomes of one score.
function tableOf(data, given, keys) {
  const columns = [
    { name: "Scores", of: (now) => now.scores, text: () => "q · k" },
    { name: "Scale", of: (now) => now.logits, text: (state) => logitText(data, state) },
    { name: "Mask", of: (now) => now.masked, text: (state) => (state.mask ? "−∞ where masked" : "left out") },
    { name: "Softmax", of: (now) => now.weights, text: () => `exp(s) / Σ exp(s)${data.sink === null ? "" : ", Σ with a sink"}`, weight: true },
    { name: "Weighted values", of: (now) => now.weighted, text: () => "p · ‖v‖", weight: true },
  ].filter(({ of }) => of(given) !== null);
  const heads = columns.map(({ name }, at) => {
    const text = element("small", {});
    return { text, node: element("th", { scope: "col" }, element("span", {}, `${at + 1} `, name), text) };
  });
  const rows = keys.map((key) => {
    const cells = columns.map(() => cellOf());
    const node = element("tr", { "data-key": key }, element("td", { class: "where" }, String(key)), element("td", { class: "key" }, tokenElement(data.tokens[key])), cells.map(({ node: cell }) => cell));
    return { key, cells, node };
  });
  const others = element("tfoot", {});
  const node = element("div", { class: "steps" }, element("table", {},
    element("thead", {}, element("tr", {}, element("th", {}), element("th", {}, "Key"), heads.map(({ node: head }) => head))),
    element("tbody", {}, rows.map(({ node: row }) => row)), others));

  function show(now, state) {
    columns.forEach(({ of, text, weight }, at) => {
      heads[at].text.textContent = text(state);
      const numbers = of(now);
      const finite = keys.map((key) => numbers[key]).filter(Number.isFinite);
      // Weights keep the axis that they have with nothing switched, as long as they fit on it.
      const kept = weight ? keys.map((key) => of(given)[key]) : [];
      const low = Math.min(0, ...finite), high = Math.max(0, ...finite, ...kept.filter(Number.isFinite));
      for (const { key, cells } of rows) cells[at].show(numbers[key], low, high, weight ? of(given)[key] : null);
    });
    const rest = data.scores.length - keys.length;
    if (!rest) return;
    const shown = keys.reduce((sum, key) => sum + now.weights[key], 0);
    const all = now.weights.reduce((sum, weight) => sum + weight, 0);
    others.replaceChildren(element("tr", {}, element("td", {}), element("td", { colspan: columns.length + 1 }, `${plural(rest, "other key")}, with ${small(Math.max(0, all - shown))} of the weight together`)));
  }
  return { node, show };
}

function cellOf() {
  const bar = element("i", {}), mark = element("u", {}), text = element("span", {});
  const node = element("td", { class: "step" }, element("div", {}, element("div", { class: "track" }, bar, mark), text));
  function show(number, low, high, before) {
    const masked = number === -Infinity;
    node.classList.toggle("masked", masked);
    node.classList.toggle("negative", number < 0 && !masked);
    text.textContent = masked ? "−∞" : before === null ? number.toFixed(2) : small(number);
    text.dataset.value = String(number);
    const width = high - low || 1;
    bar.style.left = share(masked ? 0 : Math.min(number, 0) - low, width);
    bar.style.width = share(masked ? 0 : Math.abs(number), width);
    mark.hidden = before === null;
    if (before !== null) mark.style.left = share(before - low, width);
  }
  return { node, show };
}

function logitText(data, { scale, temperature }) {
  const capped = data.softcap ? `, softcap ${short(data.softcap)}` : "";
  return `${scale ? `q · k ${scaleText(data)}` : "q · k, left out"}${capped}${data.bias ? " + bias" : ""}${temperature === 1 ? "" : ` / ${short(temperature)}`}`;
}

function scaleText({ scale, dim }) {
  return Math.abs(scale * Math.sqrt(dim) - 1) < 1e-6 ? `/ √${dim}` : `× ${short(scale)}`;
}

function share(part, whole) {
  return `${100 * Math.min(1, Math.max(0, part / whole || 0))}%`;
}

function small(number) {
  return number >= 1 ? number.toFixed(2) : weightText(number);
}

function short(number, digits = 3) {
  return String(Number(number.toPrecision(digits)));
}
