// Scanning as Python asks for it: a mask tensor and the tables to fill, checked against one another, then run.
#include "binding_scan.h"

#include <nanobind/stl/pair.h>

#include <cstdint>
#include <utility>

#include "binding_elements.h"
#include "binding_run.h"
#include "binding_tensor.h"
#include "scan.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace regard {
namespace {

// What a byte of a mask costs, in the multiply-adds by which it is decided how many threads are of use.
constexpr double kWorkOfByte = 8;

MaskTensor mask_of(nb::handle object) {
  const View view = view_of(object);
  if (view.ndim != 4 || !view.on_cpu) refuse_tensor("mask", "must be [items, heads, queries, keys] on the CPU");
  MaskTensor mask;
  switch (view.kind) {
    case Kind::boolean: mask.entry = Entry::boolean; break;
    case Kind::f32: mask.entry = Entry::f32; break;
    case Kind::bf16: mask.entry = Entry::bf16; break;
    case Kind::f16: mask.entry = Entry::f16; break;
    default: refuse_tensor("mask", "must be bool, float32, bfloat16 or float16");
  }
  mask.data = view.data;
  for (int d = 0; d < 4; ++d) {
    mask.shape[d] = view.shape[d];
    mask.stride[d] = view.stride[d];
  }
  return mask;
}

/// The tables that Python wants filled: contiguous int64 `[2, items, heads, queries, slots]`, starts and then ends.
Runs runs_of(nb::handle object, const MaskTensor& mask) {
  const View view = view_of(object);
  bool fits = view.ndim == 5 && view.kind == Kind::i64 && view.on_cpu && view.shape[0] == 2 && view.shape[4] > 0;
  for (int d = 0; fits && d < 3; ++d) fits = view.shape[d + 1] == mask.shape[d];
  std::int64_t step = 1;
  for (int d = 4; fits && d >= 0; --d) {
    fits = view.shape[d] <= 1 || view.stride[d] == step || step == 0;
    step *= view.shape[d];
  }
  if (!fits) refuse_tensor("tables", "must be contiguous int64 [2, items, heads, queries, slots]");
  Runs runs;
  runs.slots = view.shape[4];
  runs.starts = static_cast<std::int64_t*>(view.data);
  runs.ends = runs.starts + mask.rows() * runs.slots;
  return runs;
}

double work_of(const MaskTensor& mask) {
  const int size = mask.entry == Entry::boolean ? 1 : mask.entry == Entry::f32 ? 4 : 2;
  return static_cast<double>(mask.rows()) * static_cast<double>(mask.keys() * size) * kWorkOfByte;
}

std::pair<std::int64_t, bool> scan(nb::handle tensor, nb::handle tables, int threads) {
  const MaskTensor mask = mask_of(tensor);
  Runs runs = runs_of(tables, mask);
  run_released(work_of(mask), threads, [&](int useful) { return find_runs(mask, runs, useful); });
  return {runs.most > runs.slots ? -1 : runs.most, runs.adds};
}

void hull(nb::handle tensor, nb::handle tables, int threads) {
  const MaskTensor mask = mask_of(tensor);
  const Runs runs = runs_of(tables, mask);
  if (mask.entry != Entry::boolean) refuse_tensor("mask", "must be bool");
  if (runs.slots != 1) refuse_tensor("tables", "must have one slot a row");
  run_released(work_of(mask), threads, [&](int useful) { return find_hulls(mask, runs, useful); });
}

}  // namespace

void bind_scan(nb::module_& m) {
  m.def("scan", scan, "mask"_a, "tables"_a, "threads"_a);
  m.def("hull", hull, "mask"_a, "tables"_a, "threads"_a);
}

}  // namespace regard
