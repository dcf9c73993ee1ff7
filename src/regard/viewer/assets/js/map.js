// The chosen head, large: cells, axes, crosshair, zoom and hover.

import { element } from "./dom.js";
import { paintAxes } from "./map_axes.js";
import { paintCells } from "./map_cells.js";
import { profileTip, tipFor } from "./map_tip.js";
import { MapWindow } from "./map_window.js";
import { onTheme, themeColour } from "./theme.js";

export function createMap(root, view, store) {
  const canvas = element("canvas", { tabindex: "0", role: "img" });
  const tip = element("div", { class: "tip", role: "status", dir: "ltr", hidden: true });
  const stage = element("div", { class: "stage" }, canvas, tip);
  root.append(stage);
  const window = new MapWindow(view);
  let loaded = null, hover = null, dragged = null, queued = false;

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
    paintCells(context, view, loaded, window, state);
    paintMarks(context, state);
    paintAxes(context, view, loaded, window, state, hover);
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
    context.restore();
  }

  function frameRow(context, query) {
    context.strokeRect(window.left - 0.5, window.yOf(query) - 0.5, window.side + 1, Math.max(2, window.rowHeight) + 1);
  }

  function frameColumn(context, key) {
    context.strokeRect(window.xOf(key) - 0.5, window.top - 0.5, Math.max(2, window.columnWidth) + 1, window.side + 1);
  }

  function point(event) {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  function showTip(x, y) {
    hover = loaded && window.pairAt(x, y);
    const profile = loaded && !hover && window.profileAt(x, y);
    tip.hidden = !hover && !profile;
    if (!tip.hidden) {
      tip.replaceChildren(...(hover ? tipFor(view, loaded, hover, store.get().source) : profileTip(view, loaded, profile)));
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
      if (dragged.moved) window.pan(x - dragged.from[0], y - dragged.from[1]);
      dragged = { from: [x, y], moved: true };
    }
    showTip(x, y);
  });
  canvas.addEventListener("pointerup", (event) => {
    const pair = window.pairAt(...point(event));
    if (dragged && !dragged.moved && pair) {
      store.update({ token: store.get().direction === "reads" ? pair.query + view.offset : pair.key });
    }
    dragged = null;
  });
  canvas.addEventListener("pointercancel", () => (dragged = null));
  canvas.addEventListener("pointerleave", () => showTip(-1, -1));
  canvas.addEventListener("wheel", (event) => {
    const [x, y] = point(event);
    if (!window.pairAt(x, y)) return;
    event.preventDefault();
    window.zoom(Math.exp(-event.deltaY / 300), x, y);
    showTip(x, y);
  }, { passive: false });
  new ResizeObserver(draw).observe(stage);
  onTheme(draw);
  store.listen(draw);

  return {
    show(next) {
      loaded = next;
      canvas.setAttribute("aria-label", `Attention of layer ${next.layer}, head ${next.head}: queries down, keys across`);
      tip.hidden = true;
      draw();
    },
    zoom(factor) {
      if (factor === 0) window.reset();
      else window.zoom(factor);
      draw();
    },
  };
}
