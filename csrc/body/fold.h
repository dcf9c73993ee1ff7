// One pass over the weights of a block of rows: tiles of keys, groups of rows, and in them piece by piece.
#pragma once

#include "fold_sums.h"
#include "fold_weigh.h"

namespace {
namespace folding {

constexpr i64 kShared = 8;  // groups that share a tile's copy

/// What the tasks of a pass work with. The columns that a tile copies and a piece begins with are multiples of kRows.
struct FoldRoom {
  Tile keys, vectors;
  float* scores;   // [kTileKeys][kGroup]: of a tile where it is multiplied with vectors, of a piece otherwise
  float* buffer;   // [kPiece][kGroup]: a piece of bias or of a dense mask, or of what is allowed
  float* skewed;   // kSkewed
  float* row;      // [kVector][the larger of head_dim and the vectors' dim, padded]
  u8* allowed;     // [kTileKeys][kGroup]
  FoldGroup* groups;
};

template <class Kind>
inline FoldRoom take_fold_room(const Problem& p, const Problem& with_x, const Fold& f, Arena& arena) {
  FoldRoom room{};
  room.keys = take_tile<Kind>(p, arena);
  if (f.applied) room.vectors = take_tile<Fma>(with_x, arena);
  room.scores = arena.take<float>((f.applied ? kTileKeys : kPiece) * kGroup);
  room.buffer = arena.take<float>(kPiece * kGroup);
  room.skewed = arena.take<float>(kSkewed);
  room.row = arena.take<float>(kVector * round_up(max(p.head_dim, value_rows_of(with_x)), kVector));
  if (f.applied) room.allowed = arena.take<u8>(kTileKeys * kGroup);
  room.groups = arena.take<FoldGroup>(kShared);
  return room;
}

/// A pass over a block of rows of one head, whose problem `p` has that head alone.
struct Pass {
  const Problem &p, &with_x;
  const Fold& f;
  const FoldBlock& block;
  const FoldPart& part;
  FoldRoom& room;
  i64 first_pool;   // the block of the heat map's rows that the first row lies in
  bool everything;  // every tile matters
};

/// The columns of [first, last) that the set of `mass` lies in: no others matter where nothing else is asked.
inline Reach reach_of_mass(const Fold& f, i64 first, i64 last) {
  if (!f.mass) last = first;
  while (first < last && !f.mass_keys[first]) first++;
  while (first < last && !f.mass_keys[last - 1]) last--;
  return {first, last, true};
}

/// What a group wants of the columns that it reaches.
inline Reach wanted(const Pass& pass, const FoldGroup& group, const Reach& r, const Reach& of_mass) {
  if (pass.everything || ((pass.f.received || pass.f.allowed) && group.n_chosen)) return r;
  return {max(r.first, of_mass.first), min(r.last, of_mass.last), true};
}

/// Whether any of the rows [first, last) can change an answer.
inline bool rows_matter(const Pass& pass, i64 first, i64 last) {
  if (pass.everything || pass.f.mass || !pass.f.queries) return true;
  for (i64 row = first; row < last; row++)
    if (pass.f.queries[row]) return true;
  return false;
}

/// How many of the chosen rows may attend each key, added to `part.allowed`.
template <int W>
inline void count_allowed(const Pass& pass, const FoldGroup& group, i64 first, i64 keys, const float* s) {
  for (i64 i = 0; i < keys * W * kVector; i += kVector)
    store(pass.room.buffer + i, load(s + i) == splat(-kInfinity) ? splat(0.0f) : splat(1.0f));
  add_by_key<W>(group, keys, pass.room.buffer, pass.part.allowed + first);
}

/// `keys` columns of a tile from `first` on, a multiple of kRows, of which n are not padding.
template <class Kind, int W>
inline void take_piece(const Pass& pass, FoldGroup& group, i64 first, i64 keys, i64 n, bool cut, float* s) {
  const Fold& f = pass.f;
  const FoldPart& part = pass.part;
  form_logits<Kind, W>(pass.p, group, pass.room.keys, first, keys, n, cut, s, pass.room.buffer);
  if (part.allowed && group.n_chosen) count_allowed<W>(pass, group, first, keys, s);
  if (f.top) rank(group.top, W * kVector, first, n, s);
  if (f.applied && pass.room.vectors.specials) {
    u8* allowed = pass.room.allowed + (s - pass.room.scores);
    for (i64 i = 0; i < keys * W * kVector; i++) allowed[i] = s[i] != -kInfinity;
  }
  if (f.entropy || f.distance) weigh<true>(pass.p, group, first, keys, s);
  else weigh<false>(pass.p, group, first, keys, s);
  if (f.mass) add_mass(f, group, first, n, s);
  if (part.received && group.n_chosen) add_by_key<W>(group, keys, s, part.received + first);
  if (part.diagonals) {
    const i64 base = group.g.first_row - pass.block.first_row - first + pass.p.n_keys - keys;
    add_by_diagonal(W * kVector, keys, s, part.diagonals + base, pass.room.skewed);
  }
  if (part.pooled) pool<W>(f, pass.first_pool, part, group, first, n, s);
}

template <class Kind, int W>
inline void take_group_tile(const Pass& pass, FoldGroup& group, const Reach& r) {
  const Tile& t = pass.room.keys;
  const i64 first = t.origin + round_down(r.first - t.origin, kRows);
  const i64 last = t.origin + round_up(r.last - t.origin, kRows), inside = min(last, t.last);
  const bool cut = r.cut || first != r.first || last != r.last;
  for (i64 at = first; at < last; at += kPiece) {
    const i64 keys = min(kPiece, last - at);
    float* s = pass.room.scores + (pass.f.applied ? (at - first) * W * kVector : 0);
    take_piece<Kind, W>(pass, group, at, keys, min(keys, inside - at), cut, s);
  }
  if (!pass.f.applied) return;
  const Tile& x = pass.room.vectors;
  add_values<Fma, W>(group.g, x, first, last, pass.room.scores, value_rows_of(pass.with_x));
  if (x.specials)
    add_specials<W>(pass.with_x, group.g, x, first, inside, pass.room.scores, pass.room.allowed, pass.room.row);
}

/// One tile of keys against up to kShared groups.
template <class Kind>
inline void take_fold_tile(const Pass& pass, i64 n_groups, i64 first, i64 last) {
  FoldRoom& room = pass.room;
  Reach reaches[kShared];
  const Reach of_mass = pass.everything ? Reach{first, first, true} : reach_of_mass(pass.f, first, last);
  i64 from = last, to = first;
  for (i64 i = 0; i < n_groups; i++) {
    reaches[i] = wanted(pass, room.groups[i], reach(room.groups[i].g, first, last), of_mass);
    if (reaches[i].empty()) continue;
    from = min(from, reaches[i].first);
    to = max(to, reaches[i].last);
  }
  if (to <= from) return;
  from = first + round_down(from - first, kRows);
  if (room.groups[0].few.query) {  // keys are read as they lie
    room.keys.origin = room.keys.first = from;
    room.keys.last = to;
  } else {
    fill<Kind>(pass.p, room.keys, pass.block.item, 0, from, to);
  }
  if (pass.f.applied) fill<Fma>(pass.with_x, room.vectors, pass.block.item, 0, from, to);
  for (i64 i = 0; i < n_groups; i++) {
    FoldGroup& group = room.groups[i];
    const Reach& r = reaches[i];
    if (r.empty() || (pass.p.dense && !occupied(pass.p, group.g, r.first, r.last))) continue;
    if (group.g.vectors == 1) take_group_tile<Kind, 1>(pass, group, r);
    else if (group.g.vectors == 2) take_group_tile<Kind, 2>(pass, group, r);
    else take_group_tile<Kind, kColumns>(pass, group, r);
  }
}

/// The sums of P x, lanes across, to the rows of the answer.
inline void end_applied(const Pass& pass, const Group& g, float* to) {
  const i64 dim = pass.f.x_dim, padded = round_up(value_rows_of(pass.with_x), kVector), lanes = g.lanes();
  for (int w = 0; w < g.vectors; w++) {
    for (i64 e = 0; e < padded; e += kVector) {
      float block[kVector * kVector];
      for (i64 j = 0; j < kVector; j++)
        store(block + j * kVector, e + j < dim ? load(g.output + (e + j) * lanes + w * kVector) : splat(0.0f));
      transpose(block, kVector, pass.room.row + e, padded);
    }
    for (int j = 0; j < kVector && w * kVector + j < g.rows; j++)
      for (i64 e = 0; e < dim; e++) to[(g.first_row + w * kVector + j) * dim + e] = pass.room.row[j * padded + e];
  }
}

/// A group's answers by row. `row_base` is where its head's rows begin in them.
inline void end_fold_group(const Pass& pass, FoldGroup& group, i64 row_base) {
  const Fold& f = pass.f;
  const Group& g = group.g;
  if (pass.part.pooled) end_pool(f, pass.first_pool, pass.part, group);
  for (int lane = 0; lane < g.rows; lane++) {
    const i64 at = row_base + g.first_row + lane;
    // What is not negative may come out so, by less than a rounding.
    if (f.entropy) f.entropy[at] = group.entropy[lane] < 0 ? 0.0f : group.entropy[lane];
    if (f.distance) f.distance[at] = group.distance[lane];
    if (f.mass) f.mass[at] = group.mass[lane];
    if (!f.top) continue;
    const Given row(f.normalizer.shift[at], f.normalizer.denominator[at]);
    end_top(group.top, lane, row, f.top_weights + at * f.top, f.top_columns + at * f.top,
            f.top_logits ? f.top_logits + at * f.top : nullptr);
  }
  if (f.applied) end_applied(pass, g, f.applied + row_base * f.x_dim);
}

/// Columns that some of the rows [first_row, last_row) may attend lie in [from, to).
inline void reach_of_rows(const Problem& p, i64 item, i64 first_row, i64 last_row, i64& from, i64& to) {
  const auto& in = p.intervals;
  from = p.n_keys;
  to = 0;
  for (i64 row = first_row; row < last_row; row++)
    for (i64 s = 0; s < in.slots; s++) {
      i64 start = in.first_start + row * in.start_step, end = in.first_end + row * in.end_step;
      if (in.starts) {
        start = in.starts[item * in.start_stride[0] + row * in.start_stride[2] + s * in.start_stride[3]];
        end = in.ends[item * in.end_stride[0] + row * in.end_stride[2] + s * in.end_stride[3]];
      }
      start = max(start, (i64)0);
      end = min(end, p.n_keys);
      if (end <= start) continue;
      from = min(from, start);
      to = max(to, end);
    }
  to = max(from, to);
}

/// Zeros where the block adds: at its own columns, and as far around them as whole vectors reach.
inline void begin_part(const Pass& pass, FoldPart& part) {
  const i64 rows = pass.block.last_row - pass.block.first_row, n_keys = pass.p.n_keys;
  i64 from, to;
  reach_of_rows(pass.p, pass.block.item, pass.block.first_row, pass.block.last_row, from, to);
  part.first_key = from;
  part.last_key = to;
  const auto clear = [](float* sums, i64 first, i64 last) {
    for (i64 i = first; sums && i < last; i++) sums[i] = 0;
  };
  clear(part.received, from - kFoldRoom, to + kFoldRoom);
  clear(part.allowed, from - kFoldRoom, to + kFoldRoom);
  clear(part.diagonals, n_keys - to - kFoldRoom, rows + n_keys - 1 - from + kFoldRoom);
  if (part.pooled) {
    const i64 last_pool = pass.f.pool_rows.of(pass.block.last_row - 1);
    clear(part.pooled, 0, (last_pool - pass.first_pool + 1) * pass.f.pool_columns.blocks);
  }
}

template <class Kind>
inline std::size_t fold_scratch_as(const Problem& whole, const Fold& f) {
  const Problem p = one_head(whole, 0), with_x = with_vectors(p, f.x, 0, f.x_dim);
  Arena arena{nullptr};
  take_fold_room<Kind>(p, with_x, f, arena);
  for (i64 i = 0; i < kShared; i++) take_fold_group(p, f, few_rows(whole), value_rows_of(with_x), arena);
  return arena.used;
}

template <class Kind>
inline void fold_as(const Problem& whole, const Fold& f, const FoldBlock& block, FoldPart& part, void* scratch) {
  const Problem p = one_head(whole, block.head);
  const i64 x_head = f.x_of_query_heads ? block.head : block.head / whole.group_size();
  const Problem with_x = with_vectors(p, f.x, x_head, f.x_dim);
  const i64 value_rows = value_rows_of(with_x);
  Arena arena{(char*)scratch};
  FoldRoom room = take_fold_room<Kind>(p, with_x, f, arena);
  for (i64 i = 0; i < kShared; i++) room.groups[i] = take_fold_group(p, f, few_rows(whole), value_rows, arena);
  const i64 first_pool = f.pooled ? f.pool_rows.of(block.first_row) : 0;
  const Pass pass{p, with_x, f, block, part, room, first_pool, f.everything()};
  begin_part(pass, part);
  const i64 row_base = (block.item * whole.query_heads + block.head) * p.n_queries;
  for (i64 row = block.first_row; row < block.last_row; row += kShared * kGroup) {
    const i64 n_groups = min(kShared, (block.last_row - row + kGroup - 1) / kGroup);
    if (!rows_matter(pass, row, min(row + kShared * kGroup, block.last_row))) continue;
    for (i64 i = 0; i < n_groups; i++) {
      begin_fold(p, f, block, row + i * kGroup, row_base, value_rows, room.groups[i], room.row);
#ifdef REGARD_BF16_PAIRS
      if constexpr (Kind::kDepth == 2) pair_query(p, room.groups[i].g);
#endif
    }
    for (i64 first = round_down(part.first_key, kTileKeys); first < part.last_key; first += kTileKeys) {
      if (regard::interrupted()) return;
      take_fold_tile<Kind>(pass, n_groups, first, min(first + kTileKeys, p.n_keys));
    }
    for (i64 i = 0; i < n_groups; i++) end_fold_group(pass, room.groups[i], row_base);
  }
}

}  // namespace folding
}  // namespace
