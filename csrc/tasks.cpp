// One counter, from which every thread of a run takes its next task; where those threads come from; when they stop.
#include "tasks.h"

#include <pthread.h>
#include <time.h>

#include <atomic>
#include <new>

#include "interrupt.h"
#include "openmp.h"
#include "pool.h"
#include "scratch.h"

namespace regard {
namespace {

constexpr std::int64_t kPollNanoseconds = 50'000'000;

/// Coarse (about 4 ms) and for that reason cheap (a few nanoseconds).
std::int64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

struct Run {
  std::int64_t count;
  Task task;
  void* context;
  std::size_t scratch_bytes;
  std::atomic<std::int64_t> next{0};
  std::atomic<std::int64_t> finished{0};
  std::atomic<bool> stop{false};
  std::int64_t next_poll = 0;   // only the calling thread looks at it
  void* caller_scratch = nullptr;
};

// What this thread is at work for, and whether it is the one that called.
thread_local Run* t_run = nullptr;
thread_local bool t_is_caller = false;
thread_local Scratch t_scratch;
thread_local Poll t_poll = nullptr;
thread_local void* t_poll_context = nullptr;

std::atomic<bool> g_forked{false};
std::atomic<bool> g_own_pool{false};

/// On the calling thread: ask, if it is time to, whether to stop.
void poll_in_time(Run& run) {
  if (t_poll == nullptr) return;
  const std::int64_t time = now();
  if (time < run.next_poll) return;
  if (t_poll(t_poll_context)) run.stop.store(true, std::memory_order_relaxed);
  run.next_poll = now() + kPollNanoseconds;
}

void take_tasks(Run& run, void* scratch) {
  while (!run.stop.load(std::memory_order_relaxed)) {
    const std::int64_t index = run.next.fetch_add(1, std::memory_order_relaxed);
    if (index >= run.count) return;
    run.task(run.context, index, scratch);
    run.finished.fetch_add(1, std::memory_order_release);
    if (t_is_caller) poll_in_time(run);
  }
}

/// The calling thread stays here, and not in the runtime's barrier, while others end their last tasks: there it could
/// not answer the user.
void await_others(Run& run) {
  for (int turn = 0; run.finished.load(std::memory_order_acquire) < run.count; ++turn) {
    if (run.stop.load(std::memory_order_relaxed)) return;
    if (turn < 4096) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
      continue;
    }
    poll_in_time(run);
    timespec pause{0, 20'000};
    nanosleep(&pause, nullptr);
  }
}

/// What each thread of a team runs.
void join(void* data) {
  Run& run = *static_cast<Run*>(data);
  if (t_run == &run) {  // the caller, which has prepared everything
    take_tasks(run, run.caller_scratch);
    await_others(run);
    return;
  }
  void* scratch = t_scratch.reserve(run.scratch_bytes);
  if (scratch == nullptr) return;  // no memory for another thread: those that have some do the work
  t_run = &run;
  t_is_caller = false;
  take_tasks(run, scratch);
  t_run = nullptr;
}

void run_on_team(Run& run, int threads) {
  const OpenMP& openmp = borrowed_openmp();
  if (openmp.parallel == nullptr || g_own_pool.load(std::memory_order_relaxed)) {
    pool_run(threads - 1, join, &run);
  } else {
    openmp.parallel(join, &run, static_cast<unsigned>(threads), 0);
  }
}

/// Inside a parallel region of the runtime that would be borrowed, no other is opened.
bool in_parallel() {
  const OpenMP& openmp = borrowed_openmp();
  return openmp.in_parallel != nullptr && openmp.in_parallel() != 0;
}

/// Marks the thread as the caller of a run, for as long as it lives.
class Calling {
 public:
  explicit Calling(Run& run) : outer_(t_run), outer_is_caller_(t_is_caller) {
    t_run = &run;
    t_is_caller = true;
  }
  ~Calling() {
    t_run = outer_;
    t_is_caller = outer_is_caller_;
  }
  Calling(const Calling&) = delete;
  Calling& operator=(const Calling&) = delete;

 private:
  Run* outer_;
  bool outer_is_caller_;
};

}  // namespace

bool run_tasks(std::int64_t count, int threads, Task task, void* context, std::size_t scratch_bytes) {
  if (count <= 0) return true;
  Run run{count, task, context, scratch_bytes};
  Scratch nested;  // a run inside a task of another may not write over that task's memory
  run.caller_scratch = (t_run == nullptr ? t_scratch : nested).reserve(scratch_bytes);
  if (run.caller_scratch == nullptr) throw std::bad_alloc();
  if (t_poll != nullptr) run.next_poll = now() + kPollNanoseconds;
  const bool inside = t_run != nullptr;
  const Calling calling(run);
  if (count < threads) threads = static_cast<int>(count);
  if (threads <= 1 || inside || g_forked.load(std::memory_order_relaxed) || in_parallel()) {
    take_tasks(run, run.caller_scratch);
  } else {
    run_on_team(run, threads);
  }
  return !run.stop.load(std::memory_order_relaxed);
}

bool interrupted() {
  Run* const run = t_run;
  if (run == nullptr) return false;
  if (t_is_caller) poll_in_time(*run);
  return run->stop.load(std::memory_order_relaxed);
}

PollScope::PollScope(Poll poll, void* context) : outer_poll_(t_poll), outer_context_(t_poll_context) {
  t_poll = poll;
  t_poll_context = context;
}

PollScope::~PollScope() {
  t_poll = outer_poll_;
  t_poll_context = outer_context_;
}

const char* thread_source() {
  if (g_forked.load(std::memory_order_relaxed)) return "none";
  return borrowed_openmp().parallel == nullptr || g_own_pool.load(std::memory_order_relaxed) ? "pool" : "openmp";
}

void use_own_pool(bool always) { g_own_pool.store(always, std::memory_order_relaxed); }

void watch_forks() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { g_forked.store(true, std::memory_order_relaxed); });
  (void)registered;
}

}  // namespace regard
