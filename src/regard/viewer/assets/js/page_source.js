// Where a view comes from when all of it lies in the page itself.

import { fromBase64 } from "./format.js";

export function pageSource() {
  return {
    header: async () => JSON.parse(document.getElementById("view").textContent),
    blob: async (name) => fromBase64(document.getElementById(`blob/${name}`).textContent),
  };
}
