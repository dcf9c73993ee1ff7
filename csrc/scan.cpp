// Scanning masks at the speed of memory: whole cache lines of entries that are all alike are passed over at once.
#include "scan.h"

#include <algorithm>
#include <atomic>
#include <cstddef>

#include "tasks.h"

namespace regard {
namespace {

// Rows of a task: about as many as take 10 microseconds, so that threads share the work and the counter costs nothing.
constexpr std::int64_t kTaskBytes = 1 << 18, kRowOverhead = 64;
// Rows whose keys do not lie side by side are copied before they are read, some together: where neighbours of one key lie
// side by side instead, as in a transposed mask, each line of memory then serves them all.
constexpr std::int64_t kTileRows = 64, kTileBytes = 1 << 20, kKeysAhead = 16;

// How many bytes ahead memory is asked for. The processor's own prefetching ends with a page, of which a row has two.
constexpr std::int64_t kAhead = 4096;

struct Bools {
  using Value = std::uint8_t;
  static bool allows(Value v) { return v != 0; }
};

/// Numbers of a format, as the bits of its -inf and its lowest number.
template <class V, V kMinusInfinity, V kLowest>
struct Numbers {
  using Value = V;
  static bool allows(Value v) { return v != kMinusInfinity && v != kLowest; }

  static constexpr V kMagnitude = static_cast<V>(static_cast<V>(~V{0}) >> 1);
  static bool is_nan(Value v) { return (v & kMagnitude) > (kMinusInfinity & kMagnitude); }
  static bool is_zero(Value v) { return (v & kMagnitude) == 0; }

  /// In a row that holds nothing above the lowest number.
  struct OfLowRow {
    using Value = V;
    static bool allows(Value v) { return v != kMinusInfinity; }
  };
};
using Floats = Numbers<std::uint32_t, 0xff800000u, 0xff7fffffu>;
using BFloats = Numbers<std::uint16_t, 0xff80u, 0xff7fu>;
using Halves = Numbers<std::uint16_t, 0xfc00u, 0xfbffu>;

/// Whether none of some neighbours differs: a loop without branches that becomes a few wide comparisons, unless it is
/// unrolled before.
template <class Entries, bool kAllowed, int kCount>
bool all(const typename Entries::Value* p) {
  typename Entries::Value others = 0;
#pragma GCC unroll 1
  for (int k = 0; k < kCount; ++k) others |= Entries::allows(p[k]) != kAllowed;
  return others == 0;
}

template <class Entries>
constexpr int kLine = 64 / static_cast<int>(sizeof(typename Entries::Value));
template <class Entries>
constexpr int kWord = 8 / static_cast<int>(sizeof(typename Entries::Value));

/// The first entry from `i` on that is not `kAllowed`, or `n`.
template <class Entries, bool kAllowed>
std::int64_t pass(const typename Entries::Value* p, std::int64_t i, std::int64_t n) {
  while (i + kLine<Entries> <= n && all<Entries, kAllowed, kLine<Entries>>(p + i)) {
    __builtin_prefetch(reinterpret_cast<const char*>(p + i) + kAhead);
    i += kLine<Entries>;
  }
  while (i + kWord<Entries> <= n && all<Entries, kAllowed, kWord<Entries>>(p + i)) i += kWord<Entries>;
  while (i < n && Entries::allows(p[i]) == kAllowed) ++i;
  return i;
}

/// The end behind the last allowed entry, or 0.
template <class Entries>
std::int64_t end_of_last(const typename Entries::Value* p, std::int64_t n) {
  while (n >= kLine<Entries> && all<Entries, false, kLine<Entries>>(p + n - kLine<Entries>)) n -= kLine<Entries>;
  while (n > 0 && !Entries::allows(p[n - 1])) --n;
  return n;
}

/// How many runs there are; `slots + 1` where they are more, which then are not looked for.
template <class Entries>
std::int64_t runs_of_row(const typename Entries::Value* p, std::int64_t n, std::int64_t* starts, std::int64_t* ends,
                         std::int64_t slots) {
  std::int64_t count = 0;
  for (std::int64_t i = pass<Entries, false>(p, 0, n); i < n; i = pass<Entries, false>(p, i, n)) {
    if (count == slots) return slots + 1;
    starts[count] = i;
    i = pass<Entries, true>(p, i, n);
    ends[count++] = i;
  }
  return count;
}

/// The rows of a mask one after another, shared out over threads. `See` is called with a row's number, its entries side by
/// side, and how many these are; it says whether to go on.
template <class Value, class See>
class Rows {
 public:
  Rows(const MaskTensor& mask, const See& see)
      : mask_(mask),
        see_(see),
        // Keys whose entries are one and the same, by a stride of 0, are looked at once.
        n_(mask.stride[3] == 0 ? std::min<std::int64_t>(mask.keys(), 1) : mask.keys()),
        in_line_(n_ <= 1 || mask.stride[3] == 1),
        // A line apart in more than their length: a power of two would put all rows of a tile into one set of the cache.
        pitch_(n_ + kTileRows) {
    const std::int64_t bytes = n_ * static_cast<std::int64_t>(sizeof(Value)) + kRowOverhead;
    rows_of_task_ = in_line_ ? std::max<std::int64_t>(kTaskBytes / bytes, 1)
                             : std::clamp<std::int64_t>(kTileBytes / bytes, 1, kTileRows);
  }

  bool visit(int threads) {
    const std::int64_t tasks = (mask_.rows() + rows_of_task_ - 1) / rows_of_task_;
    const std::int64_t copied = in_line_ ? 0 : rows_of_task_ * pitch_;
    return run_tasks(tasks, threads, task, this, static_cast<std::size_t>(copied) * sizeof(Value));
  }

 private:
  static void task(void* context, std::int64_t index, void* scratch) {
    const auto& self = *static_cast<const Rows*>(context);
    const std::int64_t first = index * self.rows_of_task_;
    const std::int64_t last = std::min(first + self.rows_of_task_, self.mask_.rows());
    auto* tile = static_cast<Value*>(scratch);
    if (!self.in_line_) self.copy(first, last, tile);
    for (std::int64_t row = first; row < last; ++row) {
      const Value* entries = self.in_line_ ? self.begin(row) : tile + (row - first) * self.pitch_;
      if (!self.see_(row, entries, self.n_)) return;
    }
  }

  const Value* begin(std::int64_t row) const {
    const std::int64_t head = row / mask_.shape[2], item = head / mask_.shape[1];
    return static_cast<const Value*>(mask_.data) + item * mask_.stride[0] + head % mask_.shape[1] * mask_.stride[1] +
           row % mask_.shape[2] * mask_.stride[2];
  }

  void copy(std::int64_t first, std::int64_t last, Value* tile) const {
    const Value* from[kTileRows];
    for (std::int64_t row = first; row < last; ++row) from[row - first] = begin(row);
    for (std::int64_t key = 0; key < n_; ++key) {
      __builtin_prefetch(from[0] + (key + kKeysAhead) * mask_.stride[3]);
      for (std::int64_t r = 0; r < last - first; ++r) tile[r * pitch_ + key] = from[r][key * mask_.stride[3]];
    }
  }

  const MaskTensor& mask_;
  const See& see_;
  std::int64_t n_;
  bool in_line_;
  std::int64_t pitch_, rows_of_task_;
};

template <class Value, class See>
bool each_row(const MaskTensor& mask, int threads, const See& see) {
  return Rows<Value, See>(mask, see).visit(threads);
}

/// What the rows of a mask have in common, gathered from all threads.
struct Seen {
  std::atomic<std::int64_t> most{0};
  std::atomic<bool> adds{false};

  void runs(std::int64_t count) {
    std::int64_t known = most.load(std::memory_order_relaxed);
    while (known < count && !most.compare_exchange_weak(known, count, std::memory_order_relaxed)) {
    }
  }
};

/// Where a row's runs go.
struct Slots {
  std::int64_t* starts;
  std::int64_t* ends;
  std::int64_t count;
};

std::int64_t look(Bools, const std::uint8_t* p, std::int64_t n, const Slots& slots, Seen&) {
  return runs_of_row<Bools>(p, n, slots.starts, slots.ends, slots.count);
}

/// Also notes whether what the runs hold adds anything to a score.
template <class V, V kMinusInfinity, V kLowest>
std::int64_t look(Numbers<V, kMinusInfinity, kLowest>, const V* p, std::int64_t n, const Slots& slots, Seen& seen) {
  using Format = Numbers<V, kMinusInfinity, kLowest>;
  std::int64_t count = runs_of_row<Format>(p, n, slots.starts, slots.ends, slots.count);
  const auto any = [&](const auto& is) {
    for (std::int64_t k = 0; k < count; ++k) {
      for (std::int64_t i = slots.starts[k]; i < slots.ends[k]; ++i) {
        if (is(p[i])) return true;
      }
    }
    return false;
  };
  if (count > slots.count) return count;
  if (!any([](V v) { return !Format::is_nan(v); })) {
    count = runs_of_row<typename Format::OfLowRow>(p, n, slots.starts, slots.ends, slots.count);
    if (count > slots.count) return count;
  }
  if (!seen.adds.load(std::memory_order_relaxed) && any([](V v) { return !Format::is_zero(v); })) {
    seen.adds.store(true, std::memory_order_relaxed);
  }
  return count;
}

template <class Entries>
bool find(const MaskTensor& mask, Runs& runs, int threads) {
  using Value = typename Entries::Value;
  Seen seen;
  const bool completed = each_row<Value>(mask, threads, [&](std::int64_t row, const Value* p, std::int64_t n) {
    if (seen.most.load(std::memory_order_relaxed) > runs.slots) return false;
    const Slots slots = {runs.starts + row * runs.slots, runs.ends + row * runs.slots, runs.slots};
    const std::int64_t count = look(Entries(), p, n, slots, seen);
    seen.runs(count);
    if (count > slots.count) return false;
    if (n < mask.keys() && count > 0) slots.ends[0] = mask.keys();  // one entry stands for all keys
    for (std::int64_t k = count; k < slots.count; ++k) slots.starts[k] = slots.ends[k] = mask.keys();
    return true;
  });
  runs.most = seen.most.load();
  runs.adds = seen.adds.load();
  return completed;
}

}  // namespace

bool find_runs(const MaskTensor& mask, Runs& runs, int threads) {
  switch (mask.entry) {
    case Entry::f32: return find<Floats>(mask, runs, threads);
    case Entry::bf16: return find<BFloats>(mask, runs, threads);
    case Entry::f16: return find<Halves>(mask, runs, threads);
    case Entry::boolean: break;
  }
  return find<Bools>(mask, runs, threads);
}

bool find_hulls(const MaskTensor& mask, const Runs& runs, int threads) {
  return each_row<std::uint8_t>(mask, threads, [&](std::int64_t row, const std::uint8_t* p, std::int64_t n) {
    const std::int64_t first = pass<Bools, false>(p, 0, n);
    runs.starts[row] = first == n ? mask.keys() : first;
    runs.ends[row] = first == n || n < mask.keys() ? mask.keys() : end_of_last<Bools>(p, n);
    return true;
  });
}

}  // namespace regard
