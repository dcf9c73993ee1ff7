// A small pool of worker threads, for where there is no OpenMP runtime to borrow.
#pragma once

namespace regard {

/// Runs `function(data)` on the calling thread and on up to `helpers` workers at once; returns when all are done.
/// If the pool is at work for another caller, only the calling thread runs it: calls never wait for one another.
void pool_run(int helpers, void (*function)(void*), void* data);

}  // namespace regard
