// Running numbered tasks on several threads, stopping early when the user interrupts.
#pragma once

#include <cstddef>
#include <cstdint>

namespace regard {

/// A task gets what the caller passed, its number, and `scratch_bytes` of 64-byte aligned memory with whatever an
/// earlier task left in it.
using Task = void (*)(void* context, std::int64_t index, void* scratch);

/// Run tasks 0 .. count-1, each once, handed out in order to up to `threads` threads. Returns false if interrupted.
bool run_tasks(std::int64_t count, int threads, Task task, void* context, std::size_t scratch_bytes);

/// Whether the call at work should stop: cheap, asked by long tasks between tiles, which may then return at once.
bool interrupted();

}  // namespace regard
