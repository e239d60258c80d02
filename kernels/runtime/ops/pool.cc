// SPDX-License-Identifier: Apache-2.0
// MaxPool, AveragePool, LpPool and their global forms, [N, C, spatial...].
#include <cmath>

#include "runtime/ops/op.h"
#include "runtime/ops/window.h"

namespace wia {
namespace {

// Calls body(tap, input row, output row, first output, last output) for every tap that reads inside
// the input.
template <class Body>
void each_tap(const Window& w, const std::vector<Reach>& reach, int64_t oz, int64_t oy,
              Body&& body) {
  int64_t tap = 0;
  for (int64_t kz = 0; kz < w.kernel[0]; ++kz) {
    const int64_t iz = oz * w.stride[0] + kz * w.dilation[0] - w.pad_lo[0];
    for (int64_t ky = 0; ky < w.kernel[1]; ++ky) {
      const int64_t iy = oy * w.stride[1] + ky * w.dilation[1] - w.pad_lo[1];
      const bool inside = iz >= 0 && iz < w.in[0] && iy >= 0 && iy < w.in[1];
      for (int64_t kx = 0; kx < w.kernel[2]; ++kx, ++tap) {
        if (!inside) continue;
        const auto [first, last] = reach[static_cast<size_t>(kx)];
        if (first < last)
          body(tap, (iz * w.in[1] + iy) * w.in[2] + kx * w.dilation[2] - w.pad_lo[2], first, last);
      }
    }
  }
}

Shape pooled_shape(const Shape& x, const Window& w) {
  Shape out = {x[0], x[1]};
  for (int i = 0; i < x.rank() - 2; ++i) out.push_back(w.out[kMaxSpatial - (x.rank() - 2) + i]);
  return out;
}

// A global pool is a window over everything.
std::vector<int64_t> kernel_for(const Shape& x, bool global) {
  if (!global) return {};
  return {x.begin() + std::min(2, x.rank()), x.end()};
}

class MaxPool final : public Op {
 public:
  MaxPool(const Node& node, const KernelContext& context, bool global)
      : Op(node, context),
        attributes_(node),
        global_(global),
        column_major_(node.i("storage_order", 0) != 0) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    const Shape& x = c.shape(0);
    check(x.rank() >= 3, "the input " + x.str() + " has no spatial dimension");
    dtype_ = c.dtype(0);
    if (!dispatch<float, double, int8_t, uint8_t>(dtype_, []<class T>() {})) bad_type(dtype_);
    rank_ = x.rank() - 2;
    w_ = attributes_.fit(x, kernel_for(x, global_));
    reach_ = reaches(w_);
    planes_ = x[0] * x[1];
    const Shape out = pooled_shape(x, w_);
    out.numel();
    c.set(0, dtype_, out);
    indices_ = wanted(c, 1);
    if (indices_) c.set(1, DType::kInt64, out);
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    Tensor& y = *c.output(0);
    int64_t* indices = indices_ ? c.output(1)->as<int64_t>() : nullptr;
    if (y.numel() == 0) return;
    const int64_t rows = w_.out[0] * w_.out[1];
    dispatch<float, double, int8_t, uint8_t>(dtype_, [&]<class T>() {
      const int64_t grain = std::max<int64_t>(1, kGrain / (w_.out[2] * w_.n_taps()));
      c.pool().parallel_for(planes_ * rows, grain, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const int64_t plane = row / rows, oz = row % rows / w_.out[1], oy = row % w_.out[1];
          const T* in = x.as<T>() + plane * w_.n_in();
          T* out = y.as<T>() + row * w_.out[2];
          T lowest = std::numeric_limits<T>::lowest();
          if constexpr (std::is_floating_point_v<T>) lowest = -std::numeric_limits<T>::infinity();
          std::fill_n(out, w_.out[2], lowest);
          int64_t* at = indices ? indices + row * w_.out[2] : nullptr;
          if (at) std::fill_n(at, w_.out[2], int64_t{-1});
          each_tap(w_, reach_, oz, oy, [&](int64_t, int64_t from, int64_t first, int64_t last) {
            const int64_t step = w_.stride[2];
            if (at) {
              for (int64_t ox = first; ox < last; ++ox) {
                const T v = in[from + ox * step];
                if (at[ox] >= 0 && !(v > out[ox]) && v == v) continue;
                out[ox] = v;
                at[ox] = from + ox * step;
              }
            } else if constexpr (std::is_same_v<T, float>) {
              fmath_.max_tap(static_cast<size_t>(last - first), in + from + first * step,
                             static_cast<size_t>(step), out + first);
            } else if (step == 1) {
              const T* source = in + from;
              for (int64_t ox = first; ox < last; ++ox) out[ox] = larger(out[ox], source[ox]);
            } else {
              const T* source = in + from;
              for (int64_t ox = first; ox < last; ++ox)
                out[ox] = larger(out[ox], source[ox * step]);
            }
          });
          if (at)
            for (int64_t ox = 0; ox < w_.out[2]; ++ox) at[ox] = index_of(at[ox], plane);
        }
      });
    });
  }

 private:
  template <class T>
  static T larger(T a, T b) {
    return a > b || a != a ? a : b;
  }
  // Indices count over the whole input; storage_order 1 counts each plane with its first dimension
  // fastest.
  int64_t index_of(int64_t at, int64_t plane) const {
    if (at < 0) return -1;
    if (column_major_) {
      const int64_t ix = at % w_.in[2], iy = at / w_.in[2] % w_.in[1],
                    iz = at / w_.in[2] / w_.in[1];
      if (rank_ == 2) at = iy + w_.in[1] * ix;
      if (rank_ == 3) at = iz + w_.in[0] * (iy + w_.in[1] * ix);
    }
    return plane * w_.n_in() + at;
  }

  WindowAttributes attributes_;
  bool global_, column_major_, indices_ = false;
  DType dtype_ = DType::kUndefined;
  int rank_ = 0;
  int64_t planes_ = 0;
  Window w_;
  std::vector<Reach> reach_;
};

// AveragePool (p = 0) and LpPool: sums over the taps in order, float32 or float64.
class SumPool final : public Op {
 public:
  SumPool(const Node& node, const KernelContext& context, bool global, int64_t p)
      : Op(node, context),
        attributes_(node),
        global_(global),
        p_(p),
        count_pads_(node.i("count_include_pad", 0) != 0) {
    check(p_ >= 0, "p is not positive");
  }
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    const Shape& x = c.shape(0);
    check(x.rank() >= 3, "the input " + x.str() + " has no spatial dimension");
    dtype_ = c.dtype(0);
    if (!dispatch<float, double>(dtype_, []<class T>() {})) bad_type(dtype_);
    w_ = attributes_.fit(x, kernel_for(x, global_));
    reach_ = reaches(w_);
    planes_ = x[0] * x[1];
    const Shape out = pooled_shape(x, w_);
    out.numel();
    c.set(0, dtype_, out);
    return Inferred::kDone;
  }
  std::string implementation() const override { return fmath_.name; }
  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    Tensor& y = *c.output(0);
    if (y.numel() == 0) return;
    const int64_t rows = w_.out[0] * w_.out[1], n_in = w_.n_in();
    const bool whole = global_ && p_ == 0 && dtype_ == DType::kFloat32;
    dispatch<float, double>(dtype_, [&]<class T>() {
      const int64_t grain = std::max<int64_t>(1, kGrain / (w_.out[2] * w_.n_taps()));
      c.pool().parallel_for(planes_ * rows, grain, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const int64_t plane = row / rows, oz = row % rows / w_.out[1], oy = row % w_.out[1];
          const T* in = x.as<T>() + plane * n_in;
          T* out = y.as<T>() + row * w_.out[2];
          if constexpr (std::is_same_v<T, float>) {
            if (whole) {
              *out = fmath_.reduceSum(static_cast<size_t>(n_in), in) / static_cast<float>(n_in);
              continue;
            }
          }
          std::fill_n(out, w_.out[2], T{0});
          each_tap(w_, reach_, oz, oy, [&](int64_t, int64_t from, int64_t first, int64_t last) {
            const T* source = in + from;
            const int64_t step = w_.stride[2];
            if constexpr (std::is_same_v<T, float>) {
              if (p_ == 0) {
                fmath_.sum_tap(static_cast<size_t>(last - first), source + first * step,
                               static_cast<size_t>(step), out + first);
                return;
              }
            }
            if (p_ == 0) {
              for (int64_t ox = first; ox < last; ++ox) out[ox] += source[ox * step];
            } else {
              for (int64_t ox = first; ox < last; ++ox) out[ox] += power(source[ox * step]);
            }
          });
          finish(oz, oy, out);
        }
      });
    });
  }

 private:
  template <class T>
  T power(T v) const {
    const T a = std::fabs(v);
    if (p_ == 1) return a;
    if (p_ == 2) return a * a;
    return static_cast<T>(std::pow(static_cast<double>(a), static_cast<double>(p_)));
  }
  // How many taps of output o in dimension d are counted.
  int64_t counted(int d, int64_t o) const {
    const int64_t lo = count_pads_ ? -w_.pad_lo[d] : 0,
                  hi = w_.in[d] + (count_pads_ ? w_.pad_hi[d] : 0);
    int64_t n = 0;
    for (int64_t k = 0; k < w_.kernel[d]; ++k) {
      const int64_t i = o * w_.stride[d] + k * w_.dilation[d] - w_.pad_lo[d];
      n += i >= lo && i < hi;
    }
    return n;
  }
  template <class T>
  void finish(int64_t oz, int64_t oy, T* out) const {
    if (p_ == 0) {
      const int64_t outer = counted(0, oz) * counted(1, oy);
      for (int64_t ox = 0; ox < w_.out[2]; ++ox) out[ox] /= static_cast<T>(outer * counted(2, ox));
    } else if (p_ == 2) {
      for (int64_t ox = 0; ox < w_.out[2]; ++ox) out[ox] = std::sqrt(out[ox]);
    } else if (p_ > 2) {
      for (int64_t ox = 0; ox < w_.out[2]; ++ox)
        out[ox] =
            static_cast<T>(std::pow(static_cast<double>(out[ox]), 1.0 / static_cast<double>(p_)));
    }
  }

  WindowAttributes attributes_;
  bool global_;
  int64_t p_;
  bool count_pads_;
  DType dtype_ = DType::kUndefined;
  int64_t planes_ = 0;
  Window w_;
  std::vector<Reach> reach_;
};

}  // namespace

std::unique_ptr<Kernel> make_max_pool(const Node& n, const KernelContext& c) {
  return widened<MaxPool>(n, c, false);
}
std::unique_ptr<Kernel> make_global_max_pool(const Node& n, const KernelContext& c) {
  return widened<MaxPool>(n, c, true);
}
std::unique_ptr<Kernel> make_average_pool(const Node& n, const KernelContext& c) {
  return widened<SumPool>(n, c, false, 0);
}
std::unique_ptr<Kernel> make_global_average_pool(const Node& n, const KernelContext& c) {
  return widened<SumPool>(n, c, true, 0);
}
std::unique_ptr<Kernel> make_lp_pool(const Node& n, const KernelContext& c) {
  return widened<SumPool>(n, c, false, std::max<int64_t>(1, n.i("p", 2)));
}
std::unique_ptr<Kernel> make_global_lp_pool(const Node& n, const KernelContext& c) {
  return widened<SumPool>(n, c, true, std::max<int64_t>(1, n.i("p", 2)));
}

}  // namespace wia
