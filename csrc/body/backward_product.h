// The products of the backward pass that sum over query rows: dV += P^T dO and dK += dS^T Q.
//
// Rows of the register tile are keys, lanes are the dim: weights are [key][lanes of queries], broadcast one at a time,
// and dO and Q lie there by rows. (The other products sum over a dim or over keys.)
#pragma once

#include "product.h"

namespace {
namespace gradients {

/// Adds `steps` rows of B, `b_stride` apart, to a tile of `kRows` x W sums. A(r, t) = a[r * row_stride + t].
template <int W>
REGARD_INLINE void multiply_rows(const float* a, i64 row_stride, const float* b, i64 b_stride, i64 steps,
                                 F (&sums)[kRows][W]) {
#pragma GCC unroll 2
  for (i64 t = 0; t < steps; t++) {
    F columns[W];
#pragma GCC unroll 4
    for (int w = 0; w < W; w++) columns[w] = load(b + t * b_stride + w * kVector);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; r++) {
      const F x = splat(a[r * row_stride + t]);
#pragma GCC unroll 4
      for (int w = 0; w < W; w++) sums[r][w] = fma(x, columns[w], sums[r][w]);
    }
  }
}

/// The vectors of a group's lanes in which some row may attend some of kRows keys: none where `from` is `to`.
struct Live {
  u8 from, to;
};

/// One group's part of such a product: factors [key][lanes] of the keys [first, last), and vectors by rows.
struct Part {
  const float* factors;
  const Live* live;  // [(last - first) / kRows]
  i64 lanes, first, last;
  const float* vectors;
  i64 stride, rows;
};

template <int W>
REGARD_INLINE void add_part_of_row(const Part* parts, int n, i64 key, i64 at, float* to, i64 stride) {
  // From zero, and then added: the sum of some rows is rounded at its own size, not at that of all before it.
  F sums[kRows][W] = {};
  for (int i = 0; i < n; i++) {
    const Part& p = parts[i];
    if (key < p.first || key >= p.last) continue;
    const Live live = p.live[(key - p.first) / kRows];
    const i64 row = live.from * kVector, end = min((i64)live.to * kVector, p.rows);
    multiply_rows<W>(p.factors + (key - p.first) * p.lanes + row, p.lanes, p.vectors + row * p.stride + at, p.stride,
                     end - row, sums);
  }
  for (int r = 0; r < kRows; r++)
    for (int w = 0; w < W; w++) {
      float* sum = to + r * stride + at + w * kVector;
      store(sum, load(sum) + sums[r][w]);
    }
}

/// to[key][stride] += sum over the parts' rows of factor x vector, for the keys [first, last). All ranges count from
/// the row `to` and are multiples of kRows.
inline void add_transposed(const Part* parts, int n, i64 first, i64 last, float* to, i64 stride) {
  for (i64 key = first; key < last; key += kRows)
    for (i64 at = 0; at < stride;) {
      const i64 left = (stride - at) / kVector;
      float* row = to + key * stride;
      if (left == 1) {
        add_part_of_row<1>(parts, n, key, at, row, stride);
        at += kVector;
      } else if (left == 2 || left == 4 || kColumns == 2) {  // 4 is 2 + 2, not 3 + 1
        add_part_of_row<2>(parts, n, key, at, row, stride);
        at += 2 * kVector;
      } else {
        add_part_of_row<kColumns>(parts, n, key, at, row, stride);
        at += kColumns * kVector;
      }
    }
}

}  // namespace gradients
}  // namespace
