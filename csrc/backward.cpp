// Cutting the backward pass into tasks, and the memory that they share.
#include "backward.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "kernels.h"
#include "tasks.h"

namespace regard {
namespace {

// Keys of a chunk: so many that rows are not loaded too often, so few that the keys and values with their gradients (of
// about so many elements) stay in the second-level cache, and that there are two chunks at least.
constexpr std::int64_t kMostChunkKeys = 512, kSharedChunkKeys = 128, kLeastChunkKeys = 64, kChunkElements = 512 * 128;
// Rows are shared out where a key head has fewer chunks than this, in shares of not fewer than so many rows.
constexpr std::int64_t kFewChunks = 16, kLeastShare = 768;
constexpr std::int64_t kPreparedGroups = 16;  // of one task

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

BackwardPlan plan_of(const Kernels& kernels, const Problem& p, const Backward& b) {
  BackwardPlan plan;
  plan.groups = ceil_div(p.rows(), kernels.group_rows);
  plan.chunk_keys = kMostChunkKeys;
  while (plan.chunk_keys > kSharedChunkKeys && 2 * plan.chunk_keys > p.n_keys) plan.chunk_keys /= 2;
  while (plan.chunk_keys > kLeastChunkKeys && plan.chunk_keys * (p.head_dim + p.value_dim) > kChunkElements)
    plan.chunk_keys /= 2;
  plan.chunks = ceil_div(p.n_keys, plan.chunk_keys);
  // Rows of one query may then lie in two shares, and the entries of a bias that heads share would have two owners.
  const bool shared = b.grad_bias && p.bias_kind == BiasKind::dense;
  const std::int64_t wanted = shared || plan.chunks == 0 ? 1 : ceil_div(kFewChunks, plan.chunks);
  const std::int64_t shares = std::max<std::int64_t>(std::min(wanted, p.rows() / kLeastShare), 1);
  plan.split_groups = std::max<std::int64_t>(ceil_div(plan.groups, shares), 1);
  plan.splits = std::max<std::int64_t>(ceil_div(plan.groups, plan.split_groups), 1);
  return plan;
}

/// Memory of a pass, and the work that its tasks share.
struct Run {
  const Kernels& kernels;
  const Problem& problem;
  const Backward& backward;
  BackwardWork work{};
  std::unique_ptr<float[]> rows;
  std::vector<Bounds> bounds;
  std::vector<GroupRange> reached_by;
  std::vector<std::int64_t> turns;
  std::vector<double> table;
  // A dense bias may be shared by items and heads: a task then goes through all of them, and each entry has one owner.
  std::int64_t items_a_task = 1, heads_a_task = 1;

  Run(const Kernels& k, const Problem& p, const Backward& b) : kernels(k), problem(p), backward(b) {
    const BackwardPlan plan = work.plan = plan_of(k, p, b);
    const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
    const std::int64_t heads = p.batch * p.key_heads, all_rows = p.batch * p.query_heads * p.n_queries;
    work.backward = &b;
    rows.reset(new float[size(3 * all_rows)]);
    work.base = rows.get();
    work.inverse = work.base + all_rows;
    work.delta = work.inverse + all_rows;
    bounds.resize(size(heads * plan.groups * p.intervals.slots));
    work.bounds = bounds.data();
    reached_by.resize(size(heads * plan.chunks));
    work.reached_by = reached_by.data();
    turns.resize(size(heads * (plan.groups + plan.chunks) + p.key_heads));
    work.query_turn = turns.data();
    work.key_turn = work.query_turn + heads * plan.groups;
    work.table_turn = work.key_turn + heads * plan.chunks;
    if (b.grad_bias && p.bias_kind == BiasKind::dense) {
      items_a_task = b.bias_of_items ? 1 : p.batch;
      heads_a_task = b.bias_of_heads ? 1 : p.key_heads;
    } else if (b.grad_bias) {
      work.table_width = p.bias_kind == BiasKind::alibi ? 1 : 2 * p.reach + 1;
      table.resize(size((b.bias_of_heads ? p.query_heads : 1) * work.table_width));
      work.table = table.data();
    }
  }
  std::int64_t preparations() const {
    return problem.batch * problem.key_heads * ceil_div(work.plan.groups, kPreparedGroups);
  }
  std::int64_t tasks() const {
    return work.plan.chunks * work.plan.splits * (problem.batch / items_a_task) * (problem.key_heads / heads_a_task);
  }
};

void prepare(void* context, std::int64_t index, void* scratch) {
  const Run& run = *static_cast<Run*>(context);
  const Problem& p = run.problem;
  const std::int64_t heads = p.batch * p.key_heads, head = index % heads, first = index / heads * kPreparedGroups;
  run.kernels.prepare_backward(p, run.work, head / p.key_heads, head % p.key_heads, first,
                               std::min(first + kPreparedGroups, run.work.plan.groups), scratch);
}

/// Which groups reach each chunk of a key head.
void find_reach(void* context, std::int64_t head, void*) {
  const Run& run = *static_cast<Run*>(context);
  const BackwardPlan& plan = run.work.plan;
  const std::int64_t slots = run.problem.intervals.slots;
  GroupRange* ranges = run.work.reached_by + head * plan.chunks;
  std::fill(ranges, ranges + plan.chunks, GroupRange{plan.groups, 0});
  for (std::int64_t group = 0; group < plan.groups; ++group) {
    for (std::int64_t slot = 0; slot < slots; ++slot) {
      const Bounds& b = run.work.bounds[(head * plan.groups + group) * slots + slot];
      if (b.greatest_end <= b.least_start) continue;
      for (std::int64_t chunk = b.least_start / plan.chunk_keys; chunk * plan.chunk_keys < b.greatest_end; ++chunk) {
        ranges[chunk].first = std::min(ranges[chunk].first, group);
        ranges[chunk].last = group + 1;
      }
    }
  }
}

/// A sink takes its share of the weight and gives nothing: its gradient is the sum over rows of share * (0 - delta).
void find_sink(void* context, std::int64_t head, void*) {
  const Run& run = *static_cast<Run*>(context);
  const Problem& p = run.problem;
  const float sink = p.sink_logits[head];
  double total = 0;
  for (std::int64_t item = 0; item < p.batch; ++item) {
    for (std::int64_t query = 0; query < p.n_queries; ++query) {
      const std::int64_t row = (item * p.query_heads + head) * p.n_queries + query;
      const float denominator = run.backward.denominator[row];
      const float share = std::exp(sink - run.backward.shift[row]) / (denominator == 0 ? 1 : denominator);
      if (share != 0) total -= static_cast<double>(share) * run.work.delta[row];
    }
  }
  run.backward.grad_sinks[head] = static_cast<float>(total);
}

void attend(void* context, std::int64_t index, void* scratch) {
  const Run& run = *static_cast<Run*>(context);
  const Problem& p = run.problem;
  const BackwardPlan& plan = run.work.plan;
  // Neighbours in the order belong to different heads, and seldom wait for one another. The first chunks come first:
  // under a causal mask they are the most work.
  const std::int64_t head_tasks = p.key_heads / run.heads_a_task, item_tasks = p.batch / run.items_a_task;
  const std::int64_t head = index % head_tasks, item = index / head_tasks % item_tasks;
  const std::int64_t share = index / (head_tasks * item_tasks);
  const std::int64_t rank = run.backward.bias_of_heads ? index / head_tasks : index;
  for (std::int64_t i = item * run.items_a_task; i < (item + 1) * run.items_a_task; ++i) {
    for (std::int64_t h = head * run.heads_a_task; h < (head + 1) * run.heads_a_task; ++h) {
      run.kernels.backward(p, run.work, {i, h, share / plan.splits, share % plan.splits, rank}, scratch);
    }
  }
}

}  // namespace

bool await_turn(const std::int64_t* turn, std::int64_t least) {
  // Who is waited for has been at work for a while, as a rule: its task was handed out before this one.
  for (int round = 0; __atomic_load_n(turn, __ATOMIC_ACQUIRE) < least; ++round) {
    if (interrupted()) return false;
    if (round < 64) {
#if defined(__x86_64__)
      for (int i = 0; i < 16; ++i) __builtin_ia32_pause();
#endif
    } else if (round < 1024) {
      sched_yield();
    } else {
      const timespec pause{0, 20'000};
      nanosleep(&pause, nullptr);
    }
  }
  return true;
}

bool run_backward(const Kernels& kernels, const Problem& problem, const Backward& backward, int threads) {
  if (problem.batch * problem.query_heads == 0) return true;
  Run run(kernels, problem, backward);
  const std::int64_t heads = problem.batch * problem.key_heads;
  if (!run_tasks(run.preparations(), threads, prepare, &run, kernels.prepare_backward_scratch(problem))) return false;
  if (!run_tasks(heads, threads, find_reach, &run, 0)) return false;
  if (backward.grad_sinks && !run_tasks(problem.query_heads, threads, find_sink, &run, 0)) return false;
  if (!backward.of_logits() && !backward.grad_value) return true;
  if (!run_tasks(run.tasks(), threads, attend, &run, kernels.backward_scratch(problem, run.work))) return false;
  for (std::size_t i = 0; i < run.table.size(); ++i) backward.grad_bias[i] = static_cast<float>(run.table[i]);
  return true;
}

}  // namespace regard
