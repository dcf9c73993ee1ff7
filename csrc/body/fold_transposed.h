// The transposed weights times vectors of the queries: a task owns some keys, and takes every group of rows that
// reaches them, in order.
//
//   sums[key][dim] += sum over the lanes of a group of weight[key][lane] * x[lane][dim]
#pragma once

#include "fold_weigh.h"

namespace {
namespace folding {

constexpr i64 kOwnedTiles = 4;  // tiles of keys that a task owns: setting a group up is shared by so many

struct TransposedRoom {
  Tile tiles[kOwnedTiles];
  float* scores;   // [kPiece][kGroup]
  float* buffer;   // as large: a piece of bias or of a dense mask
  u8* allowed;     // as large
  float* row;      // [kVector][head_dim, padded]
  float* across;   // [panels][kGroup][a panel's width]: the vectors of a group's rows
  float* vector;   // [x_dim, padded]
  float* sums;     // [kOwnedTiles * kTileKeys][x_dim, padded]
  i32* special;    // [kGroup]: lanes whose vector is not finite
  i64 specials;
  i64 dim;         // x_dim, padded
  FoldGroup group;
};

template <class Kind>
inline TransposedRoom take_transposed_room(const Problem& p, bool few, i64 x_dim, Arena& arena) {
  TransposedRoom room{};
  for (Tile& tile : room.tiles) tile = take_tile<Kind>(p, arena);
  room.dim = round_up(x_dim, kVector);
  room.scores = arena.take<float>(kPiece * kGroup);
  room.buffer = arena.take<float>(kPiece * kGroup);
  room.allowed = arena.take<u8>(kPiece * kGroup);
  room.row = arena.take<float>(kVector * round_up(p.head_dim, kVector));
  room.across = arena.take<float>(kGroup * room.dim);
  room.vector = arena.take<float>(room.dim);
  room.sums = arena.take<float>(kOwnedTiles * kTileKeys * room.dim);
  room.special = arena.take<i32>(kGroup);
  room.group = take_fold_group(p, Fold{}, few, 0, arena);
  return room;
}

/// Vectors of the panel that begins at vector v of n: two halves rather than a whole and one left over.
REGARD_INLINE i64 panel_width(i64 v, i64 n) {
  const i64 left = n - v;
  return left <= kColumns ? left : (left == kColumns + 1 ? (left + 1) / 2 : kColumns);
}

/// The vectors of a group's rows into panels. Those that are not finite are left out, and noted.
inline void load_across(const FoldTransposed& t, i64 head, TransposedRoom& room) {
  const Group& g = room.group.g;
  const i64 lanes = g.lanes(), vectors = room.dim / kVector;
  room.specials = 0;
  for (i64 lane = 0; lane < lanes; lane++) {
    bool finite = false;
    if (lane < g.rows) {
      finite = unpack(row_of(t.x, g.item, head, g.first_row + lane), t.x_dim, room.dim, room.vector);
      if (!finite) room.special[room.specials++] = (i32)lane;
    }
    for (i64 v = 0, width = 0; v < vectors; v += width) {
      width = panel_width(v, vectors);
      float* to = room.across + (v * lanes + lane * width) * kVector;
      for (i64 i = 0; i < width; i++)
        store(to + i * kVector, finite ? load(room.vector + (v + i) * kVector) : splat(0.0f));
    }
  }
}

/// Add to the sums of kRows keys one panel of W vectors.
template <int W>
REGARD_INLINE void add_panel(const float* weights, i64 lanes, const float* across, i64 stride, float* sums) {
  F found[kRows][W] = {};
  multiply<Fma, W>(weights, lanes, 1, across, lanes, found);
  for (int r = 0; r < kRows; r++)
    for (int w = 0; w < W; w++) {
      float* at = sums + r * stride + w * kVector;
      store(at, load(at) + found[r][w]);
    }
}

/// Add what a piece of weights gives to its keys.
inline void add_to_keys(const FoldTransposed& t, i64 head, TransposedRoom& room, i64 keys, float* sums) {
  const Group& g = room.group.g;
  const i64 lanes = g.lanes(), vectors = room.dim / kVector;
  for (i64 v = 0, width = 0; v < vectors; v += width) {
    width = panel_width(v, vectors);
    const float* across = room.across + v * lanes * kVector;
    for (i64 key = 0; key < keys; key += kRows) {
      float* to = sums + key * room.dim + v * kVector;
      const float* weights = room.scores + key * lanes;
      if (width == 1) add_panel<1>(weights, lanes, across, room.dim, to);
      else if (width == 2) add_panel<2>(weights, lanes, across, room.dim, to);
      else add_panel<kColumns>(weights, lanes, across, room.dim, to);
    }
  }
  for (i64 i = 0; i < room.specials; i++) {
    const i64 lane = room.special[i];
    unpack(row_of(t.x, g.item, head, g.first_row + lane), t.x_dim, room.dim, room.vector);
    for (i64 key = 0; key < keys; key++)
      if (room.allowed[key * lanes + lane])
        for (i64 e = 0; e < t.x_dim; e++) sums[key * room.dim + e] += room.scores[key * lanes + lane] * room.vector[e];
  }
}

template <class Kind, int W>
inline void take_tile_transposed(const Problem& p, const FoldTransposed& t, i64 head, const Tile& tile,
                                 const Reach& r, TransposedRoom& room, float* sums) {
  const i64 first = tile.origin + round_down(r.first - tile.origin, kRows);
  const i64 last = tile.origin + round_up(r.last - tile.origin, kRows);
  const bool cut = r.cut || first != r.first || last != r.last;
  float* s = room.scores;
  for (i64 at = first; at < last; at += kPiece) {
    const i64 keys = min(kPiece, last - at), n = min(keys, tile.last - at);
    form_logits<Kind, W>(p, room.group, tile, at, keys, n, cut, s, room.buffer);
    if (room.specials)
      for (i64 i = 0; i < keys * W * kVector; i++) room.allowed[i] = s[i] != -kInfinity;
    weigh<false>(p, room.group, at, keys, s);
    add_to_keys(t, head, room, keys, sums + (at - tile.origin) * room.dim);
  }
}

template <class Kind>
inline std::size_t fold_transposed_scratch_as(const Problem& whole, const FoldTransposed& t) {
  Arena arena{nullptr};
  take_transposed_room<Kind>(one_head(whole, 0), few_rows(whole), t.x_dim, arena);
  return arena.used;
}

template <class Kind>
inline void fold_transposed_as(const Problem& whole, const FoldTransposed& t, const FoldKeys& own, void* scratch) {
  const Problem p = one_head(whole, own.head);
  Arena arena{(char*)scratch};
  TransposedRoom room = take_transposed_room<Kind>(p, few_rows(whole), t.x_dim, arena);
  Fold f{};
  f.normalizer = t.normalizer;
  const FoldBlock rows{own.item, own.head, 0, p.n_queries};
  const i64 row_base = (own.item * whole.query_heads + own.head) * p.n_queries, n_keys = own.last_key - own.first_key;
  for (i64 i = 0; i < round_up(n_keys, kRows) * room.dim; i++) room.sums[i] = 0;
  bool filled[kOwnedTiles] = {};
  Group& g = room.group.g;
  for (i64 row = 0; row < p.n_queries; row += kGroup) {
    if (regard::interrupted()) return;
    // The masks alone first: most groups may reach none of these keys.
    g.item = own.item;
    g.key_head = 0;
    g.first_row = row;
    g.rows = (int)min(p.n_queries - row, (i64)kGroup);
    g.vectors = (g.rows + kVector - 1) / kVector;
    read_masks(p, g);
    if (reach(g, own.first_key, own.last_key).empty()) continue;
    begin_fold(p, f, rows, row, row_base, 0, room.group, room.row);
#ifdef REGARD_BF16_PAIRS
    if constexpr (Kind::kDepth == 2) pair_query(p, g);
#endif
    load_across(t, own.head, room);
    for (i64 i = 0; own.first_key + i * kTileKeys < own.last_key; i++) {
      const i64 first = own.first_key + i * kTileKeys, last = min(first + kTileKeys, own.last_key);
      const Reach r = reach(g, first, last);
      if (r.empty() || (p.dense && !occupied(p, g, r.first, r.last))) continue;
      if (!filled[i]) fill<Kind>(p, room.tiles[i], own.item, 0, first, last);
      filled[i] = true;
      float* sums = room.sums + i * kTileKeys * room.dim;
      if (g.vectors == 1) take_tile_transposed<Kind, 1>(p, t, own.head, room.tiles[i], r, room, sums);
      else if (g.vectors == 2) take_tile_transposed<Kind, 2>(p, t, own.head, room.tiles[i], r, room, sums);
      else take_tile_transposed<Kind, kColumns>(p, t, own.head, room.tiles[i], r, room, sums);
    }
  }
  float* to = t.result + ((own.item * whole.query_heads + own.head) * p.n_keys + own.first_key) * t.x_dim;
  for (i64 key = 0; key < n_keys; key++)
    for (i64 e = 0; e < t.x_dim; e++) to[key * t.x_dim + e] = room.sums[key * room.dim + e];
}

}  // namespace folding
}  // namespace
