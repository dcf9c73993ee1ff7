// Asking the processor (CPUID, or the kernel's hardware capabilities on ARM) what it can do.
#include "cpu.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace regard {
namespace {

#if defined(__x86_64__)

struct Leaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf leaf(unsigned number, unsigned sub) {
  Leaf found;
  if (!__get_cpuid_count(number, sub, &found.eax, &found.ebx, &found.ecx, &found.edx)) return {};
  return found;
}

/// Which registers the operating system saves when it switches threads: wide ones that it does not save are lost.
std::uint64_t saved_registers() {
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (std::uint64_t{high} << 32) | low;
}

bool all(unsigned word, unsigned bits) { return (word & bits) == bits; }

Cpu ask() {
  Cpu found;
  const Leaf vendor = leaf(0, 0);
  char name[13] = {};
  std::memcpy(name, &vendor.ebx, 4);
  std::memcpy(name + 4, &vendor.edx, 4);
  std::memcpy(name + 8, &vendor.ecx, 4);
  found.intel = std::strcmp(name, "GenuineIntel") == 0;

  const Leaf basic = leaf(1, 0);
  if (!all(basic.ecx, bit_OSXSAVE | bit_AVX)) return found;
  const std::uint64_t saved = saved_registers();
  constexpr std::uint64_t ymm = 0x6, zmm = 0xe6;  // SSE and AVX state; besides, the masks and both halves of ZMM

  const Leaf extended = leaf(7, 0);
  found.avx2 = (saved & ymm) == ymm && all(basic.ecx, bit_FMA | bit_F16C) && all(extended.ebx, bit_AVX2);
  found.avx512 = found.avx2 && (saved & zmm) == zmm &&
                 all(extended.ebx, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL);
  constexpr unsigned bf16 = 1u << 5;  // leaf 7.1, EAX; older compilers' cpuid.h has no name for it
  found.avx512_bf16 = found.avx512 && extended.eax >= 1 && all(leaf(7, 1).eax, bf16);
  return found;
}

#elif defined(__aarch64__) && defined(__linux__)

Cpu ask() {
  Cpu found;
  found.neon = (getauxval(AT_HWCAP) & HWCAP_ASIMD) != 0;
  return found;
}

#else

Cpu ask() { return {}; }

#endif

}  // namespace

const Cpu& cpu() {
  static const Cpu found = ask();
  return found;
}

}  // namespace regard
