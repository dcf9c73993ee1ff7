// The kernels compiled for AVX-512 with bfloat16 products of pairs (vdpbf16ps).
#include "vector_avx512.h"

#define REGARD_BF16_PAIRS 1

namespace {
REGARD_INLINE F dot_pairs(F a, F b, F sum) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }
}  // namespace

#include "../body/table.h"

REGARD_EXPORT_KERNELS(kAvx512Bf16, "avx512_bf16");
