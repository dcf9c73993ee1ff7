// A problem as Python hands it over, with the tensors that it points into kept alive.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "problem.h"

namespace regard {

class BoundProblem {
 public:
  /// Everything was validated in Python; shapes and dtypes are compared once more, since a slip here would read
  /// memory that is not ours. `run` is `(first_start, start_step, first_end, end_step)` where there are no tables.
  BoundProblem(nanobind::handle query, nanobind::handle key, nanobind::handle value, nanobind::handle starts,
               nanobind::handle ends, nanobind::handle run, nanobind::handle dense, nanobind::handle query_start,
               nanobind::handle key_start, double scale, double softcap, const char* bias_kind, nanobind::handle bias,
               nanobind::handle sink_logits, std::uint64_t drop_below, double keep_scale, std::uint64_t seed,
               std::int64_t first_item, std::int64_t first_head);
  BoundProblem(const BoundProblem&) = delete;
  BoundProblem& operator=(const BoundProblem&) = delete;

  const Problem& get() const { return problem_; }

 private:
  void take_sets(nanobind::handle starts, nanobind::handle ends, nanobind::handle run, nanobind::handle dense);
  void take_bias(const char* kind, nanobind::handle bias);
  const std::int64_t* take_start(nanobind::handle start, std::int64_t& own, std::int64_t& step, const char* name);
  /// Reads a tensor, and keeps it alive as long as this.
  struct View keep(nanobind::handle tensor);

  Problem problem_;
  std::int64_t own_query_start_ = 0, own_key_start_ = 0;
  nanobind::object kept_[12];
  int n_kept_ = 0;
};

/// Query, key and value of four dimensions, or fewer (the missing ones come first), into a problem. Returns null, or
/// what is wrong with them.
const char* take_inputs(Problem& problem, const struct View& query, const struct View& key, const struct View* value);

/// Fills a Forward for the problem from preallocated tensors. Raises ValueError where they do not fit.
Forward take_outputs(const Problem& problem, nanobind::handle output, nanobind::handle maximum,
                     nanobind::handle shift, nanobind::handle denominator);

}  // namespace regard
