// From a part's keys to its weights and the gradients of its scores, lanes across.
#pragma once

#include "backward_rows.h"
#include "forward.h"

namespace {
namespace gradients {

struct PartRooms {
  float* buffer;  // [kPartKeys][kGroup]: a tile of bias or of a dense mask
  float* bent;    // as large: the derivative of softcap
};

/// Sums over a dim: to[key][lanes] of `keys` rows of A and a group's rows across.
template <int W, class Put>
REGARD_INLINE void products(const float* a, i64 stride, const float* across, i64 dim, i64 keys, Put put) {
  for (i64 key = 0; key < keys; key += kRows) {
    F sums[kRows][W] = {};
    multiply<Fma, W>(a + key * stride, stride, 1, across, min(kSteps, dim), sums);
    for (i64 d = kSteps; d < dim; d += kSteps) {  // in pieces, as the forward pass sums them
      F more[kRows][W] = {};
      multiply<Fma, W>(a + key * stride + d, stride, 1, across + d * W * kVector, min(kSteps, dim - d), more);
      for (int r = 0; r < kRows; r++)
        for (int w = 0; w < W; w++) sums[r][w] = sums[r][w] + more[r][w];
    }
    for (int r = 0; r < kRows; r++)
      for (int w = 0; w < W; w++) put(((key + r) * W + w) * kVector, w, sums[r][w]);
  }
}

/// What marks a pair that takes no part: a weight of -0, which no other pair has.
REGARD_INLINE F no_part() { return splat(-0.0f); }
REGARD_INLINE I takes_none(F weight) { return (I)weight == splat((i32)0x80000000); }

/// Logits in place to weights.
template <int W>
inline void to_weights(const RowGroup& r, const Units& units, i64 keys, float* s) {
  F minus[W], inverse[W];
  for (int w = 0; w < W; w++) minus[w] = -load(r.base + w * kVector), inverse[w] = load(r.inverse + w * kVector);
  const F c = splat(units.c);
  for (i64 k = 0; k < keys; k++)
    for (int w = 0; w < W; w++) {
      float* at = s + (k * W + w) * kVector;
      const F score = load(at);
      // Selected, not computed: in a row that is spoiled the formula gives NaN.
      store(at, score == splat(-kInfinity) ? no_part() : exp2_of(fma(score, c, minus[w])) * inverse[w]);
    }
}

/// Weights after dropout, of columns from `first` on.
template <int W>
inline void drop_weights(const Problem& p, const RowGroup& r, i64 first, i64 keys, const float* weights, float* to) {
  u32 one[kGroup], two[kGroup];
  const i64 position = query_position(p, r.g.item, 0);
  for (int lane = 0; lane < r.g.lanes(); lane++) {
    const RowKeys k = lane < r.g.rows ? row_keys(p, r.g.item, r.heads[lane], position + r.queries[lane]) : RowKeys{};
    one[lane] = k.first;
    two[lane] = k.second;
  }
  for (i64 k = 0; k < keys; k++) {
    const U key = (U)splat((i32)(u32)key_position(p, r.g.item, first + k));
    for (int w = 0; w < W; w++) {
      const i64 at = (k * W + w) * kVector;
      const U a = (U)load((const i32*)one + w * kVector), b = (U)load((const i32*)two + w * kVector);
      const F weight = load(weights + at);
      store(to + at, takes_none(weight) ? weight : dropped(p, weight, a, b, key));
    }
  }
}

/// The weights of a part and, if `of_logits`, the gradients of its logits.
template <int W>
inline void differentiate(const Problem& p, const Units& units, const Chunk& c, RowGroup& r, bool cut, bool of_logits,
                          PartRooms& rooms) {
  const i64 keys = r.last - r.first, first = c.first + r.first, inside = min(c.first + r.last, c.last) - first;
  // Without dropout the weights serve both dV and the slopes, which go to a place of their own.
  float* s = p.drop_below ? r.slopes : r.weights;
  products<W>(c.key + r.first * c.key_stride, c.key_stride, r.g.query, p.head_dim, keys,
              [&](i64 at, int, F x) { store(s + at, x); });
  if (p.softcap != 0 && of_logits)
    for (i64 i = 0; i < keys * W * kVector; i += kVector) {
      const F bend = softcapped(load(s + i) * splat(__builtin_fabsf(p.scale)), p.softcap);
      store(rooms.bent + i, splat(1.0f) - bend * bend);
    }
  to_logits<W>(p, units, r.g, first, first + inside, cut, s, rooms.buffer);
  // Columns past the chunk's last are padding: excluded like any other.
  for (i64 i = inside * W; i < keys * W; i++) store(s + i * kVector, splat(-kInfinity));
  to_weights<W>(r, units, keys, s);
  if (p.drop_below) drop_weights<W>(p, r, first, keys, s, r.weights);
  if (!of_logits) return;
  F delta[W];
  for (int w = 0; w < W; w++) delta[w] = load(r.delta + w * kVector);
  const float* values = c.value + r.first * c.value_stride;
  // dO . v of a pair that takes no part may be anything.
  if (p.drop_below)
    products<W>(values, c.value_stride, r.grad_output, p.value_dim, keys, [&](i64 at, int w, F x) {
      const F weight = load(s + at);
      store(r.slopes + at, takes_none(weight) ? splat(0.0f) : fma(load(r.weights + at), x, -(weight * delta[w])));
    });
  else
    products<W>(values, c.value_stride, r.grad_output, p.value_dim, keys, [&](i64 at, int w, F x) {
      const F weight = load(s + at);
      store(r.slopes + at, takes_none(weight) ? splat(0.0f) : weight * (x - delta[w]));
    });
}

/// Gradients of logits to gradients of scores before softcap, in place.
template <int W>
inline void unbend(RowGroup& r, const PartRooms& rooms) {
  for (i64 i = 0; i < (r.last - r.first) * W * kVector; i += kVector) {
    const F slope = load(r.slopes + i);
    store(r.slopes + i, slope == splat(0.0f) ? slope : slope * load(rooms.bent + i));
  }
}

/// Add dS^T K of a part to the group's dQ.
template <int W>
inline void add_to_query(const Problem& p, const Chunk& c, RowGroup& r) {
  const float* keys = c.finite_key + r.first * c.key_stride;
  for (i64 e = 0; e < p.head_dim; e += kRows) {
    F sums[kRows][W] = {};
    multiply<Fma, W>(keys + e, 1, c.key_stride, r.slopes, r.last - r.first, sums);
    for (int i = 0; i < kRows; i++)
      for (int w = 0; w < W; w++) {
        float* at = r.grad_query + ((e + i) * W + w) * kVector;
        store(at, load(at) + sums[i][w]);
      }
  }
  // Keys that are not finite were left out: they reach the rows that may see them, and no other.
  for (i64 i = 0; i < c.specials; i++) {
    const i64 key = c.special[i] - c.first;
    if (key < r.first || key >= r.last) continue;
    for (int lane = 0; lane < r.g.rows; lane++) {
      const float slope = r.slopes[(key - r.first) * W * kVector + lane];
      if (slope == 0) continue;
      for (i64 e = 0; e < p.head_dim; e++)
        r.grad_query[e * W * kVector + lane] += slope * c.key[key * c.key_stride + e];
    }
  }
}

}  // namespace gradients
}  // namespace
