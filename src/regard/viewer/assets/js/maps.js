// The chosen head's map, and beside it the map of another head that was put there to compare: of the same part.

import { element } from "./dom.js";
import { createMap } from "./map.js";
import { wholeMap } from "./map_window.js";
import { numberText } from "./numbers.js";

export function createMaps(root, view, store) {
  const place = wholeMap();
  const name = element("span");
  const away = element("button", { type: "button", "aria-label": "Take the second head away", title: "Take the second head away (B)", onclick: () => store.update({ beside: "" }) }, "✕");
  const own = element("div", { class: "stage" }), other = element("div", { class: "stage" });
  const second = element("div", { class: "beside", role: "group", "aria-label": "Another head, to compare" }, element("div", { class: "caption" }, name, away), other);
  const ownCaption = element("div", { class: "caption", hidden: true });
  const stages = element("div", { class: "stages" }, element("div", {}, ownCaption, own));
  root.append(stages);
  const listeners = [];
  const changed = () => listeners.forEach((listener) => listener());
  const main = createMap(own, view, store, place, changed);
  const beside = createMap(other, view, store, place, () => null);
  main.window.text = store.get().place;
  let loaded = null;

  async function refresh() {
    const named = store.get().beside;
    if (named === "") second.remove();
    else stages.append(second);
    ownCaption.hidden = named === "";
    if (loaded) main.show(loaded, named !== "");
    if (loaded) ownCaption.textContent = caption(loaded);
    if (named === "") {
      beside.hide();
      return;
    }
    const [layer, head] = named.split(".").map(Number);
    const next = await view.head(layer, head);
    if (store.get().beside !== named) return;
    beside.show(next, true);
    name.textContent = caption(next);
  }

  store.listen((_, names) => names.has("beside") && refresh());
  // Two maps of one place move together.
  main.canvas.addEventListener("pointermove", beside.draw);
  beside.canvas.addEventListener("pointermove", main.draw);
  for (const [one, two] of [[main, beside], [beside, main]]) one.canvas.addEventListener("wheel", two.draw);

  return {
    main,
    listen: (listener) => listeners.push(listener),
    show(next) {
      loaded = next;
      refresh();
    },
    zoom(factor) {
      main.zoom(factor);
      beside.draw();
    },
  };
}

// What is to be compared with: the chosen head, or nothing where one is beside it.
export function pin(store) {
  const { beside, layer, head } = store.get();
  store.update({ beside: beside === "" ? `${layer}.${head}` : "" });
}

function caption({ layer, head, summary }) {
  return `Layer ${layer}, head ${head} · entropy ${numberText(summary?.entropy ?? null)} nats`;
}
