// Elementary functions on vectors, without tables and without branches; NaN in, NaN out.
#pragma once

#include "base.h"

namespace {

/// 2^x to about one unit in the last place; exactly 0 below -127, so that 2^-inf is 0; not for x above 127.
///
/// x = n + f with n the nearest integer, which the addition of 1.5 * 2^23 + 127 leaves, biased, in the low bits; 2^f by
/// a degree 5 minimax polynomial on [-1/2, 1/2] (relative error 1.1e-7, exact at 0), 2^n by those bits moved to the exponent.
REGARD_INLINE F exp2_of(F x) {
  const F shifter = splat(0x1.8p23f + 127.0f);
  x = larger(splat(-127.0f), x);  // the right operand where it is NaN
  const F moved = x + shifter;
  const F f = x - (moved - shifter);
  F p = splat(0x1.5bba14p-10f);
  p = fma(p, f, splat(0x1.3cea88p-7f));
  p = fma(p, f, splat(0x1.c6b752p-5f));
  p = fma(p, f, splat(0x1.ebf9bcp-3f));
  p = fma(p, f, splat(0x1.62e42ap-1f));
  p = fma(p, f, splat(1.0f));
  return p * (F)((I)moved << 23);
}

/// e^x to about one unit in the last place; exactly 1 at 0, and exactly 0 below -88 and for -inf; not for x above 88.
///
/// x = n ln 2 + f with n the nearest integer; e^f by a degree 5 minimax polynomial (relative error 9.5e-8, exact at 0);
/// 2^n as in exp2_of. Without a fused operation n ln 2 is taken off in two parts, the first of which is exact.
REGARD_INLINE F exp_of(F x) {
  const F shifter = splat(0x1.8p23f + 127.0f);
  x = larger(splat(-88.0f), x);  // n = -127, and so 2^n = 0; the right operand where it is NaN
  const F moved = fma(x, splat(kLog2E), shifter);
  const F n = moved - shifter;
  F f;
  if constexpr (kFused) f = fma(n, splat(-0x1.62e43p-1f), x);
  else f = (x - n * splat(0x1.62ep-1f)) - n * splat(0x1.0bfbe8p-15f);
  F p = splat(0x1.0fa834p-7f);
  p = fma(p, f, splat(0x1.573a54p-5f));
  p = fma(p, f, splat(0x1.555a6ap-3f));
  p = fma(p, f, splat(0x1.fffdc6p-2f));
  p = fma(p, f, splat(0x1.fffff6p-1f));
  p = fma(p, f, splat(1.0f));
  return p * (F)((I)moved << 23);
}

/// tanh: an odd polynomial near 0 (Cephes' tanhf), 1 - 2 / (e^2x + 1) elsewhere.
REGARD_INLINE F tanh_of(F x) {
  const F magnitude = larger(x, -x), square = x * x;
  F p = splat(-5.70498872745e-3f);
  p = fma(p, square, splat(2.06390887954e-2f));
  p = fma(p, square, splat(-5.37397155531e-2f));
  p = fma(p, square, splat(1.33314422036e-1f));
  p = fma(p, square, splat(-3.33332819422e-1f));
  const F near_zero = fma(p * square, x, x);
  const F capped = larger(-splat(44.0f), -magnitude);  // minus the magnitude, at most 44: e^-88 is still a number
  const F small = exp2_of(capped * splat(2 * kLog2E));
  const F far = (splat(1.0f) - small) / (splat(1.0f) + small);
  const F result = magnitude < splat(0.625f) ? near_zero : (x < splat(0.0f) ? -far : far);
  return x != x ? x : result;
}

}  // namespace
