// SPDX-License-Identifier: Apache-2.0
// Putting elements back where they came from, and small matrices: MaxUnpool, Col2Im, CenterCropPad,
// BitCast, Det.
#include <cmath>
#include <cstring>

#include "runtime/ops/op.h"
#include "runtime/ops/window.h"

namespace wia {
namespace {

class MaxUnpool final : public Op {
 public:
  MaxUnpool(const Node& node, const KernelContext& context)
      : Op(node, context),
        kernel_(node.ints("kernel_shape")),
        strides_(node.ints("strides")),
        pads_(node.ints("pads")) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    const Shape& x = c.shape(0);
    check(x.rank() >= 3 && c.shape(1) == x, "the input and the indices differ in shape");
    check_type(c.dtype(1), DType::kInt64, "indices");
    const size_t n = static_cast<size_t>(x.rank() - 2);
    check(kernel_.size() == n && (strides_.empty() || strides_.size() == n) &&
              (pads_.empty() || pads_.size() == 2 * n),
          "kernel_shape, strides or pads have the wrong length");
    inner_ = x;
    for (size_t d = 0; d < n; ++d) {
      const int64_t stride = strides_.empty() ? 1 : strides_[d];
      const int64_t pads = pads_.empty() ? 0 : pads_[d] + pads_[d + n];
      constexpr int64_t kLimit = int64_t{1} << 31;
      check(kernel_[d] > 0 && kernel_[d] < kLimit && stride > 0 && stride < kLimit && pads >= 0 &&
                pads < kLimit,
            "a kernel size, stride or pad is out of range");
      const int at = static_cast<int>(d) + 2;
      check(x[at] < kLimit, "the input is too large");
      inner_[at] = (x[at] - 1) * stride - pads + kernel_[d];
      check(inner_[at] >= 0, "pads leave no output");
    }
    out_ = inner_;
    if (given(c, 2)) {
      if (!c.value(2)) return Inferred::kNeedsValues;
      const std::vector<int64_t> shape = ints_of(*c.value(2));
      check(static_cast<int>(shape.size()) == x.rank(), "output_shape has the wrong length");
      for (int d = 0; d < x.rank(); ++d) {
        out_[d] = shape[static_cast<size_t>(d)];
        check(out_[d] >= inner_[d], "output_shape is smaller than the unpooled input");
      }
    }
    dispatch_width(c.dtype(0), [](auto) {});
    inner_.numel();
    out_.numel();
    c.set(0, c.dtype(0), out_);
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    const int64_t* indices = c.input(1)->as<int64_t>();
    Tensor& y = *c.output(0);
    const int64_t n = x.numel(), limit = inner_.numel();
    const auto steps = steps_of(out_);
    std::memset(y.data, 0, y.n_bytes());
    dispatch_width(x.dtype, [&]<class W>(W) {
      for (int64_t i = 0; i < n; ++i) {
        check(indices[i] >= 0 && indices[i] < limit, "an index is out of range");
        int64_t rest = indices[i], to = 0;
        for (int d = inner_.rank() - 1; d >= 0; --d) {
          to += rest % inner_[d] * steps[d];
          rest /= inner_[d];
        }
        y.as<W>()[to] = x.as<W>()[i];
      }
    });
  }

 private:
  std::vector<int64_t> kernel_, strides_, pads_;
  Shape inner_, out_;
};

class Col2Im final : public Op {
 public:
  Col2Im(const Node& node, const KernelContext& context)
      : Op(node, context),
        dilations_(node.ints("dilations")),
        pads_(node.ints("pads")),
        strides_(node.ints("strides")) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 3);
    if (c.dtype(0) != DType::kFloat32) bad_type(c.dtype(0));
    if (!c.value(1) || !c.value(2)) return Inferred::kNeedsValues;
    const std::vector<int64_t> image = ints_of(*c.value(1)), block = ints_of(*c.value(2));
    const Shape& x = c.shape(0);
    const size_t n = image.size();
    check(n >= 1 && n <= kMaxSpatial && block.size() == n,
          "image_shape and block_shape have not one to three numbers each");
    check(x.rank() == 3, "the input is not [N, C * block, L]");
    w_ = Window{};
    Shape out = {x[0], 0};
    for (size_t i = 0; i < n; ++i) {
      const size_t d = kMaxSpatial - n + i;
      constexpr int64_t kLimit = int64_t{1} << 31;
      const auto read = [&](const std::vector<int64_t>& list, int64_t otherwise, size_t at) {
        check(list.empty() || list.size() > at, "an attribute has the wrong length");
        const int64_t v = list.empty() ? otherwise : list[at];
        check(v >= 0 && v < kLimit, "an attribute is negative or too large");
        return v;
      };
      w_.in[d] = read(image, 0, i);
      w_.kernel[d] = read(block, 1, i);
      w_.stride[d] = read(strides_, 1, i);
      w_.dilation[d] = read(dilations_, 1, i);
      w_.pad_lo[d] = read(pads_, 0, i);
      w_.pad_hi[d] = read(pads_, 0, i + n);
      check(w_.kernel[d] > 0 && w_.stride[d] > 0 && w_.dilation[d] > 0,
            "a block, stride or dilation is 0");
      const int64_t room =
          w_.in[d] + w_.pad_lo[d] + w_.pad_hi[d] - (w_.kernel[d] - 1) * w_.dilation[d] - 1;
      check(room >= 0, "the block is larger than the padded image");
      w_.out[d] = room / w_.stride[d] + 1;
      out.push_back(w_.in[d]);
    }
    taps_ = Shape({w_.kernel[0], w_.kernel[1], w_.kernel[2]}).numel();
    const int64_t columns = Shape({w_.out[0], w_.out[1], w_.out[2]}).numel();
    check(x[1] % taps_ == 0 && x[2] == columns, "the input " + x.str() + " does not fit the image");
    out[1] = x[1] / taps_;
    planes_ = out[0] * out[1];
    out.numel();
    c.set(0, DType::kFloat32, out);
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const float* x = c.input(0)->as<float>();
    float* y = c.output(0)->as<float>();
    const int64_t columns = w_.n_out(), pixels = w_.n_in();
    std::fill_n(y, planes_ * pixels, 0.0f);
    c.pool().parallel_for(planes_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p)
        for (int64_t tap = 0; tap < taps_; ++tap) {
          const int64_t k[3] = {tap / w_.kernel[2] / w_.kernel[1],
                                tap / w_.kernel[2] % w_.kernel[1], tap % w_.kernel[2]};
          for (int64_t col = 0; col < columns; ++col) {
            const int64_t o[3] = {col / w_.out[2] / w_.out[1], col / w_.out[2] % w_.out[1],
                                  col % w_.out[2]};
            int64_t at = 0;
            bool inside = true;
            for (int d = 0; d < 3; ++d) {
              const int64_t i = o[d] * w_.stride[d] + k[d] * w_.dilation[d] - w_.pad_lo[d];
              inside &= i >= 0 && i < w_.in[d];
              at = at * w_.in[d] + i;
            }
            if (inside) y[p * pixels + at] += x[(p * taps_ + tap) * columns + col];
          }
        }
    });
  }

 private:
  std::vector<int64_t> dilations_, pads_, strides_;
  Window w_;
  int64_t taps_ = 1, planes_ = 0;
};

class CenterCropPad final : public Op {
 public:
  CenterCropPad(const Node& node, const KernelContext& context)
      : Op(node, context), axes_(node.ints("axes")), axes_given_(node.has("axes")) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    if (!c.value(1)) return Inferred::kNeedsValues;
    const std::vector<int64_t> sizes = ints_of(*c.value(1));
    in_ = c.shape(0);
    std::vector<int64_t> axes = axes_;
    if (!axes_given_)
      for (int d = 0; d < in_.rank(); ++d) axes.push_back(d);
    check(sizes.size() == axes.size(), "shape has not one number for each axis");
    out_ = in_;
    std::fill_n(shift_, Shape::kMaxRank, 0);
    for (size_t i = 0; i < axes.size(); ++i) {
      const int d = axis_of(axes[i], in_.rank());
      check(sizes[i] >= 0 && sizes[i] < (int64_t{1} << 31), "a size is negative or too large");
      out_[d] = sizes[i];
      // The odd element is left over at the end.
      shift_[d] = out_[d] <= in_[d] ? (in_[d] - out_[d]) / 2 : -((out_[d] - in_[d]) / 2);
    }
    dispatch_width(c.dtype(0), [](auto) {});
    c.set(0, c.dtype(0), out_);
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    Tensor& y = *c.output(0);
    const auto steps = steps_of(in_);
    dispatch_width(x.dtype, [&]<class W>(W) {
      const int64_t n = y.numel();
      for (int64_t o = 0; o < n; ++o) {
        int64_t rest = o, from = 0;
        bool inside = true;
        for (int d = out_.rank() - 1; d >= 0; --d) {
          const int64_t i = rest % out_[d] + shift_[d];
          rest /= out_[d];
          inside &= i >= 0 && i < in_[d];
          from += i * steps[d];
        }
        y.as<W>()[o] = inside ? x.as<W>()[from] : W{0};
      }
    });
  }

 private:
  std::vector<int64_t> axes_;
  bool axes_given_;
  Shape in_, out_;
  int64_t shift_[Shape::kMaxRank] = {};
};

class BitCast final : public Op {
 public:
  BitCast(const Node& node, const KernelContext& context)
      : Op(node, context), to_(static_cast<DType>(node.i("to", 0))) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    const auto four_bits = [](DType d) { return d == DType::kInt4 || d == DType::kUint4; };
    check(dtype_size(to_) == dtype_size(c.dtype(0)) && dtype_size(to_) > 0 &&
              four_bits(to_) == four_bits(c.dtype(0)),
          std::string("the widths of ") + dtype_name(c.dtype(0)) + " and " + dtype_name(to_) +
              " differ");
    if (four_bits(to_) && to_ != c.dtype(0)) unsupported("4-bit types are not supported");
    c.set(0, to_, c.shape(0));
    return Inferred::kDone;
  }
  bool may_overwrite(size_t) const override { return true; }
  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    Tensor& y = *c.output(0);
    if (to_ == DType::kBool) {
      for (int64_t i = 0; i < x.numel(); ++i) y.as<uint8_t>()[i] = x.as<uint8_t>()[i] != 0;
    } else if (y.data != x.data && x.n_bytes()) {
      std::memcpy(y.data, x.data, x.n_bytes());
    }
  }

 private:
  DType to_;
};

class Det final : public Op {
 public:
  using Op::Op;
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    const Shape& x = c.shape(0);
    dtype_ = c.dtype(0);
    if (!dispatch<float, double>(dtype_, []<class T>() {})) bad_type(dtype_);
    check(x.rank() >= 2 && x[x.rank() - 1] == x[x.rank() - 2], "the input is not square matrices");
    n_ = x[x.rank() - 1];
    c.set(0, dtype_, Shape(x.dims().first(static_cast<size_t>(x.rank() - 2))));
    return Inferred::kDone;
  }
  size_t scratch_bytes() const override {
    return align64(static_cast<size_t>(Shape({n_, n_}).numel()) * sizeof(double));
  }
  void run(RunContext& c) override {
    double* a = reinterpret_cast<double*>(c.scratch());
    dispatch<float, double>(dtype_, [&]<class T>() {
      const int64_t count = c.output(0)->numel();
      for (int64_t m = 0; m < count; ++m) {
        for (int64_t i = 0; i < n_ * n_; ++i)
          a[i] = static_cast<double>(c.input(0)->as<T>()[m * n_ * n_ + i]);
        c.output(0)->as<T>()[m] = static_cast<T>(determinant(a));
      }
    });
  }

 private:
  // Gaussian elimination with the largest pivot of each column.
  double determinant(double* a) const {
    double det = 1;
    for (int64_t k = 0; k < n_; ++k) {
      int64_t pivot = k;
      for (int64_t r = k + 1; r < n_; ++r)
        if (std::fabs(a[r * n_ + k]) > std::fabs(a[pivot * n_ + k])) pivot = r;
      if (a[pivot * n_ + k] == 0) return 0;
      if (pivot != k) {
        std::swap_ranges(a + k * n_, a + (k + 1) * n_, a + pivot * n_);
        det = -det;
      }
      det *= a[k * n_ + k];
      for (int64_t r = k + 1; r < n_; ++r) {
        const double factor = a[r * n_ + k] / a[k * n_ + k];
        for (int64_t j = k; j < n_; ++j) a[r * n_ + j] -= factor * a[k * n_ + j];
      }
    }
    return det;
  }
  DType dtype_ = DType::kUndefined;
  int64_t n_ = 0;
};

}  // namespace

std::unique_ptr<Kernel> make_max_unpool(const Node& n, const KernelContext& c) {
  return std::make_unique<MaxUnpool>(n, c);
}
std::unique_ptr<Kernel> make_col2im(const Node& n, const KernelContext& c) {
  return widened<Col2Im>(n, c);
}
std::unique_ptr<Kernel> make_center_crop_pad(const Node& n, const KernelContext& c) {
  return std::make_unique<CenterCropPad>(n, c);
}
std::unique_ptr<Kernel> make_bit_cast(const Node& n, const KernelContext& c) {
  return std::make_unique<BitCast>(n, c);
}
std::unique_ptr<Kernel> make_det(const Node& n, const KernelContext& c) {
  return widened<Det>(n, c);
}

}  // namespace wia
