// The forward pass of a block: several groups of rows against tiles of keys.
#pragma once

#include "online.h"

namespace {

struct Working {
  float* scores;   // [kTileKeys][kGroup]
  float* buffer;   // as large: a tile of bias or of a dense mask
  u8* allowed;     // [kTileKeys][kGroup]: which rows may see a value that is not finite
  float* row;      // [kVector][the larger of head_dim and value_dim, padded]
};

REGARD_INLINE i64 value_rows_of(const Problem& p) { return round_up(p.value_dim, kRows); }

template <class Kind>
inline Working take_working(const Problem& p, Arena& arena) {
  Working w{};
  w.scores = arena.take<float>(kTileKeys * kGroup);
  w.buffer = arena.take<float>(kTileKeys * kGroup);
  w.allowed = arena.take<u8>(kTileKeys * kGroup);
  w.row = arena.take<float>(kVector * round_up(max(p.head_dim, value_rows_of(p)), kVector));
  return w;
}

// Steps of a product that are summed at once: a longer dim is summed in pieces, for errors grow with a sum's length.
constexpr i64 kSteps = 128;

/// Products of the columns [first, last) of a tile with a group's queries, times `scale`: to[key][lanes].
template <class Kind, int W>
inline void raw_scores(const Problem& p, const Group& g, const Tile& t, i64 first, i64 last, float* to,
                       float scale = 1) {
  using Element = typename Kind::Element;
  const i64 steps = steps_of<Kind>(p.head_dim);
  for (i64 column = first; column < last; column += kRows) {
    const Element* keys = (const Element*)t.key + (column - t.origin) * t.key_stride;
    float* at = to + (column - first) * W * kVector;
    for (i64 step = 0; step < steps; step += kSteps) {
      const Element* query = (const Element*)g.query + step * W * kVector;
      const bool last_steps = step + kSteps >= steps;
      scaled_product<Kind, W>(keys + step, t.key_stride, 1, query, min(kSteps, steps - step), step > 0,
                              last_steps ? scale : 1.0f, at);
    }
  }
}

/// Add the values of the columns [first, last), weighted, to a group's output.
template <class Kind, int W>
inline void add_values(Group& g, const Tile& t, i64 first, i64 last, const float* weights, i64 value_rows) {
  using Element = typename Kind::Element;
  const Element* values = (const Element*)t.value + (first - t.origin) / Kind::kDepth * t.value_stride;
  for (i64 e = 0; e < value_rows; e += kRows)
    add_product<Kind, W>(values + e, 1, t.value_stride, (const Element*)weights, (last - first) / Kind::kDepth,
                         g.output + e * W * kVector);
}

/// Values that are not finite reach the rows that may see them, and no other.
template <int W>
inline void add_specials(const Problem& p, Group& g, const Tile& t, i64 first, i64 last, const float* weights,
                         const u8* allowed, float* row) {
  for (int i = 0; i < t.specials; i++) {
    const i64 column = t.special[i];
    if (column < first || column >= last) continue;
    unpack(row_of(p.value, g.item, g.key_head, column), p.value_dim, p.value_dim, row);
    const i64 at = (column - first) * W * kVector;
    for (int lane = 0; lane < g.rows; lane++)
      if (allowed[at + lane])
        for (i64 e = 0; e < p.value_dim; e++) g.output[e * W * kVector + lane] += weights[at + lane] * row[e];
  }
}

#ifdef REGARD_BF16_PAIRS
/// Weights of two keys at a time, rounded to bfloat16, side by side; in place.
template <int W>
inline void pair_up(float* s, i64 keys) {
  for (i64 k = 0; k < keys; k += 2)
    for (int w = 0; w < W; w++) {
      const I one = round_to_bf16<F, I>(load(s + (k * W + w) * kVector));
      const I two = round_to_bf16<F, I>(load(s + ((k + 1) * W + w) * kVector));
      store(s + (k / 2 * W + w) * kVector, (F)(one | (two << 16)));
    }
}
#endif

#ifdef REGARD_BF16_PAIRS
/// The query as pairs along the dim: [dim / 2][lanes]; in place. It was bfloat16, so nothing is rounded.
inline void pair_query(const Problem& p, Group& g) {
  const i64 lanes = g.lanes();
  for (i64 d = 0; d < p.head_dim; d += 2)
    for (i64 at = 0; at < lanes; at += kVector) {
      const I one = (I)((U)load((const i32*)g.query + d * lanes + at) >> 16);
      const I two = d + 1 < p.head_dim ? load((const i32*)g.query + (d + 1) * lanes + at) : splat(0);
      store(g.query + d / 2 * lanes + at, (F)(one | (two & splat((i32)0xffff0000))));
    }
}
#endif

/// One group against one tile.
template <class Kind, int W>
inline void attend(const Problem& p, Group& g, const Tile& t, const Reach& reach, Working& work) {
  const i64 first = t.origin + round_down(reach.first - t.origin, kRows);
  const i64 last = t.origin + round_up(reach.last - t.origin, kRows);
  const bool cut = reach.cut || first != reach.first || last != reach.last;
  const i64 value_rows = value_rows_of(p);
  float* s = work.scores;
  raw_scores<Kind, W>(p, g, t, first, last, s, __builtin_fabsf(p.scale));
  // Columns past the tile's last are padding: excluded like any other.
  const i64 inside = min(last, t.last);
  scaled_to_logits<W>(p, g, first, inside, cut, s, work.buffer);
  for (i64 i = (inside - first) * W; i < (last - first) * W; i++) store(s + i * kVector, splat(-kInfinity));
  if (t.specials)
    for (i64 i = 0; i < (last - first) * W * kVector; i++) work.allowed[i] = s[i] != -kInfinity;
  absorb<W>(g, last - first, value_rows, s);
  if (value_rows == 0) return;
  if (p.drop_below) drop<W>(p, g, first, last - first, s);
  if (t.specials) add_specials<W>(p, g, t, first, inside, s, work.allowed, work.row);
#ifdef REGARD_BF16_PAIRS
  if constexpr (Kind::kDepth == 2) pair_up<W>(s, last - first);
#endif
  add_values<Kind, W>(g, t, first, last, s, value_rows);
}

/// A group's results: normalised to where they belong, or as they are to a partial.
inline void finish(const Problem& p, const Forward& out, const Group& g, const Partial* partial,
                   i64 block_row, Working& work) {
  const i64 padded = round_up(value_rows_of(p), kVector), lanes = g.lanes();
  for (int w = 0; w < g.vectors; w++) {
    for (i64 e = 0; e < padded; e += kVector) {
      float block[kVector * kVector];
      for (i64 j = 0; j < kVector; j++)
        store(block + j * kVector,
              e + j < value_rows_of(p) ? load(g.output + (e + j) * lanes + w * kVector) : splat(0.0f));
      transpose(block, kVector, work.row + e, padded);
    }
    for (int j = 0; j < kVector && w * kVector + j < g.rows; j++) {
      const int lane = w * kVector + j;
      const float* row = work.row + j * padded;
      if (partial) {
        const i64 at = g.first_row + lane - block_row;
        partial->maximum[at] = g.maximum[lane];
        partial->denominator[at] = g.sum[lane];
        for (i64 e = 0; e < p.value_dim; e++) partial->output[at * p.value_dim + e] = row[e];
        continue;
      }
      const i64 head = g.head(p, lane), query = g.query_row(p, lane);
      const float factor = normalise(p, out, g.item, head, query, g.maximum[lane], g.sum[lane]);
      if (p.value_dim)
        pack(row, factor, p.value_dim, (void*)address(out.output, g.item, head, query), out.output.dtype);
    }
  }
}

template <class Kind>
inline std::size_t forward_scratch_as(const Problem& p, i64 rows) {
  Arena arena{nullptr};
  take_tile<Kind>(p, arena);
  take_working<Kind>(p, arena);
  arena.take<Group>((rows + kGroup - 1) / kGroup);
  arena.take<Reach>((rows + kGroup - 1) / kGroup);
  for (i64 row = 0; row < rows; row += kGroup) take_group(p, value_rows_of(p), arena);
  return arena.used;
}

template <class Kind>
inline void forward_as(const Problem& p, const Forward& out, const Block& block, const Partial* partial,
                       void* scratch) {
  Arena arena{(char*)scratch};
  Tile tile = take_tile<Kind>(p, arena);
  Working work = take_working<Kind>(p, arena);
  const i64 n_groups = (block.last_row - block.first_row + kGroup - 1) / kGroup;
  Group* groups = arena.take<Group>(n_groups);
  Reach* reaches = arena.take<Reach>(n_groups);
  const i64 value_rows = value_rows_of(p);
  for (i64 i = 0; i < n_groups; i++) {
    groups[i] = take_group(p, value_rows, arena);
    begin(p, groups[i], block.item, block.key_head, block.first_row + i * kGroup, block.last_row, query_sign(p),
          value_rows, work.row);
#ifdef REGARD_BF16_PAIRS
    if constexpr (Kind::kDepth == 2) pair_query(p, groups[i]);
#endif
  }
  for (i64 first = block.first_key; first < block.last_key; first += kTileKeys) {
    if (regard::interrupted()) return;
    const i64 last = min(first + kTileKeys, block.last_key);
    i64 from = last, to = first;
    for (i64 i = 0; i < n_groups; i++) {
      Reach& r = reaches[i] = reach(groups[i], first, last);
      if (!r.empty() && p.dense && !occupied(p, groups[i], r.first, r.last)) r = {last, first, true};
      if (r.empty()) continue;
      from = min(from, r.first);
      to = max(to, r.last);
    }
    if (to <= from) continue;
    fill<Kind>(p, tile, block.item, block.key_head, first + round_down(from - first, kRows), to);
    for (i64 i = 0; i < n_groups; i++) {
      Group& g = groups[i];
      const Reach& r = reaches[i];
      if (r.empty()) continue;
      if (g.vectors == 1) attend<Kind, 1>(p, g, tile, r, work);
      else if (g.vectors == 2) attend<Kind, 2>(p, g, tile, r, work);
      else attend<Kind, kColumns>(p, g, tile, r, work);
    }
  }
  for (i64 i = 0; i < n_groups; i++) finish(p, out, groups[i], partial, block.first_row, work);
}

}  // namespace
