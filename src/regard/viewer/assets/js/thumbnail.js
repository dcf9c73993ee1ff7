// One head's map as a small picture.

import { allowedPairs, peakOf } from "./cells.js";
import { mapImage, scaleOf } from "./colour.js";

export async function paintThumbnail(canvas, view, layer, head, { scale, aside }) {
  const [maps, mask] = await Promise.all([view.maps(layer), view.mask(layer, head)]);
  const pairs = allowedPairs(view, mask);
  const values = maps[head];
  const columns = view.mapColumns;
  const position = scaleOf(scale, peakOf(values, columns, aside));
  canvas.width = columns;
  canvas.height = view.mapRows;
  const shown = (i) => pairs[i] > 0 && !(aside && i % columns === 0);
  if (values.length) canvas.getContext("2d").putImageData(mapImage(values, view.mapRows, columns, position, shown), 0, 0);
}
