// A tile of keys and values, copied once into packed form for all the groups of a block.
//
// The copy widens, evens out strides and odd sizes, and finds the values that are not finite: those are taken out of the
// tile, for 0 * NaN would carry them to rows that may not see them, and added by hand to the rows that may.
#pragma once

#include "group.h"
#include "product.h"

namespace {

struct Tile {
  i64 first, last;  // columns; the rows of the copy count from `origin`, and reach to a multiple of kRows
  i64 origin;
  i64 key_stride, value_stride;  // elements of a copied row
  float* key;                    // [kTileKeys][key_stride], or pairs along the dim in 32 bits
  float* value;                  // [kTileKeys][value_stride], or pairs of keys: [kTileKeys / 2][value_stride]
  int specials;                  // how many values are not finite, and which columns they are
  i32* special;                  // [kTileKeys]
};

/// Elements of A that a row of `dim` numbers takes.
template <class Kind>
REGARD_INLINE i64 steps_of(i64 dim) {
  return (dim + Kind::kDepth - 1) / Kind::kDepth;
}

template <class Kind>
inline Tile take_tile(const Problem& p, Arena& arena) {
  Tile t{};
  t.key_stride = round_up(steps_of<Kind>(p.head_dim), kVector);
  t.value_stride = round_up(p.value_dim, kVector > kRows ? kVector : kRows);
  t.key = arena.take<float>(kTileKeys * t.key_stride);
  t.value = arena.take<float>(kTileKeys * t.value_stride);
  t.special = arena.take<i32>(kTileKeys);
  return t;
}

#ifdef REGARD_BF16_PAIRS
/// A bfloat16 row as it lies, an odd last element joined by a zero. Returns whether all are finite.
inline bool copy_bf16(const Row& row, i64 n, i64 padded, u16* to) {
  u32 worst = 0;
  const u16* from = (const u16*)row.data;
  if (row.stride == 1) {
    for (i64 i = 0; i < n; i++) to[i] = from[i];
  } else {
    for (i64 i = 0; i < n; i++) to[i] = from[i * row.stride];
  }
  for (i64 i = 0; i < n; i++) worst |= (u32)((to[i] & 0x7f80) == 0x7f80);
  for (i64 i = n; i < padded; i++) to[i] = 0;
  return worst == 0;
}
#endif

/// Copy the columns [first, last), which begin at a multiple of kRows, of one key head.
template <class Kind>
inline void fill(const Problem& p, Tile& t, i64 item, i64 key_head, i64 first, i64 last) {
  t.origin = t.first = first;
  t.last = last;
  t.specials = 0;
  const i64 end = first + round_up(last - first, kRows);
  for (i64 column = first; column < end; column++) {
    float* key = t.key + (column - first) * t.key_stride;
    float* value = t.value + (column - first) / Kind::kDepth * t.value_stride;
    const bool inside = column < last;
    bool finite = true;
    if constexpr (Kind::kDepth == 1) {
      if (inside) {
        unpack(row_of(p.key, item, key_head, column), p.head_dim, t.key_stride, key);
        if (p.value_dim) finite = unpack(row_of(p.value, item, key_head, column), p.value_dim, t.value_stride, value);
      }
      if (!inside) for (i64 i = 0; i < t.key_stride; i++) key[i] = 0;
      if (!inside || !finite) for (i64 i = 0; i < t.value_stride; i++) value[i] = 0;
    } else {
#ifdef REGARD_BF16_PAIRS
      u16* pairs = (u16*)value + (column & 1);  // `first` is even: kRows is
      if (inside) {
        copy_bf16(row_of(p.key, item, key_head, column), p.head_dim, 2 * t.key_stride, (u16*)key);
        const Row row = row_of(p.value, item, key_head, column);
        u32 worst = 0;
        for (i64 i = 0; i < p.value_dim; i++) {
          const u16 x = ((const u16*)row.data)[i * row.stride];
          worst |= (u32)((x & 0x7f80) == 0x7f80);
          pairs[2 * i] = x;
        }
        for (i64 i = p.value_dim; i < t.value_stride; i++) pairs[2 * i] = 0;
        finite = worst == 0;
      }
      if (!inside) for (i64 i = 0; i < t.key_stride; i++) key[i] = 0;
      if (!inside || !finite) for (i64 i = 0; i < t.value_stride; i++) pairs[2 * i] = 0;
#endif
    }
    if (!finite) t.special[t.specials++] = (i32)column;
  }
}

}  // namespace
