// Online softmax for a group: maximum, sum and output relative to the maximum, one lane a row.
//
// Milakov & Gimelshein 2018; Dao et al. 2022. A row that has seen nothing keeps a maximum of -inf, and 0 stands in for it
// in differences: -inf - (-inf) is NaN.
#pragma once

#include "logits.h"
#include "tile.h"

namespace {

REGARD_INLINE F or_zero(F maximum) { return maximum == splat(-kInfinity) ? splat(0.0f) : maximum; }

/// Take in the logits of `keys` columns, a multiple of kRows: they become weights relative to the new maximum.
template <int W>
inline void absorb(Group& g, i64 keys, i64 value_rows, float* s) {
  F largest[W], reference[W], added[W];
  for (int w = 0; w < W; w++) largest[w] = load(g.maximum + w * kVector), added[w] = splat(0.0f);
  for (i64 k = 0; k < keys; k++)
    for (int w = 0; w < W; w++) largest[w] = larger(largest[w], load(s + (k * W + w) * kVector));
  bool grown = false;
  F decay[W];
  for (int w = 0; w < W; w++) {
    const F before = load(g.maximum + w * kVector);
    reference[w] = or_zero(largest[w]);
    decay[w] = exp_of(before - reference[w]);
    grown |= any(largest[w] > before);
    store(g.maximum + w * kVector, largest[w]);
  }
  for (i64 k = 0; k < keys; k += kRows) {
    F few[W] = {};  // sums of few first: errors grow with the length of a sum
    for (i64 j = k; j < k + kRows; j++)
      for (int w = 0; w < W; w++) {
        float* at = s + (j * W + w) * kVector;
        const F weight = exp_of(load(at) - reference[w]);
        few[w] = few[w] + weight;
        store(at, weight);
      }
    for (int w = 0; w < W; w++) added[w] = added[w] + few[w];
  }
  for (int w = 0; w < W; w++) {
    float* sum = g.sum + w * kVector;
    store(sum, fma(load(sum), decay[w], added[w]));
  }
  if (grown)  // a decay of 1 changes nothing: rows that did not grow keep their bits
    for (i64 e = 0; e < value_rows; e++)
      for (int w = 0; w < W; w++) {
        float* at = g.output + (e * W + w) * kVector;
        store(at, load(at) * decay[w]);
      }
}

/// Drop weights of the columns from `first` on.
template <int W>
inline void drop(const Problem& p, const Group& g, i64 first, i64 keys, float* s) {
  u32 one[kGroup], two[kGroup];
  for (int lane = 0; lane < g.lanes(); lane++) {
    const RowKeys k = row_keys(p, g.item, g.head(p, lane), query_position(p, g.item, g.query_row(p, lane)));
    one[lane] = k.first;
    two[lane] = k.second;
  }
  for (i64 k = 0; k < keys; k++) {
    const U position = (U)splat((i32)(u32)key_position(p, g.item, first + k));
    for (int w = 0; w < W; w++) {
      float* at = s + (k * W + w) * kVector;
      const U a = (U)load((const i32*)one + w * kVector), b = (U)load((const i32*)two + w * kVector);
      store(at, dropped(p, load(at), a, b, position));
    }
  }
}

}  // namespace
