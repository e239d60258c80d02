// SPDX-License-Identifier: Apache-2.0
// Conv and ConvTranspose in float32, [N, C, spatial...]: fgemm over gathered columns, depthwise
// directly.
#include <cstring>

#include "ops/fgemm/fgemm.h"
#include "runtime/ops/op.h"
#include "runtime/ops/window.h"

namespace wia {
namespace {

// Spatial sizes of a weight [M, C / group, spatial...].
std::vector<int64_t> kernel_of(const Shape& weight) {
  return {weight.begin() + std::min(2, weight.rank()), weight.end()};
}

// n floats, many of them the same few numbers: the compiler writes those without a loop.
inline void copy_floats(const float* from, int64_t n, float* to) {
  constexpr size_t kFloat = sizeof(float);
  if (n == 32) {
    std::memcpy(to, from, 32 * kFloat);
  } else if (n == 16) {
    std::memcpy(to, from, 16 * kFloat);
  } else if (n == 8) {
    std::memcpy(to, from, 8 * kFloat);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = from[i];
  }
}

// A stretch of a panel's columns within one output row.
struct Stretch {
  int64_t at, length;  // columns of the panel
  int64_t oz, oy, ox;  // its first output
};

// One channel of one stretch: a row of the panel for each tap.
void gather_stretch(const Window& w, const std::vector<Reach>& reach, const float* plane,
                    const Stretch& s, int64_t nr, float* rows) {
  const int64_t step = w.stride[2];
  float* out = rows + s.at;
  for (int64_t kz = 0; kz < w.kernel[0]; ++kz) {
    const int64_t iz = s.oz * w.stride[0] + kz * w.dilation[0] - w.pad_lo[0];
    for (int64_t ky = 0; ky < w.kernel[1]; ++ky) {
      const int64_t iy = s.oy * w.stride[1] + ky * w.dilation[1] - w.pad_lo[1];
      const bool inside = iz >= 0 && iz < w.in[0] && iy >= 0 && iy < w.in[1];
      const float* row = plane + (iz * w.in[1] + iy) * w.in[2] + s.ox * step - w.pad_lo[2];
      for (int64_t kx = 0; kx < w.kernel[2]; ++kx, out += nr, row += w.dilation[2]) {
        const Reach& r = reach[static_cast<size_t>(kx)];
        const int64_t first = inside ? std::clamp<int64_t>(r.first - s.ox, 0, s.length) : s.length;
        const int64_t last =
            inside ? std::clamp<int64_t>(r.last - s.ox, first, s.length) : s.length;
        for (int64_t i = 0; i < first; ++i) out[i] = 0.0f;
        if (step == 1) {
          copy_floats(row + first, last - first, out + first);
        } else if (step == 2) {
          for (int64_t i = first; i < last; ++i) out[i] = row[2 * i];
        } else {
          for (int64_t i = first; i < last; ++i) out[i] = row[i * step];
        }
        for (int64_t i = last; i < s.length; ++i) out[i] = 0.0f;
      }
    }
  }
}

// Packed panels of the columns [first_pixel, first_pixel + n) of im2col: row (channel, tap), column
// pixel.
void gather_columns(const Window& w, const std::vector<Reach>& reach, int64_t channels,
                    const float* x, int64_t first_pixel, int64_t n, int64_t nr, float* packed) {
  const int64_t taps = w.n_taps(), plane = w.n_in(), k = channels * taps;
  const int64_t full = n / nr * nr;
  if (full < n)
    for (int64_t r = 0; r < k; ++r)
      std::fill(packed + full * k + r * nr + n - full, packed + full * k + (r + 1) * nr, 0.0f);
  if (taps == 1 && w.out[2] == plane && w.stride[2] == 1 &&
      w.pad_lo[2] == 0) {  // pointwise: rows as they are
    for (int64_t c = 0; c < channels; ++c) {
      const float* in = x + c * plane + first_pixel;
      for (int64_t p = 0; p < n; p += nr)
        copy_floats(in + p, std::min(nr, n - p), packed + p * k + c * nr);
    }
    return;
  }
  constexpr int64_t kMaxColumns = 64;
  for (int64_t p0 = 0; p0 < n; p0 += nr) {
    Stretch stretches[kMaxColumns];
    int64_t n_stretches = 0;
    const int64_t columns = std::min(nr, n - p0), pixel = first_pixel + p0;
    Stretch next = {0, 0, pixel / w.out[2] / w.out[1], pixel / w.out[2] % w.out[1],
                    pixel % w.out[2]};
    while (next.at < columns) {
      next.length = std::min(columns - next.at, w.out[2] - next.ox);
      stretches[n_stretches++] = next;
      next.at += next.length;
      next.ox = 0;
      if (++next.oy == w.out[1]) {
        next.oy = 0;
        ++next.oz;
      }
    }
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t s = 0; s < n_stretches; ++s)
        gather_stretch(w, reach, x + c * plane, stretches[s], nr, packed + p0 * k + c * taps * nr);
  }
}

// A kernel of 1 that visits every pixel: the spatial dimensions are one long row.
void flatten_pointwise(Window& w) {
  for (int d = 0; d < kMaxSpatial; ++d)
    if (w.kernel[d] != 1 || w.stride[d] != 1 || w.pad_lo[d] != 0 || w.pad_hi[d] != 0) return;
  w.in[2] = w.out[2] = w.n_in();
  w.in[0] = w.in[1] = w.out[0] = w.out[1] = 1;
}

class Conv final : public Op {
 public:
  Conv(const Node& node, const KernelContext& context)
      : Op(node, context),
        attributes_(node),
        group_(node.i("group", 1)),
        gemm_(select_fgemm(context.isa)) {
    check(group_ > 0, "group is not positive");
    const std::shared_ptr<const Tensor> weight = constant_float(node, context, 1);
    if (!weight || weight->shape.rank() < 3 || weight->numel() == 0 ||
        is_depthwise(weight->shape) || weight->shape[0] % group_ != 0)
      return;
    packed_shape_ = weight->shape;
    packed_ = Tensor::allocate(DType::kFloat32, {weight->numel()});
    pack_weight(weight->as<float>(), weight->shape, packed_.as<float>());
  }

  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    if (c.dtype(0) != DType::kFloat32) bad_type(c.dtype(0));
    check_type(c.dtype(1), DType::kFloat32, "the weight");
    const Shape &x = c.shape(0), &weight = c.shape(1);
    check(x.rank() >= 3, "the input " + x.str() + " has no spatial dimension");
    check(weight.rank() == x.rank(), "the weight's dimensions are not the input's");
    w_ = attributes_.fit(x, kernel_of(weight));
    n_ = x[0];
    const int64_t channels = x[1], filters = weight[0];
    check(channels % group_ == 0 && filters % group_ == 0, "group does not divide the channels");
    check(weight[1] == channels / group_, "the weight " + weight.str() + " does not fit " +
                                              std::to_string(channels) + " input channels in " +
                                              std::to_string(group_) + " groups");
    c_per_group_ = channels / group_;
    m_per_group_ = filters / group_;
    has_bias_ = given(c, 2);
    if (has_bias_) {
      check_type(c.dtype(2), DType::kFloat32, "the bias");
      check(c.shape(2) == Shape({filters}), "the bias is not one number for each output channel");
    }
    Shape out = {x[0], filters};
    for (int i = 0; i < x.rank() - 2; ++i) out.push_back(w_.out[kMaxSpatial - (x.rank() - 2) + i]);
    out.numel();
    depthwise_ = is_depthwise(weight);
    if (depthwise_) {
      padded_h_ = w_.in[1] + w_.pad_lo[1] + w_.pad_hi[1];
      padded_w_ = w_.in[2] + w_.pad_lo[2] + w_.pad_hi[2];
      Shape({padded_h_, padded_w_}).numel();
      plane_floats_ =
          align64(static_cast<size_t>(padded_h_ * padded_w_) * sizeof(float)) / sizeof(float);
      // Narrow planes run as one long row: its outputs between two rows are dropped.
      one_row_ = w_.stride[1] == 1 && w_.stride[2] == 1 && w_.out[2] < kNarrow;
      row_length_ = (w_.out[1] - 1) * padded_w_ + w_.out[2];
      slot_bytes_ = plane_floats_ * sizeof(float) +
                    (one_row_ ? align64(static_cast<size_t>(row_length_) * sizeof(float)) : 0);
      weight_bytes_ = 0;
    } else {
      flatten_pointwise(w_);
      reach_ = reaches(w_);
      const size_t k = static_cast<size_t>(Shape({c_per_group_, w_.n_taps()}).numel());
      const size_t pixels = static_cast<size_t>(w_.n_out());
      const size_t n_panels = (pixels + gemm_.nr - 1) / gemm_.nr;
      panels_each_ = std::clamp<size_t>(
          kColumnBytes / (k * gemm_.nr * sizeof(float) + 1), 1,
          std::max<size_t>(1, (n_panels + 2 * n_threads_ - 1) / (2 * n_threads_)));
      if (n_threads_ == 1)
        panels_each_ = std::clamp<size_t>(kColumnBytes / (k * gemm_.nr * sizeof(float) + 1), 1,
                                          std::max<size_t>(1, n_panels));
      slot_bytes_ = align64(k * gemm_.nr * panels_each_ * sizeof(float));
      weight_bytes_ = align64(static_cast<size_t>(weight.numel()) * sizeof(float));
      weight_ = weight;
      check(!packed_.data || packed_shape_ == weight, "the weight changed its shape");
    }
    c.set(0, DType::kFloat32, out);
    return Inferred::kDone;
  }

  size_t scratch_bytes() const override {
    return slot_bytes_ * n_threads_ + (packed_.data ? 0 : weight_bytes_);
  }
  bool consumed(size_t input) const override { return input == 1 && packed_.data != nullptr; }
  size_t owned_bytes() const override { return packed_.n_bytes(); }
  std::string implementation() const override { return depthwise_ ? fmath_.name : gemm_.name; }

  void run(RunContext& c) override {
    const float* x = c.input(0)->as<float>();
    const float* weight = c.input(1)->as<float>();
    const float* bias = has_bias_ ? c.input(2)->as<float>() : nullptr;
    float* y = c.output(0)->as<float>();
    if (c.output(0)->numel() == 0) return;
    if (depthwise_) return run_depthwise(c, x, weight, bias, y);
    ScratchSlots slots(c.scratch(), slot_bytes_, n_threads_);
    const float* filters = packed_.as<float>();
    if (!filters) {
      float* packed = reinterpret_cast<float*>(c.scratch() + slot_bytes_ * n_threads_);
      pack_weight(weight, weight_, packed);
      filters = packed;
    }
    const int64_t k = c_per_group_ * w_.n_taps(), pixels = w_.n_out(), in_plane = w_.n_in();
    const int64_t columns = static_cast<int64_t>(panels_each_ * gemm_.nr);
    const int64_t column_tasks = (pixels + columns - 1) / columns;
    const int64_t n_blocks =
        (m_per_group_ + static_cast<int64_t>(gemm_.mr) - 1) / static_cast<int64_t>(gemm_.mr);
    const int64_t outer = n_ * group_ * column_tasks;
    const int64_t threads = static_cast<int64_t>(c.pool().size());
    const int64_t row_tasks =
        std::min(n_blocks, threads == 1 || outer >= 2 * threads ? 1 : threads);
    const int64_t blocks_each = (n_blocks + row_tasks - 1) / row_tasks;
    c.pool().parallel_for(outer * row_tasks, 1, [&](int64_t begin, int64_t end) {
      const ScratchSlots::Lease lease(slots);
      float* panels = lease.as<float>();
      int64_t gathered = -1;
      for (int64_t t = begin; t < end; ++t) {
        const int64_t tile = t / row_tasks, plane = tile / column_tasks, group = plane % group_;
        const int64_t first = tile % column_tasks * columns,
                      count = std::min(columns, pixels - first);
        if (tile != gathered) {
          gather_columns(w_, reach_, c_per_group_, x + plane * c_per_group_ * in_plane, first,
                         count, static_cast<int64_t>(gemm_.nr), panels);
          gathered = tile;
        }
        FgemmParams p{};
        p.m = static_cast<size_t>(m_per_group_);
        p.n = static_cast<size_t>(count);
        p.k = static_cast<size_t>(k);
        p.a = filters + group * m_per_group_ * k;
        p.b = panels;
        p.c = y + plane * m_per_group_ * pixels + first;
        p.ld_c = static_cast<size_t>(pixels);
        p.row_bias = bias ? bias + group * m_per_group_ : nullptr;
        p.first_block = static_cast<size_t>(t % row_tasks * blocks_each);
        p.last_block = static_cast<size_t>(std::min(n_blocks, (t % row_tasks + 1) * blocks_each));
        p.last_panel = (p.n + gemm_.nr - 1) / gemm_.nr;
        if (p.first_block < p.last_block) fgemm_run(gemm_, p);
      }
    });
  }

 private:
  static constexpr int64_t kNarrow = 64;  // rows of fewer outputs than some vectors
  static constexpr size_t kColumnBytes =
      192 << 10;  // of gathered columns, to stay in the second-level cache

  // One filter for each channel, in one or two dimensions.
  bool is_depthwise(const Shape& weight) const {
    return weight[1] == 1 && group_ > 1 && weight.rank() <= 4;
  }

  void pack_weight(const float* weight, const Shape& shape, float* packed) const {
    const size_t m = static_cast<size_t>(shape[0] / group_);
    const size_t k = static_cast<size_t>(product(shape, 1, shape.rank()));
    for (int64_t g = 0; g < group_; ++g)
      fgemm_pack_a(gemm_, m, k, weight + static_cast<size_t>(g) * m * k, k, 1, 0,
                   (m + gemm_.mr - 1) / gemm_.mr, packed + static_cast<size_t>(g) * m * k);
  }

  void run_depthwise(RunContext& c, const float* x, const float* weight, const float* bias,
                     float* y) {
    ScratchSlots slots(c.scratch(), slot_bytes_, n_threads_);
    const int64_t filters = group_ * m_per_group_, pixels = w_.n_out(), taps = w_.n_taps();
    const bool padded = padded_h_ != w_.in[1] || padded_w_ != w_.in[2];
    c.pool().parallel_for(
        n_ * filters, std::max<int64_t>(1, kGrain / (pixels * taps)),
        [&](int64_t begin, int64_t end) {
          const ScratchSlots::Lease lease(slots);
          int64_t ready = -1;
          if (padded) std::fill_n(lease.as<float>(), padded_h_ * padded_w_, 0.0f);
          for (int64_t i = begin; i < end; ++i) {
            const int64_t filter = i % filters,
                          source = i / filters * group_ + filter / m_per_group_;
            const float* plane = x + source * w_.n_in();
            if (padded && source != ready) {
              for (int64_t row = 0; row < w_.in[1]; ++row)
                std::memcpy(lease.as<float>() + (row + w_.pad_lo[1]) * padded_w_ + w_.pad_lo[2],
                            plane + row * w_.in[2], static_cast<size_t>(w_.in[2]) * sizeof(float));
              ready = source;
            }
            DepthwisePlane p{};
            p.x = padded ? lease.as<float>() : plane;
            p.ld_x = static_cast<size_t>(padded_w_);
            p.filter = weight + filter * taps;
            p.kernel_h = static_cast<size_t>(w_.kernel[1]);
            p.kernel_w = static_cast<size_t>(w_.kernel[2]);
            p.stride_h = static_cast<size_t>(w_.stride[1]);
            p.stride_w = static_cast<size_t>(w_.stride[2]);
            p.dilation_h = static_cast<size_t>(w_.dilation[1]);
            p.dilation_w = static_cast<size_t>(w_.dilation[2]);
            p.bias = bias ? bias[filter] : 0.0f;
            p.y = y + i * pixels;
            p.out_h = static_cast<size_t>(w_.out[1]);
            p.out_w = static_cast<size_t>(w_.out[2]);
            if (!one_row_) {
              fmath_.depthwise(p);
              continue;
            }
            float* row = lease.as<float>() + plane_floats_;
            p.y = row;
            p.out_h = 1;
            p.out_w = static_cast<size_t>(row_length_);
            fmath_.depthwise(p);
            for (int64_t oy = 0; oy < w_.out[1]; ++oy)
              std::memcpy(y + i * pixels + oy * w_.out[2], row + oy * padded_w_,
                          static_cast<size_t>(w_.out[2]) * sizeof(float));
          }
        });
  }

  WindowAttributes attributes_;
  int64_t group_;
  const FgemmKernel& gemm_;
  Tensor packed_;
  Shape packed_shape_, weight_;
  Window w_;
  std::vector<Reach> reach_;
  int64_t n_ = 0, c_per_group_ = 0, m_per_group_ = 0, padded_h_ = 0, padded_w_ = 0;
  bool has_bias_ = false, depthwise_ = false, one_row_ = false;
  int64_t row_length_ = 0;
  size_t plane_floats_ = 0;
  size_t panels_each_ = 1, slot_bytes_ = 0, weight_bytes_ = 0;
};

// Each input pixel times the filters, summed into the outputs it reaches; taps are added in their
// order.
class ConvTranspose final : public Op {
 public:
  ConvTranspose(const Node& node, const KernelContext& context)
      : Op(node, context),
        attributes_(node),
        group_(node.i("group", 1)),
        output_shape_(node.ints("output_shape")),
        output_padding_(node.ints("output_padding")),
        gemm_(select_fgemm(context.isa)) {
    check(group_ > 0, "group is not positive");
  }
  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    if (c.dtype(0) != DType::kFloat32) bad_type(c.dtype(0));
    check_type(c.dtype(1), DType::kFloat32, "the weight");
    const Shape &x = c.shape(0), &weight = c.shape(1);
    check(x.rank() >= 3, "the input " + x.str() + " has no spatial dimension");
    check(weight.rank() == x.rank(), "the weight's dimensions are not the input's");
    check(weight[0] == x[1] && x[1] % group_ == 0, "the weight " + weight.str() + " does not fit " +
                                                       std::to_string(x[1]) + " input channels");
    w_ = attributes_.fit_transposed(x, kernel_of(weight), output_shape_, output_padding_);
    n_ = x[0];
    c_per_group_ = x[1] / group_;
    m_per_group_ = weight[1];
    const int64_t filters = m_per_group_ * group_;
    has_bias_ = given(c, 2);
    if (has_bias_) {
      check_type(c.dtype(2), DType::kFloat32, "the bias");
      check(c.shape(2) == Shape({filters}), "the bias is not one number for each output channel");
    }
    Shape out = {x[0], filters};
    for (int i = 0; i < x.rank() - 2; ++i) out.push_back(w_.out[kMaxSpatial - (x.rank() - 2) + i]);
    out.numel();
    const size_t rows = static_cast<size_t>(Shape({m_per_group_, w_.n_taps()}).numel());
    const size_t k = static_cast<size_t>(c_per_group_), pixels = static_cast<size_t>(w_.n_in());
    a_bytes_ = align64(fgemm_packed_a_size(rows, k) * sizeof(float));
    b_bytes_ = align64(fgemm_packed_b_size(gemm_, k, pixels) * sizeof(float));
    columns_bytes_ = align64(
        static_cast<size_t>(Shape({m_per_group_, w_.n_taps(), w_.n_in()}).numel()) * sizeof(float));
    c.set(0, DType::kFloat32, out);
    return Inferred::kDone;
  }
  size_t scratch_bytes() const override { return a_bytes_ + b_bytes_ + columns_bytes_; }
  std::string implementation() const override { return gemm_.name; }

  void run(RunContext& c) override {
    const float* x = c.input(0)->as<float>();
    const float* weight = c.input(1)->as<float>();
    const float* bias = has_bias_ ? c.input(2)->as<float>() : nullptr;
    float* y = c.output(0)->as<float>();
    if (c.output(0)->numel() == 0) return;
    const int64_t taps = w_.n_taps(), pixels = w_.n_in(), out_pixels = w_.n_out();
    const size_t rows = static_cast<size_t>(m_per_group_ * taps),
                 k = static_cast<size_t>(c_per_group_);
    const size_t n = static_cast<size_t>(pixels);
    const size_t n_blocks = (rows + gemm_.mr - 1) / gemm_.mr,
                 n_panels = (n + gemm_.nr - 1) / gemm_.nr;
    float* a = reinterpret_cast<float*>(c.scratch());
    float* b = reinterpret_cast<float*>(c.scratch() + a_bytes_);
    float* columns = reinterpret_cast<float*>(c.scratch() + a_bytes_ + b_bytes_);
    for (int64_t g = 0; g < group_; ++g) {
      fgemm_pack_a(gemm_, rows, k, weight + g * c_per_group_ * m_per_group_ * taps, 1, rows, 0,
                   n_blocks, a);
      for (int64_t image = 0; image < n_; ++image) {
        const float* in = x + (image * group_ + g) * c_per_group_ * pixels;
        c.pool().parallel_for(static_cast<int64_t>(n_panels), 4, [&](int64_t begin, int64_t end) {
          fgemm_pack_b(gemm_, k, n, in, n, 1, static_cast<size_t>(begin), static_cast<size_t>(end),
                       b);
          FgemmParams p{};
          p.m = rows;
          p.n = n;
          p.k = k;
          p.a = a;
          p.b = b;
          p.c = columns;
          p.ld_c = n;
          p.last_block = n_blocks;
          p.first_panel = static_cast<size_t>(begin);
          p.last_panel = static_cast<size_t>(end);
          fgemm_run(gemm_, p);
        });
        c.pool().parallel_for(m_per_group_, 1, [&](int64_t begin, int64_t end) {
          for (int64_t m = begin; m < end; ++m) {
            const int64_t filter = g * m_per_group_ + m;
            float* out = y + (image * group_ * m_per_group_ + filter) * out_pixels;
            std::fill_n(out, out_pixels, 0.0f);
            add_columns(columns + m * taps * pixels, out);
            if (bias)
              for (int64_t i = 0; i < out_pixels; ++i) out[i] += bias[filter];
          }
        });
      }
    }
  }

 private:
  // out[i * stride + k * dilation - pad] += columns[tap k][i].
  void add_columns(const float* columns, float* out) const {
    for (int64_t kz = 0; kz < w_.kernel[0]; ++kz)
      for (int64_t ky = 0; ky < w_.kernel[1]; ++ky)
        for (int64_t kx = 0; kx < w_.kernel[2]; ++kx, columns += w_.n_in())
          for (int64_t iz = 0; iz < w_.in[0]; ++iz) {
            const int64_t oz = iz * w_.stride[0] + kz * w_.dilation[0] - w_.pad_lo[0];
            if (oz < 0 || oz >= w_.out[0]) continue;
            for (int64_t iy = 0; iy < w_.in[1]; ++iy) {
              const int64_t oy = iy * w_.stride[1] + ky * w_.dilation[1] - w_.pad_lo[1];
              if (oy < 0 || oy >= w_.out[1]) continue;
              const float* from = columns + (iz * w_.in[1] + iy) * w_.in[2];
              float* to = out + (oz * w_.out[1] + oy) * w_.out[2];
              for (int64_t ix = 0; ix < w_.in[2]; ++ix) {
                const int64_t ox = ix * w_.stride[2] + kx * w_.dilation[2] - w_.pad_lo[2];
                if (ox >= 0 && ox < w_.out[2]) to[ox] += from[ix];
              }
            }
          }
  }

  WindowAttributes attributes_;
  int64_t group_;
  std::vector<int64_t> output_shape_, output_padding_;
  const FgemmKernel& gemm_;
  Window w_;
  int64_t n_ = 0, c_per_group_ = 0, m_per_group_ = 0;
  bool has_bias_ = false;
  size_t a_bytes_ = 0, b_bytes_ = 0, columns_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Kernel> make_conv(const Node& n, const KernelContext& c) {
  return widened<Conv>(n, c);
}
std::unique_ptr<Kernel> make_conv_transpose(const Node& n, const KernelContext& c) {
  return widened<ConvTranspose>(n, c);
}

}  // namespace wia
