// What this processor and its operating system can do, asked once.
#pragma once

namespace regard {

struct Cpu {
  bool avx2 = false;         // AVX2, FMA and F16C
  bool avx512 = false;       // AVX-512 F, BW, DQ and VL, on top of the above
  bool avx512_bf16 = false;  // and the products of bfloat16 pairs
  bool neon = false;
  bool intel = false;
};

const Cpu& cpu();

}  // namespace regard
