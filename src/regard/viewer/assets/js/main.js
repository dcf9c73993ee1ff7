// Puts the page together: one view, one store, and the panels that listen to it.

import { createAnswers } from "./answers.js";
import { createBar } from "./bar.js";
import { createGrid } from "./grid.js";
import { createHead } from "./head.js";
import { createHelp } from "./help.js";
import { startKeyboard } from "./keyboard.js";
import { createLegend } from "./legend.js";
import { createLesson } from "./lesson_panel.js";
import { liveSource } from "./live_source.js";
import { LiveView } from "./live_view.js";
import { createMaps } from "./maps.js";
import { pageSource } from "./page_source.js";
import { createSearch } from "./search.js";
import { checked, start } from "./start.js";
import { createStatus } from "./status.js";
import { createStore } from "./store.js";
import { createText } from "./text.js";
import { startTheme } from "./theme.js";
import { View } from "./view.js";

const at = (id) => document.getElementById(id);

async function open() {
  startTheme();
  const live = at("view") === null;
  const source = live ? liveSource(createStatus(at("status"))) : pageSource();
  const view = new (live ? LiveView : View)(source, await source.header());
  const opened = location.hash;
  const store = createStore(start(view), (given, initial) => checked(view, given, initial));
  const search = createSearch(view, store);
  const help = createHelp(at("help"), view);
  const answers = createAnswers(at("answers"), view, store);
  const lesson = createLesson(at("lesson"), view, store);
  createBar(at("bar"), view, search, help, answers, lesson);
  createGrid(at("grid"), view, store);
  const head = createHead(at("head"), view, store);
  const maps = createMaps(at("head"), view, store);
  // A panel is anything that can `show` a head; each is told of every head that is chosen.
  const panels = [head, maps, createLegend(at("head"), view, store, maps), createText(at("text"), view, store)];
  startKeyboard(view, store, { search, help, maps, answers, lesson });
  store.listen((_, changed) => (changed.has("layer") || changed.has("head")) && show());
  show();
  if (live) lookAround(opened);

  // Loads the chosen head; of several chosen in quick succession, only the last is shown.
  async function show() {
    const { layer, head: which } = store.get();
    const loaded = await view.head(layer, which);
    const now = store.get();
    if (now.layer !== layer || now.head !== which) return;
    for (const panel of panels) panel.show(loaded);
    document.body.dataset.shown = `${layer}.${which}`;
  }

  // The chosen layer first; where nobody has chosen anything by then, its sharpest link. Then the others.
  async function lookAround(hash) {
    const { layer } = store.get();
    const before = store.get();
    await view.look(layer, true);
    if (hash === "" && store.get() === before) {
      const { head: best, token } = start(view);
      store.update({ head: best, token });
    }
    await view.lookAtAll(layer);
  }
}

open();
