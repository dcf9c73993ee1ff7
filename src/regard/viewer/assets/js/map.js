// The chosen head, large: cells, axes, crosshair, zoom and hover.

import { element } from "./dom.js";
import { paintAxes } from "./map_axes.js";
import { paintCells } from "./map_cells.js";
import { profileTip, tipFor } from "./map_tip.js";
import { MapWindow } from "./map_window.js";
import { onTheme, themeColour } from "./theme.js";

// A map of one head in `stage`. Maps that are given the same place show the same part.
export function createMap(stage, view, store, place, changed) {
  const canvas = element("canvas", { tabindex: "0", role: "img" });
  const tip = element("div", { class: "tip", role: "status", dir: "ltr", hidden: true });
  stage.append(canvas, tip);
  const window = new MapWindow(view, place);
  let loaded = null, hover = null, dragged = null, queued = false, at = [-1, -1], told = null;

  function draw() {
    if (!queued) requestAnimationFrame(paint);
    queued = true;
  }

  function paint() {
    queued = false;
    if (!loaded) return;
    const { width, height } = stage.getBoundingClientRect();
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    window.fit(width, height);
    const state = store.get();
    told = view.shown(loaded, window, state);
    paintCells(context, view, loaded, window, state, told);
    paintMarks(context, state);
    paintAxes(context, view, loaded, window, state, hover);
    canvas.dataset.loading = String(Boolean(told.loading));
    changed();
  }

  function paintMarks(context, { token, direction }) {
    context.save();
    context.beginPath();
    context.rect(window.left - 4, window.top - 4, window.side + 8, window.side + 8);
    context.clip();
    if (hover) {
      context.strokeStyle = themeColour("--soft");
      frameRow(context, hover.query);
      frameColumn(context, hover.key);
    }
    context.strokeStyle = themeColour("--accent");
    if (direction === "reads") frameRow(context, token - view.offset);
    else frameColumn(context, token);
    if (view.header.generated != null) paintGenerated(context, view.header.generated);
    context.restore();
  }

  // Where the text that the model wrote itself begins.
  function paintGenerated(context, first) {
    context.setLineDash([3, 3]);
    context.beginPath();
    context.moveTo(window.left, window.yOf(first - view.offset));
    context.lineTo(window.left + window.side, window.yOf(first - view.offset));
    context.moveTo(window.xOf(first), window.top);
    context.lineTo(window.xOf(first), window.top + window.side);
    context.stroke();
    context.setLineDash([]);
  }

  function frameRow(context, query) {
    context.strokeRect(window.left - 0.5, window.yOf(query) - 0.5, window.side + 1, Math.max(2, window.rowHeight) + 1);
  }

  function frameColumn(context, key) {
    context.strokeRect(window.xOf(key) - 0.5, window.top - 0.5, Math.max(2, window.columnWidth) + 1, window.side + 1);
  }

  // The row or the column that stands for the chosen token.
  function marked({ token, direction }) {
    return direction === "reads" ? [Math.max(0, token - view.offset), null] : [null, token];
  }

  // The address, and another map of the same place, follow when the hand rests.
  let resting;
  function move(how) {
    how();
    draw();
    clearTimeout(resting);
    resting = setTimeout(() => store.update({ place: window.text }), 150);
  }

  function point(event) {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  function showTip(x, y) {
    at = [x, y];
    hover = loaded && window.pairAt(x, y);
    const profile = loaded && !hover && window.profileAt(x, y);
    tip.hidden = !hover && !profile;
    if (!tip.hidden) {
      tip.replaceChildren(...(hover ? tipFor(view, loaded, window, hover, store.get()) : profileTip(view, loaded, profile)));
      tip.dataset.pair = hover ? `${hover.query} ${hover.key}` : "";
      const { width, height } = stage.getBoundingClientRect();
      tip.style.left = `${x + 16 + tip.offsetWidth > width ? x - 14 - tip.offsetWidth : x + 16}px`;
      tip.style.top = `${y + 18 + tip.offsetHeight > height ? y - 12 - tip.offsetHeight : y + 18}px`;
    }
    draw();
  }

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    dragged = { from: point(event), moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = point(event);
    if (dragged && (dragged.moved || Math.hypot(x - dragged.from[0], y - dragged.from[1]) > 4)) {
      if (dragged.moved) move(() => window.pan(x - dragged.from[0], y - dragged.from[1]));
      dragged = { from: [x, y], moved: true };
    }
    showTip(x, y);
  });
  canvas.addEventListener("pointerup", (event) => {
    const pair = window.pairAt(...point(event));
    if (dragged && !dragged.moved && pair) {
      store.update({ token: store.get().direction === "readers" ? pair.key : pair.query + view.offset });
    }
    dragged = null;
  });
  canvas.addEventListener("pointercancel", () => (dragged = null));
  canvas.addEventListener("pointerleave", () => showTip(-1, -1));
  canvas.addEventListener("wheel", (event) => {
    const [x, y] = point(event);
    if (!window.pairAt(x, y)) return;
    event.preventDefault();
    move(() => window.zoom(Math.exp(-event.deltaY / 300), x, y));
    showTip(x, y);
  }, { passive: false });
  // Arrow keys move the part in sight, where it is a part and the map has the focus.
  canvas.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (!way || window.span === 1 || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    move(() => window.pan((way[0] * window.side) / 8, (way[1] * window.side) / 8));
  });
  new ResizeObserver(draw).observe(stage);
  onTheme(draw);
  store.listen((state, names) => {
    if (names.has("place") && state.place !== window.text) window.text = state.place;
    // What was chosen elsewhere comes into sight.
    if (names.has("token") && window.span < 1) move(() => window.include(...marked(state)));
    draw();
  });
  if (view.live) {
    view.listen((what) => {
      if (!tip.hidden && what !== "layers") showTip(...at);
      else draw();
    });
  }

  return {
    canvas,
    window,
    draw,
    told: () => told,
    loaded: () => loaded,
    show(next, narrow = false) {
      loaded = next;
      window.narrow = narrow;
      canvas.setAttribute("aria-label", `Attention of layer ${next.layer}, head ${next.head}: queries down, keys across`);
      tip.hidden = true;
      draw();
    },
    hide() {
      loaded = null;
      view.tiles?.leave(window);
    },
    zoom(factor) {
      move(() => (factor === 0 ? window.reset() : window.zoom(factor)));
    },
  };
}
