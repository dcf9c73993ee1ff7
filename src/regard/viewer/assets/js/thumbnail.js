// One head's map as a small picture.

import { peakOf, shownCells } from "./cells.js";
import { mapImage, scaleOf } from "./colour.js";

export async function paintThumbnail(canvas, view, layer, head, { scale, aside }) {
  const seen = await view.thumbnail(layer, head);
  if (!seen) return;
  const { piece, mask } = seen;
  const position = scaleOf(scale, peakOf(piece, aside));
  canvas.width = piece.columns;
  canvas.height = piece.rows;
  if (piece.values.length) canvas.getContext("2d").putImageData(mapImage(piece, position, shownCells(piece, mask, aside)), 0, 0);
}
