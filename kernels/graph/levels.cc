// SPDX-License-Identifier: Apache-2.0
// The 8-bit levels behind a float value: what DequantizeLinear made it of.
#include "graph/levels.h"

#include <cmath>

namespace wia {

std::optional<Levels> levels_of(Graph& graph, const Edges& edges, ValueId x) {
  const Node* dq = edges.producer(x);
  if (!is_dequantize(dq)) return std::nullopt;
  std::optional<Grid> grid = grid_of(graph, *dq);
  if (!grid) return std::nullopt;
  const ValueId q = dq->inputs[0];
  if (grid->dtype == DType::kUint8) return Levels{q, *grid};
  if (!graph.is_constant(q)) return std::nullopt;
  const Tensor& t = *graph.values[q].constant;
  if (t.dtype != DType::kInt8) return std::nullopt;
  Tensor moved = Tensor::allocate(DType::kUint8, t.shape);
  for (int64_t i = 0, n = t.numel(); i < n; ++i)
    moved.as<uint8_t>()[i] = static_cast<uint8_t>(t.as<int8_t>()[i] + 128);
  grid->dtype = DType::kUint8;
  grid->zero_point += 128;
  return Levels{graph.add_constant(graph.values[q].name + "/uint8", std::move(moved)), *grid};
}

ValueId constant_levels(Graph& graph, ValueId x, const Grid& grid, bool exactly) {
  const Tensor t = *graph.values[x].constant;
  if (t.dtype != DType::kFloat32) return kNoValue;
  Tensor q = Tensor::allocate(grid.dtype, t.shape);
  for (int64_t i = 0, n = t.numel(); i < n; ++i) {
    const float value = t.as<float>()[i];
    const int32_t level = quantize_level(value, grid);
    if (exactly && !(dequantize_level(level, grid) == value)) return kNoValue;
    q.as<uint8_t>()[i] = static_cast<uint8_t>(level);
  }
  return graph.add_constant(graph.values[x].name + "/levels", std::move(q));
}

namespace {

template <class T>
void widen(const Tensor& t, std::vector<int32_t>* out) {
  out->assign(t.as<T>(), t.as<T>() + t.numel());
}

// The parameters of any DequantizeLinear of a constant whose scale is one value or one for each
// index of an axis.
struct Parameters {
  const Tensor* q;
  std::vector<float> scale;
  std::vector<int32_t> zero_point;
  int axis;
};

std::optional<Parameters> parameters_of(const Graph& graph, const Node* dq) {
  if (!is_dequantize(dq) || dq->inputs.size() < 2 || dq->i("block_size", 0) != 0)
    return std::nullopt;
  if (!graph.is_constant(dq->inputs[0]) || !graph.is_constant(dq->inputs[1])) return std::nullopt;
  const Tensor& q = *graph.values[dq->inputs[0]].constant;
  const Tensor& scale = *graph.values[dq->inputs[1]].constant;
  if (scale.dtype != DType::kFloat32) return std::nullopt;
  Parameters p{&q, {}, {}, -1};
  const int64_t n = scale.numel();
  p.scale.assign(scale.as<float>(), scale.as<float>() + n);
  for (float s : p.scale)
    if (!(s > 0.0f) || !std::isfinite(s)) return std::nullopt;
  if (scale.shape.rank() == 1 && !(n == 1 && q.shape.rank() == 0)) {
    int64_t axis = dq->i("axis", 1);
    if (axis < 0) axis += q.shape.rank();
    const bool along = axis >= 0 && axis < q.shape.rank() && q.shape[static_cast<int>(axis)] == n;
    if (n != 1 && !along) return std::nullopt;
    p.axis = n == 1 ? -1 : static_cast<int>(axis);
  } else if (n != 1) {
    return std::nullopt;
  }
  p.zero_point.assign(p.scale.size(), 0);
  if (dq->inputs.size() > 2 && dq->inputs[2] != kNoValue) {
    if (!graph.is_constant(dq->inputs[2])) return std::nullopt;
    const Tensor& zero_point = *graph.values[dq->inputs[2]].constant;
    if (zero_point.numel() != n || zero_point.dtype != q.dtype) return std::nullopt;
    if (q.dtype == DType::kInt8) {
      widen<int8_t>(zero_point, &p.zero_point);
    } else if (q.dtype == DType::kUint8) {
      widen<uint8_t>(zero_point, &p.zero_point);
    } else if (q.dtype == DType::kInt32) {
      widen<int32_t>(zero_point, &p.zero_point);
    } else {
      return std::nullopt;
    }
  }
  return p;
}

}  // namespace

std::optional<WeightLevels> weight_levels_of(const Graph& graph, const Edges& edges, ValueId w) {
  const std::optional<Parameters> p = parameters_of(graph, edges.producer(w));
  if (!p || (p->q->dtype != DType::kInt8 && p->q->dtype != DType::kUint8)) return std::nullopt;
  return WeightLevels{p->q, p->scale, p->zero_point, p->axis};
}

std::optional<std::vector<float>> constant_reals(const Graph& graph, const Edges& edges,
                                                 ValueId x) {
  if (graph.is_constant(x)) {
    const Tensor& t = *graph.values[x].constant;
    if (t.dtype != DType::kFloat32) return std::nullopt;
    return std::vector<float>(t.as<float>(), t.as<float>() + t.numel());
  }
  const std::optional<Parameters> p = parameters_of(graph, edges.producer(x));
  if (!p) return std::nullopt;
  const Tensor& q = *p->q;
  int64_t inner = 1;
  for (int d = p->axis + 1; p->axis >= 0 && d < q.shape.rank(); ++d) inner *= q.shape[d];
  std::vector<float> reals(static_cast<size_t>(q.numel()));
  for (size_t i = 0; i < reals.size(); ++i) {
    const size_t c = p->axis < 0 ? 0 : i / static_cast<size_t>(inner) % p->scale.size();
    int64_t level = 0;
    if (q.dtype == DType::kInt32) {
      level = q.as<int32_t>()[i];
    } else if (q.dtype == DType::kInt8) {
      level = q.as<int8_t>()[i];
    } else if (q.dtype == DType::kUint8) {
      level = q.as<uint8_t>()[i];
    } else {
      return std::nullopt;
    }
    reals[i] = static_cast<float>(level - p->zero_point[c]) * p->scale[c];
  }
  return reals;
}

}  // namespace wia
