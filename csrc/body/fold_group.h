// A group of query rows with what a pass over its weights needs and gathers, one row a lane.
#pragma once

#include "fold_given.h"
#include "fold_top.h"
#include "forward.h"

namespace {
namespace folding {

struct FoldGroup {
  Group g;
  float *shift, *inverse, *surprise;   // [kGroup], see Given
  bool spoiled;                        // in some row: excluded pairs must then be told from the others
  i32* chosen;                         // [kGroup]: -1 for rows that count in sums over queries
  i64 n_chosen;
  float *entropy, *distance, *mass;    // [kGroup]
  Top top;
  // Of the block of columns that is being pooled: its sums for each row, its number and where it ends.
  float* pool;                         // [kGroup]
  i64 pool_column, pool_end;

  /// Whether every lane counts in sums over queries.
  REGARD_INLINE bool all_chosen() const { return n_chosen == g.lanes(); }
};

inline FoldGroup take_fold_group(const Problem& p, const Fold& f, i64 value_rows, Arena& arena) {
  FoldGroup group{};
  group.g = take_group(p, value_rows, arena);
  group.shift = arena.take<float>(kGroup);
  group.inverse = arena.take<float>(kGroup);
  group.surprise = arena.take<float>(kGroup);
  group.chosen = arena.take<i32>(kGroup);
  group.entropy = arena.take<float>(kGroup);
  group.distance = arena.take<float>(kGroup);
  group.mass = arena.take<float>(kGroup);
  group.pool = arena.take<float>(kGroup);
  group.top = take_top(f.top, arena);
  return group;
}

/// Set a group up for `block`, of a problem that has one head; `row` is scratch, see `begin`.
inline void begin_fold(const Problem& p, const Fold& f, const FoldBlock& block, i64 first_row,
                       i64 row_base, i64 value_rows, FoldGroup& group, float* row) {
  begin(p, group.g, block.item, 0, first_row, block.last_row, query_sign(p), value_rows, row);
  group.spoiled = false;
  group.n_chosen = 0;
  for (int lane = 0; lane < kGroup; lane++) {
    Given given;
    const i64 query = first_row + lane;
    const bool live = lane < group.g.rows;
    if (live) {
      const i64 at = row_base + query;
      given = Given(f.normalizer.shift[at], f.normalizer.denominator[at]);
    }
    group.shift[lane] = given.shift;
    group.inverse[lane] = given.inverse;
    group.surprise[lane] = given.surprise;
    group.spoiled |= given.spoiled();
    const bool counts = live && (!f.queries || f.queries[query]);
    group.chosen[lane] = counts ? -1 : 0;
    group.n_chosen += counts;
    group.entropy[lane] = group.distance[lane] = group.mass[lane] = group.pool[lane] = 0;
  }
  group.pool_column = -1;
  group.pool_end = 0;
  begin_top(group.top);
}

/// Lanes without a row would have scores of 0, or of NaN: they may attend nothing.
inline void bury_dead_lanes(const Group& g, i64 keys, float* s) {
  const i64 lanes = g.lanes(), from = round_down(g.rows, kVector);
  if (from == lanes) return;
  float dead[kVector];
  for (int i = 0; i < kVector; i++) dead[i] = from + i < g.rows ? 0.0f : 1.0f;
  const I live = load(dead) == splat(0.0f);
  for (i64 k = 0; k < keys; k++) {
    float* at = s + k * lanes + from;
    store(at, live ? load(at) : splat(-kInfinity));
  }
}

/// Logits of `keys` columns of a tile from `first` on, a multiple of kRows, of which n are not padding; -inf for whatever
/// takes no part. `buffer` is as large as the scores.
template <class Kind, int W>
inline void form_logits(const Problem& p, const Group& g, const Tile& t, i64 first, i64 keys, i64 n, bool cut, float* s,
                        float* buffer) {
  raw_scores<Kind, W>(p, g, t, first, first + keys, s, __builtin_fabsf(p.scale));
  scaled_to_logits<W>(p, g, first, first + n, cut, s, buffer);
  for (i64 i = n * W; i < keys * W; i++) store(s + i * kVector, splat(-kInfinity));
  bury_dead_lanes(g, n, s);
}

}  // namespace folding
}  // namespace
