// The short way: one plain call, from tensors as they came to the output.
#pragma once

#include <nanobind/nanobind.h>

namespace regard {

/// Attention over every key, or over a band of them, if the tensors are plain enough; None if they are not, which
/// says nothing about whether they are right. A query at column p of the keys (row i stands at `offset + i`; None puts
/// the queries at the end) may attend columns `p - before` to `p + after`; None: no bound on that side.
nanobind::object attend(nanobind::handle query, nanobind::handle key, nanobind::handle value, nanobind::handle before,
                        nanobind::handle after, nanobind::handle offset, nanobind::handle scale, int threads);

}  // namespace regard
