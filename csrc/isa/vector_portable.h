// The vector layer in plain C++ on 4 floats, for any processor: the compiler's own vectors, no instructions by name.
#pragma once

#include "../body/base.h"

namespace {

constexpr int kVector = 4;
constexpr bool kFused = false;  // fma rounds once
constexpr int kTileKeys = 256;  // keys of a tile: its weights for one group of rows stay in the first-level cache
constexpr int kRows = 4;
constexpr int kColumns = 2;

typedef float F __attribute__((vector_size(16)));
typedef i32 I __attribute__((vector_size(16)));

REGARD_INLINE F splat(float x) { return F{x, x, x, x}; }
REGARD_INLINE I splat(i32 x) { return I{x, x, x, x}; }
REGARD_INLINE F load(const float* p) { return load_as<F>(p); }
REGARD_INLINE void store(float* p, F x) { __builtin_memcpy(p, &x, sizeof x); }
REGARD_INLINE I load(const i32* p) { return load_as<I>(p); }
REGARD_INLINE F fma(F a, F b, F c) { return a * b + c; }
REGARD_INLINE F larger(F a, F b) { return a > b ? a : b; }
REGARD_INLINE F as_float(I x) { return __builtin_convertvector(x, F); }
REGARD_INLINE bool any(I mask) { return (mask[0] | mask[1] | mask[2] | mask[3]) != 0; }
/// Where `a` is above `b`, or one of them is NaN: a bit a lane.
REGARD_INLINE u32 above(F a, F b) {
  const I not_above = (I)(a <= b);
  u32 bits = 0;
  for (int i = 0; i < kVector; i++) bits |= (u32)(not_above[i] == 0) << i;
  return bits;
}
REGARD_INLINE float sum(F x) { return sum_of<F, kVector>(x); }
REGARD_INLINE float largest(F x) { return largest_of<F, kVector>(x); }

REGARD_INLINE F load_bf16(const u16* p) { return (F)(I{p[0], p[1], p[2], p[3]} << 16); }
REGARD_INLINE F load_f16(const u16* p) {
  return F{float_of_f16(p[0]), float_of_f16(p[1]), float_of_f16(p[2]), float_of_f16(p[3])};
}
REGARD_INLINE void store_bf16(u16* p, F x) {
  const I bits = round_to_bf16<F, I>(x);
  for (int i = 0; i < 4; i++) p[i] = (u16)bits[i];
}
REGARD_INLINE void store_f16(u16* p, F x) {
  for (int i = 0; i < 4; i++) p[i] = f16_of_float(x[i]);
}
REGARD_INLINE I load_bytes(const u8* p) { return I{p[0], p[1], p[2], p[3]}; }

/// A 4 x 4 block, rows to columns.
REGARD_INLINE void transpose(const float* from, i64 from_stride, float* to, i64 to_stride) {
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++) to[j * to_stride + i] = from[i * from_stride + j];
}

/// Lane i of the result is the sum of all lanes of v[i].
REGARD_INLINE F sums_across(const F (&v)[kVector]) {
  float rows[kVector * kVector], turned[kVector * kVector];
  for (int i = 0; i < kVector; i++) store(rows + i * kVector, v[i]);
  transpose(rows, kVector, turned, kVector);
  for (int width = kVector / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++)
      store(turned + i * kVector, load(turned + i * kVector) + load(turned + (i + width) * kVector));
  return load(turned);
}

}  // namespace
