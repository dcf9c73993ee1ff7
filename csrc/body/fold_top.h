// The largest logits of each row, exact in their order: by logit, ties by lower column.
//
// Columns come in ascending order, so an equal logit never displaces one that is there. A few are kept sorted, lanes
// across, and a vector of logits is inserted in all its lanes at once: what that costs has a bound, whatever the
// logits. For many, each lane gathers candidates and weeds them out when there is no more room.
#pragma once

#include "fold_given.h"

namespace {
namespace folding {

constexpr i64 kPiece = 32;   // keys whose weights are formed together: they stay in the first-level cache
constexpr i64 kFewTop = 16;  // up to so many are kept sorted
constexpr i32 kNothing = (i32)0x80000000;

/// Integers in the order of floats, -0 being 0: NaN beyond infinity on the side of its sign. Undoes itself.
REGARD_INLINE I order_of_bits(I bits) { return bits ^ ((bits >> 31) & splat((i32)0x7fffffff)); }
REGARD_INLINE i32 order_of_bits(i32 bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

struct Top {
  i64 k;
  i64 kept;               // few: at least k
  i64 room;               // many: candidates of a lane
  float* bar;             // [kGroup]: a logit that is not at most this one has a place
  i32 *order, *column;    // few: [8 or kFewTop][kGroup]
  i64* packed;            // many: [kGroup][room], order above, the column's complement below
  i32* count;             // many: [kGroup]
};

inline Top take_top(i64 k, Arena& arena) {
  Top t{};
  t.k = k;
  if (k == 0) return t;
  t.bar = arena.take<float>(kGroup);
  if (k <= kFewTop) {
    t.kept = k <= 8 ? 8 : kFewTop;
    t.order = arena.take<i32>(t.kept * kGroup);
    t.column = arena.take<i32>(t.kept * kGroup);
  } else {
    t.room = 2 * k;
    t.packed = arena.take<i64>(kGroup * t.room);
    t.count = arena.take<i32>(kGroup);
  }
  return t;
}

inline void begin_top(Top& t) {
  for (i64 i = 0; i < kGroup && t.k; i++) t.bar[i] = -kInfinity;
  if (t.order)
    for (i64 i = 0; i < t.kept * kGroup; i++) t.order[i] = kNothing, t.column[i] = -1;
  if (t.count)
    for (i64 i = 0; i < kGroup; i++) t.count[i] = 0;
}

/// The bar that a lowest place of this order sets.
REGARD_INLINE float bar_of(i32 order) {
  if (order == kNothing) return -kInfinity;
  const float logit = bits_of<float>(order_of_bits(order));
  return logit == logit ? logit : (order > 0 ? kInfinity : -kInfinity);
}

/// The K largest of each lane of a vector, in registers while a piece is ranked.
template <int K>
struct FewTop {
  I order[K], column[K];

  REGARD_INLINE FewTop(const Top& t, i64 lane) {
#pragma GCC unroll 16
    for (int i = 0; i < K; i++) {
      order[i] = load(t.order + i * kGroup + lane);
      column[i] = load(t.column + i * kGroup + lane);
    }
  }
  REGARD_INLINE void keep(const Top& t, i64 lane) const {
#pragma GCC unroll 16
    for (int i = 0; i < K; i++) {
      store_ints(t.order + i * kGroup + lane, order[i]);
      store_ints(t.column + i * kGroup + lane, column[i]);
    }
  }
  /// Give each lane's logit of a column the place it deserves: what it exceeds moves down by one.
  REGARD_INLINE void insert(F logits, i64 at) {
    const I x = logits == splat(-kInfinity) ? splat(kNothing) : order_of_bits((I)(logits + splat(0.0f)));
    const I here = splat((i32)at);
#pragma GCC unroll 16
    for (int i = K - 1; i > 0; i--) {
      column[i] = order[i] < x ? (order[i - 1] < x ? column[i - 1] : here) : column[i];
      order[i] = order[i] < x ? (order[i - 1] < x ? order[i - 1] : x) : order[i];
    }
    column[0] = order[0] < x ? here : column[0];
    order[0] = order[0] < x ? x : order[0];
  }
};

/// Which of n <= 32 columns have a lane's logit above that lane's bar: a bit each.
REGARD_INLINE u32 columns_above(const float* s, i64 lanes, i64 n, F bar) {
  u32 found = 0;
  for (i64 k = 0; k < n; k++) found |= (u32)(above(load(s + k * lanes), bar) != 0) << k;
  return found;
}

template <int K>
__attribute__((noinline)) void rank_few(Top& t, i64 lane, i64 lanes, u32 columns, i64 first, const float* s) {
  FewTop<K> few(t, lane);
  for (; columns; columns &= columns - 1) {
    const int k = __builtin_ctz(columns);
    few.insert(load(s + k * lanes), first + k);
  }
  few.keep(t, lane);
  for (int i = 0; i < kVector; i++) t.bar[lane + i] = bar_of(t.order[(t.k - 1) * kGroup + lane + i]);
}

inline void weed_out(Top& t, i64 lane) {
  i64* packed = t.packed + lane * t.room;
  regard::keep_largest(packed, t.count[lane], t.k, false);
  t.count[lane] = (i32)t.k;
  i64 least = packed[0];
  for (i64 i = 1; i < t.k; i++) least = min(least, packed[i]);
  t.bar[lane] = bar_of((i32)(least >> 32));
}

__attribute__((noinline)) void rank_many(Top& t, i64 lane, i64 lanes, u32 columns, i64 first, const float* s) {
  for (; columns; columns &= columns - 1) {
    const int k = __builtin_ctz(columns);
    const F logits = load(s + k * lanes) + splat(0.0f);
    float values[kVector];
    store(values, logits);
    for (u32 hits = above(logits, load(t.bar + lane)); hits; hits &= hits - 1) {
      const i64 at = lane + __builtin_ctz(hits);
      const i64 order = order_of_bits(bits_of<i32>(values[at - lane]));
      t.packed[at * t.room + t.count[at]++] = order * ((i64)1 << 32) | (0xffffffff - (first + k));
      if (t.count[at] == t.room) weed_out(t, at);
    }
  }
}

/// Rank the logits of n columns from `first` on; -inf ranks nowhere.
__attribute__((noinline)) void rank(Top& t, i64 lanes, i64 first, i64 n, const float* s) {
  static_assert(kPiece <= 32, "a bit for each column of a piece");
  for (i64 lane = 0; lane < lanes; lane += kVector) {
    const u32 columns = columns_above(s + lane, lanes, n, load(t.bar + lane));
    if (!columns) continue;
    if (t.count) rank_many(t, lane, lanes, columns, first, s + lane);
    else if (t.kept == 8) rank_few<8>(t, lane, lanes, columns, first, s + lane);
    else rank_few<kFewTop>(t, lane, lanes, columns, first, s + lane);
  }
}

/// One row's answer: weights, columns and, unless null, logits; 0, -1 and -inf where fewer may be attended.
inline void end_top(Top& t, int lane, const Given& row, float* weights, i64* columns, float* ranked) {
  if (t.count) {
    regard::keep_largest(t.packed + lane * t.room, t.count[lane], t.k, true);
    t.count[lane] = (i32)min((i64)t.count[lane], t.k);
  }
  for (i64 first = 0; first < t.k; first += kVector) {
    const i64 n = min((i64)kVector, t.k - first);
    float logits[kVector], found[kVector];
    for (i64 i = 0; i < kVector; i++) logits[i] = 0;
    for (i64 i = 0; i < n; i++) {
      const i64 place = first + i;
      i32 order;
      if (t.order) {
        order = t.order[place * kGroup + lane];
        columns[place] = t.column[place * kGroup + lane];
      } else {
        const bool there = place < t.count[lane];
        const i64 packed = there ? t.packed[lane * t.room + place] : 0;
        order = there ? (i32)(packed >> 32) : kNothing;
        columns[place] = there ? 0xffffffff - (packed & 0xffffffff) : -1;
      }
      logits[i] = order == kNothing ? -kInfinity : bits_of<float>(order_of_bits(order));
    }
    store(found, row.weights(load(logits)));
    for (i64 i = 0; i < n; i++) weights[first + i] = found[i];
    if (!ranked) continue;
    for (i64 i = 0; i < n; i++) ranked[first + i] = logits[i];
  }
}

}  // namespace folding
}  // namespace
