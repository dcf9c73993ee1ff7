// Each thread's scratch memory, kept between calls: to get and fault in megabytes would cost more than small work.
#pragma once

#include <cstddef>
#include <cstdlib>

namespace regard {

/// 64-byte aligned memory with whatever was left in it. Freed with its owner (a thread).
class Scratch {
 public:
  Scratch() = default;
  ~Scratch() { std::free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  /// At least `bytes`, or null if the system has no more. What it held may be lost.
  void* reserve(std::size_t bytes) {
    const std::size_t rounded = (bytes + kAlignment) / kAlignment * kAlignment;  // never 0
#if defined(__SANITIZE_ADDRESS__)
    const bool enough = bytes == asked_;  // exactly as much as is asked for, so that a step past its end is seen
    asked_ = bytes;
#else
    const bool enough = rounded <= size_;
#endif
    if (enough && data_ != nullptr) return data_;
    std::free(data_);
    size_ = 0;
    data_ = std::aligned_alloc(kAlignment, rounded);
    if (data_ != nullptr) size_ = rounded;
    return data_;
  }

 private:
  static constexpr std::size_t kAlignment = 64;
  void* data_ = nullptr;
  std::size_t size_ = 0;
#if defined(__SANITIZE_ADDRESS__)
  std::size_t asked_ = 0;
#endif
};

}  // namespace regard
