#include "forward.h"

#include <algorithm>
#include <memory>
#include <new>
#include <vector>

#include "tasks.h"

namespace regard {
namespace {

// Keys of a split. Fixed in keys, never in keys a thread: the bits of a result must not depend on the threads.
constexpr std::int64_t kFewSplit = 512, kRowsSplit = 2048;
// Problems with more rows of a key head than this have blocks enough without splitting the keys.
constexpr std::int64_t kSplitRows = 192;
// Groups of rows that share a tile's copy, at most; and how many blocks a thread should find at least.
constexpr std::int64_t kMostGroups = 16, kBlocksAThread = 4;
constexpr std::size_t kMostScratch = 1 << 20;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// How a problem is cut. Which rows share a block changes no bit of theirs, so that may follow the threads.
struct Plan {
  bool few;
  std::int64_t block_rows, row_blocks, split_keys, splits;

  Plan(const Kernels& kernels, const Problem& p, int threads) {
    const std::int64_t rows = p.rows(), heads = p.batch * p.key_heads;
    few = rows <= kFewRows;
    split_keys = few ? kFewSplit : rows <= kSplitRows ? kRowsSplit : std::max<std::int64_t>(p.n_keys, 1);
    splits = std::max<std::int64_t>(ceil_div(p.n_keys, split_keys), 1);
    std::int64_t groups = few ? 1 : std::min(kMostGroups, ceil_div(rows, kernels.group_rows));
    const auto blocks = [&](std::int64_t n) { return heads * splits * ceil_div(rows, n * kernels.group_rows); };
    while (groups > 1 && threads > 1 && blocks(groups) < kBlocksAThread * threads) groups--;
    while (groups > 1 && kernels.forward_scratch(p, groups * kernels.group_rows) > kMostScratch) groups--;
    block_rows = few ? rows : groups * kernels.group_rows;
    row_blocks = ceil_div(rows, block_rows);
  }
};

struct Run {
  const Kernels& kernels;
  const Problem& problem;
  const Forward& out;
  Plan plan;
  std::vector<float> storage;      // of the partials
  std::vector<Partial> partials;   // [item, key head, row block, split]

  Block block(std::int64_t index, std::int64_t splits) const {
    const Problem& p = problem;
    const std::int64_t heads = p.batch * p.key_heads, split = index % splits, head = index / splits % heads;
    // The last rows first: under a causal mask theirs is the most work, and long tasks should not come last.
    const std::int64_t rows = plan.row_blocks - 1 - index / (splits * heads);
    const std::int64_t first_row = rows * plan.block_rows, first_key = split * plan.split_keys;
    return {head / p.key_heads, head % p.key_heads, first_row, std::min(first_row + plan.block_rows, p.rows()),
            first_key, splits == 1 ? p.n_keys : std::min(first_key + plan.split_keys, p.n_keys)};
  }
  std::int64_t partial(const Block& b, std::int64_t split) const {
    return ((b.item * problem.key_heads + b.key_head) * plan.row_blocks + b.first_row / plan.block_rows) * plan.splits +
           split;
  }
};

void attend(void* context, std::int64_t index, void* scratch) {
  auto& run = *static_cast<Run*>(context);
  const Block block = run.block(index, run.plan.splits);
  const Partial* partial =
      run.plan.splits == 1 ? nullptr : &run.partials[run.partial(block, index % run.plan.splits)];
  (run.plan.few ? run.kernels.forward_few : run.kernels.forward)(run.problem, run.out, block, partial, scratch);
}

void join(void* context, std::int64_t index, void* scratch) {
  auto& run = *static_cast<Run*>(context);
  const Block block = run.block(index, 1);
  run.kernels.merge(run.problem, run.out, block, &run.partials[run.partial(block, 0)], run.plan.splits, scratch);
}

}  // namespace

bool run_forward(const Kernels& kernels, const Problem& problem, const Forward& out, int threads) {
  if (problem.batch * problem.query_heads * problem.n_queries == 0) return true;
  Run run{kernels, problem, out, Plan(kernels, problem, threads), {}, {}};
  const Plan& plan = run.plan;
  const std::int64_t blocks = problem.batch * problem.key_heads * plan.row_blocks;
  if (plan.splits > 1) {
    const std::int64_t each = plan.block_rows * (2 + problem.value_dim), n = blocks * plan.splits;
    run.storage.resize(static_cast<std::size_t>(n * each));
    run.partials.resize(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; i++) {
      float* at = run.storage.data() + i * each;
      run.partials[i] = {at, at + plan.block_rows, at + 2 * plan.block_rows};
    }
  }
  const std::size_t scratch = plan.few ? kernels.few_scratch(problem, plan.block_rows)
                                       : kernels.forward_scratch(problem, plan.block_rows);
  if (!run_tasks(blocks * plan.splits, threads, attend, &run, scratch)) return false;
  if (plan.splits == 1) return true;
  return run_tasks(blocks, threads, join, &run, static_cast<std::size_t>(problem.value_dim + 1) * sizeof(float));
}

}  // namespace regard
