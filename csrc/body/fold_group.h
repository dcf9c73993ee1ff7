// A group of query rows with what a pass over its weights needs and gathers, one row a lane.
#pragma once

#include "few.h"
#include "fold_given.h"
#include "fold_top.h"
#include "forward.h"

namespace {
namespace folding {

/// Rows so few that the forward pass was the one for few: their products are formed as they were there, so that a
/// weight has the same bits wherever it is asked for.
struct FewScores {
  float* query;    // [kFewRows][dim]; null: the rows are many
  float* packed;   // [kPiece][dim]: keys that cannot be read as they lie
  float* scores;   // [kFewRows][kChunk]
  i64 dim;         // padded to vectors
};

struct FoldGroup {
  Group g;
  FewScores few;
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

inline FoldGroup take_fold_group(const Problem& p, const Fold& f, bool few, i64 value_rows, Arena& arena) {
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
  if (!few) return group;
  group.few.dim = round_up(p.head_dim, kVector);
  group.few.query = arena.take<float>(kFewRows * group.few.dim);
  group.few.packed = arena.take<float>(kPiece * group.few.dim);
  group.few.scores = arena.take<float>(kFewRows * kChunk);
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
  for (i64 r = 0; group.few.query && r < kFewRows; r++) {
    float* to = group.few.query + r * group.few.dim;
    if (r < group.g.rows) unpack(row_of(p.query, block.item, 0, first_row + r), p.head_dim, group.few.dim, to);
    for (i64 d = 0; d < group.few.dim; d++) to[d] = r < group.g.rows ? to[d] * query_sign(p) : 0.0f;
  }
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

/// Products of n columns from `first` on with few rows: s[key][lanes].
inline void few_scores(const Problem& p, const Group& g, const FewScores& few, i64 first, i64 n, float* s) {
  const Lying keys = lying(p.key, g.item, 0, first, n, p.head_dim, few.dim, few.packed);
  if (g.rows == 1) dots_of<1>(keys, n, few.query, few.dim, few.scores);
  else if (g.rows == 2) dots_of<2>(keys, n, few.query, few.dim, few.scores);
  else if (g.rows <= 4) dots_of<4>(keys, n, few.query, few.dim, few.scores);
  else dots_of<kFewRows>(keys, n, few.query, few.dim, few.scores);
  const float scale = __builtin_fabsf(p.scale);
  for (i64 k = 0; k < n; k++)
    for (int lane = 0; lane < g.lanes(); lane++)
      s[k * g.lanes() + lane] = lane < g.rows ? few.scores[lane * kChunk + k] * scale : 0.0f;
}

/// Logits of `keys` columns of a tile from `first` on, a multiple of kRows, of which n are not padding; -inf for
/// whatever takes no part. `buffer` is as large as the scores.
template <class Kind, int W>
inline void form_logits(const Problem& p, const FoldGroup& group, const Tile& t, i64 first, i64 keys, i64 n, bool cut,
                        float* s, float* buffer) {
  const Group& g = group.g;
  if (group.few.query) few_scores(p, g, group.few, first, n, s);
  else raw_scores<Kind, W>(p, g, t, first, first + keys, s, __builtin_fabsf(p.scale));
  scaled_to_logits<W>(p, g, first, first + n, cut, s, buffer);
  for (i64 i = n * W; i < keys * W; i++) store(s + i * kVector, splat(-kInfinity));
  bury_dead_lanes(g, n, s);
}

}  // namespace folding
}  // namespace
