// SPDX-License-Identifier: Apache-2.0
// Integer products: DQ(x), DQ(w), bias -> Conv, ConvTranspose, Gemm or MatMul -> [+ bias] [Relu,
// Clip] -> [Q].
//
//   sum (x - zp_x) scale_x * (w - zp_w) scale_w  =  scale_x scale_w * acc docs/quantization.md (7)
//   then Q: (8), with Relu and Clip as bounds (10); without Q: (9).
//   bias: its int32 levels where its scale is scale_x * scale_w, else rounded to that grid (18).
//
// Weights of a channel whose bias does not fit int32 get a coarser grid, (24).
// The pass declines, and the float operator stays, where int32 cannot be proved to hold every
// accumulator.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "graph/edges.h"
#include "graph/ending.h"
#include "graph/grid.h"
#include "graph/levels.h"
#include "graph/passes/passes.h"
#include "graph/permute.h"

namespace wia {
namespace {

// The constant side of the product, on int8 with one multiplier an output channel.
struct Weights {
  Tensor q;                   // int8
  std::vector<double> scale;  // [channels]
  std::vector<int32_t>
      zero_point;  // [channels]; all 0 but where the levels less their zero point do not fit int8
  bool centred = true;  // every zero point is 0
  int64_t channels = 0;
};

// Moves the levels so that the zero point is 0 where they fit int8, else only to int8.
std::optional<Weights> centred(const WeightLevels& w, int axis, int64_t groups_on_axis) {
  const Tensor& q = *w.q;
  if (axis >= q.shape.rank()) return std::nullopt;
  const int64_t along = q.shape[axis];
  if (along < 1 || q.numel() < 1) return std::nullopt;
  if (w.axis >= 0 && w.axis != axis) return std::nullopt;
  Weights out;
  out.channels = along * groups_on_axis;
  const size_t n = static_cast<size_t>(along);
  auto of = [&](size_t c) { return w.axis < 0 ? 0 : c; };
  int64_t inner = 1;
  for (int d = axis + 1; d < q.shape.rank(); ++d) inner *= q.shape[d];
  Tensor moved = Tensor::allocate(DType::kInt8, q.shape);
  bool fits = true;
  for (int64_t i = 0, count = q.numel(); i < count && fits; ++i) {
    const size_t c = of(static_cast<size_t>(i / inner % along));
    const int32_t level = q.dtype == DType::kInt8 ? q.as<int8_t>()[i] : q.as<uint8_t>()[i];
    const int32_t value = level - w.zero_point[c];
    fits = value >= -128 && value <= 127;
    if (fits) moved.as<int8_t>()[i] = static_cast<int8_t>(value);
  }
  const int32_t middle = q.dtype == DType::kInt8 ? 0 : 128;
  if (!fits)
    for (int64_t i = 0, count = q.numel(); i < count; ++i)
      moved.as<int8_t>()[i] =
          static_cast<int8_t>(middle ? q.as<uint8_t>()[i] - middle : q.as<int8_t>()[i]);
  out.q = std::move(moved);
  out.centred = fits;
  for (int64_t g = 0; g < groups_on_axis; ++g)
    for (size_t c = 0; c < n; ++c) {
      out.scale.push_back(w.scale[of(c)]);
      out.zero_point.push_back(fits ? 0 : w.zero_point[of(c)] - middle);
    }
  return out;
}

constexpr double kInt32Max = 2147483647.0;
constexpr double kLargestFactor = 1e30;
constexpr float kLargestMultiplier = 1e30f;

// What the bias asks for, on the grid of each channel's accumulator and not yet an integer of 32
// bits; false when it is no constant of one value or n. Absent: zeros.
bool bias_levels(const Graph& graph, const Edges& edges, ValueId bias, double beta,
                 const std::vector<double>& product_scale, std::vector<double>* levels_out) {
  const size_t n = product_scale.size();
  std::vector<double>& out = *levels_out;
  out.assign(n, 0.0);
  if (bias == kNoValue) return true;
  const std::optional<std::vector<float>> reals = constant_reals(graph, edges, bias);
  if (!reals || (reals->size() != n && reals->size() != 1)) return false;
  // The file's own levels where they are on this grid already.
  const Tensor *levels = nullptr, *level_scale = nullptr;
  if (const Node* dq = edges.producer(bias); dq && beta == 1.0) {
    const Tensor& q = *graph.values[dq->inputs[0]].constant;
    const Tensor* zero_point = dq->inputs.size() > 2 && dq->inputs[2] != kNoValue
                                   ? graph.values[dq->inputs[2]].constant.get()
                                   : nullptr;
    const bool zero = !zero_point || (zero_point->dtype == DType::kInt32 &&
                                      std::all_of(zero_point->as<int32_t>(),
                                                  zero_point->as<int32_t>() + zero_point->numel(),
                                                  [](int32_t z) { return z == 0; }));
    if (q.dtype == DType::kInt32 && zero) {
      levels = &q;
      level_scale = graph.values[dq->inputs[1]].constant.get();
    }
  }
  for (size_t c = 0; c < n; ++c) {
    const size_t from = reals->size() == 1 ? 0 : c;
    out[c] = std::nearbyint(double{(*reals)[from]} * beta / product_scale[c]);
    if (!std::isfinite(out[c])) return false;
    if (!levels) continue;
    const float mine = static_cast<float>(product_scale[c]);
    const float theirs = level_scale->as<float>()[level_scale->numel() == 1 ? 0 : from];
    if (std::nextafterf(mine, 0.0f) <= theirs && theirs <= std::nextafterf(mine, INFINITY))
      out[c] = levels->as<int32_t>()[from];
  }
  return true;
}

// Proves that int32 holds every accumulator, (19), with the int32 bias in *bias; coarsens the
// weights of a channel whose bias is too large for its grid, (24). channel_of(i): of element i of
// w. False, and nothing changed, where it cannot.
template <class ChannelOf>
bool fit_accumulators(const Graph& graph, const Edges& edges, ValueId bias, double beta,
                      int32_t x_zero_point, const ChannelOf& channel_of, Weights* w,
                      std::vector<double>* product_scale, std::vector<int32_t>* out) {
  const size_t n = product_scale->size();
  std::vector<double> levels;
  if (!bias_levels(graph, edges, bias, beta, *product_scale, &levels)) return false;
  const double x_reach = std::max(x_zero_point, 255 - x_zero_point);
  std::vector<double> reach(n, 0.0), slack(n, 0.0);  // slack: what rounding coarser weights may add
  for (int64_t i = 0, count = w->q.numel(); i < count; ++i) {
    const size_t c = channel_of(i);
    reach[c] += std::abs(w->q.as<int8_t>()[i] - w->zero_point[c]) * x_reach;
    slack[c] += 0.5 * x_reach;
  }
  std::vector<double> factor(n, 1.0);
  bool coarser = false;
  for (size_t c = 0; c < n; ++c) {
    if (reach[c] > kInt32Max) return false;
    while (std::abs(levels[c]) / factor[c] + reach[c] / factor[c] +
               (factor[c] > 1.0 ? slack[c] : 0.0) >
           kInt32Max - 1.0) {
      if (!w->centred || factor[c] > kLargestFactor || slack[c] > kInt32Max / 2) return false;
      factor[c] *= 2.0;
      coarser = true;
    }
  }
  out->resize(n);
  for (size_t c = 0; c < n; ++c) {
    (*out)[c] = static_cast<int32_t>(std::nearbyint(levels[c] / factor[c]));
    (*product_scale)[c] *= factor[c];
  }
  if (!coarser) return true;
  Tensor q = Tensor::allocate(DType::kInt8, w->q.shape);
  for (int64_t i = 0, count = q.numel(); i < count; ++i)
    q.as<int8_t>()[i] =
        static_cast<int8_t>(std::nearbyint(w->q.as<int8_t>()[i] / factor[channel_of(i)]));
  w->q = std::move(q);
  return true;
}

Tensor tensor_of(const std::vector<float>& values) {
  Tensor t = Tensor::allocate(DType::kFloat32, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), t.as<float>());
  return t;
}

Tensor tensor_of(const std::vector<int32_t>& values) {
  Tensor t = Tensor::allocate(DType::kInt32, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), t.as<int32_t>());
  return t;
}

// Multipliers of (8) or (9); nullopt when one is zero, infinite or beyond what the kernels take.
std::optional<std::vector<float>> multipliers(const std::vector<double>& product_scale,
                                              const std::optional<Grid>& grid) {
  std::vector<float> out;
  for (double scale : product_scale) {
    const float of_acc = static_cast<float>(scale);
    const float m = grid ? of_acc / grid->scale : of_acc;
    if (!(of_acc >= std::numeric_limits<float>::min()) || !(m > 0.0f) || m > kLargestMultiplier)
      return std::nullopt;
    out.push_back(m);
  }
  return out;
}

// Sets what a product's epilogue is told by attributes.
void set_ending(Node& node, const ProductEnd& ending, const std::vector<float>& m,
                const std::vector<int32_t>& bias) {
  node.opset = 1;
  node.attributes["multiplier"] = tensor_of(m);
  if (std::any_of(bias.begin(), bias.end(), [](int32_t b) { return b != 0; }))
    node.attributes["bias"] = tensor_of(bias);
  node.attributes["quantized"] = int64_t{ending.grid ? 1 : 0};
  if (!ending.grid) return;
  node.attributes["zero_point"] = int64_t{ending.grid->zero_point};
  node.attributes["qmin"] = int64_t{ending.qmin};
  node.attributes["qmax"] = int64_t{ending.qmax};
}

void finish(Graph& graph, Edges& edges, Node& product, const ProductEnd& ending,
            std::vector<ValueId> inputs, const char* op_type, Node** made) {
  const std::string name = product.name;
  const auto attributes = product.attributes;
  for (Node* node : ending.absorbed) edges.detach(*node);
  edges.detach(product);
  Node& fused = graph.add_node(op_type, kWiaDomain, name, std::move(inputs), {ending.out});
  fused.attributes = attributes;
  edges.add(fused);
  *made = &fused;
}

// Conv and ConvTranspose become channels-last between two Transposes, which sink_transposes moves
// out of the way.
bool fuse_conv(Graph& graph, Edges& edges, Node& conv) {
  const bool transposed = conv.op_type == "ConvTranspose";
  const std::optional<Levels> x = levels_of(graph, edges, conv.inputs[0]);
  const std::optional<WeightLevels> wl = weight_levels_of(graph, edges, conv.inputs[1]);
  if (!x || !wl || graph.is_constant(x->q)) return false;
  const int rank = wl->q->shape.rank();
  if (rank != 3 && rank != 4) return false;
  const int64_t groups = conv.i("group", 1);
  if (transposed && conv.has("output_shape")) return false;  // its padding depends on the size of x
  if (groups < 1 || groups > wl->q->shape[0]) return false;
  const int axis = transposed ? 1 : 0;
  std::optional<Weights> w = centred(*wl, axis, transposed ? groups : 1);
  if (!w || w->channels % groups != 0 || (transposed && wl->q->shape[0] % groups != 0))
    return false;
  if (!w->centred && (transposed || wl->zero_point.size() > 1)) return false;
  std::vector<double> product_scale;
  for (double s : w->scale) product_scale.push_back(double{x->grid.scale} * s);
  int64_t inner = 1;
  for (int d = 2; d < rank; ++d) inner *= wl->q->shape[d];
  const int64_t second = wl->q->shape[1], rows_of_group = wl->q->shape[0] / groups;
  std::vector<int32_t> bias;
  const ValueId bias_value = conv.inputs.size() > 2 ? conv.inputs[2] : kNoValue;
  const auto channel_of = [&](int64_t i) -> size_t {
    const int64_t row = i / inner / second, column = i / inner % second;
    return static_cast<size_t>(transposed ? row / rows_of_group * second + column : row);
  };
  if (!fit_accumulators(graph, edges, bias_value, 1.0, x->grid.zero_point, channel_of, &*w,
                        &product_scale, &bias))
    return false;
  ProductEnd ending;
  follow(graph, edges, conv.outputs[0], &ending);
  const std::optional<std::vector<float>> m = multipliers(product_scale, ending.grid);
  if (!m) return false;
  const int32_t w_zero_point = w->zero_point[0];
  const ValueId weights = graph.add_constant(conv.name + "/weights", w->q);
  Node* fused = nullptr;
  const ValueId last = channels_last(graph, edges, x->q, rank, conv.name);
  const ValueId out = ending.out;
  ending.out = channels_first(graph, edges, out, rank,
                              ending.grid ? DType::kUint8 : DType::kFloat32, conv.name);
  finish(graph, edges, conv, ending, {last, weights}, transposed ? "QConvTranspose" : "QConv",
         &fused);
  set_ending(*fused, ending, *m, bias);
  fused->attributes["x_zero_point"] = int64_t{x->grid.zero_point};
  fused->attributes["w_zero_point"] = int64_t{w_zero_point};
  return true;
}

// `w` behind a Transpose of two axes, as exporters write Linear layers; *swapped tells.
std::optional<WeightLevels> matrix_levels(const Graph& graph, const Edges& edges, ValueId w,
                                          bool* swapped) {
  *swapped = false;
  if (const Node* node = edges.producer(w); is_op(node, "Transpose")) {
    const auto perm = node->ints("perm");
    if (!perm.empty() && perm != std::vector<int64_t>{1, 0}) return std::nullopt;
    w = node->inputs[0];
    *swapped = true;
  }
  std::optional<WeightLevels> levels = weight_levels_of(graph, edges, w);
  if (!levels || levels->q->shape.rank() != 2) return std::nullopt;
  return levels;
}

// A constant added to the result along the last axis: `y + c`, c of [n], [1, n] ... or one element.
bool added_bias(const Graph& graph, const Edges& edges, const Node& add, ValueId y, int64_t n,
                ValueId* bias) {
  if (!is_op(&add, "Add") || add.inputs.size() != 2 || add.inputs[0] == add.inputs[1]) return false;
  const ValueId c = add.inputs[add.inputs[0] == y ? 1 : 0];
  ValueId source = c;
  if (!graph.is_constant(c)) {
    const Node* dq = edges.producer(c);
    if (!is_dequantize(dq) || !graph.is_constant(dq->inputs[0])) return false;
    source = dq->inputs[0];
  }
  const Shape& shape = graph.values[source].constant->shape;
  if (!graph.values[y].has_shape || shape.rank() > graph.values[y].shape.rank()) return false;
  for (int d = 0; d + 1 < shape.rank(); ++d)
    if (shape[d] != 1) return false;
  if (shape.rank() > 0 && shape[shape.rank() - 1] != n && shape[shape.rank() - 1] != 1)
    return false;
  *bias = c;
  return true;
}

// Gemm and MatMul with a constant right side: rows of x times [K, N].
bool fuse_gemm(Graph& graph, Edges& edges, Node& node) {
  const bool gemm = node.op_type == "Gemm";
  const std::optional<Levels> x = levels_of(graph, edges, node.inputs[0]);
  bool swapped = false;
  const std::optional<WeightLevels> wl = matrix_levels(graph, edges, node.inputs[1], &swapped);
  if (!x || !wl || graph.is_constant(x->q)) return false;
  if (gemm && node.i("transA", 0)) return false;
  const float alpha = gemm ? node.f("alpha", 1.0f) : 1.0f,
              beta = gemm ? node.f("beta", 1.0f) : 1.0f;
  if (!(alpha > 0.0f) || !std::isfinite(alpha) || !std::isfinite(beta)) return false;
  const bool trans_b = (gemm && node.i("transB", 0)) != swapped;  // w is [N, K]
  const int axis = trans_b ? 0 : 1;
  std::optional<Weights> w = centred(*wl, axis, 1);
  if (!w) return false;
  if (!w->centred && wl->zero_point.size() > 1) return false;
  std::vector<double> product_scale;
  for (double s : w->scale) product_scale.push_back(double{x->grid.scale} * s * double{alpha});
  const int64_t columns = wl->q->shape[1];
  const auto channel_of = [&](int64_t i) {
    return static_cast<size_t>(trans_b ? i / columns : i % columns);
  };
  ValueId bias_value = gemm && node.inputs.size() > 2 ? node.inputs[2] : kNoValue;
  ProductEnd ending;
  ValueId y = node.outputs[0];
  Node* add = !gemm && edges.single_use(y) ? edges.consumers(y)[0] : nullptr;
  std::vector<int32_t> bias;
  if (add && added_bias(graph, edges, *add, y, w->channels, &bias_value) &&
      fit_accumulators(graph, edges, bias_value, 1.0, x->grid.zero_point, channel_of, &*w,
                       &product_scale, &bias)) {
    ending.absorbed.push_back(add);
    y = add->outputs[0];
  } else {
    if (!gemm) bias_value = kNoValue;
    if (bias_value != kNoValue) {
      // Gemm's C may be a matrix; one row of it is a bias.
      const Node* dq = edges.producer(bias_value);
      const ValueId c = graph.is_constant(bias_value) ? bias_value : dq ? dq->inputs[0] : kNoValue;
      if (!graph.is_constant(c)) return false;
      const Shape& shape = graph.values[c].constant->shape;
      if (shape.rank() > 1 && shape[0] != 1) return false;
      if (shape.rank() == 2 && shape[1] == 1 && w->channels != 1) return false;
    }
    if (!fit_accumulators(graph, edges, bias_value, beta, x->grid.zero_point, channel_of, &*w,
                          &product_scale, &bias))
      return false;
  }
  follow(graph, edges, y, &ending);
  const std::optional<std::vector<float>> m = multipliers(product_scale, ending.grid);
  if (!m) return false;
  const int32_t w_zero_point = w->zero_point[0];
  const ValueId weights = graph.add_constant(node.name + "/weights", w->q);
  Node* fused = nullptr;
  finish(graph, edges, node, ending, {x->q, weights}, "QGemm", &fused);
  fused->attributes.clear();
  set_ending(*fused, ending, *m, bias);
  fused->attributes["trans_b"] = int64_t{trans_b};
  fused->attributes["x_zero_point"] = int64_t{x->grid.zero_point};
  fused->attributes["w_zero_point"] = int64_t{w_zero_point};
  return true;
}

// MatMul of two activations; the kernel proves K small enough at plan time.
bool fuse_matmul(Graph& graph, Edges& edges, Node& node) {
  const std::optional<Levels> a = levels_of(graph, edges, node.inputs[0]);
  const std::optional<Levels> b = levels_of(graph, edges, node.inputs[1]);
  if (!a || !b) return false;
  ProductEnd ending;
  follow(graph, edges, node.outputs[0], &ending);
  const std::optional<std::vector<float>> m =
      multipliers({double{a->grid.scale} * double{b->grid.scale}}, ending.grid);
  if (!m) return false;
  Node* fused = nullptr;
  finish(graph, edges, node, ending, {a->q, b->q}, "QMatMul", &fused);
  fused->attributes.clear();
  set_ending(*fused, ending, *m, {});
  fused->attributes["a_zero_point"] = int64_t{a->grid.zero_point};
  fused->attributes["b_zero_point"] = int64_t{b->grid.zero_point};
  return true;
}

}  // namespace

bool fuse_products(Graph& graph, const PassContext&) {
  Edges edges(graph);
  bool changed = false;
  const size_t n = graph.nodes.size();
  for (size_t i = 0; i < n; ++i) {
    Node& node = *graph.nodes[i];
    if (!node.domain.empty() || node.inputs.size() < 2 || node.outputs.size() != 1) continue;
    if (node.op_type == "Conv" || node.op_type == "ConvTranspose") {
      changed |= fuse_conv(graph, edges, node);
    } else if (node.op_type == "Gemm") {
      changed |= fuse_gemm(graph, edges, node);
    } else if (node.op_type == "MatMul") {
      changed |= fuse_gemm(graph, edges, node) || fuse_matmul(graph, edges, node);
    }
  }
  return changed;
}

}  // namespace wia
