// The grid of all heads: in layer order, or sorted by what they do.

import { element } from "./dom.js";
import { numberText, shareText, weightText } from "./numbers.js";
import { onTheme } from "./theme.js";
import { paintThumbnail } from "./thumbnail.js";

export const ORDERS = {
  layer: { name: "Layer order" },
  first: { name: "First token", value: (s) => negated(s.first), text: (s) => shareText(s.first) },
  previous: { name: "Previous token", value: (s) => negated(s.previous), text: (s) => shareText(s.previous) },
  sharp: { name: "Lowest entropy", value: (s) => s.entropy, text: (s) => `${numberText(s.entropy)} nats` },
  broad: { name: "Highest entropy", value: (s) => negated(s.entropy), text: (s) => `${numberText(s.entropy)} nats` },
  induction: { name: "Induction", value: (s) => negated(s.induction), text: (s) => shareText(s.induction) },
  far: { name: "Mean distance", value: (s) => negated(s.distance), text: (s) => `${numberText(s.distance, 1)} tok` },
  reach: { name: "Far reach", value: (s) => negated(s.reach), text: (s) => `${numberText(s.reach, 1)} tok` },
  link: { name: "Sharpest link", value: (s) => -s.link.weight, text: (s) => weightText(s.link.weight) },
};

// What is unknown comes last, whichever way the others go.
function negated(value) {
  return value === null ? Infinity : -value;
}

// All heads as [layer, head], in the chosen order.
export function ordered(view, order) {
  const heads = view.calls.flatMap((call, layer) => Array.from({ length: call.heads }, (_, head) => [layer, head]));
  const { value } = ORDERS[order];
  if (!value) return heads;
  const rank = new Map(heads.map((place) => [place, rankOf(value, view.summary(...place))]));
  return heads.sort((a, b) => rank.get(a) - rank.get(b));
}

function rankOf(value, summary) {
  return summary === null ? Infinity : (value(summary) ?? Infinity);
}

export function createGrid(root, view, store) {
  const list = element("div", { class: "heads" });
  const choice = element(
    "select",
    { onchange: chooseOrder },
    Object.entries(ORDERS).map(([value, { name }]) => element("option", { value }, name)),
  );
  const progress = element("p", { class: "progress soft", role: "status", hidden: true });
  root.append(element("div", { class: "tools" }, element("h2", {}, "Heads"), element("label", {}, element("span", { class: "soft" }, "by"), choice)), progress, list);

  // The keys go back to the page: arrows should walk through the heads, not through the orders.
  function chooseOrder() {
    store.update({ sort: choice.value });
    choice.blur();
  }

  const buttons = new Map();
  const waiting = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        waiting.unobserve(target);
        paint(target);
      }
    },
    { root: list, rootMargin: "300px" },
  );

  function paint(button) {
    const [layer, head] = button.place;
    paintThumbnail(button.firstChild, view, layer, head, store.get());
  }

  function thumbnail(layer, head) {
    const label = labelOf(layer, head);
    const button = element(
      "button",
      { type: "button", title: label, "aria-label": label, tabindex: "-1", onclick: () => store.update({ layer, head }) },
      element("canvas", { width: 1, height: 1 }),
    );
    button.place = [layer, head];
    buttons.set(`${layer}.${head}`, button);
    waiting.observe(button);
    return button;
  }

  function labelOf(layer, head) {
    const summary = view.summary(layer, head);
    const told = summary ? `entropy ${numberText(summary.entropy)} nats, ${shareText(summary.first)} on the first token` : "not looked at yet";
    return `Layer ${layer}, head ${head}: ${told}`;
  }

  // A layer has been looked at: its pictures and labels, and its places where heads are sorted.
  function learn() {
    progress.hidden = view.lookedAt === view.calls.length;
    progress.textContent = `${view.lookedAt} of ${view.calls.length} layers looked at`;
    if (store.get().sort !== "layer") build(false, list.scrollTop);
    else for (const button of buttons.values()) Object.assign(button, { title: labelOf(...button.place), ariaLabel: labelOf(...button.place) });
    repaint();
  }

  function build(first, scrolled = 0) {
    const { sort } = store.get();
    choice.value = sort;
    waiting.disconnect();
    buttons.clear();
    const widest = Math.max(...view.calls.map((call) => call.heads), 1);
    const fitted = Math.floor((318 - 32 - 22) / widest) - 2;
    list.style.setProperty("--thumb", sort === "layer" ? `${Math.min(46, Math.max(16, fitted))}px` : "60px");
    list.replaceChildren(sort === "layer" ? inLayers() : inOrder(sort));
    list.scrollTop = scrolled;
    mark(first);
  }

  function inLayers() {
    return element("div", {}, view.calls.map((call, layer) =>
      element("div", { class: "layer", role: "group", "aria-label": `Layer ${layer}` },
        element("span", { title: callName(call) }, String(layer)),
        Array.from({ length: call.heads }, (_, head) => thumbnail(layer, head)))));
  }

  function inOrder(sort) {
    return element("div", { class: "sorted" }, ordered(view, sort).map(([layer, head]) =>
      element("figure", {}, thumbnail(layer, head),
        element("figcaption", {}, element("b", {}, `${layer} · ${head}`), view.summary(layer, head) ? ORDERS[sort].text(view.summary(layer, head)) : "…"))));
  }

  function mark(scroll) {
    const { layer, head } = store.get();
    for (const [name, button] of buttons) {
      const chosen = name === `${layer}.${head}`;
      button.setAttribute("aria-pressed", String(chosen));
      button.tabIndex = chosen ? 0 : -1;
      if (chosen && scroll) button.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
  }

  function repaint() {
    for (const button of buttons.values()) waiting.observe(button);
  }

  onTheme(repaint);
  if (view.live) view.listen((what) => what === "layers" && learn());
  store.listen((_, changed) => {
    if (changed.has("sort")) build(false);
    else if (changed.has("layer") || changed.has("head")) mark(true);
    if (changed.has("scale") || changed.has("aside")) repaint();
  });
  build(true);
}

export function callName(call) {
  return call.ordinal ? `${call.module} (call ${call.ordinal + 1})` : call.module;
}
