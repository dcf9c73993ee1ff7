// The border between Python's threads and ours: who holds the GIL while kernels run, and who hears signals.
#include "binding_run.h"

#include <nanobind/nanobind.h>

#include <string>

#include "forward.h"
#include "interrupt.h"
#include "kernels.h"
#include "select.h"

namespace nb = nanobind;

namespace regard {
namespace {

// In multiply-adds. Below the first a call is over sooner than giving the GIL away and taking it back may take; each
// further thread must find the second to do, about what it costs to wake it.
constexpr double kKeepsGil = 1 << 17;
constexpr double kWorthAThread = 1 << 19;

double work_of(const Problem& p) {
  const double pairs = static_cast<double>(p.batch * p.query_heads) * static_cast<double>(p.n_queries * p.n_keys);
  return pairs * static_cast<double>(p.head_dim + p.value_dim);
}

/// The GIL, given away for as long as this lives; taken back for a moment to ask after signals.
class Released {
 public:
  Released() : state_(PyEval_SaveThread()) {}
  ~Released() { PyEval_RestoreThread(state_); }
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;

  static bool poll(void* context) {
    auto& self = *static_cast<Released*>(context);
    if (!self.hears_signals_) return false;
    PyEval_RestoreThread(self.state_);
    self.hears_signals_ = on_main_thread();
    const bool stop = PyErr_CheckSignals() != 0;  // the exception stays with this thread's state
    self.state_ = PyEval_SaveThread();
    return stop;
  }

 private:
  /// Python handles signals on its main thread alone; elsewhere asking again and again would only take the GIL.
  static bool on_main_thread() {
    const nb::object main = nb::module_::import_("threading").attr("main_thread")();
    return nb::cast<unsigned long>(main.attr("ident")) == PyThread_get_thread_ident();
  }

  PyThreadState* state_;
  bool hears_signals_ = true;
};

}  // namespace

const Kernels& kernels_or_raise() {
  const Selection& chosen = selection();
  if (chosen.kernels == nullptr) {
    const nb::object error = nb::module_::import_("regard.errors").attr("EngineError");
    PyErr_SetString(error.ptr(), ("engine 'native' cannot run: " + chosen.reason).c_str());
    throw nb::python_error();
  }
  return *chosen.kernels;
}

void run(const Problem& problem, const Forward& forward, int threads) {
  const Kernels& kernels = kernels_or_raise();
  const double work = work_of(problem);
  const int useful = 1 + static_cast<int>(work / kWorthAThread < 1e6 ? work / kWorthAThread : 1e6);
  threads = threads < useful ? threads : useful;
  if (work < kKeepsGil) {
    run_forward(kernels, problem, forward, threads);
    return;
  }
  bool completed;
  {
    Released released;
    const PollScope scope(Released::poll, &released);
    completed = run_forward(kernels, problem, forward, threads);
  }
  if (!completed) throw nb::python_error();
}

}  // namespace regard
