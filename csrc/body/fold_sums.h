// Sums over the rows of a group: by key, by diagonal, by block of a heat map.
#pragma once

#include "fold_group.h"

namespace {
namespace folding {

/// Sums over the lanes of W vectors of each of kVector rows of s, of which n are there: a vector of sums. Lanes outside
/// `chosen` are left out where it is given.
template <int W>
REGARD_INLINE F sums_of_rows(const float* s, i64 n, const i32* chosen) {
  float across[kVector * kVector], along[kVector * kVector];
  for (i64 k = 0; k < kVector; k++) {
    F sum = splat(0.0f);
    for (int w = 0; w < W && k < n; w++) {
      const F weights = load(s + (k * W + w) * kVector);
      // Selected: a row that is not chosen may hold NaN.
      sum = sum + (chosen ? (F)((I)weights & load(chosen + w * kVector)) : weights);
    }
    store(across + k * kVector, sum);
  }
  transpose(across, kVector, along, kVector);
  F sums[kVector];
#pragma GCC unroll 16
  for (int i = 0; i < kVector; i++) sums[i] = load(along + i * kVector);
#pragma GCC unroll 4
  for (int width = kVector / 2; width > 0; width /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < width; i++) sums[i] = sums[i] + sums[i + width];
  return sums[0];
}

/// Add to `sums[key]` what the lanes that are chosen hold of each of `keys` rows of s.
template <int W>
inline void add_by_key(const FoldGroup& group, i64 keys, const float* s, float* sums) {
  const bool all = group.all_chosen();
  for (i64 first = 0; first < keys; first += kVector) {
    const float* rows = s + first * W * kVector;
    const i64 n = keys - first;
    const F found = !all ? sums_of_rows<W>(rows, n, group.chosen)
                         : n < kVector ? sums_of_rows<W>(rows, n, nullptr) : sums_of_rows<W>(rows, kVector, nullptr);
    store(sums + first, load(sums + first) + found);
  }
}

/// The rows of a piece with a vector of zeros before and after each, so that any vector of them may be read.
constexpr i64 kSkewed = kVector * (kGroup + kVector) + kVector;

/// Add to `sums[lane - key + keys - 1]`. `skewed` is scratch, kSkewed floats.
inline void add_by_diagonal(i64 lanes, i64 keys, const float* s, float* sums, float* skewed) {
  const i64 stride = lanes + kVector;
  for (i64 k = 0; k <= kVector; k++) store(skewed + k * stride, splat(0.0f));
  for (i64 first = 0; first < keys; first += kVector) {
    const i64 n = min((i64)kVector, keys - first);
    float* rows = skewed + kVector;
    for (i64 k = 0; k < n; k++)
      for (i64 lane = 0; lane < lanes; lane += kVector)
        store(rows + k * stride + lane, load(s + (first + k) * lanes + lane));
    float* to = sums + keys - first - n;
    for (i64 at = 0; at < lanes + kVector; at += kVector) {
      F sum = splat(0.0f);
      for (i64 k = 0; k < n; k++) sum = sum + load(rows + k * stride + at - (n - 1 - k));
      store(to + at, load(to + at) + sum);
    }
  }
}

/// The block of columns that was being pooled is complete: add its rows to their blocks.
inline void end_pool(const Fold& f, i64 first_block, const FoldPart& part, FoldGroup& group) {
  const Group& g = group.g;
  if (group.pool_column < 0) return;
  for (int lane = 0; lane < g.rows;) {
    const i64 block = f.pool_rows.of(g.first_row + lane);
    const i64 end = min(f.pool_rows.end(block) - g.first_row, (i64)g.rows);
    float rows[kVector];
    F total = splat(0.0f);
    for (; lane < end; lane = (int)min(round_down(lane, kVector) + kVector, end)) {
      const i64 vector = round_down(lane, kVector);
      for (i64 i = 0; i < kVector; i++)
        rows[i] = vector + i >= lane && vector + i < end ? group.pool[vector + i] : 0.0f;
      total = total + load(rows);
    }
    part.pooled[(block - first_block) * f.pool_columns.blocks + group.pool_column] += sum(total);
  }
  for (i64 lane = 0; lane < kGroup; lane += kVector) store(group.pool + lane, splat(0.0f));
  group.pool_column = -1;
  group.pool_end = 0;
}

/// Pool the weights of n columns from `first` on.
template <int W>
inline void pool(const Fold& f, i64 first_block, const FoldPart& part, FoldGroup& group, i64 first, i64 n,
                 const float* s) {
  for (i64 k = 0; k < n;) {
    if (first + k >= group.pool_end) {
      end_pool(f, first_block, part, group);
      group.pool_column = f.pool_columns.of(first + k);
      group.pool_end = f.pool_columns.end(group.pool_column);
    }
    const i64 stop = min(n, group.pool_end - first);
    F sums[W] = {};
    for (; k < stop; k++)
      for (int w = 0; w < W; w++) sums[w] = sums[w] + load(s + (k * W + w) * kVector);
    for (int w = 0; w < W; w++) store(group.pool + w * kVector, load(group.pool + w * kVector) + sums[w]);
  }
}

}  // namespace folding
}  // namespace
