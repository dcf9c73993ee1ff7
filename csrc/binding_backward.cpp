// Gradients as Python asks for them: tensors checked against the problem, then run.
#include "binding_backward.h"

#include "backward.h"
#include "binding_elements.h"
#include "binding_problem.h"
#include "binding_run.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace regard {
namespace {

/// Numbers `[batch, heads, queries, value_dim]` in the query's dtype, of any strides.
Tensor vectors(nb::handle object, const Problem& p, const char* name) {
  const View view = view_of(object);
  const bool right = view.kind == Kind::f32    ? p.query.dtype == DType::f32
                     : view.kind == Kind::bf16 ? p.query.dtype == DType::bf16
                                               : view.kind == Kind::f16 && p.query.dtype == DType::f16;
  if (!right || !has_shape(view, {p.batch, p.query_heads, p.n_queries, p.value_dim})) {
    refuse_tensor(name, "must be [batch, heads, queries, value_dim] in the query's dtype");
  }
  Tensor tensor;
  tensor.data = view.data;
  tensor.dtype = p.query.dtype;
  for (int d = 0; d < 4; ++d) tensor.stride[d] = view.stride[d];
  return tensor;
}

/// A float32 number for each row, of any strides; null data for None.
Tensor numbers(nb::handle object, const Shape& rows, const char* name) {
  Tensor tensor;
  if (object.is_none()) return tensor;
  const View view = view_of(object);
  if (view.kind != Kind::f32 || !has_shape(view, rows)) refuse_tensor(name, "must be float32 [batch, heads, queries]");
  tensor.data = view.data;
  for (int d = 0; d < 3; ++d) tensor.stride[d] = view.stride[d];
  return tensor;
}

/// A gradient shaped like the bias's parameter, and for whom there is one of each.
void take_bias(const Problem& p, Backward& b, nb::handle grad_bias) {
  if (grad_bias.is_none()) return;
  const View view = view_of(grad_bias);
  const int heads_dim = p.bias_kind == BiasKind::dense ? 1 : 0;
  const std::int64_t heads = view.ndim > heads_dim ? view.shape[heads_dim] : 0;
  const std::int64_t items = p.bias_kind == BiasKind::dense && view.ndim > 0 ? view.shape[0] : 1;
  // Of one head, or one item, there is nothing to share.
  b.bias_of_heads = heads == p.query_heads;
  b.bias_of_items = items == p.batch;
  bool right = (b.bias_of_heads || heads == 1) && (b.bias_of_items || items == 1);
  switch (p.bias_kind) {
    case BiasKind::none: right = false; break;
    case BiasKind::alibi: right = right && b.bias_of_heads && has_shape(view, {heads}); break;
    case BiasKind::relative: right = right && has_shape(view, {heads, 2 * p.reach + 1}); break;
    case BiasKind::dense: right = right && has_shape(view, {items, heads, p.n_queries, p.n_keys}); break;
  }
  if (!right) refuse_tensor("grad_bias", "must be shaped like the bias's parameter");
  if (p.bias_kind == BiasKind::alibi) {
    b.grad_bias = floats_of(grad_bias, {heads}, "grad_bias");
  } else if (p.bias_kind == BiasKind::relative) {
    b.grad_bias = floats_of(grad_bias, {heads, 2 * p.reach + 1}, "grad_bias");
  } else {
    b.grad_bias = floats_of(grad_bias, {items, heads, p.n_queries, p.n_keys}, "grad_bias");
  }
}

void backward(const BoundProblem& problem, nb::handle output, nb::handle shift, nb::handle denominator,
              nb::handle grad_output, nb::handle grad_logsumexp, nb::handle grad_entropy, nb::handle grad_query,
              nb::handle grad_key, nb::handle grad_value, nb::handle grad_bias, nb::handle grad_sinks, int threads) {
  const Problem& p = problem.get();
  const Shape rows = {p.batch, p.query_heads, p.n_queries};
  Backward b;
  b.output = vectors(output, p, "output");
  b.grad_output = vectors(grad_output, p, "grad_output");
  b.shift = floats_of(shift, rows, "shift");
  b.denominator = floats_of(denominator, rows, "denominator");
  b.grad_logsumexp = numbers(grad_logsumexp, rows, "grad_logsumexp");
  b.grad_entropy = numbers(grad_entropy, rows, "grad_entropy");
  if (b.grad_entropy.data && p.drop_below) refuse_tensor("grad_entropy", "is of weights before dropout, which is on");
  b.grad_query = floats_of(grad_query, {p.batch, p.query_heads, p.n_queries, p.head_dim}, "grad_query");
  b.grad_key = floats_of(grad_key, {p.batch, p.key_heads, p.n_keys, p.head_dim}, "grad_key");
  b.grad_value = floats_of(grad_value, {p.batch, p.key_heads, p.n_keys, p.value_dim}, "grad_value");
  take_bias(p, b, grad_bias);
  b.grad_sinks = floats_of(grad_sinks, {p.query_heads}, "grad_sinks");
  if (b.grad_sinks != nullptr && p.sink_logits == nullptr) refuse_tensor("grad_sinks", "is asked for, without sinks");
  const double pairs = static_cast<double>(p.batch * p.query_heads) * static_cast<double>(p.n_queries) *
                       static_cast<double>(p.n_keys);
  run_released(pairs * static_cast<double>(3 * p.head_dim + 2 * p.value_dim), threads,
               [&](const Kernels& kernels, int useful) { return run_backward(kernels, p, b, useful); });
}

}  // namespace

void bind_backward(nb::module_& module) {
  module.def("backward", backward, "problem"_a, "output"_a, "shift"_a, "denominator"_a, "grad_output"_a,
             "grad_logsumexp"_a.none(), "grad_entropy"_a.none(), "grad_query"_a.none(), "grad_key"_a.none(),
             "grad_value"_a.none(), "grad_bias"_a.none(), "grad_sinks"_a.none(), "threads"_a);
}

}  // namespace regard
