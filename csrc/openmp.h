// The OpenMP runtime that torch has loaded, borrowed: its worker threads are awake already, and stay the only ones.
#pragma once

#include <string>

namespace regard {

struct OpenMP {
  /// Runs `function(data)` on a team of up to `threads` threads, the calling one among them. Null: no runtime found.
  void (*parallel)(void (*function)(void*), void* data, unsigned threads, unsigned flags) = nullptr;
  int (*in_parallel)() = nullptr;
  std::string path;
};

/// Looked up once. Nothing is loaded and nothing linked: it is found only where something else has loaded it.
const OpenMP& borrowed_openmp();

}  // namespace regard
