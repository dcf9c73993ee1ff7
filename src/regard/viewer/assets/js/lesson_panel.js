// The dialog that holds the lesson of the chosen query and head, where the view has its scores.

import { binOf, binStart } from "./bins.js";
import { element, tokenElement } from "./dom.js";
import { lesson } from "./lesson.js";

export function createLesson(dialog, view, store) {
  const title = element("h2", { id: "lesson-title", dir: "ltr" });
  const note = element("p", {});
  const body = element("div", {});
  dialog.append(title, note, body, element("form", { method: "dialog" }, element("button", { autofocus: true }, "Close")));

  let latest = null;

  async function open() {
    const { layer, head, token } = store.get();
    const kept = view.lessonQueries;
    const asked = Math.max(0, token - view.offset);
    const query = kept ? binStart(binOf(asked, view.queries, kept) + 1, view.queries, kept) - 1 : asked;
    const opening = (latest = {});
    const data = kept ? await view.lesson(layer, head, query) : null;
    if (latest !== opening) return; // somebody has asked for another in the meantime
    title.replaceChildren(`Step by step: layer ${layer}, head ${head}, query ${query + view.offset} `, tokenElement(view.name(query + view.offset)));
    note.textContent = noteOf(kept, query + view.offset !== token);
    body.replaceChildren();
    if (data) lesson(body, { tokens: view.tokens.map((_, key) => view.name(key)), ...data });
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
  }

  function noteOf(kept, another) {
    if (!kept) return "This page is too small for the scores of so long a text. `regard explain` shows the steps of any query.";
    return another ? "The page keeps the scores of some queries, for its size; this is the nearest after the chosen token." : "";
  }
  return { open };
}
