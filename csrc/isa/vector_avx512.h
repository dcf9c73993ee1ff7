// The vector layer on AVX-512: 16 floats. Everything the kernels say about instructions is in these headers.
#pragma once

#include <immintrin.h>

#include "../body/base.h"

namespace {

constexpr int kVector = 16;  // floats in a vector
constexpr bool kFused = true;  // fma rounds once
constexpr int kTileKeys = 256;  // keys of a tile: its weights for one group of rows stay in the first-level cache
constexpr int kRows = 8;     // rows of a register tile
constexpr int kColumns = 3;  // vectors of a register tile: 8 x 3 sums, 3 operands and 1 broadcast fit in 32 registers

using F = __m512;
typedef i32 I __attribute__((vector_size(64)));

REGARD_INLINE F splat(float x) { return _mm512_set1_ps(x); }
REGARD_INLINE I splat(i32 x) { return (I)_mm512_set1_epi32(x); }
REGARD_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
REGARD_INLINE void store(float* p, F x) { _mm512_storeu_ps(p, x); }
REGARD_INLINE I load(const i32* p) { return (I)_mm512_loadu_si512(p); }
REGARD_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
/// The larger; `b` where one of them is NaN.
REGARD_INLINE F larger(F a, F b) { return _mm512_max_ps(a, b); }
REGARD_INLINE F as_float(I x) { return _mm512_cvtepi32_ps((__m512i)x); }
REGARD_INLINE bool any(I mask) { return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0; }
/// Where `a` is above `b`, or one of them is NaN: a bit a lane.
REGARD_INLINE u32 above(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ); }
REGARD_INLINE float sum(F x) { return _mm512_reduce_add_ps(x); }
REGARD_INLINE float largest(F x) { return _mm512_reduce_max_ps(x); }

REGARD_INLINE F load_bf16(const u16* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
REGARD_INLINE F load_f16(const u16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
REGARD_INLINE void store_bf16(u16* p, F x) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16((__m512i)round_to_bf16<F, I>(x)));
}
REGARD_INLINE void store_f16(u16* p, F x) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
REGARD_INLINE I load_bytes(const u8* p) { return (I)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)); }

/// A 16 x 16 block, rows to columns.
REGARD_INLINE void transpose(const float* from, i64 from_stride, float* to, i64 to_stride) {
  F r[16], t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) r[i] = load(from + i * from_stride);
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    r[4 * i] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    r[4 * i + 1] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    r[4 * i + 2] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    r[4 * i + 3] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    store(to + i * to_stride, _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88));
    store(to + (i + 8) * to_stride, _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd));
    store(to + (i + 4) * to_stride, _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88));
    store(to + (i + 12) * to_stride, _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd));
  }
}

/// Lane i of the result is the sum of all lanes of v[i].
REGARD_INLINE F sums_across(const F (&v)[16]) {
  F a[8], b[4], c[2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++)
    a[i] = _mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]) + _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]);
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++)
    b[i] = _mm512_shuffle_ps(a[2 * i], a[2 * i + 1], 0x44) + _mm512_shuffle_ps(a[2 * i], a[2 * i + 1], 0xee);
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++)
    c[i] = _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0x88) + _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0xdd);
  return _mm512_shuffle_f32x4(c[0], c[1], 0x88) + _mm512_shuffle_f32x4(c[0], c[1], 0xdd);
}

}  // namespace
