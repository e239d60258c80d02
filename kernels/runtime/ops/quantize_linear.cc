// SPDX-License-Identifier: Apache-2.0
// QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear: per tensor, per axis, in blocks
// (docs/quantization.md 1-4).
#include <cmath>

#include "runtime/ops/op.h"

namespace wia {
namespace {

// 4-bit integers, one to a byte; two types that dispatch as themselves.
struct Level4S {
  static constexpr int32_t kMin = -8, kMax = 7;
  int8_t v;
};
struct Level4U {
  static constexpr int32_t kMin = 0, kMax = 15;
  uint8_t v;
};

template <class Body>
bool dispatch_levels(DType dtype, Body&& body) {
  if (dtype == DType::kInt4) return body.template operator()<Level4S>(), true;
  if (dtype == DType::kUint4) return body.template operator()<Level4U>(), true;
  return dispatch<uint8_t, int8_t, uint16_t, int16_t, int32_t, Float8E4M3, Float8E5M2>(dtype, body);
}

template <class Q>
constexpr bool kLevel4 = std::is_same_v<Q, Level4S> || std::is_same_v<Q, Level4U>;
template <class Q>
constexpr bool kFloat8 = std::is_same_v<Q, Float8E4M3> || std::is_same_v<Q, Float8E5M2>;

template <class Q>
int64_t level_of(Q q) {
  if constexpr (kLevel4<Q>)
    return q.v;
  else
    return static_cast<int64_t>(q);
}

template <class Q>
Q quantized(float x, float scale, Q zero_point, bool saturate) {
  if constexpr (kFloat8<Q>) {
    Q q;
    const float v = x / scale + static_cast<float>(zero_point);
    if constexpr (std::is_same_v<Q, Float8E4M3>)
      q.bits = float_to_e4m3(v, saturate);
    else
      q.bits = float_to_e5m2(v, saturate);
    return q;
  } else {
    int64_t lo, hi;
    if constexpr (kLevel4<Q>) {
      lo = Q::kMin;
      hi = Q::kMax;
    } else {
      lo = std::numeric_limits<Q>::min();
      hi = std::numeric_limits<Q>::max();
    }
    const float v = x / scale;
    int64_t level = level_of(zero_point);
    if (v == v) {
      const double rounded = static_cast<double>(std::nearbyintf(v)) + static_cast<double>(level);
      level = rounded < static_cast<double>(lo)   ? lo
              : rounded > static_cast<double>(hi) ? hi
                                                  : static_cast<int64_t>(rounded);
    }
    Q q;
    if constexpr (kLevel4<Q>)
      q.v = static_cast<decltype(q.v)>(level);
    else
      q = static_cast<Q>(level);
    return q;
  }
}

template <class Q>
float dequantized(Q q, float scale, Q zero_point) {
  if constexpr (kFloat8<Q>)
    return (static_cast<float>(q) - static_cast<float>(zero_point)) * scale;
  else
    return static_cast<float>(level_of(q) - level_of(zero_point)) * scale;
}

// Which scale an element has. The tensor is [outer, axis, inner].
struct Granularity {
  int64_t outer = 1, n = 1, inner = 1;
  int64_t block = 0;  // of the axis; 0: see per_axis
  int64_t n_blocks = 0;
  bool per_axis = false;

  int64_t total() const { return outer * n * inner; }
  // body(first element, count, scale index, scale step): runs that cover [begin, end).
  template <class Body>
  void runs(int64_t begin, int64_t end, Body&& body) const {
    if (!per_axis && !block) return body(begin, end - begin, int64_t{0}, int64_t{0});
    while (begin < end) {
      const int64_t row = begin / inner, i = begin % inner, o = row / n, d = row % n;
      if (block) {
        const int64_t count = std::min(end - begin, inner - i);
        body(begin, count, (o * n_blocks + d / block) * inner + i, int64_t{1});
        begin += count;
      } else if (inner == 1) {
        const int64_t count = std::min(end - begin, n - d);
        body(begin, count, d, int64_t{1});
        begin += count;
      } else {
        const int64_t count = std::min(end - begin, inner - i);
        body(begin, count, d, int64_t{0});
        begin += count;
      }
    }
  }
};

class Linear : public Op {
 public:
  Linear(const Node& node, const KernelContext& context)
      : Op(node, context),
        axis_(node.i("axis", 1)),
        block_(node.i("block_size", 0)),
        saturate_(node.i("saturate", 1) != 0),
        output_dtype_(static_cast<DType>(node.i("output_dtype", 0))) {
    check(block_ >= 0, "block_size is negative");
  }

 protected:
  void fit(const InferContext& c) {
    const Shape &x = c.shape(0), &scale = c.shape(1);
    g_ = {};
    g_.inner = x.numel();
    if (block_ > 0) {
      const int axis = axis_of(axis_, x.rank());
      check(scale.rank() == x.rank(), "the blocked scale's dimensions are not the input's");
      for (int d = 0; d < x.rank(); ++d)
        check(d == axis ? scale[d] == (x[d] + block_ - 1) / block_ : scale[d] == x[d],
              "the scale " + scale.str() + " does not fit blocks of " + std::to_string(block_) +
                  " of " + x.str());
      g_ = {product(x, 0, axis), x[axis], product(x, axis + 1, x.rank()), block_,
            scale[axis],         false};
    } else if (scale.numel() != 1 || scale.rank() > 1) {
      check(scale.rank() == 1, "the scale " + scale.str() + " is neither a scalar nor a list");
      const int axis = axis_of(axis_, x.rank());
      check(scale[0] == x[axis], "the scale has " + std::to_string(scale[0]) + " values, axis " +
                                     std::to_string(axis) + " of " + x.str() + " has another size");
      g_ = {product(x, 0, axis), x[axis], product(x, axis + 1, x.rank()), 0, 0, true};
    }
    has_zero_point_ = given(c, 2);
    if (has_zero_point_)
      check(c.shape(2) == scale || (c.shape(2).numel() == 1 && scale.numel() == 1),
            "the zero point's shape is not the scale's");
  }
  template <class Q>
  Q zero_point(const Q* zero_points, int64_t i) const {
    return zero_points ? zero_points[i] : Q{};
  }

  int64_t axis_, block_;
  bool saturate_;
  DType output_dtype_;
  bool has_zero_point_ = false;
  Granularity g_;
};

class QuantizeLinear final : public Linear {
 public:
  using Linear::Linear;
  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    from_ = c.dtype(0);
    if (from_ != DType::kFloat32 && from_ != DType::kInt32) bad_type(from_);
    check_type(c.dtype(1), DType::kFloat32, "the scale");
    fit(c);
    out_ = has_zero_point_                      ? c.dtype(2)
           : output_dtype_ != DType::kUndefined ? output_dtype_
                                                : DType::kUint8;
    check(output_dtype_ == DType::kUndefined || output_dtype_ == out_,
          "output_dtype is not the zero point's type");
    if (out_ == DType::kInt32 || !dispatch_levels(out_, []<class Q>() {})) bad_type(out_);
    c.set(0, out_, c.shape(0));
    return Inferred::kDone;
  }
  std::string implementation() const override { return fmath_.name; }

  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    const float* scale = c.input(1)->as<float>();
    Tensor& y = *c.output(0);
    dispatch_levels(out_, [&]<class Q>() {
      const Q* zero_points = has_zero_point_ ? c.input(2)->as<Q>() : nullptr;
      c.pool().parallel_for(g_.total(), kGrain, [&](int64_t begin, int64_t end) {
        g_.runs(begin, end, [&](int64_t at, int64_t count, int64_t s, int64_t step) {
          Q* out = y.as<Q>() + at;
          if (from_ == DType::kInt32) {
            const int32_t* in = x.as<int32_t>() + at;
            for (int64_t i = 0; i < count; ++i)
              out[i] = quantized(static_cast<float>(in[i]), scale[s + i * step],
                                 zero_point(zero_points, s + i * step), saturate_);
            return;
          }
          const float* in = x.as<float>() + at;
          if constexpr (std::is_same_v<Q, uint8_t> || std::is_same_v<Q, int8_t>) {
            if (step == 0) {
              const auto function = [&] {
                if constexpr (std::is_same_v<Q, uint8_t>)
                  return fmath_.quantize_u8;
                else
                  return fmath_.quantize_s8;
              }();
              function(static_cast<size_t>(count), in, scale[s], zero_point(zero_points, s), out);
              return;
            }
          }
          for (int64_t i = 0; i < count; ++i)
            out[i] = quantized(in[i], scale[s + i * step], zero_point(zero_points, s + i * step),
                               saturate_);
        });
      });
    });
  }

 private:
  DType from_ = DType::kUndefined, out_ = DType::kUndefined;
};

class DequantizeLinear final : public Linear {
 public:
  using Linear::Linear;
  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    from_ = c.dtype(0);
    if (!dispatch_levels(from_, []<class Q>() {})) bad_type(from_);
    check_type(c.dtype(1), DType::kFloat32, "the scale");
    fit(c);
    if (has_zero_point_) check_type(c.dtype(2), from_, "the zero point");
    c.set(0, DType::kFloat32, c.shape(0));
    return Inferred::kDone;
  }
  std::string implementation() const override { return fmath_.name; }

  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    const float* scale = c.input(1)->as<float>();
    float* y = c.output(0)->as<float>();
    dispatch_levels(from_, [&]<class Q>() {
      const Q* zero_points = has_zero_point_ ? c.input(2)->as<Q>() : nullptr;
      c.pool().parallel_for(g_.total(), kGrain, [&](int64_t begin, int64_t end) {
        g_.runs(begin, end, [&](int64_t at, int64_t count, int64_t s, int64_t step) {
          const Q* in = x.as<Q>() + at;
          float* out = y + at;
          if constexpr (std::is_same_v<Q, uint8_t>) {
            if (step == 0)
              return fmath_.dequantize_u8(static_cast<size_t>(count), in, scale[s],
                                          zero_point(zero_points, s), out);
          } else if constexpr (std::is_same_v<Q, int8_t>) {
            if (step == 0)
              return fmath_.dequantize_s8(static_cast<size_t>(count), in, scale[s],
                                          zero_point(zero_points, s), out);
          }
          for (int64_t i = 0; i < count; ++i)
            out[i] = dequantized(in[i], scale[s + i * step], zero_point(zero_points, s + i * step));
        });
      });
    });
  }

 private:
  DType from_ = DType::kUndefined;
};

class DynamicQuantizeLinear final : public Op {
 public:
  using Op::Op;
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    if (c.dtype(0) != DType::kFloat32) bad_type(c.dtype(0));
    c.set(0, DType::kUint8, c.shape(0));
    for (size_t i = 1; i < 3; ++i) {
      wants_[i - 1] = wanted(c, i);
      if (wants_[i - 1]) c.set(i, i == 1 ? DType::kFloat32 : DType::kUint8, {});
    }
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    const size_t n = static_cast<size_t>(x.numel());
    const float lo = std::fmin(0.0f, fmath_.reduceMin(n, x.as<float>()));
    const float hi = std::fmax(0.0f, fmath_.reduceMax(n, x.as<float>()));
    const float range = (hi - lo) / 255.0f;
    const float scale = range > 0.0f ? range : 1.0f;  // all zeros: any scale will do
    const uint8_t zero_point =
        static_cast<uint8_t>(std::nearbyintf(std::fmin(std::fmax(-lo / scale, 0.0f), 255.0f)));
    c.pool().parallel_for(x.numel(), kGrain, [&](int64_t begin, int64_t end) {
      fmath_.quantize_u8(static_cast<size_t>(end - begin), x.as<float>() + begin, scale, zero_point,
                         c.output(0)->as<uint8_t>() + begin);
    });
    if (wants_[0]) *c.output(1)->as<float>() = scale;
    if (wants_[1]) *c.output(2)->as<uint8_t>() = zero_point;
  }

 private:
  bool wants_[2] = {};
};

}  // namespace

std::unique_ptr<Kernel> make_quantize_linear(const Node& n, const KernelContext& c) {
  return widened<QuantizeLinear>(n, c);
}
std::unique_ptr<Kernel> make_dequantize_linear(const Node& n, const KernelContext& c) {
  return widened<DequantizeLinear>(n, c);
}
std::unique_ptr<Kernel> make_dynamic_quantize_linear(const Node& n, const KernelContext& c) {
  return std::make_unique<DynamicQuantizeLinear>(n, c);
}

}  // namespace wia
