// Everything about one head, decoded: map, kept keys, profiles and mask.

export async function loadHead(view, layer, head) {
  const [maps, data, mask] = await Promise.all([view.maps(layer), view.keysOf(layer), view.mask(layer, head)]);
  return { layer, head, values: maps[head], data, mask, summary: view.summary(layer, head) };
}
