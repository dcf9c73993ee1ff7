// The vector layer on NEON (64-bit Arm): 4 floats, 32 registers.
#pragma once

#include <arm_neon.h>

#include "../body/base.h"

namespace {

constexpr int kVector = 4;
constexpr bool kFused = true;  // fma rounds once
constexpr int kTileKeys = 256;  // keys of a tile: its weights for one group of rows stay in the first-level cache
constexpr int kRows = 8;
constexpr int kColumns = 3;

using F = float32x4_t;
typedef i32 I __attribute__((vector_size(16)));

REGARD_INLINE F splat(float x) { return vdupq_n_f32(x); }
REGARD_INLINE I splat(i32 x) { return (I)vdupq_n_s32(x); }
REGARD_INLINE F load(const float* p) { return vld1q_f32(p); }
REGARD_INLINE void store(float* p, F x) { vst1q_f32(p, x); }
REGARD_INLINE I load(const i32* p) { return (I)vld1q_s32(p); }
REGARD_INLINE F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
// Not vmaxq_f32, which gives NaN whichever operand holds it: "b where one is NaN" is what the kernels count on.
REGARD_INLINE F larger(F a, F b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
REGARD_INLINE F as_float(I x) { return vcvtq_f32_s32((int32x4_t)x); }
REGARD_INLINE bool any(I mask) { return vmaxvq_u32((uint32x4_t)mask) != 0; }
/// Where `a` is above `b`, or one of them is NaN: a bit a lane.
REGARD_INLINE u32 above(F a, F b) {
  const I not_above = (I)(a <= b);
  u32 bits = 0;
  for (int i = 0; i < kVector; i++) bits |= (u32)(not_above[i] == 0) << i;
  return bits;
}
REGARD_INLINE float sum(F x) { return sum_of<F, kVector>(x); }
REGARD_INLINE float largest(F x) { return largest_of<F, kVector>(x); }

REGARD_INLINE F load_bf16(const u16* p) { return (F)(vshll_n_u16(vld1_u16(p), 16)); }
REGARD_INLINE F load_f16(const u16* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
REGARD_INLINE void store_bf16(u16* p, F x) { vst1_u16(p, vmovn_u32((uint32x4_t)round_to_bf16<F, I>(x))); }
REGARD_INLINE void store_f16(u16* p, F x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
REGARD_INLINE I load_bytes(const u8* p) { return I{p[0], p[1], p[2], p[3]}; }

/// A 4 x 4 block, rows to columns.
REGARD_INLINE void transpose(const float* from, i64 from_stride, float* to, i64 to_stride) {
  const float32x4x2_t a = vtrnq_f32(load(from), load(from + from_stride));
  const float32x4x2_t b = vtrnq_f32(load(from + 2 * from_stride), load(from + 3 * from_stride));
  store(to, vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0])));
  store(to + to_stride, vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1])));
  store(to + 2 * to_stride, vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0])));
  store(to + 3 * to_stride, vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1])));
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
