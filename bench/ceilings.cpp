// What this processor can do at most: multiply-adds that never leave the registers, and reads that only sum.
//
// Compiled with -march=native when the benchmarks start. Each function gives a rate per second over all threads,
// timed from the moment all of them stand ready until the last is done.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif
typedef float Floats __attribute__((vector_size(kBytes)));
typedef std::int64_t Integers __attribute__((vector_size(kBytes)));
constexpr int kLanes = kBytes / 4;

// Twelve chains hide the latency of two units at four cycles each, and fit the sixteen registers of AVX2.
constexpr int kChains = 12;

/// Run `work(thread)` on all threads at once; seconds from the common start to the last end.
template <class Work>
double seconds(int threads, Work work) {
  std::atomic<int> waiting{threads};
  std::atomic<bool> go{false};
  std::vector<std::thread> others;
  auto run = [&](int thread) {
    waiting.fetch_sub(1);
    while (!go.load(std::memory_order_acquire)) {
    }
    work(thread);
  };
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(run, thread);
  while (waiting.load() > 1) std::this_thread::yield();
  const auto start = std::chrono::steady_clock::now();
  go.store(true, std::memory_order_release);
  work(0);
  for (auto& other : others) other.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Keeps the compiler from dropping a value that nobody reads.
template <class Value>
void keep(Value& value) {
  asm volatile("" : : "m"(value) : "memory");
}

}  // namespace

extern "C" double multiply_adds(int threads, std::int64_t turns) {
  const double took = seconds(threads, [=](int) {
    Floats sums[kChains], factor, term;
    for (int lane = 0; lane < kLanes; ++lane) factor[lane] = 0.999f, term[lane] = 0.001f;
    for (auto& sum : sums) sum = term;
    for (std::int64_t turn = 0; turn < turns; ++turn) {
#pragma GCC unroll 12
      for (int chain = 0; chain < kChains; ++chain) sums[chain] = sums[chain] * factor + term;
    }
    for (auto& sum : sums) keep(sum);
  });
  return 2.0 * kLanes * kChains * static_cast<double>(turns) * threads / took;
}

/// The same in bfloat16, where the processor has such an instruction; 0 elsewhere.
extern "C" double bf16_dots(int threads, std::int64_t turns) {
#if defined(__AVX512BF16__)
  const double took = seconds(threads, [=](int) {
    __m512 sums[kChains];
    const __m512bh small = (__m512bh)_mm512_set1_epi16(0x3A80);  // 2^-10 in both halves
    for (auto& sum : sums) sum = _mm512_setzero_ps();
    for (std::int64_t turn = 0; turn < turns; ++turn) {
#pragma GCC unroll 12
      for (int chain = 0; chain < kChains; ++chain) sums[chain] = _mm512_dpbf16_ps(sums[chain], small, small);
    }
    for (auto& sum : sums) keep(sum);
  });
  return 2.0 * 32 * kChains * static_cast<double>(turns) * threads / took;
#else
  (void)threads, (void)turns;
  return 0;
#endif
}

/// Bytes per second of reading the buffer once, every thread its own part, `streams` places of it in turn.
extern "C" double read_bytes(const char* buffer, std::size_t bytes, int threads, int streams) {
  constexpr std::size_t kStep = 4 * kBytes;
  const std::size_t part = bytes / threads / streams / kStep * kStep;
  const double took = seconds(threads, [=](int thread) {
    const char* mine = buffer + thread * part * streams;
    Integers sums[4] = {};
    for (std::size_t at = 0; at < part; at += kStep) {
      for (int stream = 0; stream < streams; ++stream) {
        for (int sum = 0; sum < 4; ++sum) {
          Integers read;
          std::memcpy(&read, mine + stream * part + at + sum * kBytes, kBytes);
          sums[sum] += read;
        }
      }
    }
    for (auto& sum : sums) keep(sum);
  });
  return static_cast<double>(part) * streams * threads / took;
}
