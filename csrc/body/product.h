// The one matrix product of the kernels: a register tile of sums, rows broadcast from A times vectors of B.
//
//   sums[r][lane] += sum over t of A(r, t) * B[t][lane]
//
// Lanes are query rows throughout: scores are K . Q^T, outputs V^T . P^T, so that keys and values are read as they lie,
// nothing is summed across lanes, and a row's result never depends on what shares its vector.
#pragma once

#include "base.h"

namespace {

/// float32 operands: one multiplication and addition a step.
struct Fma {
  using Element = float;  // of A, broadcast; B holds one float a lane
  static constexpr int kDepth = 1;
  REGARD_INLINE static F operand(float a) { return splat(a); }
  REGARD_INLINE static F step(F a, F b, F sum) { return fma(a, b, sum); }
};

#ifdef REGARD_BF16_PAIRS
/// Pairs of bfloat16: two multiplications and additions a step, summed in float32.
struct Pairs {
  using Element = u32;
  static constexpr int kDepth = 2;
  REGARD_INLINE static F operand(u32 a) { return (F)splat((i32)a); }
  REGARD_INLINE static F step(F a, F b, F sum) { return dot_pairs(a, b, sum); }
};
#endif

/// Adds `steps` steps to a tile of `kRows` x W sums. A(r, t) = a[r * row_stride + t * step_stride].
template <class Kind, int W>
REGARD_INLINE void multiply(const typename Kind::Element* a, i64 row_stride, i64 step_stride,
                            const typename Kind::Element* b, i64 steps, F (&sums)[kRows][W]) {
#pragma GCC unroll 2
  for (i64 t = 0; t < steps; t++) {
    F columns[W];
#pragma GCC unroll 4
    for (int w = 0; w < W; w++) columns[w] = load((const float*)b + (t * W + w) * kVector);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; r++) {
      const F x = Kind::operand(a[r * row_stride + t * step_stride]);
#pragma GCC unroll 4
      for (int w = 0; w < W; w++) sums[r][w] = Kind::step(x, columns[w], sums[r][w]);
    }
  }
}

// The same, from memory to memory: to is [kRows][W] vectors. Out of line, because inside a kernel's loops g++ runs out of
// registers and keeps a column of B on the stack, from where it comes back too late in every step.

/// to += A B. The sum begins at zero: it is rounded at its own size, not at that of all that was added before.
template <class Kind, int W>
REGARD_NOINLINE void add_product(const typename Kind::Element* a, i64 row_stride, i64 step_stride,
                                 const typename Kind::Element* b, i64 steps, float* to) {
  F sums[kRows][W] = {};
  multiply<Kind, W>(a, row_stride, step_stride, b, steps, sums);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; r++)
#pragma GCC unroll 4
    for (int w = 0; w < W; w++, to += kVector) store(to, load(to) + sums[r][w]);
}

/// to = A B * scale, or (to + A B) * scale where `to` holds what the steps before these gave.
template <class Kind, int W>
REGARD_NOINLINE void scaled_product(const typename Kind::Element* a, i64 row_stride, i64 step_stride,
                                    const typename Kind::Element* b, i64 steps, bool continued, float scale, float* to) {
  F sums[kRows][W] = {};
  multiply<Kind, W>(a, row_stride, step_stride, b, steps, sums);
  const F factor = splat(scale);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; r++)
#pragma GCC unroll 4
    for (int w = 0; w < W; w++, to += kVector)
      store(to, (continued ? load(to) + sums[r][w] : sums[r][w]) * factor);
}

}  // namespace
