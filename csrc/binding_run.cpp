// The border between Python's threads and ours: who holds the GIL while kernels run, and who hears signals.
#include "binding_run.h"

#include <nanobind/nanobind.h>

#include <unistd.h>

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

/// Takes the GIL back. A daemon thread whose interpreter is ending never gets it: Python would end the thread there,
/// through frames of C++ that do not let it, and take the whole process down. Such a thread waits for the end instead.
void take_gil(PyThreadState* state) {
#if PY_VERSION_HEX >= 0x030d0000
  const bool ending = Py_IsFinalizing() != 0;
#else
  const bool ending = _Py_IsFinalizing() != 0;
#endif
  while (ending) pause();
  PyEval_RestoreThread(state);
}

/// The GIL, given away for as long as this lives; taken back for a moment to ask after signals.
class Released {
 public:
  Released() : state_(PyEval_SaveThread()) {}
  ~Released() { take_gil(state_); }
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;

  static bool poll(void* context) {
    auto& self = *static_cast<Released*>(context);
    if (!self.hears_signals_) return false;
    take_gil(self.state_);
    bool stop = PyErr_CheckSignals() != 0;  // the exception stays with this thread's state
    // To ask which thread this is runs Python code, and with it, perhaps, a signal's handler: what that raises must not
    // unwind kernels at work.
    try {
      if (!stop) self.hears_signals_ = on_main_thread();
    } catch (nb::python_error& error) {
      error.restore();
      stop = true;
    }
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

template <class Call>
void run_as(double work, int threads, const Call& call) {
  const int useful = 1 + static_cast<int>(work / kWorthAThread < 1e6 ? work / kWorthAThread : 1e6);
  threads = threads < useful ? threads : useful;
  if (work < kKeepsGil) {
    call(threads);
    return;
  }
  bool completed;
  {
    Released released;
    const PollScope scope(Released::poll, &released);
    completed = call(threads);
  }
  if (!completed) throw nb::python_error();
}

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
  run_as(work_of(problem), threads, [&](int useful) { return run_forward(kernels, problem, forward, useful); });
}

void run_released(double work, int threads, const std::function<bool(const Kernels&, int)>& call) {
  const Kernels& kernels = kernels_or_raise();
  run_as(work, threads, [&](int useful) { return call(kernels, useful); });
}

void run_released(double work, int threads, const std::function<bool(int)>& call) { run_as(work, threads, call); }

}  // namespace regard
