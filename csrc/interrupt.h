// How a run learns that its user wants it to stop: a question that the caller installs for its own thread.
#pragma once

namespace regard {

/// Whether to stop. Asked about every 50 ms, on the thread that installed it and no other.
using Poll = bool (*)(void* context);

/// Installs a poll for the runs that this thread starts, for as long as it lives.
class PollScope {
 public:
  PollScope(Poll poll, void* context);
  ~PollScope();
  PollScope(const PollScope&) = delete;
  PollScope& operator=(const PollScope&) = delete;

 private:
  Poll outer_poll_;
  void* outer_context_;
};

/// Where threads come from: "openmp" (borrowed), "pool" (our own) or "none" (in a forked child).
const char* thread_source();

/// For tests: leave a borrowed runtime alone, and use our own pool.
void use_own_pool(bool always);

/// Must be called before any fork, once: a forked child has no worker threads, and runs everything on its own.
void watch_forks();

}  // namespace regard
