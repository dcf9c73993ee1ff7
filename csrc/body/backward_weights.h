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

/// Which vectors of lanes have anything to do with each kRows keys of a part that is cut, by comparing bounds.
template <int W>
inline void find_live(const Chunk& c, RowGroup& r, bool cut) {
  for (i64 i = 0; i < (r.last - r.first) / kRows; i++) {
    r.live[i] = {0, W};
    if (!cut) continue;
    const I first = splat((i32)(c.first + r.first + i * kRows)), last = first + splat(kRows);
    Live live{W, 0};
    for (i64 slot = 0; slot < r.g.slots; slot++)
      for (int w = 0; w < W; w++) {
        const i64 lane = slot * kGroup + w * kVector;
        const I starts = load(r.g.starts + lane), ends = load(r.g.ends + lane);
        if (any((I)(starts < last) & (I)(ends > first) & (I)(starts < ends)))
          live = {min(live.from, (u8)w), max(live.to, (u8)(w + 1))};
      }
    r.live[i] = live.to ? live : Live{0, 0};
  }
}

/// Products of kRows rows of A with the N vectors of lanes from `w` on, of `lanes` lanes across.
template <int N, class Put>
REGARD_INLINE void some_products(const float* a, i64 stride, const float* across, i64 lanes, i64 dim, i64 at, int w,
                                 Put put) {
  F sums[kRows][N] = {};
  const float* columns = across + w * kVector;
  multiply_rows<N>(a, stride, columns, lanes, min(kSteps, dim), sums);
  for (i64 d = kSteps; d < dim; d += kSteps) {  // in pieces, as the forward pass sums them
    F more[kRows][N] = {};
    multiply_rows<N>(a + d, stride, columns + d * lanes, lanes, min(kSteps, dim - d), more);
    for (int r = 0; r < kRows; r++)
      for (int i = 0; i < N; i++) sums[r][i] = sums[r][i] + more[r][i];
  }
  for (int r = 0; r < kRows; r++)
    for (int i = 0; i < N; i++) put(at + r * lanes + (w + i) * kVector, w + i, sums[r][i]);
}

/// Sums over a dim of `keys` rows of A and a group's rows across, given to `put` with the place in [key][lanes] and the
/// vector; 0 where no row takes part.
template <int W, class Put>
REGARD_INLINE void products(const float* a, i64 stride, const float* across, i64 dim, i64 keys, const Live* live,
                            Put put) {
  constexpr i64 lanes = W * kVector;
  for (i64 key = 0; key < keys; key += kRows, live++) {
    const float* rows = a + key * stride;
    const int n = live->to - live->from;
    if (n == W) {
      some_products<W>(rows, stride, across, lanes, dim, key * lanes, 0, put);
      continue;
    }
    for (i64 r = 0; r < kRows; r++)
      for (int w = 0; w < W; w++)
        if (w < live->from || w >= live->to) put((key + r) * lanes + w * kVector, w, splat(0.0f));
    if constexpr (W > 1) {
      if (n == 1) some_products<1>(rows, stride, across, lanes, dim, key * lanes, live->from, put);
    }
    if constexpr (W > 2) {
      if (n == 2) some_products<2>(rows, stride, across, lanes, dim, key * lanes, live->from, put);
    }
  }
}

/// What marks a pair that takes no part: a weight of -0, which no other pair has.
REGARD_INLINE F no_part() { return splat(-0.0f); }
constexpr u32 kTakesNone = 0x80000000;
REGARD_INLINE I takes_none(F weight) { return (I)weight == splat((i32)kTakesNone); }

/// Logits in place to weights. `entropy`, where given, takes what the entropy adds to the gradient of each weight, apart
/// from what is in delta.
template <int W>
inline void to_weights(const RowGroup& r, i64 keys, float* s, float* entropy) {
  F minus[W], inverse[W];
  for (int w = 0; w < W; w++) minus[w] = -load(r.base + w * kVector), inverse[w] = load(r.inverse + w * kVector);
  for (i64 k = 0; k < keys; k++)
    for (int w = 0; w < W; w++) {
      float* at = s + (k * W + w) * kVector;
      const F score = load(at);
      // Selected, not computed: in a row that is spoiled the formula gives NaN.
      const F weight = score == splat(-kInfinity) ? no_part() : exp_of(score + minus[w]) * inverse[w];
      store(at, weight);
      if (!entropy) continue;
      // A weight that is 0 has no share, and its logit may be as far away as numbers go.
      const F part = load(r.grad_entropy + w * kVector) * -(score + minus[w]);
      store(entropy + (k * W + w) * kVector, weight == splat(0.0f) ? splat(0.0f) : part);
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
inline void differentiate(const Problem& p, const Chunk& c, RowGroup& r, bool cut, bool of_logits,
                          PartRooms& rooms) {
  const i64 keys = r.last - r.first, first = c.first + r.first, inside = min(c.first + r.last, c.last) - first;
  // Without dropout the weights serve both dV and the slopes, which go to a place of their own.
  float* s = p.drop_below ? r.slopes : r.weights;
  find_live<W>(c, r, cut);
  products<W>(c.key + r.first * c.key_stride, c.key_stride, r.g.query, p.head_dim, keys, r.live,
              [&](i64 at, int, F x) { store(s + at, x); });
  if (p.softcap != 0 && of_logits)
    for (i64 i = 0; i < keys * W * kVector; i += kVector) {
      const F bend = softcapped(load(s + i) * splat(__builtin_fabsf(p.scale)), p.softcap);
      store(rooms.bent + i, splat(1.0f) - bend * bend);
    }
  to_logits<W>(p, r.g, first, first + inside, cut, s, rooms.buffer);
  // Columns past the chunk's last are padding: excluded like any other.
  for (i64 i = inside * W; i < keys * W; i++) store(s + i * kVector, splat(-kInfinity));
  const bool entropy = of_logits && r.has_entropy;
  to_weights<W>(r, keys, s, entropy ? r.slopes : nullptr);
  if (p.drop_below) drop_weights<W>(p, r, first, keys, s, r.weights);
  if (!of_logits) return;
  F delta[W];
  for (int w = 0; w < W; w++) delta[w] = load(r.delta + w * kVector);
  const float* values = c.value + r.first * c.value_stride;
  // dO . v of a pair that takes no part may be anything.
  if (p.drop_below)
    products<W>(values, c.value_stride, r.grad_output, p.value_dim, keys, r.live, [&](i64 at, int w, F x) {
      const F weight = load(s + at);
      store(r.slopes + at, takes_none(weight) ? splat(0.0f) : fma(load(r.weights + at), x, -(weight * delta[w])));
    });
  else if (entropy)
    products<W>(values, c.value_stride, r.grad_output, p.value_dim, keys, r.live, [&](i64 at, int w, F x) {
      const F weight = load(s + at);
      const F gradient = x + load(r.slopes + at) - delta[w];
      store(r.slopes + at, takes_none(weight) ? splat(0.0f) : weight * gradient);
    });
  else
    products<W>(values, c.value_stride, r.grad_output, p.value_dim, keys, r.live, [&](i64 at, int w, F x) {
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
  for (i64 e = 0; e < p.head_dim; e += kRows)
    add_product<Fma, W>(keys + e, 1, c.key_stride, r.slopes, r.last - r.first, r.grad_query + e * W * kVector);
  // Keys that are not finite were left out: they reach the rows that may see them, and no other.
  for (i64 i = 0; i < c.specials; i++) {
    const i64 key = c.special[i] - c.first;
    if (key < r.first || key >= r.last) continue;
    for (int lane = 0; lane < r.g.rows; lane++) {
      const float slope = r.slopes[(key - r.first) * W * kVector + lane];
      if (bits_of<u32>(slope) == 0) continue;
      for (i64 e = 0; e < p.head_dim; e++)
        r.grad_query[e * W * kVector + lane] += slope * c.key[key * c.key_stride + e];
    }
  }
}

}  // namespace gradients
}  // namespace
