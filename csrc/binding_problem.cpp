// From Python's tensors and numbers to a Problem of pointers and strides.
#include "binding_problem.h"

#include <cstring>

#include "binding_elements.h"
#include "binding_tensor.h"

namespace nb = nanobind;

namespace regard {
namespace {

bool is_float(Kind kind) { return kind == Kind::f32 || kind == Kind::bf16 || kind == Kind::f16; }

DType dtype_of(Kind kind) {
  return kind == Kind::bf16 ? DType::bf16 : kind == Kind::f16 ? DType::f16 : DType::f32;
}

/// A bound far beyond every column and row is as good as any other such; adding to this one overflows nothing.
std::int64_t within_reach(std::int64_t bound) {
  constexpr std::int64_t far = std::int64_t{1} << 40;
  return bound < -far ? -far : bound > far ? far : bound;
}

/// Strides of a view of four dimensions, 0 along those of size 1, which may stand for any number of items.
void strides_of(const View& view, std::int64_t out[4]) {
  for (int d = 0; d < 4; ++d) out[d] = view.shape[d] == 1 ? 0 : view.stride[d];
}

/// `[batch or 1, heads or 1, queries, keys]` of one problem.
bool fits(const View& view, const Problem& p, std::int64_t last) {
  return view.ndim == 4 && (view.shape[0] == 1 || view.shape[0] == p.batch) &&
         (view.shape[1] == 1 || view.shape[1] == p.query_heads) && view.shape[2] == p.n_queries &&
         (last < 0 || view.shape[3] == last) && view.on_cpu;
}

/// The last four dimensions of a tensor that may have fewer: those that lack have size 1.
struct Four {
  std::int64_t size[4] = {1, 1, 1, 1};
  Tensor tensor;
};

Four four(const View& view) {
  Four out;
  for (int d = 4 - view.ndim, from = 0; d < 4; ++d, ++from) {
    out.size[d] = view.shape[from];
    out.tensor.stride[d] = view.stride[from];
  }
  out.tensor.data = view.data;
  out.tensor.dtype = dtype_of(view.kind);
  return out;
}

bool is_input(const View& view) { return view.ndim >= 2 && view.ndim <= 4 && view.on_cpu && is_float(view.kind); }

}  // namespace

const char* take_inputs(Problem& p, const View& query, const View& key, const View* value) {
  if (!is_input(query) || !is_input(key) || (value != nullptr && !is_input(*value))) {
    return "must be float32, bfloat16 or float16 tensors of rank 2 to 4 on the CPU";
  }
  if (key.kind != query.kind || (value != nullptr && value->kind != query.kind)) return "must have one dtype";
  const Four q = four(query), k = four(key);
  p.batch = q.size[0];
  p.query_heads = q.size[1];
  p.key_heads = k.size[1];
  p.n_queries = q.size[2];
  p.n_keys = k.size[2];
  p.head_dim = q.size[3];
  p.query = q.tensor;
  p.key = k.tensor;
  if (k.size[0] != p.batch || k.size[3] != p.head_dim || p.head_dim == 0) return "must agree in their shapes";
  if (p.key_heads == 0 ? p.query_heads != 0 : p.query_heads % p.key_heads != 0) return "must have heads that divide";
  if (p.n_keys > INT32_MAX) return "must have fewer than 2^31 keys";
  if (value != nullptr) {
    const Four v = four(*value);
    p.value_dim = v.size[3];
    p.value = v.tensor;
    if (v.size[0] != p.batch || v.size[1] != p.key_heads || v.size[2] != p.n_keys) return "must agree in their shapes";
  }
  return nullptr;
}

BoundProblem::BoundProblem(nb::handle query, nb::handle key, nb::handle value, nb::handle starts, nb::handle ends,
                           nb::handle run, nb::handle dense, nb::handle query_start, nb::handle key_start,
                           double scale, double softcap, const char* bias_kind, nb::handle bias,
                           nb::handle sink_logits, std::uint64_t drop_below, double keep_scale, std::uint64_t seed,
                           std::int64_t first_item, std::int64_t first_head) {
  Problem& p = problem_;
  const View q = keep(query), k = keep(key);
  View v;
  if (!value.is_none()) v = keep(value);
  if (const char* fault = take_inputs(p, q, k, value.is_none() ? nullptr : &v)) {
    refuse_tensor("query, key and value", fault);
  }
  take_sets(starts, ends, run, dense);
  p.query_start = take_start(query_start, own_query_start_, p.query_start_step, "query_start");
  p.key_start = take_start(key_start, own_key_start_, p.key_start_step, "key_start");
  p.scale = static_cast<float>(scale);
  p.softcap = static_cast<float>(softcap);
  take_bias(bias_kind, bias);
  if (!sink_logits.is_none()) {
    const View sinks = keep(sink_logits);
    if (sinks.ndim != 1 || sinks.shape[0] != p.query_heads || sinks.kind != Kind::f32 || !sinks.on_cpu ||
        (sinks.shape[0] > 1 && sinks.stride[0] != 1)) {
      refuse_tensor("sink_logits", "must be contiguous float32 [heads]");
    }
    p.sink_logits = static_cast<const float*>(sinks.data);
  }
  p.drop_below = drop_below;
  p.keep_scale = static_cast<float>(keep_scale);
  p.seed = seed;
  p.first_item = first_item;
  p.first_head = first_head;
}

void BoundProblem::take_sets(nb::handle starts, nb::handle ends, nb::handle run, nb::handle dense) {
  Problem& p = problem_;
  if (starts.is_none()) {
    const auto numbers = nb::cast<nb::tuple>(run);
    if (numbers.size() != 4) refuse_tensor("run", "must hold four numbers");
    p.intervals.first_start = within_reach(nb::cast<std::int64_t>(numbers[0]));
    p.intervals.start_step = nb::cast<std::int64_t>(numbers[1]);
    p.intervals.first_end = within_reach(nb::cast<std::int64_t>(numbers[2]));
    p.intervals.end_step = nb::cast<std::int64_t>(numbers[3]);
  } else {
    const View first = keep(starts), last = keep(ends);
    if (!fits(first, p, -1) || first.kind != Kind::i64) {
      refuse_tensor("starts", "must be int64 [batch, heads, queries, slots]");
    }
    if (!fits(last, p, first.shape[3]) || last.kind != Kind::i64) {
      refuse_tensor("ends", "must be int64, shaped like starts");
    }
    p.intervals.starts = static_cast<const std::int64_t*>(first.data);
    p.intervals.ends = static_cast<const std::int64_t*>(last.data);
    strides_of(first, p.intervals.start_stride);
    strides_of(last, p.intervals.end_stride);
    p.intervals.slots = first.shape[3];
  }
  if (!dense.is_none()) {
    const View bits = keep(dense);
    if (!fits(bits, p, p.n_keys) || bits.kind != Kind::boolean) {
      refuse_tensor("dense", "must be bool [batch, heads, queries, keys]");
    }
    p.dense = static_cast<const std::uint8_t*>(bits.data);
    strides_of(bits, p.dense_stride);
  }
}

void BoundProblem::take_bias(const char* kind, nb::handle bias) {
  Problem& p = problem_;
  if (bias.is_none()) return;
  const View view = keep(bias);
  if (!view.on_cpu || !is_float(view.kind)) refuse_tensor("bias", "must be floating point, on the CPU");
  p.bias.data = view.data;
  p.bias.dtype = dtype_of(view.kind);
  const bool per_head = view.ndim > 0 && view.ndim <= 2 && (view.shape[0] == p.query_heads || view.shape[0] == 1);
  if (std::strcmp(kind, "alibi") == 0) {
    if (view.ndim != 1 || !per_head || view.kind != Kind::f32) refuse_tensor("bias", "must be float32 [heads]");
    p.bias_kind = BiasKind::alibi;
    p.bias.stride[1] = view.shape[0] == 1 ? 0 : view.stride[0];
  } else if (std::strcmp(kind, "relative") == 0) {
    if (view.ndim != 2 || !per_head || view.kind != Kind::f32 || view.shape[1] % 2 == 0) {
      refuse_tensor("bias", "must be float32 [heads, 2 * reach + 1]");
    }
    p.bias_kind = BiasKind::relative;
    p.bias.stride[1] = view.shape[0] == 1 ? 0 : view.stride[0];
    p.bias.stride[3] = view.stride[1];
    p.reach = view.shape[1] / 2;
  } else if (std::strcmp(kind, "dense") == 0) {
    if (!fits(view, p, p.n_keys)) refuse_tensor("bias", "must be [batch, heads, queries, keys]");
    p.bias_kind = BiasKind::dense;
    strides_of(view, p.bias.stride);
  } else {
    refuse_tensor("bias_kind", "must be alibi, relative or dense");
  }
}

const std::int64_t* BoundProblem::take_start(nb::handle start, std::int64_t& own, std::int64_t& step,
                                             const char* name) {
  step = 0;
  if (PyLong_Check(start.ptr())) {
    own = nb::cast<std::int64_t>(start);
    return &own;
  }
  const View view = keep(start);
  if (view.ndim != 1 || view.kind != Kind::i64 || !view.on_cpu ||
      (view.shape[0] != 1 && view.shape[0] != problem_.batch)) {
    refuse_tensor(name, "must be an int or int64 [batch]");
  }
  if (view.shape[0] > 1) step = view.stride[0];
  return static_cast<const std::int64_t*>(view.data);
}

View BoundProblem::keep(nb::handle tensor) {
  kept_[n_kept_++] = nb::borrow(tensor);
  return view_of(tensor);
}

Forward take_outputs(const Problem& p, nb::handle output, nb::handle maximum, nb::handle shift,
                     nb::handle denominator) {
  Forward forward;
  const View out = view_of(output);
  const std::int64_t shape[4] = {p.batch, p.query_heads, p.n_queries, p.value_dim};
  bool right = out.ndim == 4 && out.on_cpu && is_float(out.kind) && dtype_of(out.kind) == p.query.dtype;
  for (int d = 0; right && d < 4; ++d) right = out.shape[d] == shape[d];
  if (!right || (p.value_dim > 1 && out.stride[3] != 1)) {
    refuse_tensor("output", "must be [batch, heads, queries, value_dim] in the query's dtype, with unit last stride");
  }
  forward.output.data = out.data;
  forward.output.dtype = p.query.dtype;
  for (int d = 0; d < 4; ++d) forward.output.stride[d] = out.stride[d];

  const auto rows = [&](nb::handle tensor, const char* name) {
    if (tensor.is_none()) refuse_tensor(name, "must be a tensor");
    return floats_of(tensor, {p.batch, p.query_heads, p.n_queries}, name);
  };
  forward.maximum = rows(maximum, "maximum");
  forward.shift = rows(shift, "shift");
  forward.denominator = rows(denominator, "denominator");
  return forward;
}

}  // namespace regard
