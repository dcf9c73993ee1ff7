// The vector layer on AVX2 with FMA and F16C: 8 floats.
#pragma once

#include <immintrin.h>

#include "../body/base.h"

namespace {

constexpr int kVector = 8;
constexpr bool kFused = true;  // fma rounds once
constexpr int kTileKeys = 256;  // keys of a tile: its weights for one group of rows stay in the first-level cache
constexpr int kRows = 4;
constexpr int kColumns = 3;  // 4 x 3 sums, 3 operands and 1 broadcast fill 16 registers

using F = __m256;
typedef i32 I __attribute__((vector_size(32)));

REGARD_INLINE F splat(float x) { return _mm256_set1_ps(x); }
REGARD_INLINE I splat(i32 x) { return (I)_mm256_set1_epi32(x); }
REGARD_INLINE F load(const float* p) { return _mm256_loadu_ps(p); }
REGARD_INLINE void store(float* p, F x) { _mm256_storeu_ps(p, x); }
REGARD_INLINE I load(const i32* p) { return (I)_mm256_loadu_si256((const __m256i*)p); }
REGARD_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
REGARD_INLINE F larger(F a, F b) { return _mm256_max_ps(a, b); }
REGARD_INLINE F as_float(I x) { return _mm256_cvtepi32_ps((__m256i)x); }
REGARD_INLINE bool any(I mask) { return !_mm256_testz_si256((__m256i)mask, (__m256i)mask); }
/// Where `a` is above `b`, or one of them is NaN: a bit a lane.
REGARD_INLINE u32 above(F a, F b) { return (u32)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NLE_UQ)); }
REGARD_INLINE float sum(F x) { return sum_of<F, kVector>(x); }
REGARD_INLINE float largest(F x) { return largest_of<F, kVector>(x); }

REGARD_INLINE F load_bf16(const u16* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
REGARD_INLINE F load_f16(const u16* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
REGARD_INLINE void store_bf16(u16* p, F x) {
  const __m256i bits = (__m256i)round_to_bf16<F, I>(x);
  _mm_storeu_si128((__m128i*)p, _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1)));
}
REGARD_INLINE void store_f16(u16* p, F x) {
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
REGARD_INLINE I load_bytes(const u8* p) { return (I)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)); }

/// An 8 x 8 block, rows to columns.
REGARD_INLINE void transpose(const float* from, i64 from_stride, float* to, i64 to_stride) {
  F r[8], t[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) r[i] = load(from + i * from_stride);
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++) {
    r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    store(to + i * to_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    store(to + (i + 4) * to_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
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
