// SPDX-License-Identifier: Apache-2.0
// Shapes as far as they follow from the inputs' shapes and the constants.
#include "graph/shapes.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "graph/grid.h"

namespace wia {
namespace {

constexpr int64_t kMaxDim = int64_t{1}
                            << 40;  // larger ones become unknown, so that sums cannot overflow
constexpr int64_t kMaxFactor = int64_t{1} << 31;

int64_t times(int64_t a, int64_t b) {
  return a < 0 || b < 0 || a > kMaxFactor || b > kMaxFactor ? -1 : a * b;
}

Shape bounded(Shape s) {
  for (int d = 0; d < s.rank(); ++d)
    if (s[d] < 0 || s[d] > kMaxDim) s[d] = -1;
  return s;
}

// The elements of small integer tensors that are made of shapes, kUnknown where one is not known.
constexpr int64_t kUnknown = INT64_MIN;
constexpr size_t kMostElements = 64;
using Contents = std::map<ValueId, std::vector<int64_t>>;

struct Inferrer {
  Graph& graph;
  const Node& node;
  Contents& contents;

  bool has(size_t i) const { return i < node.inputs.size() && node.inputs[i] != kNoValue; }
  const Shape* shape(size_t i) const {
    if (!has(i) || !graph.values[node.inputs[i]].has_shape) return nullptr;
    return &graph.values[node.inputs[i]].shape;
  }
  std::optional<std::vector<int64_t>> list(size_t i) const {
    if (!has(i)) return std::nullopt;
    return integer_constant(graph, node.inputs[i]);
  }
  // The same with the elements that are known; nullopt when not even their number is.
  std::optional<std::vector<int64_t>> partial(size_t i) const {
    if (!has(i)) return std::nullopt;
    if (const auto it = contents.find(node.inputs[i]); it != contents.end()) return it->second;
    if (!graph.is_constant(node.inputs[i])) return std::nullopt;
    const Shape& own = graph.values[node.inputs[i]].constant->shape;
    if (own.rank() > 1 || own.numel() > static_cast<int64_t>(kMostElements)) return std::nullopt;
    return list(i);
  }
  // Attributes within +-kMaxFactor, so that the sums and products below cannot overflow.
  std::vector<int64_t> ints(const char* attribute) const {
    auto values = node.ints(attribute);
    for (int64_t& v : values) v = std::clamp(v, -kMaxFactor, kMaxFactor);
    return values;
  }
  // A list that was an attribute in older opsets and is an input in newer ones.
  std::optional<std::vector<int64_t>> list_or(const char* attribute, size_t i) const {
    if (node.has(attribute)) return node.ints(attribute);
    return list(i);
  }
  void set(size_t output, const Shape& exact) const {
    const Shape s = bounded(exact);
    if (output >= node.outputs.size() || node.outputs[output] == kNoValue) return;
    Value& value = graph.values[node.outputs[output]];
    if (value.has_shape && value.shape.rank() == s.rank()) {
      for (int d = 0; d < s.rank(); ++d)
        if (value.shape[d] < 0) value.shape[d] = s[d];
      return;
    }
    value.has_shape = true;
    value.shape = s;
  }
};

using Rule = void (*)(const Inferrer&);

bool axis_of(int64_t axis, int rank, int* out) {
  if (axis < 0) axis += rank;
  if (axis < 0 || axis >= rank) return false;
  *out = static_cast<int>(axis);
  return true;
}

void same(const Inferrer& n) {
  if (const Shape* s = n.shape(0)) n.set(0, *s);
}

void broadcast(const Inferrer& n) {
  Shape out;
  for (size_t i = 0; i < n.node.inputs.size(); ++i) {
    const Shape* s = n.shape(i);
    if (!s || !broadcast_shape(out, *s, &out)) return;
  }
  n.set(0, out);
}

// One spatial dimension of a Conv or a pool; -1 when something is unknown.
int64_t window_out(int64_t in, int64_t kernel, int64_t stride, int64_t dilation, int64_t begin,
                   int64_t end, const std::string& auto_pad, bool ceil_mode) {
  if (in < 0 || in > kMaxDim || kernel > kMaxFactor || kernel <= 0 || stride <= 0 || dilation <= 0)
    return -1;
  if (auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER") return (in + stride - 1) / stride;
  if (auto_pad == "VALID") begin = end = 0;
  const int64_t span = in + begin + end - (dilation * (kernel - 1) + 1);
  if (span < 0) return -1;
  return (ceil_mode ? -1 : span / stride + 1);
}

void window(const Inferrer& n, const Shape& x, int64_t channels,
            const std::vector<int64_t>& kernel) {
  const int spatial = x.rank() - 2;
  if (spatial < 1) return;
  const auto strides = n.ints("strides"), dilations = n.ints("dilations"), pads = n.ints("pads");
  const std::string auto_pad = n.node.s("auto_pad", "NOTSET");
  const bool ceil_mode = n.node.i("ceil_mode", 0) != 0;
  Shape out = x;
  out[1] = channels;
  for (int d = 0; d < spatial; ++d) {
    const size_t i = static_cast<size_t>(d), count = static_cast<size_t>(spatial);
    out[d + 2] =
        i < kernel.size()
            ? window_out(x[d + 2], kernel[i], i < strides.size() ? strides[i] : 1,
                         i < dilations.size() ? dilations[i] : 1,
                         pads.size() == 2 * count ? pads[i] : 0,
                         pads.size() == 2 * count ? pads[i + count] : 0, auto_pad, ceil_mode)
            : -1;
  }
  n.set(0, out);
}

void conv(const Inferrer& n) {
  const Shape *x = n.shape(0), *w = n.shape(1);
  if (!x || !w || x->rank() != w->rank() || w->rank() < 3) return;
  std::vector<int64_t> kernel(w->begin() + 2, w->end());
  window(n, *x, (*w)[0], kernel);
}

void conv_transpose(const Inferrer& n) {
  const Shape *x = n.shape(0), *w = n.shape(1);
  if (!x || !w || x->rank() != w->rank() || w->rank() < 3) return;
  Shape out = *x;
  out[1] = times((*w)[1], n.node.i("group", 1));
  for (int d = 2; d < out.rank(); ++d) out[d] = -1;
  n.set(0, out);
}

void pool(const Inferrer& n) {
  if (const Shape* x = n.shape(0)) {
    window(n, *x, x->rank() > 1 ? (*x)[1] : -1, n.ints("kernel_shape"));
    if (n.node.outputs.size() > 1 && n.node.outputs[1] != kNoValue &&
        n.graph.values[n.node.outputs[0]].has_shape)
      n.set(1, n.graph.values[n.node.outputs[0]].shape);
  }
}

void global_pool(const Inferrer& n) {
  const Shape* x = n.shape(0);
  if (!x || x->rank() < 3) return;
  Shape out = *x;
  for (int d = 2; d < out.rank(); ++d) out[d] = 1;
  n.set(0, out);
}

void transpose(const Inferrer& n) {
  const Shape* x = n.shape(0);
  if (!x) return;
  auto perm = n.node.ints("perm");
  Shape out = *x;
  for (int d = 0; d < x->rank(); ++d) {
    const int64_t from =
        perm.empty() ? x->rank() - 1 - d : (d < static_cast<int>(perm.size()) ? perm[d] : -1);
    if (from < 0 || from >= x->rank()) return;
    out[d] = (*x)[static_cast<int>(from)];
  }
  n.set(0, out);
}

void reshape(const Inferrer& n) {
  const Shape* x = n.shape(0);
  auto target = n.list_or("shape", 1);
  if (!target) target = n.partial(1);
  if (!target) {
    const Shape* rank = n.shape(1);
    if (!rank || rank->rank() != 1 || (*rank)[0] < 0 || (*rank)[0] > Shape::kMaxRank) return;
    Shape out;
    for (int64_t d = 0; d < (*rank)[0]; ++d) out.push_back(-1);
    n.set(0, out);
    return;
  }
  if (target->size() > Shape::kMaxRank) return;
  const bool allow_zero = n.node.i("allowzero", 0) != 0;
  Shape out;
  int unknown = -1;
  int64_t known = 1;
  bool all_known = x && x->known();
  for (size_t i = 0; i < target->size(); ++i) {
    int64_t d = (*target)[i];
    if (d == 0 && !allow_zero)
      d = x && static_cast<int>(i) < x->rank() ? (*x)[static_cast<int>(i)] : -2;
    if (d == -1) unknown = static_cast<int>(i);
    if (d < -1) all_known = false;  // kUnknown, too
    if (d > 0 && known < (int64_t{1} << 40) / d) known *= d;
    out.push_back(d < 0 ? -1 : d);
  }
  if (unknown >= 0 && all_known && known > 0) out[unknown] = x->numel() / known;
  n.set(0, out);
}

void flatten(const Inferrer& n) {
  const Shape* x = n.shape(0);
  if (!x) return;
  int64_t axis = n.node.i("axis", 1);
  if (axis < 0) axis += x->rank();
  Shape out{1, 1};
  for (int d = 0; d < x->rank(); ++d) {
    int64_t& side = out[d < axis ? 0 : 1];
    side = times(side, (*x)[d]);
  }
  n.set(0, out);
}

void squeeze(const Inferrer& n) {
  const Shape* x = n.shape(0);
  auto axes = n.list_or("axes", 1);
  if (!x || (n.has(1) && !axes)) return;
  uint32_t drop = 0;
  if (axes) {
    for (int64_t a : *axes) {
      int d = 0;
      if (!axis_of(a, x->rank(), &d)) return;
      drop |= 1u << d;
    }
  } else {
    if (!x->known()) return;
    for (int d = 0; d < x->rank(); ++d) drop |= (*x)[d] == 1 ? 1u << d : 0;
  }
  Shape out;
  for (int d = 0; d < x->rank(); ++d)
    if (!(drop >> d & 1)) out.push_back((*x)[d]);
  n.set(0, out);
}

void unsqueeze(const Inferrer& n) {
  const Shape* x = n.shape(0);
  auto axes = n.list_or("axes", 1);
  if (!x || !axes) return;
  const int rank = x->rank() + static_cast<int>(axes->size());
  if (rank > Shape::kMaxRank) return;
  uint32_t added = 0;
  for (int64_t a : *axes) {
    int d = 0;
    if (!axis_of(a, rank, &d) || (added >> d & 1)) return;
    added |= 1u << d;
  }
  Shape out;
  for (int d = 0, from = 0; d < rank; ++d) out.push_back(added >> d & 1 ? 1 : (*x)[from++]);
  n.set(0, out);
}

void concat(const Inferrer& n) {
  const Shape* first = n.shape(0);
  int axis = 0;
  if (!first || !axis_of(n.node.i("axis", 0), first->rank(), &axis)) return;
  Shape out = *first;
  for (size_t i = 1; i < n.node.inputs.size(); ++i) {
    const Shape* s = n.shape(i);
    if (s && s->rank() != out.rank()) return;
    for (int d = 0; s && d < out.rank(); ++d)
      if (d != axis && out[d] < 0) out[d] = (*s)[d];
    out[axis] = !s || out[axis] < 0 || (*s)[axis] < 0 ? -1 : out[axis] + (*s)[axis];
  }
  n.set(0, out);
}

void slice(const Inferrer& n) {
  const Shape* x = n.shape(0);
  if (!x) return;
  Shape out = *x;
  auto starts = n.list_or("starts", 1), ends = n.list_or("ends", 2), axes = n.list_or("axes", 3),
       steps = n.list(4);
  const bool known = starts && ends && starts->size() == ends->size() && (axes || !n.has(3)) &&
                     (steps || !n.has(4));
  if (!known) {
    if (!axes) {
      for (int d = 0; d < out.rank(); ++d) out[d] = -1;
    } else {
      for (int64_t a : *axes) {
        int d = 0;
        if (axis_of(a, out.rank(), &d)) out[d] = -1;
      }
    }
    n.set(0, out);
    return;
  }
  for (size_t i = 0; i < starts->size(); ++i) {
    int d = 0;
    if (!axis_of(axes && i < axes->size() ? (*axes)[i] : static_cast<int64_t>(i), out.rank(), &d))
      return;
    const int64_t step = steps && i < steps->size() ? (*steps)[i] : 1, dim = (*x)[d];
    if (dim < 0 || step == 0 || step > (1 << 30) || step < -(1 << 30)) {
      out[d] = -1;
      continue;
    }
    auto clip = [&](int64_t v, int64_t lo, int64_t hi) {
      return std::clamp(v < 0 ? std::max<int64_t>(v, -dim) + dim : v, lo, hi);
    };
    int64_t count = 0;
    if (step > 0) {
      const int64_t from = clip((*starts)[i], 0, dim), to = clip((*ends)[i], 0, dim);
      count = (to - from + step - 1) / step;
    } else {
      const int64_t from = clip((*starts)[i], 0, dim - 1);
      const int64_t to = (*ends)[i] < -dim ? -1 : clip((*ends)[i], -1, dim - 1);
      count = (from - to - step - 1) / -step;
    }
    out[d] = std::max<int64_t>(count, 0);
  }
  n.set(0, out);
}

void split(const Inferrer& n) {
  const Shape* x = n.shape(0);
  int axis = 0;
  if (!x || !axis_of(n.node.i("axis", 0), x->rank(), &axis)) return;
  auto parts = n.list_or("split", 1);
  const int64_t count = static_cast<int64_t>(n.node.outputs.size()), dim = (*x)[axis];
  for (int64_t i = 0; i < count; ++i) {
    Shape out = *x;
    if (parts) {
      out[axis] = i < static_cast<int64_t>(parts->size()) ? (*parts)[i] : -1;
    } else {
      const int64_t each = dim < 0 ? -1 : (dim + count - 1) / count;
      out[axis] = dim < 0 ? -1 : std::min(each, std::max<int64_t>(0, dim - i * each));
    }
    n.set(static_cast<size_t>(i), out);
  }
}

void gather(const Inferrer& n) {
  const Shape *x = n.shape(0), *indices = n.shape(1);
  int axis = 0;
  if (!x || !indices || !axis_of(n.node.i("axis", 0), x->rank(), &axis)) return;
  if (x->rank() - 1 + indices->rank() > Shape::kMaxRank) return;
  Shape out;
  for (int d = 0; d < axis; ++d) out.push_back((*x)[d]);
  for (int64_t d : *indices) out.push_back(d);
  for (int d = axis + 1; d < x->rank(); ++d) out.push_back((*x)[d]);
  n.set(0, out);
}

void pad(const Inferrer& n) {
  const Shape* x = n.shape(0);
  if (!x) return;
  auto pads = n.node.has("pads") ? std::optional(n.node.ints("pads")) : n.list(1);
  if (pads)
    for (int64_t& p : *pads) p = std::clamp(p, -kMaxDim, kMaxDim);
  auto axes = n.list(3);
  Shape out = *x;
  const bool simple = pads && !n.has(3) && pads->size() == 2 * static_cast<size_t>(x->rank());
  for (int d = 0; d < out.rank(); ++d) {
    const int64_t extra = simple ? (*pads)[d] + (*pads)[d + out.rank()] : 0;
    out[d] = simple && out[d] >= 0 && extra < (int64_t{1} << 40)
                 ? std::max<int64_t>(out[d] + extra, 0)
                 : -1;
  }
  if (pads && axes && pads->size() == 2 * axes->size()) {
    out = *x;
    for (size_t i = 0; i < axes->size(); ++i) {
      int d = 0;
      if (!axis_of((*axes)[i], out.rank(), &d)) return;
      if (out[d] >= 0) out[d] += (*pads)[i] + (*pads)[i + axes->size()];
      if (out[d] < 0) out[d] = -1;
    }
  }
  n.set(0, out);
}

void reduce(const Inferrer& n) {
  const Shape* x = n.shape(0);
  auto axes = n.list_or("axes", 1);
  if (!x || (n.has(1) && !axes)) return;
  const bool keep = n.node.i("keepdims", 1) != 0;
  uint32_t reduced = axes && !axes->empty() ? 0 : ~0u;
  if ((!axes || axes->empty()) && n.node.i("noop_with_empty_axes", 0)) return n.set(0, *x);
  if (axes) {
    for (int64_t a : *axes) {
      int d = 0;
      if (!axis_of(a, x->rank(), &d)) return;
      reduced |= 1u << d;
    }
  }
  Shape out;
  for (int d = 0; d < x->rank(); ++d) {
    if (!(reduced >> d & 1)) {
      out.push_back((*x)[d]);
    } else if (keep) {
      out.push_back(1);
    }
  }
  n.set(0, out);
}

void arg(const Inferrer& n) {
  const Shape* x = n.shape(0);
  int axis = 0;
  if (!x || !axis_of(n.node.i("axis", 0), x->rank(), &axis)) return;
  Shape out;
  for (int d = 0; d < x->rank(); ++d) {
    if (d != axis) {
      out.push_back((*x)[d]);
    } else if (n.node.i("keepdims", 1)) {
      out.push_back(1);
    }
  }
  n.set(0, out);
}

void matmul(const Inferrer& n) {
  const Shape *a = n.shape(0), *b = n.shape(1);
  if (!a || !b || a->rank() < 1 || b->rank() < 1) return;
  Shape batch_a, batch_b, out;
  for (int d = 0; d + 2 < a->rank(); ++d) batch_a.push_back((*a)[d]);
  for (int d = 0; d + 2 < b->rank(); ++d) batch_b.push_back((*b)[d]);
  if (!broadcast_shape(batch_a, batch_b, &out)) return;
  if (a->rank() > 1) out.push_back((*a)[a->rank() - 2]);
  if (b->rank() > 1) out.push_back((*b)[b->rank() - 1]);
  n.set(0, out);
}

void gemm(const Inferrer& n) {
  const Shape *a = n.shape(0), *b = n.shape(1);
  if (!a || !b || a->rank() != 2 || b->rank() != 2) return;
  n.set(0, {(*a)[n.node.i("transA", 0) ? 1 : 0], (*b)[n.node.i("transB", 0) ? 0 : 1]});
}

void expand(const Inferrer& n) {
  const Shape* x = n.shape(0);
  auto target = n.partial(1);
  if (!x) return;
  if (!target || target->size() > Shape::kMaxRank) {
    const Shape* rank = n.shape(1);
    if (!rank || rank->rank() != 1 || (*rank)[0] < 0 || (*rank)[0] > Shape::kMaxRank) return;
    Shape out;
    for (int64_t d = 0; d < std::max<int64_t>((*rank)[0], x->rank()); ++d) out.push_back(-1);
    return n.set(0, out);
  }
  Shape out;
  const Shape wanted = bounded(Shape(std::span<const int64_t>(*target)));
  if (broadcast_shape(*x, wanted, &out)) n.set(0, out);
}

// What a node makes of lists that come from shapes, for the chains that exporters compute a Reshape
// or an Expand from.
std::optional<std::vector<int64_t>> contents_of(const Inferrer& n) {
  const std::string& op = n.node.op_type;
  if (op == "Shape") {
    const Shape* x = n.shape(0);
    if (!x || n.node.has("start") || n.node.has("end")) return std::nullopt;
    std::vector<int64_t> out(x->begin(), x->end());
    for (int64_t& d : out) d = d < 0 ? kUnknown : d;
    return out;
  }
  if (op == "Cast") {
    const DType to = static_cast<DType>(n.node.i("to", 0));
    auto x = n.partial(0);
    if (x && to == DType::kInt32)
      for (int64_t& d : *x) d = d > INT32_MAX || d < INT32_MIN ? kUnknown : d;
    return to == DType::kInt32 || to == DType::kInt64 ? x : std::nullopt;
  }
  if (op == "Identity" || op == "Unsqueeze" || op == "Squeeze") return n.partial(0);
  if (op == "Concat") {
    std::vector<int64_t> out;
    for (size_t i = 0; i < n.node.inputs.size(); ++i) {
      const auto part = n.partial(i);
      if (!part || out.size() + part->size() > kMostElements) return std::nullopt;
      out.insert(out.end(), part->begin(), part->end());
    }
    return out;
  }
  if (op == "Gather") {
    const auto x = n.partial(0), at = n.list(1);
    if (!x || !at || at->size() > kMostElements || n.node.i("axis", 0) != 0) return std::nullopt;
    std::vector<int64_t> out;
    for (int64_t i : *at) {
      const int64_t size = static_cast<int64_t>(x->size());
      if (i < -size || i >= size) return std::nullopt;
      out.push_back((*x)[static_cast<size_t>(i < 0 ? i + size : i)]);
    }
    return out;
  }
  if (op == "Slice") {
    const auto x = n.partial(0), starts = n.list_or("starts", 1), ends = n.list_or("ends", 2),
               axes = n.list_or("axes", 3), steps = n.list(4);
    if (!x || !starts || !ends || starts->size() != 1 || ends->size() != 1 || (n.has(3) && !axes) ||
        (axes && *axes != std::vector<int64_t>{0}) ||
        (n.has(4) && (!steps || *steps != std::vector<int64_t>{1})))
      return std::nullopt;
    const int64_t size = static_cast<int64_t>(x->size());
    const auto bound = [&](int64_t v) {
      return std::clamp<int64_t>(v < 0 ? std::max(v, -size) + size : v, 0, size);
    };
    const int64_t from = bound((*starts)[0]), to = bound((*ends)[0]);
    if (from >= to) return std::nullopt;
    return std::vector<int64_t>(x->begin() + from, x->begin() + to);
  }
  return std::nullopt;
}

void unknown_of_same_rank(const Inferrer& n) {
  const Shape* x = n.shape(0);
  if (!x) return;
  Shape out = *x;
  for (int d = 0; d < out.rank(); ++d) out[d] = -1;
  n.set(0, out);
}

void resize(const Inferrer& n) {
  const Shape* x = n.shape(0);
  if (!x) return;
  Shape out = *x;
  const bool old = n.node.op_type == "Upsample" || n.node.opset < 11;
  const size_t scales_at = old ? 1 : 2;
  auto sizes = old ? std::nullopt : n.list(3);
  if (sizes && !n.node.has("axes") && sizes->size() == static_cast<size_t>(x->rank()) &&
      n.node.s("keep_aspect_ratio_policy", "stretch") == "stretch")
    return n.set(0, Shape(std::span<const int64_t>(*sizes)));
  for (int d = 0; d < out.rank(); ++d) out[d] = -1;
  if (n.has(scales_at) && n.graph.is_constant(n.node.inputs[scales_at]) && !n.node.has("axes")) {
    const Tensor& scales = *n.graph.values[n.node.inputs[scales_at]].constant;
    if (scales.dtype == DType::kFloat32 && scales.numel() == x->rank()) {
      for (int d = 0; d < out.rank(); ++d) {
        const float scale = scales.as<float>()[d];
        if ((*x)[d] >= 0 && scale > 0 && scale < 1e6f)
          out[d] = static_cast<int64_t>(static_cast<float>((*x)[d]) * scale);
      }
    }
  }
  n.set(0, out);
}

void depth_to_space(const Inferrer& n) {
  const Shape* x = n.shape(0);
  const int64_t block = n.node.i("blocksize", 0);
  if (!x || x->rank() != 4 || block < 1 || block > 4096) return;
  const bool deeper = n.node.op_type == "SpaceToDepth";
  Shape out = *x;
  if (out[1] >= 0) out[1] = deeper ? out[1] * block * block : out[1] / (block * block);
  for (int d = 2; d < 4; ++d)
    if (out[d] >= 0) out[d] = deeper ? out[d] / block : out[d] * block;
  n.set(0, out);
}

void shape_of(const Inferrer& n) {
  const Shape* x = n.shape(0);
  if (x && !n.node.has("start") && !n.node.has("end")) n.set(0, {x->rank()});
}

void constant_of_shape(const Inferrer& n) {
  auto target = n.list(0);
  if (target && target->size() <= Shape::kMaxRank)
    n.set(0, Shape(std::span<const int64_t>(*target)));
}

const std::map<std::string, Rule>& rules() {
  static const auto* const table = new std::map<std::string, Rule>{
      {"Abs", same},
      {"Acos", same},
      {"Acosh", same},
      {"Asin", same},
      {"Asinh", same},
      {"Atan", same},
      {"Atanh", same},
      {"BatchNormalization", same},
      {"BitwiseNot", same},
      {"Cast", same},
      {"Ceil", same},
      {"Celu", same},
      {"Clip", same},
      {"Cos", same},
      {"Cosh", same},
      {"CumSum", same},
      {"DequantizeLinear", same},
      {"Dropout", same},
      {"Elu", same},
      {"Erf", same},
      {"Exp", same},
      {"Floor", same},
      {"Gelu", same},
      {"GroupNormalization", same},
      {"HardSigmoid", same},
      {"HardSwish", same},
      {"Hardmax", same},
      {"Identity", same},
      {"InstanceNormalization", same},
      {"IsInf", same},
      {"IsNaN", same},
      {"LRN", same},
      {"LayerNormalization", same},
      {"LeakyRelu", same},
      {"Log", same},
      {"LogSoftmax", same},
      {"LpNormalization", same},
      {"MeanVarianceNormalization", same},
      {"Mish", same},
      {"Neg", same},
      {"Not", same},
      {"PRelu", same},
      {"QuantizeLinear", same},
      {"RMSNormalization", same},
      {"Reciprocal", same},
      {"Relu", same},
      {"Round", same},
      {"Selu", same},
      {"Shrink", same},
      {"Sigmoid", same},
      {"Sign", same},
      {"Sin", same},
      {"Sinh", same},
      {"Softmax", same},
      {"Softplus", same},
      {"Softsign", same},
      {"Sqrt", same},
      {"Swish", same},
      {"Tan", same},
      {"Tanh", same},
      {"ThresholdedRelu", same},
      {"ScatterND", same},
      {"ScatterElements", same},
      {"Trilu", same},
      {"Add", broadcast},
      {"And", broadcast},
      {"BitShift", broadcast},
      {"Div", broadcast},
      {"Equal", broadcast},
      {"Greater", broadcast},
      {"GreaterOrEqual", broadcast},
      {"Less", broadcast},
      {"LessOrEqual", broadcast},
      {"Max", broadcast},
      {"Mean", broadcast},
      {"Min", broadcast},
      {"Mod", broadcast},
      {"Mul", broadcast},
      {"Or", broadcast},
      {"Pow", broadcast},
      {"Sub", broadcast},
      {"Sum", broadcast},
      {"Where", broadcast},
      {"Xor", broadcast},
      {"Conv", conv},
      {"ConvTranspose", conv_transpose},
      {"AveragePool", pool},
      {"MaxPool", pool},
      {"LpPool", pool},
      {"GlobalAveragePool", global_pool},
      {"GlobalMaxPool", global_pool},
      {"GlobalLpPool", global_pool},
      {"Transpose", transpose},
      {"Reshape", reshape},
      {"Flatten", flatten},
      {"Squeeze", squeeze},
      {"Unsqueeze", unsqueeze},
      {"Concat", concat},
      {"Slice", slice},
      {"Split", split},
      {"Gather", gather},
      {"Pad", pad},
      {"ReduceL1", reduce},
      {"ReduceL2", reduce},
      {"ReduceLogSum", reduce},
      {"ReduceLogSumExp", reduce},
      {"ReduceMax", reduce},
      {"ReduceMean", reduce},
      {"ReduceMin", reduce},
      {"ReduceProd", reduce},
      {"ReduceSum", reduce},
      {"ReduceSumSquare", reduce},
      {"ArgMax", arg},
      {"ArgMin", arg},
      {"MatMul", matmul},
      {"Gemm", gemm},
      {"Expand", expand},
      {"Tile", unknown_of_same_rank},
      {"Resize", resize},
      {"Upsample", resize},
      {"DepthToSpace", depth_to_space},
      {"SpaceToDepth", depth_to_space},
      {"Shape", shape_of},
      {"ConstantOfShape", constant_of_shape},
  };
  return *table;
}

}  // namespace

bool broadcast_shape(const Shape& a, const Shape& b, Shape* out) {
  const int rank = std::max(a.rank(), b.rank());
  Shape result;
  for (int d = 0; d < rank; ++d) {
    const int da = d - (rank - a.rank()), db = d - (rank - b.rank());
    const int64_t x = da < 0 ? 1 : a[da], y = db < 0 ? 1 : b[db];
    if (x == 1) {
      result.push_back(y);
    } else if (y == 1 || x == y) {
      result.push_back(x);
    } else if (x < 0 || y < 0) {
      result.push_back(std::max(x, y));  // the known one is not 1, so it is the result
    } else {
      return false;
    }
  }
  *out = result;
  return true;
}

namespace {

// Operators of the table above whose first output has not the type of their first input.
bool changes_type(const std::string& op_type) {
  static const std::set<std::string> changing = {"And",
                                                 "ArgMax",
                                                 "ArgMin",
                                                 "Cast",
                                                 "ConstantOfShape",
                                                 "DequantizeLinear",
                                                 "Equal",
                                                 "Greater",
                                                 "GreaterOrEqual",
                                                 "IsInf",
                                                 "IsNaN",
                                                 "Less",
                                                 "LessOrEqual",
                                                 "Not",
                                                 "Or",
                                                 "QuantizeLinear",
                                                 "Shape",
                                                 "Xor"};
  return changing.count(op_type) != 0;
}

void fill_type(Graph& graph, const Node& node) {
  if (node.op_type == "Cast" && node.outputs.size() == 1 && node.outputs[0] != kNoValue) {
    const DType to = static_cast<DType>(node.i("to", 0));
    DType& known = graph.values[node.outputs[0]].dtype;
    if (known == DType::kUndefined && (to == DType::kInt32 || to == DType::kInt64)) known = to;
  }
  if (node.inputs.empty() || changes_type(node.op_type)) return;
  const size_t from = node.op_type == "Where" ? 1 : 0;
  if (from >= node.inputs.size() || node.inputs[from] == kNoValue) return;
  const DType dtype = graph.values[node.inputs[from]].dtype;
  const size_t n =
      node.op_type == "Split" ? node.outputs.size() : std::min<size_t>(1, node.outputs.size());
  for (size_t o = 0; o < n; ++o) {
    if (node.outputs[o] == kNoValue) continue;
    DType& known = graph.values[node.outputs[o]].dtype;
    if (known == DType::kUndefined) known = dtype;
  }
}

}  // namespace

void fill_shapes(Graph& graph) {
  for (Value& value : graph.values) value.shape = bounded(value.shape);
  Contents contents;
  for (const auto& node : graph.nodes) {
    if (!node->domain.empty()) continue;
    if (node->outputs.size() == 1 && node->outputs[0] != kNoValue)
      if (auto list = contents_of({graph, *node, contents}); list && list->size() <= kMostElements)
        contents[node->outputs[0]] = std::move(*list);
    auto rule = rules().find(node->op_type);
    if (rule == rules().end()) continue;
    rule->second({graph, *node, contents});
    fill_type(graph, *node);
  }
}

}  // namespace wia
