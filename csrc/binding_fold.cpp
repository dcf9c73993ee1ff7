// Questions to the weights as Python asks them: tensors checked against the problem, then run.
#include "binding_fold.h"

#include "binding_elements.h"
#include "binding_problem.h"
#include "binding_run.h"
#include "binding_tensor.h"
#include "fold.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace regard {
namespace {

bool is_float(Kind kind) { return kind == Kind::f32 || kind == Kind::bf16 || kind == Kind::f16; }

DType dtype_of(Kind kind) {
  return kind == Kind::bf16 ? DType::bf16 : kind == Kind::f16 ? DType::f16 : DType::f32;
}

/// The elements of a contiguous tensor of a kind and shape; null for None, or where there are none.
template <class T>
T* elements(nb::handle object, Kind kind, Shape shape, const char* name) {
  if (object.is_none()) return nullptr;
  const View view = view_of(object);
  bool fits = view.kind == kind && has_shape(view, shape);
  std::int64_t step = 1;
  for (int d = view.ndim - 1; fits && d >= 0; --d) {
    fits = view.shape[d] <= 1 || view.stride[d] == step;
    step *= view.shape[d];
  }
  if (!fits && step != 0) refuse_tensor(name, "must be contiguous, of the kind and shape that the question has");
  return step == 0 ? nullptr : static_cast<T*>(view.data);
}

/// Vectors `[batch, heads, length, dim]` of any strides.
Tensor vectors(const View& view, const Problem& p, std::int64_t heads, std::int64_t length) {
  if (view.ndim != 4 || !has_shape(view, {p.batch, heads, length, view.shape[3]}) || !is_float(view.kind)) {
    refuse_tensor("x", "must be [batch, heads, length, dim] in float32, bfloat16 or float16");
  }
  Tensor tensor;
  tensor.data = view.data;
  tensor.dtype = dtype_of(view.kind);
  for (int d = 0; d < 4; ++d) tensor.stride[d] = view.stride[d];
  return tensor;
}

RowNormalizer normalizer_of(const Problem& p, nb::handle shift, nb::handle denominator) {
  const Shape rows = {p.batch, p.query_heads, p.n_queries};
  return {elements<float>(shift, Kind::f32, rows, "shift"),
          elements<float>(denominator, Kind::f32, rows, "denominator")};
}

/// The innermost of four sizes: what a question with an argument was given.
std::int64_t last_size(nb::handle object) {
  if (object.is_none()) return 0;
  const View view = view_of(object);
  return view.ndim == 4 ? view.shape[3] : 0;
}

double pairs_of(const Problem& p) {
  return static_cast<double>(p.batch * p.query_heads) * static_cast<double>(p.n_queries) *
         static_cast<double>(p.n_keys);
}

void fold(const BoundProblem& problem, nb::handle shift, nb::handle denominator, int threads, nb::handle entropy,
          nb::handle distance, nb::handle mass, nb::handle mass_keys, nb::handle top_weights, nb::handle top_columns,
          nb::handle top_logits, nb::handle x, nb::handle applied, nb::handle received, nb::handle allowed,
          nb::handle queries, nb::handle diagonals, nb::handle pooled, std::int64_t first_row, std::int64_t all_rows,
          std::int64_t first_column, std::int64_t all_columns) {
  const Problem& p = problem.get();
  const std::int64_t b = p.batch, h = p.query_heads, n = p.n_queries, m = p.n_keys;
  Fold f;
  f.normalizer = normalizer_of(p, shift, denominator);
  f.entropy = elements<float>(entropy, Kind::f32, {b, h, n}, "entropy");
  f.distance = elements<float>(distance, Kind::f32, {b, h, n}, "distance");
  f.mass_keys = elements<const std::uint8_t>(mass_keys, Kind::boolean, {m}, "mass_keys");
  f.mass = elements<float>(mass, Kind::f32, {b, h, n}, "mass");
  f.top = last_size(top_weights);
  f.top_weights = elements<float>(top_weights, Kind::f32, {b, h, n, f.top}, "top_weights");
  f.top_columns = elements<std::int64_t>(top_columns, Kind::i64, {b, h, n, f.top}, "top_columns");
  f.top_logits = elements<float>(top_logits, Kind::f32, {b, h, n, f.top}, "top_logits");
  if (!x.is_none()) {
    const View view = view_of(x);
    f.x_of_query_heads = view.ndim == 4 && view.shape[1] == h;
    f.x = vectors(view, p, f.x_of_query_heads ? h : p.key_heads, m);
    f.x_dim = view.shape[3];
  }
  f.applied = elements<float>(applied, Kind::f32, {b, h, n, f.x_dim}, "applied");
  f.received = elements<float>(received, Kind::f32, {b, h, m}, "received");
  f.allowed = elements<float>(allowed, Kind::f32, {b, h, m}, "allowed");
  f.queries = elements<const std::uint8_t>(queries, Kind::boolean, {n}, "queries");
  f.diagonals = elements<float>(diagonals, Kind::f32, {b, h, n + m > 0 ? n + m - 1 : 0}, "diagonals");
  f.pool_columns = PoolSide{last_size(pooled), first_column, all_columns < 0 ? m : all_columns};
  f.pool_rows = PoolSide{pooled.is_none() ? 0 : view_of(pooled).shape[2], first_row, all_rows < 0 ? n : all_rows};
  f.pooled = elements<float>(pooled, Kind::f32, {b, h, f.pool_rows.blocks, f.pool_columns.blocks}, "pooled");
  const auto inside = [](const PoolSide& side, std::int64_t length) {
    return side.first >= 0 && side.first <= side.whole - length;
  };
  if (!inside(f.pool_rows, n) || !inside(f.pool_columns, m)) {
    refuse_tensor("pooled", "must be of a whole with room for the problem");
  }
  if (f.mass != nullptr && f.mass_keys == nullptr && m > 0) refuse_tensor("mass_keys", "must be there with `mass`");
  if ((f.top_weights == nullptr) != (f.top_columns == nullptr)) refuse_tensor("top_columns", "must be as top_weights");
  if (f.applied != nullptr && m > 0 && f.x.data == nullptr) refuse_tensor("x", "must be there with `applied`");
  if (b * h * n > 0 && f.normalizer.shift == nullptr) refuse_tensor("shift", "must be there");
  if (b * h * n > 0 && f.normalizer.denominator == nullptr) refuse_tensor("denominator", "must be there");
  run_released(pairs_of(p) * static_cast<double>(p.head_dim + f.x_dim + 16), threads,
               [&](const Kernels& kernels, int useful) { return run_fold(kernels, p, f, useful); });
}

void fold_transposed(const BoundProblem& problem, nb::handle shift, nb::handle denominator, nb::handle x,
                     nb::handle result, int threads) {
  const Problem& p = problem.get();
  FoldTransposed f;
  const View view = view_of(x);
  f.x = vectors(view, p, p.query_heads, p.n_queries);
  f.x_dim = view.shape[3];
  f.normalizer = normalizer_of(p, shift, denominator);
  f.result = elements<float>(result, Kind::f32, {p.batch, p.query_heads, p.n_keys, f.x_dim}, "result");
  if (f.normalizer.shift == nullptr || f.normalizer.denominator == nullptr) {
    if (p.n_queries > 0 && f.result != nullptr) refuse_tensor("shift", "must be there, and `denominator`");
  }
  if (f.result == nullptr) return;
  run_released(pairs_of(p) * static_cast<double>(p.head_dim + f.x_dim + 16), threads,
               [&](const Kernels& kernels, int useful) { return run_fold_transposed(kernels, p, f, useful); });
}

void fold_rows(const BoundProblem& problem, nb::handle shift, nb::handle denominator, std::int64_t item,
               std::int64_t head, nb::handle rows, std::int64_t first, std::int64_t last, nb::handle result,
               int threads) {
  const Problem& p = problem.get();
  FoldRows f;
  f.normalizer = normalizer_of(p, shift, denominator);
  if (shift.is_none() != denominator.is_none()) refuse_tensor("denominator", "must be as `shift` is");
  const View numbers = view_of(rows);
  if (numbers.ndim != 1) refuse_tensor("rows", "must be int64 [rows]");
  f.n_rows = numbers.shape[0];
  f.rows = elements<const std::int64_t>(rows, Kind::i64, {f.n_rows}, "rows");
  if (item < 0 || item >= p.batch) refuse_tensor("item", "must lie in the problem");
  if (head < 0 || head >= p.query_heads) refuse_tensor("head", "must lie in the problem");
  if (first < 0 || last > p.n_keys || first > last) refuse_tensor("first", "and `last` must lie in the keys");
  for (std::int64_t i = 0; i < f.n_rows; ++i) {
    if (f.rows[i] < 0 || f.rows[i] >= p.n_queries) refuse_tensor("rows", "must lie in the problem");
  }
  f.item = item;
  f.head = head;
  f.first = first;
  f.last = last;
  const View to = view_of(result);
  if (!has_shape(to, {f.n_rows, last - first}) || to.kind != Kind::f32 || (to.shape[1] > 1 && to.stride[1] != 1)) {
    refuse_tensor("result", "must be float32 [rows, columns], with unit last stride");
  }
  f.result = static_cast<float*>(to.data);
  f.stride = to.stride[0];
  const double pairs = static_cast<double>(f.n_rows) * static_cast<double>(last - first);
  run_released(pairs * static_cast<double>(p.head_dim + 16), threads,
               [&](const Kernels& kernels, int useful) { return run_fold_rows(kernels, p, f, useful); });
}

}  // namespace

void bind_fold(nb::module_& m) {
  m.def("fold", fold, "problem"_a, "shift"_a, "denominator"_a, "threads"_a, nb::kw_only(),
        "entropy"_a.none() = nb::none(), "distance"_a.none() = nb::none(), "mass"_a.none() = nb::none(),
        "mass_keys"_a.none() = nb::none(), "top_weights"_a.none() = nb::none(), "top_columns"_a.none() = nb::none(),
        "top_logits"_a.none() = nb::none(), "x"_a.none() = nb::none(), "applied"_a.none() = nb::none(),
        "received"_a.none() = nb::none(), "allowed"_a.none() = nb::none(), "queries"_a.none() = nb::none(),
        "diagonals"_a.none() = nb::none(),
        "pooled"_a.none() = nb::none(), "first_row"_a = 0, "all_rows"_a = -1, "first_column"_a = 0,
        "all_columns"_a = -1);
  m.def("fold_transposed", fold_transposed, "problem"_a, "shift"_a, "denominator"_a, "x"_a, "result"_a, "threads"_a);
  m.def("fold_rows", fold_rows, "problem"_a, "shift"_a.none(), "denominator"_a.none(), "item"_a, "head"_a, "rows"_a,
        "first"_a, "last"_a, "result"_a, "threads"_a);
}

}  // namespace regard
