// Workers that sleep until a call opens places for them, made when first needed; they end with the process.
#include "pool.h"

#include <pthread.h>
#include <signal.h>

#include <condition_variable>
#include <mutex>

namespace regard {
namespace {

struct Pool {
  std::mutex busy;  // held by the call that the workers are at work for

  std::mutex mutex;  // guards what follows
  std::condition_variable opened, left;
  void (*function)(void*) = nullptr;
  void* data = nullptr;
  int places = 0;   // that workers may still take
  int working = 0;  // workers that took one
  int workers = 0;
};

/// Never destroyed: workers may sleep in it while the process ends.
Pool& pool() {
  static Pool* const one = new Pool;
  return *one;
}

void* serve(void*) {
  Pool& p = pool();
  std::unique_lock<std::mutex> lock(p.mutex);
  for (;;) {
    p.opened.wait(lock, [&] { return p.places > 0; });
    --p.places;
    ++p.working;
    void (*const function)(void*) = p.function;
    void* const data = p.data;
    lock.unlock();
    function(data);
    lock.lock();
    if (--p.working == 0) p.left.notify_all();
  }
  return nullptr;
}

/// One more worker, which takes no signals: they are the main thread's. False if the system has no more threads.
bool add_worker() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const bool made = pthread_create(&thread, nullptr, serve, nullptr) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (made) pthread_detach(thread);
  return made;
}

}  // namespace

void pool_run(int helpers, void (*function)(void*), void* data) {
  Pool& p = pool();
  std::unique_lock<std::mutex> mine(p.busy, std::try_to_lock);
  if (!mine.owns_lock() || helpers <= 0) {
    function(data);
    return;
  }
  {
    std::lock_guard<std::mutex> lock(p.mutex);
    while (p.workers < helpers && add_worker()) ++p.workers;
    p.function = function;
    p.data = data;
    p.places = helpers < p.workers ? helpers : p.workers;
  }
  p.opened.notify_all();
  function(data);
  std::unique_lock<std::mutex> lock(p.mutex);
  p.places = 0;  // whoever wakes too late has missed it
  p.left.wait(lock, [&] { return p.working == 0; });
}

}  // namespace regard
