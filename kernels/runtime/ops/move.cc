// SPDX-License-Identifier: Apache-2.0
// Operators that move elements: Transpose, Concat, Split, Slice, Pad, Expand, Tile, depth and
// space.
#include <cstring>

#include "ops/qelementwise/qelementwise.h"
#include "runtime/ops/op.h"

namespace wia {
namespace {

// The innermost two dimensions swap in square tiles, so that both sides use whole cache lines.
template <class W>
void transpose_tile(const W* in, int64_t in_step, W* out, int64_t out_step, int64_t rows,
                    int64_t columns) {
  constexpr int64_t kTile = 16;
  for (int64_t r0 = 0; r0 < rows; r0 += kTile)
    for (int64_t c0 = 0; c0 < columns; c0 += kTile) {
      const int64_t r1 = std::min(rows, r0 + kTile), c1 = std::min(columns, c0 + kTile);
      for (int64_t r = r0; r < r1; ++r)
        for (int64_t k = c0; k < c1; ++k) out[r * out_step + k] = in[k * in_step + r];
    }
}

// memcpy, without its call where a run is a few pixels' channels.
inline void copy_run(void* to, const void* from, size_t n) {
  constexpr size_t kPiece = 16, kMost = 256;
  if (n < kPiece || n > kMost) {
    if (n) std::memcpy(to, from, n);
    return;
  }
  std::byte* out = static_cast<std::byte*>(to);
  const std::byte* in = static_cast<const std::byte*>(from);
  for (size_t i = 0; i + kPiece <= n; i += kPiece) std::memcpy(out + i, in + i, kPiece);
  if (n % kPiece) std::memcpy(out + n - kPiece, in + n - kPiece, kPiece);
}

}  // namespace

void transpose_elements(const Tensor& in, const std::vector<int>& order, void* out,
                        ThreadPool& pool) {
  // Drop dimensions of 1 and merge those that stay neighbours.
  const auto in_steps = steps_of(in.shape);
  std::vector<int64_t> dims, steps;
  for (int from : order) {
    const int64_t n = in.shape[from];
    if (n == 1) continue;
    if (!dims.empty() && steps.back() == in_steps[from] * n) {
      dims.back() *= n;
      steps.back() = in_steps[from];
    } else {
      dims.push_back(n);
      steps.push_back(in_steps[from]);
    }
  }
  const int64_t total = in.numel();
  if (total == 0) return;
  if (dims.size() <= 1) {
    if (in.data != out) std::memcpy(out, in.data, in.n_bytes());
    return;
  }
  dispatch_width(in.dtype, [&]<class W>(W) {
    const W* x = in.as<W>();
    W* y = static_cast<W*>(out);
    const int rank = static_cast<int>(dims.size());
    const int64_t inner = dims[rank - 1], inner_step = steps[rank - 1];
    // A tile pairs the output's last dimension with the one that the input has last.
    int across = -1;
    for (int d = 0; d + 1 < rank; ++d)
      if (steps[d] == 1) across = d;
    std::vector<int64_t> out_steps(dims.size());
    int64_t n = 1;
    for (int d = rank - 1; d >= 0; --d) {
      out_steps[d] = n;
      n *= dims[d];
    }
    const int64_t rows = across >= 0 ? dims[across] : 1;
    const int64_t pieces = total / inner / rows;
    pool.parallel_for(
        pieces, std::max<int64_t>(1, kGrain / (inner * rows)), [&](int64_t begin, int64_t end) {
          for (int64_t piece = begin; piece < end; ++piece) {
            int64_t rest = piece, from = 0, to = 0;
            for (int d = rank - 2; d >= 0; --d) {
              if (d == across) continue;
              const int64_t i = rest % dims[d];
              rest /= dims[d];
              from += i * steps[d];
              to += i * out_steps[d];
            }
            if (across >= 0) {
              transpose_tile(x + from, inner_step, y + to, out_steps[across], rows, inner);
            } else if (inner_step == 1) {
              std::memcpy(y + to, x + from, static_cast<size_t>(inner) * sizeof(W));
            } else {
              for (int64_t i = 0; i < inner; ++i) y[to + i] = x[from + i * inner_step];
            }
          }
        });
  });
}

namespace {

class Transpose final : public Op {
 public:
  Transpose(const Node& node, const KernelContext& context)
      : Op(node, context), perm_(node.ints("perm")) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    const Shape& x = c.shape(0);
    order_.clear();
    if (perm_.empty()) {
      for (int d = x.rank() - 1; d >= 0; --d) order_.push_back(d);
    } else {
      check(static_cast<int>(perm_.size()) == x.rank(),
            "perm does not name every dimension of " + x.str());
      bool seen[Shape::kMaxRank] = {};
      for (int64_t p : perm_) {
        const int d = axis_of(p, x.rank());
        check(!seen[d], "perm names a dimension twice");
        seen[d] = true;
        order_.push_back(d);
      }
    }
    Shape out;
    std::vector<int> moved;
    for (int d : order_) {
      out.push_back(x[d]);
      if (x[d] != 1) moved.push_back(d);
    }
    same_bytes_ = std::is_sorted(moved.begin(), moved.end());
    const int rank = x.rank();
    planes_ = rank == 4 && x[1] == kPlanes && dtype_size(c.dtype(0)) == 1 &&
              order_ == std::vector<int>{0, 2, 3, 1};
    dispatch_width(c.dtype(0), [](auto) {});
    c.set(0, c.dtype(0), out);
    return Inferred::kDone;
  }
  int alias_of() const override { return same_bytes_ ? 0 : -1; }
  std::string implementation() const override {
    return planes_ ? select_qelementwise(isa_).name : "reference";
  }
  void run(RunContext& c) override {
    if (planes_) return to_pixels(*c.input(0), c.output(0)->as<uint8_t>(), c.pool());
    transpose_elements(*c.input(0), order_, c.output(0)->data, c.pool());
  }

 private:
  static constexpr int64_t kPlanes = 3;

  // A picture of three planes, channels last.
  void to_pixels(const Tensor& x, uint8_t* y, ThreadPool& pool) const {
    const int64_t plane = x.shape[2] * x.shape[3];
    if (plane == 0) return;
    const int64_t pieces = (plane + kGrain - 1) / kGrain;
    const QElementwise& kernel = select_qelementwise(isa_);
    pool.parallel_for(x.shape[0] * pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const int64_t from = p % pieces * kGrain, image = p / pieces * kPlanes * plane;
        kernel.interleave3(static_cast<size_t>(std::min(kGrain, plane - from)),
                           x.as<uint8_t>() + image + from, static_cast<size_t>(plane),
                           y + image + kPlanes * from);
      }
    });
  }

  std::vector<int64_t> perm_;
  std::vector<int> order_;
  bool same_bytes_ = false;  // only dimensions of size 1 move
  bool planes_ = false;
};

class Concat final : public Op {
 public:
  Concat(const Node& node, const KernelContext& context)
      : Op(node, context), axis_(node.i("axis", 1)), n_(node.inputs.size()) {}
  Inferred infer(InferContext& c) override {
    check(n_ > 0, "no inputs");
    check_inputs(c, n_);
    Shape out = c.shape(0);
    const int axis = axis_of(axis_, out.rank());
    dispatch_width(c.dtype(0), [](auto) {});
    for (size_t i = 1; i < n_; ++i) {
      const Shape& s = c.shape(i);
      check_type(c.dtype(i), c.dtype(0), "an input");
      check(s.rank() == out.rank(), "the inputs have different numbers of dimensions");
      for (int d = 0; d < s.rank(); ++d)
        check(d == axis || s[d] == out[d],
              "shapes " + c.shape(0).str() + " and " + s.str() + " do not fit");
      check(s[axis] <= (int64_t{1} << 40) - out[axis], "the output is too large");
      out[axis] += s[axis];
    }
    const int64_t bytes = static_cast<int64_t>(dtype_size(c.dtype(0)));
    out.numel();
    outer_ = product(out, 0, axis);
    row_ = product(out, axis, out.rank()) * bytes;
    rows_.clear();
    for (size_t i = 0; i < n_; ++i) rows_.push_back(product(c.shape(i), axis, out.rank()) * bytes);
    sources_.resize(n_);
    c.set(0, c.dtype(0), out);
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    std::byte* y = c.output(0)->as<std::byte>();
    if (row_ == 0) return;
    for (size_t i = 0; i < n_; ++i) sources_[i] = c.input(i)->as<std::byte>();
    c.pool().parallel_for(
        outer_, std::max<int64_t>(1, 65536 / row_), [&](int64_t begin, int64_t end) {
          for (int64_t o = begin; o < end; ++o) {
            std::byte* at = y + o * row_;
            for (size_t i = 0; i < n_; ++i) {
              copy_run(at, sources_[i] + o * rows_[i], static_cast<size_t>(rows_[i]));
              at += rows_[i];
            }
          }
        });
  }

 private:
  int64_t axis_;
  size_t n_;
  int64_t outer_ = 0, row_ = 0;
  std::vector<int64_t> rows_;
  std::vector<const std::byte*> sources_;
};

class Split final : public Op {
 public:
  Split(const Node& node, const KernelContext& context)
      : Op(node, context),
        axis_(node.i("axis", 0)),
        sizes_(node.ints("split")),
        n_(node.outputs.size()),
        num_outputs_(node.i("num_outputs", 0)) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    const Shape& x = c.shape(0);
    const int axis = axis_of(axis_, x.rank());
    std::vector<int64_t> sizes = sizes_;
    if (opset_ >= 13 && given(c, 1)) {
      if (!c.value(1)) return Inferred::kNeedsValues;
      sizes = ints_of(*c.value(1));
    }
    if (sizes.empty()) {
      const int64_t parts = static_cast<int64_t>(n_);
      check(num_outputs_ == 0 || num_outputs_ == parts, "num_outputs is not the number of outputs");
      check(opset_ >= 18 || x[axis] % parts == 0, "the axis does not divide into equal parts");
      const int64_t each = (x[axis] + parts - 1) / parts;
      int64_t left = x[axis];
      for (int64_t p = 0; p < parts; ++p) {
        sizes.push_back(std::min(each, left));
        left -= sizes.back();
      }
    }
    check(sizes.size() == n_, "split has not one size for each output");
    int64_t sum = 0;
    for (int64_t s : sizes) {
      check(s >= 0 && s <= x[axis], "a size is outside the axis");
      sum += s;
    }
    check(sum == x[axis], "the sizes do not add up to the axis");
    dispatch_width(c.dtype(0), [](auto) {});
    const int64_t unit =
        product(x, axis + 1, x.rank()) * static_cast<int64_t>(dtype_size(c.dtype(0)));
    outer_ = product(x, 0, axis);
    row_ = x[axis] * unit;
    rows_.clear();
    wants_.clear();
    for (size_t i = 0; i < n_; ++i) {
      rows_.push_back(sizes[i] * unit);
      wants_.push_back(wanted(c, i));
      Shape out = x;
      out[axis] = sizes[i];
      if (wants_[i]) c.set(i, c.dtype(0), out);
    }
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const std::byte* x = c.input(0)->as<std::byte>();
    int64_t at = 0;
    for (size_t i = 0; i < n_; ++i) {
      if (wants_[i] && rows_[i]) {
        std::byte* y = c.output(i)->as<std::byte>();
        const int64_t from = at, bytes = rows_[i];
        c.pool().parallel_for(
            outer_, std::max<int64_t>(1, 65536 / bytes), [&](int64_t begin, int64_t end) {
              for (int64_t o = begin; o < end; ++o)
                std::memcpy(y + o * bytes, x + o * row_ + from, static_cast<size_t>(bytes));
            });
      }
      at += rows_[i];
    }
  }

 private:
  int64_t axis_;
  std::vector<int64_t> sizes_;
  size_t n_;
  int64_t num_outputs_;
  int64_t outer_ = 0, row_ = 0;
  std::vector<int64_t> rows_;
  std::vector<char> wants_;
};

// Copies a box of the input: output dimension d starts at first[d] and goes by step[d].
class Slice final : public Op {
 public:
  Slice(const Node& node, const KernelContext& context)
      : Op(node, context),
        starts_(node.ints("starts")),
        ends_(node.ints("ends")),
        axes_(node.ints("axes")) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, opset_ >= 10 ? 3 : 1);
    std::vector<int64_t> starts = starts_, ends = ends_, axes = axes_, steps;
    if (opset_ >= 10) {
      std::vector<int64_t>* into[] = {nullptr, &starts, &ends, &axes, &steps};
      for (size_t i = 1; i < 5; ++i) {
        if (!given(c, i)) continue;
        if (!c.value(i)) return Inferred::kNeedsValues;
        *into[i] = ints_of(*c.value(i));
      }
    }
    const Shape& x = c.shape(0);
    if (axes.empty())
      for (size_t i = 0; i < starts.size(); ++i) axes.push_back(static_cast<int64_t>(i));
    if (steps.empty()) steps.assign(starts.size(), 1);
    check(ends.size() == starts.size() && axes.size() == starts.size() &&
              steps.size() == starts.size(),
          "starts, ends, axes and steps differ in length");
    const auto in_steps = steps_of(x);
    Shape out = x;
    offset_ = 0;
    for (int d = 0; d < x.rank(); ++d) step_[d] = in_steps[d];
    bool seen[Shape::kMaxRank] = {};
    for (size_t i = 0; i < starts.size(); ++i) {
      const int d = axis_of(axes[i], x.rank());
      check(!seen[d], "an axis is named twice");
      seen[d] = true;
      const int64_t n = x[d], step = steps[i];
      check(step != 0, "a step is 0");
      const auto bound = [&](int64_t v, int64_t lo, int64_t hi) {
        if (v < 0) v = v < -n ? -1 : v + n;  // before the first
        return std::clamp(v, lo, hi);
      };
      int64_t count = 0, first = 0;
      if (step > 0) {
        first = bound(starts[i], 0, n);
        const int64_t last = bound(ends[i], 0, n);
        if (last > first) count = 1 + (last - first - 1) / step;
      } else if (n > 0) {
        first = starts[i] < -n ? -1 : bound(starts[i], 0, n - 1);
        const int64_t last = ends[i] < -n ? -1 : bound(ends[i], -1, n - 1);
        const uint64_t stride = 0 - static_cast<uint64_t>(step);
        if (first > last)
          count = 1 + static_cast<int64_t>(static_cast<uint64_t>(first - last - 1) / stride);
      }
      out[d] = count;
      if (count > 0) offset_ += first * in_steps[d];
      step_[d] = count > 1 ? step * in_steps[d] : in_steps[d];
    }
    dispatch_width(c.dtype(0), [](auto) {});
    out_ = out;
    whole_ = out == x;  // forwards: a reversed dimension keeps its size
    for (int d = 0; d < x.rank(); ++d) whole_ &= step_[d] == in_steps[d];
    c.set(0, c.dtype(0), out);
    return Inferred::kDone;
  }
  int alias_of() const override { return whole_ ? 0 : -1; }
  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    Tensor& y = *c.output(0);
    const int64_t total = y.numel();
    if (total == 0) return;
    dispatch_width(x.dtype, [&]<class W>(W) {
      // Neighbours that one step passes over are one dimension; the last is a run when its step
      // is 1.
      int64_t dims[Shape::kMaxRank + 1], steps[Shape::kMaxRank + 1];
      int rank = 0;
      for (int d = 0; d < out_.rank(); ++d) {
        if (out_[d] == 1) continue;
        if (rank > 0 && steps[rank - 1] == step_[d] * out_[d]) {
          dims[rank - 1] *= out_[d];
          steps[rank - 1] = step_[d];
        } else {
          dims[rank] = out_[d];
          steps[rank++] = step_[d];
        }
      }
      if (rank == 0) {
        dims[0] = steps[0] = 1;
        rank = 1;
      }
      const int outer_rank = rank - 1;
      const int64_t inner = dims[outer_rank], inner_step = steps[outer_rank];
      const W* in = x.as<W>() + offset_;
      W* out = y.as<W>();
      c.pool().parallel_for(total / inner, std::max<int64_t>(1, kGrain / inner),
                            [&](int64_t begin, int64_t end) {
                              for (int64_t o = begin; o < end; ++o) {
                                int64_t rest = o, from = 0;
                                for (int d = outer_rank - 1; d > 0; --d) {
                                  from += rest % dims[d] * steps[d];
                                  rest /= dims[d];
                                }
                                if (outer_rank > 0) from += rest * steps[0];
                                W* to = out + o * inner;
                                if (inner_step == 1) {
                                  copy_run(to, in + from, static_cast<size_t>(inner) * sizeof(W));
                                } else {
                                  for (int64_t i = 0; i < inner; ++i)
                                    to[i] = in[from + i * inner_step];
                                }
                              }
                            });
    });
  }

 private:
  std::vector<int64_t> starts_, ends_, axes_;
  Shape out_;
  bool whole_ = false;
  int64_t offset_ = 0;
  int64_t step_[Shape::kMaxRank] = {};
};

// Pad: pads as an attribute before opset 11, as an input since; negative pads crop.
class Pad final : public Op {
 public:
  Pad(const Node& node, const KernelContext& context)
      : Op(node, context),
        mode_(node.s("mode", "constant")),
        pads_(node.ints(node.has("paddings") ? "paddings" : "pads")),
        value_(node.f("value", 0.0f)) {
    check(mode_ == "constant" || mode_ == "reflect" || mode_ == "edge" ||
              (mode_ == "wrap" && opset_ >= 19),
          "mode '" + mode_ + "' is not known");
  }
  Inferred infer(InferContext& c) override {
    check_inputs(c, opset_ >= 11 ? 2 : 1);
    std::vector<int64_t> pads = pads_, axes;
    if (opset_ >= 11) {
      if (!c.value(1)) return Inferred::kNeedsValues;
      pads = ints_of(*c.value(1));
      if (given(c, 3)) {
        if (!c.value(3)) return Inferred::kNeedsValues;
        axes = ints_of(*c.value(3));
      }
      has_value_ = given(c, 2);
      if (has_value_) {
        check_type(c.dtype(2), c.dtype(0), "the padding value");
        check(c.shape(2).numel() == 1, "the padding value is not a scalar");
      }
    }
    const Shape& x = c.shape(0);
    if (!(opset_ >= 11 && given(c, 3)))
      for (int d = 0; d < x.rank(); ++d) axes.push_back(d);
    check(pads.size() == 2 * axes.size(), "pads has not two numbers for each axis");
    Shape out = x;
    before_.assign(static_cast<size_t>(x.rank()), 0);
    bool seen[Shape::kMaxRank] = {};
    for (size_t i = 0; i < axes.size(); ++i) {
      const int d = axis_of(axes[i], x.rank());
      check(!seen[d], "an axis is named twice");
      seen[d] = true;
      const int64_t lo = pads[i], hi = pads[i + axes.size()];
      constexpr int64_t kLimit = int64_t{1} << 31;
      check(std::abs(lo) < kLimit && std::abs(hi) < kLimit, "a pad is too large");
      out[d] = x[d] + lo + hi;
      check(out[d] >= 0, "pads crop more than dimension " + std::to_string(d) + " has");
      constexpr int64_t kLongest = int64_t{1} << 27;  // each index is looked up in a table
      check(out[d] <= std::max(x[d], kLongest), "a padded dimension is too large");
      before_[static_cast<size_t>(d)] = lo;
      if (mode_ != "constant" && out[d] > 0 && (lo > 0 || hi > 0))
        check(x[d] > 0, "mode '" + mode_ + "' pads an empty dimension");
    }
    dispatch_width(c.dtype(0), [](auto) {});
    if (!has_value_ && value_ != 0.0f && c.dtype(0) != DType::kFloat32 && !is_half(c.dtype(0)) &&
        c.dtype(0) != DType::kFloat64)
      bad_type(c.dtype(0));
    in_ = x;
    // For every output index of each dimension, the input index it reads; -1: the padding value.
    source_.assign(static_cast<size_t>(x.rank()), {});
    out.numel();
    for (int d = 0; d < x.rank(); ++d) {
      std::vector<int64_t>& map = source_[static_cast<size_t>(d)];
      map.resize(static_cast<size_t>(out[d]));
      for (int64_t o = 0; o < out[d]; ++o)
        map[static_cast<size_t>(o)] = source(o - before_[static_cast<size_t>(d)], x[d]);
    }
    c.set(0, c.dtype(0), out);
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    Tensor& y = *c.output(0);
    const int rank = in_.rank();
    const auto in_steps = steps_of(in_);
    dispatch_width(x.dtype, [&]<class W>(W) {
      const W value = fill<W>(c, x.dtype);
      if (rank == 0) {
        *y.as<W>() = *x.as<W>();
        return;
      }
      const std::vector<int64_t>& inner = source_[static_cast<size_t>(rank - 1)];
      const int64_t n = static_cast<int64_t>(inner.size());
      if (n == 0) return;
      // The stretch of the innermost dimension that is copied as it is.
      const int64_t first = std::clamp<int64_t>(before_.back(), 0, n);
      const int64_t last = std::clamp<int64_t>(before_.back() + in_[rank - 1], first, n);
      c.pool().parallel_for(
          y.numel() / n, std::max<int64_t>(1, kGrain / n), [&](int64_t begin, int64_t end) {
            for (int64_t o = begin; o < end; ++o) {
              int64_t rest = o, from = 0;
              bool outside = false;
              for (int d = rank - 2; d >= 0; --d) {
                const std::vector<int64_t>& map = source_[static_cast<size_t>(d)];
                const int64_t i = map[static_cast<size_t>(rest % static_cast<int64_t>(map.size()))];
                rest /= static_cast<int64_t>(map.size());
                outside |= i < 0;
                from += i * in_steps[d];
              }
              W* to = y.as<W>() + o * n;
              if (outside) {
                std::fill_n(to, n, value);
                continue;
              }
              const W* in = x.as<W>() + from;
              for (int64_t i = 0; i < first; ++i) to[i] = inner[i] < 0 ? value : in[inner[i]];
              if (last > first)
                std::memcpy(to + first, in + inner[static_cast<size_t>(first)],
                            static_cast<size_t>(last - first) * sizeof(W));
              for (int64_t i = last; i < n; ++i) to[i] = inner[i] < 0 ? value : in[inner[i]];
            }
          });
    });
  }

 private:
  int64_t source(int64_t i, int64_t n) const {
    if (i >= 0 && i < n) return i;
    if (mode_ == "constant" || n == 0) return -1;
    if (mode_ == "edge") return i < 0 ? 0 : n - 1;
    if (mode_ == "wrap") return ((i % n) + n) % n;
    if (n == 1) return 0;
    const int64_t period = 2 * (n - 1), at = ((i % period) + period) % period;
    return at < n ? at : period - at;
  }
  template <class W>
  W fill(RunContext& c, DType dtype) const {
    if (has_value_) return *c.input(2)->as<W>();
    W value{};
    dispatch<float, double, Half, BFloat16>(dtype, [&]<class T>() {
      const T v = static_cast<T>(value_);
      if constexpr (sizeof(T) == sizeof(W)) std::memcpy(&value, &v, sizeof(W));
    });
    return value;
  }

  std::string mode_;
  std::vector<int64_t> pads_;
  float value_;
  bool has_value_ = false;
  Shape in_;
  std::vector<int64_t> before_;
  std::vector<std::vector<int64_t>> source_;
};

class Expand final : public Op {
 public:
  using Op::Op;
  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    if (!c.value(1)) return Inferred::kNeedsValues;
    const std::vector<int64_t> wanted_shape = ints_of(*c.value(1));
    check(wanted_shape.size() <= Shape::kMaxRank, "the new shape has more than 8 dimensions");
    for (int64_t d : wanted_shape) check(d >= 0, "the new shape has a negative dimension");
    const Shape out = broadcast_shape(c.shape(0), Shape(wanted_shape), where_);
    broadcast_ = Broadcast<1>(out, {&c.shape(0)});
    same_bytes_ = out.numel() == c.shape(0).numel();
    dispatch_width(c.dtype(0), [](auto) {});
    c.set(0, c.dtype(0), out);
    return Inferred::kDone;
  }
  int alias_of() const override { return same_bytes_ ? 0 : -1; }
  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    Tensor& y = *c.output(0);
    dispatch_width(x.dtype, [&]<class W>(W) {
      c.pool().parallel_for(broadcast_.total(), kGrain, [&](int64_t begin, int64_t end) {
        broadcast_.runs(begin, end, [&](int64_t at, const std::array<int64_t, 1>& from, int64_t n) {
          const W* in = x.as<W>() + from[0];
          if (broadcast_.step(0))
            std::memcpy(y.as<W>() + at, in, static_cast<size_t>(n) * sizeof(W));
          else
            std::fill_n(y.as<W>() + at, n, *in);
        });
      });
    });
  }

 private:
  Broadcast<1> broadcast_;
  bool same_bytes_ = false;
};

class Tile final : public Op {
 public:
  using Op::Op;
  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    if (!c.value(1)) return Inferred::kNeedsValues;
    const std::vector<int64_t> repeats = ints_of(*c.value(1));
    in_ = c.shape(0);
    check(static_cast<int>(repeats.size()) == in_.rank(),
          "repeats has not one number for each dimension");
    out_ = in_;
    for (int d = 0; d < in_.rank(); ++d) {
      const int64_t r = repeats[static_cast<size_t>(d)];
      check(r >= 0 && r < (int64_t{1} << 31), "a repeat is negative or too large");
      check(in_[d] < (int64_t{1} << 31), "a dimension is too large");
      out_[d] = in_[d] * r;
    }
    dispatch_width(c.dtype(0), [](auto) {});
    c.set(0, c.dtype(0), out_);
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    Tensor& y = *c.output(0);
    const int64_t total = y.numel();
    if (total == 0) return;
    const auto in_steps = steps_of(in_);
    const int rank = in_.rank();
    dispatch_width(x.dtype, [&]<class W>(W) {
      if (rank == 0) {
        *y.as<W>() = *x.as<W>();
        return;
      }
      const int64_t n = out_[rank - 1], own = in_[rank - 1];
      c.pool().parallel_for(total / n, std::max<int64_t>(1, kGrain / n),
                            [&](int64_t begin, int64_t end) {
                              for (int64_t o = begin; o < end; ++o) {
                                int64_t rest = o, from = 0;
                                for (int d = rank - 2; d >= 0; --d) {
                                  from += rest % out_[d] % in_[d] * in_steps[d];
                                  rest /= out_[d];
                                }
                                for (int64_t i = 0; i < n; i += own)
                                  std::memcpy(y.as<W>() + o * n + i, x.as<W>() + from,
                                              static_cast<size_t>(own) * sizeof(W));
                              }
                            });
    });
  }

 private:
  Shape in_, out_;
};

// Both as a transpose of six dimensions.
class DepthSpace final : public Op {
 public:
  DepthSpace(const Node& node, const KernelContext& context, bool to_space)
      : Op(node, context),
        to_space_(to_space),
        block_(node.i("blocksize", 0)),
        mode_(node.s("mode", "DCR")) {
    check(block_ > 0 && block_ < 65536, "blocksize is not positive");
    check(mode_ == "DCR" || mode_ == "CRD", "mode '" + mode_ + "' is not known");
  }
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    const Shape& x = c.shape(0);
    check(x.rank() == 4, "the input is not [N, C, H, W]");
    const int64_t b = block_, n = x[0], ch = x[1], h = x[2], w = x[3];
    dispatch_width(c.dtype(0), [](auto) {});
    if (to_space_) {
      check(ch % (b * b) == 0, "blocksize does not divide the channels");
      if (mode_ == "DCR") {
        view_ = {n, b, b, ch / (b * b), h, w};
        order_ = {0, 3, 4, 1, 5, 2};
      } else {
        view_ = {n, ch / (b * b), b, b, h, w};
        order_ = {0, 1, 4, 2, 5, 3};
      }
      c.set(0, c.dtype(0), {n, ch / (b * b), h * b, w * b});
    } else {
      check(h % b == 0 && w % b == 0, "blocksize does not divide height and width");
      view_ = {n, ch, h / b, b, w / b, b};
      order_ =
          mode_ == "DCR" ? std::vector<int>{0, 3, 5, 1, 2, 4} : std::vector<int>{0, 1, 3, 5, 2, 4};
      c.set(0, c.dtype(0), {n, ch * b * b, h / b, w / b});
    }
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    Tensor x = *c.input(0);
    x.shape = view_;
    transpose_elements(x, order_, c.output(0)->data, c.pool());
  }

 private:
  bool to_space_;
  int64_t block_;
  std::string mode_;
  Shape view_;
  std::vector<int> order_;
};

}  // namespace

std::unique_ptr<Kernel> make_transpose(const Node& n, const KernelContext& c) {
  return std::make_unique<Transpose>(n, c);
}
std::unique_ptr<Kernel> make_concat(const Node& n, const KernelContext& c) {
  return std::make_unique<Concat>(n, c);
}
std::unique_ptr<Kernel> make_split(const Node& n, const KernelContext& c) {
  return std::make_unique<Split>(n, c);
}
std::unique_ptr<Kernel> make_slice(const Node& n, const KernelContext& c) {
  return std::make_unique<Slice>(n, c);
}
std::unique_ptr<Kernel> make_pad(const Node& n, const KernelContext& c) {
  return std::make_unique<Pad>(n, c);
}
std::unique_ptr<Kernel> make_expand(const Node& n, const KernelContext& c) {
  return std::make_unique<Expand>(n, c);
}
std::unique_ptr<Kernel> make_tile(const Node& n, const KernelContext& c) {
  return std::make_unique<Tile>(n, c);
}
std::unique_ptr<Kernel> make_depth_to_space(const Node& n, const KernelContext& c) {
  return std::make_unique<DepthSpace>(n, c, true);
}
std::unique_ptr<Kernel> make_space_to_depth(const Node& n, const KernelContext& c) {
  return std::make_unique<DepthSpace>(n, c, false);
}

}  // namespace wia
