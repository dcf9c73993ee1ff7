// Passes over the weights of a whole problem: cut into tasks, run on threads, sums over rows added in order.
#include "fold.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "kernels.h"
#include "tasks.h"

namespace regard {
namespace {

// Groups of rows of a block. Sums over rows are kept apart for each block of a head, which may not be many, then.
constexpr std::int64_t kFewestGroups = 4, kMostBlocks = 16;
// Elements of such sums that are kept at a time: heads are taken in turns of so many. (Which changes no bit.)
constexpr std::int64_t kMostKept = 1 << 22;

// Columns and rows of a task that fills in rows of the matrix.
constexpr std::int64_t kColumnsAtOnce = 2048, kRowsAtOnce = 64;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

struct FoldRun {
  const Kernels& kernels;
  const Problem& problem;
  const Fold& fold;
  std::int64_t block_rows, blocks;                        // of a head
  std::int64_t pool_rows = 0, kept = 0;                   // rows of a block's heat map; elements that a block keeps
  std::int64_t first_head = 0;                            // of the turn, counted through the batch
  std::unique_ptr<float[]> storage;
  std::vector<FoldPart> parts;                            // [head of the turn, block]

  FoldRun(const Kernels& k, const Problem& p, const Fold& f) : kernels(k), problem(p), fold(f) {
    const std::int64_t groups = ceil_div(p.n_queries, k.group_rows);
    const std::int64_t each = std::max(kFewestGroups, f.by_key() ? ceil_div(groups, kMostBlocks) : 0);
    block_rows = each * k.group_rows;
    blocks = ceil_div(groups, each);
    if (f.received) kept += p.n_keys + 2 * kFoldRoom;
    if (f.allowed) kept += p.n_keys + 2 * kFoldRoom;
    if (f.diagonals) kept += block_rows + p.n_keys + 2 * kFoldRoom;
    if (f.pooled) {
      const PoolSide& rows = f.pool_rows;
      pool_rows = std::min(rows.blocks, ceil_div(std::min(block_rows, p.n_queries) * rows.blocks, rows.whole) + 1);
      kept += pool_rows * f.pool_columns.blocks;
    }
  }

  std::int64_t heads_at_once() const {
    const std::int64_t heads = problem.batch * problem.query_heads;
    return kept == 0 ? heads : std::min(heads, std::max<std::int64_t>(kMostKept / (kept * blocks), 1));
  }
  FoldBlock block(std::int64_t head, std::int64_t number) const {
    const std::int64_t first_row = number * block_rows, whole_head = first_head + head;
    return {whole_head / problem.query_heads, whole_head % problem.query_heads, first_row,
            std::min(first_row + block_rows, problem.n_queries)};
  }
  /// Where each block of the turn keeps its sums.
  void allot(std::int64_t heads) {
    if (!storage && kept) storage.reset(new float[static_cast<std::size_t>(heads * blocks * kept)]);
    parts.assign(static_cast<std::size_t>(heads * blocks), FoldPart());
    float* next = storage.get();
    const auto take = [&next](std::int64_t n) { return (next += n) - n; };
    for (FoldPart& part : parts) {
      if (fold.received) part.received = take(problem.n_keys + 2 * kFoldRoom) + kFoldRoom;
      if (fold.allowed) part.allowed = take(problem.n_keys + 2 * kFoldRoom) + kFoldRoom;
      if (fold.diagonals) part.diagonals = take(block_rows + problem.n_keys + 2 * kFoldRoom) + kFoldRoom;
      if (fold.pooled) part.pooled = take(pool_rows * fold.pool_columns.blocks);
    }
  }
};

void fold_block(void* context, std::int64_t index, void* scratch) {
  auto& run = *static_cast<FoldRun*>(context);
  const std::int64_t heads = static_cast<std::int64_t>(run.parts.size()) / run.blocks, head = index % heads;
  // The last rows first: under a causal mask theirs is the most work, and long tasks should not come last.
  const std::int64_t number = run.blocks - 1 - index / heads;
  run.kernels.fold.fold(run.problem, run.fold, run.block(head, number), run.parts[head * run.blocks + number], scratch);
}

void add(const float* from, std::int64_t n, float* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += from[i];
}

/// The sums of one head: of its blocks, in their order.
void add_blocks(void* context, std::int64_t head, void*) {
  auto& run = *static_cast<FoldRun*>(context);
  const Problem& p = run.problem;
  const Fold& f = run.fold;
  const std::int64_t at = run.first_head + head, length = p.n_queries + p.n_keys - 1;
  for (std::int64_t number = 0; number < run.blocks; ++number) {
    const FoldPart& part = run.parts[head * run.blocks + number];
    const FoldBlock block = run.block(head, number);
    const std::int64_t n = part.last_key - part.first_key;
    if (n <= 0) continue;
    if (f.received) add(part.received + part.first_key, n, f.received + at * p.n_keys + part.first_key);
    if (f.allowed) add(part.allowed + part.first_key, n, f.allowed + at * p.n_keys + part.first_key);
    if (f.diagonals) {
      const std::int64_t first = p.n_keys - part.last_key, rows = block.last_row - block.first_row;
      add(part.diagonals + first, rows + n - 1, f.diagonals + at * length + block.first_row + first);
    }
    if (f.pooled) {
      const std::int64_t first = f.pool_rows.of(block.first_row), last = f.pool_rows.of(block.last_row - 1);
      add(part.pooled, (last - first + 1) * f.pool_columns.blocks,
          f.pooled + (at * f.pool_rows.blocks + first) * f.pool_columns.blocks);
    }
  }
}

/// Tasks of any kind: `work(index, scratch)`.
bool run_each(std::int64_t count, int threads, std::size_t scratch_bytes,
              const std::function<void(std::int64_t, void*)>& work) {
  const auto call = [](void* context, std::int64_t index, void* scratch) {
    (*static_cast<const std::function<void(std::int64_t, void*)>*>(context))(index, scratch);
  };
  return run_tasks(count, threads, call, const_cast<void*>(static_cast<const void*>(&work)), scratch_bytes);
}

}  // namespace

bool run_fold(const Kernels& kernels, const Problem& problem, const Fold& fold, int threads) {
  const std::int64_t heads = problem.batch * problem.query_heads;
  if (heads * problem.n_queries == 0) return true;
  FoldRun run(kernels, problem, fold);
  const std::size_t scratch = kernels.fold.scratch(problem, fold);
  const std::int64_t turn = run.heads_at_once();
  for (; run.first_head < heads; run.first_head += turn) {
    const std::int64_t n = std::min(turn, heads - run.first_head);
    run.allot(n);
    if (!run_tasks(n * run.blocks, threads, fold_block, &run, scratch)) return false;
    if (run.kept && !run_tasks(n, threads, add_blocks, &run, 0)) return false;
  }
  return true;
}

bool run_fold_transposed(const Kernels& kernels, const Problem& problem, const FoldTransposed& fold, int threads) {
  const std::int64_t heads = problem.batch * problem.query_heads;
  if (heads * problem.n_keys * fold.x_dim == 0) return true;
  const std::int64_t keys = kernels.fold.owned_keys, pieces = ceil_div(problem.n_keys, keys);
  return run_each(heads * pieces, threads, kernels.fold.transposed_scratch(problem, fold),
                  [&](std::int64_t index, void* scratch) {
                    const std::int64_t head = index / pieces, first = index % pieces * keys;
                    kernels.fold.transposed(problem, fold,
                                            {head / problem.query_heads, head % problem.query_heads, first,
                                             std::min(first + keys, problem.n_keys)},
                                            scratch);
                  });
}

bool run_fold_rows(const Kernels& kernels, const Problem& problem, const FoldRows& fold, int threads) {
  if (fold.n_rows <= 0 || fold.last <= fold.first) return true;
  // Whole panels of columns: those of a task begin where a panel does.
  const std::int64_t width = ceil_div(kColumnsAtOnce, kernels.group_rows) * kernels.group_rows;
  const std::int64_t across = ceil_div(fold.last - fold.first, width), down = ceil_div(fold.n_rows, kRowsAtOnce);
  return run_each(across * down, threads, kernels.fold.rows_scratch(problem, std::min(kRowsAtOnce, fold.n_rows)),
                  [&](std::int64_t index, void* scratch) {
                    const std::int64_t row = index / across * kRowsAtOnce, first = fold.first + index % across * width;
                    kernels.fold.rows(problem, fold, row, std::min(row + kRowsAtOnce, fold.n_rows), first,
                                      std::min(first + width, fold.last), scratch);
                  });
}

void keep_largest(std::int64_t* packed, std::int64_t n, std::int64_t k, bool sort) {
  const std::greater<std::int64_t> falling;
  k = std::min(k, n);
  if (k < n) std::nth_element(packed, packed + k, packed + n, falling);
  if (sort) std::sort(packed, packed + k, falling);
}

}  // namespace regard
