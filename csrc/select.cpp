// The table of instruction sets, in the order in which they are preferred, and the choice among them.
#include "select.h"

#include <cstdlib>

#include "cpu.h"

namespace regard {
namespace {

struct Candidate {
  const Kernels* kernels;
  bool runs;
  const char* needs;
};

std::vector<Candidate> candidates() {
  const Cpu& has = cpu();
  return {
#if defined(__x86_64__)
      {&kAvx512Bf16, has.avx512_bf16, "AVX-512 with BF16"},
      {&kAvx512, has.avx512, "AVX-512 (F, BW, DQ and VL)"},
      {&kAvx2, has.avx2, "AVX2, FMA and F16C"},
#elif defined(__aarch64__)
      {&kNeon, has.neon, "NEON"},
#endif
      {&kPortable, true, "nothing special"},
  };
}

Selection by_rule(const std::vector<Candidate>& all) {
#if defined(__x86_64__)
  // Intel's vdpbf16ps starts every other cycle only and multiplies no more numbers a second than float32 FMA does,
  // with bfloat16 products besides. AMD's (Zen 4 and later) is twice as fast as its FMA.
  if (cpu().avx512_bf16 && cpu().intel) {
    return {&kAvx512, "AVX-512 is the widest that this processor has; its BF16 products are slower than float32 ones"};
  }
#endif
  for (const Candidate& one : all) {
    if (one.runs) return {one.kernels, std::string("the best that this processor has: ") + one.needs};
  }
  return {&kPortable, "nothing else runs here"};
}

}  // namespace

Selection select(const char* forced) {
  const std::vector<Candidate> all = candidates();
  if (forced == nullptr || *forced == '\0') return by_rule(all);
  std::string names;
  for (const Candidate& one : all) {
    if (std::string(forced) == one.kernels->name) {
      if (one.runs) return {one.kernels, "the environment variable REGARD_ISA asks for it"};
      return {nullptr, "the environment variable REGARD_ISA asks for '" + std::string(forced) + "', which needs " +
                           one.needs + ", and this processor (or its operating system) lacks it"};
    }
    if (one.runs) names += (names.empty() ? "" : ", ") + std::string(one.kernels->name);
  }
  return {nullptr, "the environment variable REGARD_ISA must be one of " + names + " on this machine, got '" +
                       std::string(forced) + "'"};
}

const Selection& selection() {
  static const Selection chosen = select(std::getenv("REGARD_ISA"));
  return chosen;
}

std::vector<std::string> runnable_isas() {
  std::vector<std::string> names;
  for (const Candidate& one : candidates()) {
    if (one.runs) names.emplace_back(one.kernels->name);
  }
  return names;
}

}  // namespace regard
