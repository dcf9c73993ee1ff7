// The extension module regard._native: its functions, their arguments, and nothing else. Documented in _native.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "binding_attend.h"
#include "binding_backward.h"
#include "binding_fold.h"
#include "binding_problem.h"
#include "binding_run.h"
#include "binding_scan.h"
#include "binding_tensor.h"
#include "interrupt.h"
#include "kernels.h"
#include "openmp.h"
#include "select.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace regard {
namespace {

/// What is read of torch. The references are kept for good: modules of C++ are never unloaded.
void know_torch(nb::handle tensor, nb::handle parameter, nb::tuple dtypes, nb::handle empty_like) {
  if (dtypes.size() != 5) throw nb::value_error("five dtypes are needed");
  torch().tensor = nb::borrow(tensor).release().ptr();
  torch().parameter = nb::borrow(parameter).release().ptr();
  torch().empty_like = nb::borrow(empty_like).release().ptr();
  for (int kind = 0; kind < 5; ++kind) torch().dtypes[kind] = nb::borrow(dtypes[kind]).release().ptr();
}

void forward(const BoundProblem& problem, nb::handle output, nb::handle maximum, nb::handle shift,
             nb::handle denominator, int threads) {
  const Problem& p = problem.get();
  run(p, take_outputs(p, output, maximum, shift, denominator), threads);
}

std::pair<std::string, std::string> isa() { return {kernels_or_raise().name, selection().reason}; }

std::pair<std::string, std::string> thread_runtime() {
  const std::string source = thread_source();
  return {source, source == "openmp" ? borrowed_openmp().path : ""};
}

}  // namespace
}  // namespace regard

NB_MODULE(_native, m) {
  using namespace regard;
  watch_forks();

  nb::class_<BoundProblem>(m, "Problem")
      .def(nb::init<nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle,
                    nb::handle, double, double, const char*, nb::handle, nb::handle, std::uint64_t, double,
                    std::uint64_t, std::int64_t, std::int64_t>(),
           "query"_a, "key"_a, "value"_a.none(), "starts"_a.none(), "ends"_a.none(), "run"_a.none(),
           "dense"_a.none(), "query_start"_a, "key_start"_a, "scale"_a, "softcap"_a, "bias_kind"_a, "bias"_a.none(),
           "sink_logits"_a.none(), "drop_below"_a, "keep_scale"_a, "seed"_a, "first_item"_a, "first_head"_a);
  m.def("forward", forward, "problem"_a, "output"_a, "maximum"_a, "shift"_a, "denominator"_a, "threads"_a);
  m.def("attend", attend, "query"_a, "key"_a, "value"_a, "before"_a.none(), "after"_a.none(), "offset"_a.none(),
        "scale"_a.none(), "threads"_a);
  bind_backward(m);
  bind_scan(m);
  bind_fold(m);
  m.def("know_torch", know_torch, "tensor"_a, "parameter"_a, "dtypes"_a, "empty_like"_a);
  m.def("use_exchange", [](nb::handle capsule) { return use_exchange(capsule.ptr()); }, "capsule"_a.none());
  m.def("isa", isa);
  m.def("runnable_isas", runnable_isas);
  m.def("thread_runtime", thread_runtime);
  m.def("use_own_pool", use_own_pool, "always"_a);
}
