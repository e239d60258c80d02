// SPDX-License-Identifier: Apache-2.0
// RNN, GRU and LSTM in float32: the input's products of all steps at once, then step by step.
#include <cmath>
#include <cstring>

#include "ops/fgemm/fgemm.h"
#include "runtime/ops/op.h"

namespace wia {
namespace {

enum class Cell { kRnn, kGru, kLstm };

// One activation function with its parameters.
struct Activation {
  Fmath::Unary function = nullptr;
  float a = 0, b = 0;
  enum { kPlain, kAffine, kScaledTanh } form = kPlain;

  void operator()(const Fmath& fmath, size_t n, float* x) const {
    if (form == kAffine) return fmath.affine(n, x, a, b, x);
    if (form == kScaledTanh) {
      for (size_t i = 0; i < n; ++i) x[i] *= b;
      fmath.unaryTanh(n, x, x, 0, 0);
      for (size_t i = 0; i < n; ++i) x[i] *= a;
      return;
    }
    function(n, x, x, a, b);
  }
};

struct ActivationName {
  const char* name;
  Fmath::Unary Fmath::* function;
  float a, b;  // where the node gives none
  int n_parameters;
};
constexpr ActivationName kActivations[] = {
    {"sigmoid", &Fmath::unarySigmoid, 0, 0, 0},
    {"tanh", &Fmath::unaryTanh, 0, 0, 0},
    {"relu", &Fmath::unaryRelu, 0, 0, 0},
    {"leakyrelu", &Fmath::unaryLeakyRelu, 0.01f, 0, 1},
    {"thresholdedrelu", &Fmath::unaryThresholdedRelu, 1.0f, 0, 1},
    {"hardsigmoid", &Fmath::unaryHardSigmoid, 0.2f, 0.5f, 2},
    {"elu", &Fmath::unaryElu, 1.0f, 1.0f, 1},
    {"softsign", &Fmath::unarySoftsign, 0, 0, 0},
    {"softplus", &Fmath::unarySoftplus, 0, 0, 0},
};

class Recurrent final : public Op {
 public:
  Recurrent(const Node& node, const KernelContext& context, Cell cell)
      : Op(node, context),
        cell_(cell),
        hidden_(node.i("hidden_size", 0)),
        layout_(node.i("layout", 0) != 0),
        clip_(node.f("clip", 0.0f)),
        has_clip_(node.has("clip")),
        input_forget_(node.i("input_forget", 0) != 0),
        linear_before_reset_(node.i("linear_before_reset", 0) != 0),
        gemm_(select_fgemm(context.isa)) {
    const std::string direction = node.s("direction", "forward");
    check(direction == "forward" || direction == "reverse" || direction == "bidirectional",
          "direction '" + direction + "' is not known");
    n_directions_ = direction == "bidirectional" ? 2 : 1;
    first_reverse_ = direction == "reverse";
    n_gates_ = cell == Cell::kRnn ? 1 : cell == Cell::kGru ? 3 : 4;
    read_activations(node);
    constant_w_ = constant_float(node, context, 1);
    constant_r_ = constant_float(node, context, 2);
  }

  Inferred infer(InferContext& c) override {
    check_inputs(c, 3);
    const Shape &x = c.shape(0), &w = c.shape(1), &r = c.shape(2);
    for (size_t i = 0; i < 8; ++i)
      if (given(c, i) && i != 4 && c.dtype(i) != DType::kFloat32) bad_type(c.dtype(i));
    check(x.rank() == 3 && w.rank() == 3 && r.rank() == 3, "X, W or R has not three dimensions");
    time_ = x[layout_ ? 1 : 0];
    batch_ = x[layout_ ? 0 : 1];
    in_ = x[2];
    if (hidden_ <= 0) hidden_ = r[2];
    const int64_t rows = n_gates_ * hidden_, d = n_directions_;
    check(hidden_ > 0 && hidden_ < (int64_t{1} << 24), "hidden_size is not positive, or too large");
    check(w == Shape({d, rows, in_}), "W is " + w.str() + ", not " + Shape({d, rows, in_}).str());
    check(r == Shape({d, rows, hidden_}),
          "R is " + r.str() + ", not " + Shape({d, rows, hidden_}).str());
    const Shape state = layout_ ? Shape{batch_, d, hidden_} : Shape{d, batch_, hidden_};
    has_bias_ = optional(c, 3, {d, 2 * rows}, "B");
    has_lengths_ = given(c, 4);
    if (has_lengths_) {
      check_type(c.dtype(4), DType::kInt32, "sequence_lens");
      check(c.shape(4) == Shape({batch_}), "sequence_lens is not one number a batch entry");
    }
    has_h_ = optional(c, 5, state, "initial_h");
    has_c_ = cell_ == Cell::kLstm && optional(c, 6, state, "initial_c");
    has_p_ = cell_ == Cell::kLstm && optional(c, 7, {d, 3 * hidden_}, "P");
    wants_[0] = wanted(c, 0);
    wants_[1] = wanted(c, 1);
    wants_[2] = cell_ == Cell::kLstm && wanted(c, 2);
    const Shape sequence =
        layout_ ? Shape{batch_, time_, d, hidden_} : Shape{time_, d, batch_, hidden_};
    sequence.numel();
    if (wants_[0]) c.set(0, DType::kFloat32, sequence);
    if (wants_[1]) c.set(1, DType::kFloat32, state);
    if (wants_[2]) c.set(2, DType::kFloat32, state);
    plan();
    return Inferred::kDone;
  }
  size_t scratch_bytes() const override { return scratch_; }
  std::string implementation() const override { return gemm_.name; }

  void run(RunContext& c) override {
    const float* x = c.input(0)->as<float>();
    std::byte* base = c.scratch();
    const auto at = [&](size_t offset) { return reinterpret_cast<float*>(base + offset); };
    const size_t rows = static_cast<size_t>(n_gates_ * hidden_), in = static_cast<size_t>(in_);
    const size_t hidden = static_cast<size_t>(hidden_), batch = static_cast<size_t>(batch_);
    if (has_lengths_)
      for (int64_t b = 0; b < batch_; ++b) {
        const int32_t n = c.input(4)->as<int32_t>()[b];
        check(n >= 0 && n <= time_, "a sequence length is outside the time axis");
      }
    zero_sequence(c);
    if (batch == 0 || time_ == 0) return finish_states(c, base);
    // X as rows [time * batch, in], packed once for all directions.
    const float* sequence = x;
    if (layout_ && batch > 1 && time_ > 1) {
      Tensor view{DType::kFloat32, {batch_, time_, in_}, const_cast<float*>(x), nullptr};
      transpose_elements(view, {1, 0, 2}, at(sequence_), c.pool());
      sequence = at(sequence_);
    }
    const size_t steps = static_cast<size_t>(time_) * batch;
    const size_t blocks = (steps + gemm_.mr - 1) / gemm_.mr;
    c.pool().parallel_for(static_cast<int64_t>(blocks), 8, [&](int64_t begin, int64_t end) {
      fgemm_pack_a(gemm_, steps, in, sequence, in, 1, static_cast<size_t>(begin),
                   static_cast<size_t>(end), at(packed_x_));
    });
    for (int64_t d = 0; d < n_directions_; ++d) {
      const float* w = packed_w_.data ? packed_w_.as<float>() + static_cast<size_t>(d) * w_floats_
                                      : at(scratch_w_);
      const float* r = packed_r_.data ? packed_r_.as<float>() + static_cast<size_t>(d) * r_floats_
                                      : at(scratch_r_);
      if (!packed_w_.data)
        pack_w(c.input(1)->as<float>() + static_cast<size_t>(d) * rows * in, at(scratch_w_));
      if (!packed_r_.data)
        pack_r(c.input(2)->as<float>() + static_cast<size_t>(d) * rows * hidden, at(scratch_r_));
      const float* bias =
          has_bias_ ? c.input(3)->as<float>() + static_cast<size_t>(d) * 2 * rows : nullptr;
      const size_t panels = (rows + gemm_.nr - 1) / gemm_.nr;
      c.pool().parallel_for(static_cast<int64_t>(panels), 1, [&](int64_t begin, int64_t end) {
        FgemmParams p{};
        p.m = steps;
        p.n = rows;
        p.k = in;
        p.a = at(packed_x_);
        p.b = w;
        p.c = at(input_gates_);
        p.ld_c = rows;
        p.column_bias = bias;
        p.last_block = blocks;
        p.first_panel = static_cast<size_t>(begin);
        p.last_panel = static_cast<size_t>(end);
        fgemm_run(gemm_, p);
      });
      direction(c, d, r, bias ? bias + rows : nullptr, base);
    }
    finish_states(c, base);
  }
  size_t owned_bytes() const override { return packed_w_.n_bytes() + packed_r_.n_bytes(); }

 private:
  void read_activations(const Node& node) {
    const auto it = node.attributes.find("activations");
    std::vector<std::string> names;
    if (it != node.attributes.end()) {
      const auto* given_names = std::get_if<std::vector<std::string>>(&it->second);
      check(given_names != nullptr, "activations is not a list of strings");
      names = *given_names;
    }
    const std::vector<const char*> usual =
        cell_ == Cell::kRnn   ? std::vector<const char*>{"tanh"}
        : cell_ == Cell::kGru ? std::vector<const char*>{"sigmoid", "tanh"}
                              : std::vector<const char*>{"sigmoid", "tanh", "tanh"};
    if (names.empty())
      for (int64_t d = 0; d < n_directions_; ++d)
        names.insert(names.end(), usual.begin(), usual.end());
    check(names.size() == usual.size() * static_cast<size_t>(n_directions_),
          "activations has the wrong length");
    const std::vector<float> alphas = node.floats("activation_alpha"),
                             betas = node.floats("activation_beta");
    size_t next_alpha = 0, next_beta = 0;
    for (std::string name : names) {
      for (char& ch : name) ch = static_cast<char>(std::tolower(static_cast<unsigned char>(ch)));
      const auto alpha = [&](float otherwise) {
        return next_alpha < alphas.size() ? alphas[next_alpha++] : otherwise;
      };
      const auto beta = [&](float otherwise) {
        return next_beta < betas.size() ? betas[next_beta++] : otherwise;
      };
      Activation activation;
      if (name == "affine" || name == "scaledtanh") {
        activation.form = name == "affine" ? Activation::kAffine : Activation::kScaledTanh;
        activation.a = alpha(1.0f);
        activation.b = beta(name == "affine" ? 0.0f : 1.0f);
      } else {
        const auto* entry =
            std::find_if(std::begin(kActivations), std::end(kActivations),
                         [&](const ActivationName& known) { return name == known.name; });
        if (entry == std::end(kActivations)) unsupported("activation '" + name + "' is not known");
        activation.function = fmath_.*entry->function;
        activation.a = entry->n_parameters > 0 ? alpha(entry->a) : entry->a;
        activation.b = entry->n_parameters > 1 ? beta(entry->b) : entry->b;
      }
      activations_.push_back(activation);
    }
  }

  bool optional(const InferContext& c, size_t i, const Shape& shape, const char* name) const {
    if (!given(c, i)) return false;
    check(c.shape(i) == shape,
          std::string(name) + " is " + c.shape(i).str() + ", not " + shape.str());
    return true;
  }

  // R is packed as two matrices where GRU multiplies the new gate's part by another state.
  int64_t first_rows() const { return (cell_ == Cell::kGru ? 2 : n_gates_) * hidden_; }

  void pack_w(const float* w, float* to) const {
    const size_t rows = static_cast<size_t>(n_gates_ * hidden_), in = static_cast<size_t>(in_);
    fgemm_pack_b(gemm_, in, rows, w, 1, in, 0, (rows + gemm_.nr - 1) / gemm_.nr, to);
  }
  void pack_r(const float* r, float* to) const {
    const size_t k = static_cast<size_t>(hidden_), first = static_cast<size_t>(first_rows());
    const size_t rest = static_cast<size_t>(n_gates_ * hidden_) - first;
    fgemm_pack_b(gemm_, k, first, r, 1, k, 0, (first + gemm_.nr - 1) / gemm_.nr, to);
    if (rest)
      fgemm_pack_b(gemm_, k, rest, r + first * k, 1, k, 0, (rest + gemm_.nr - 1) / gemm_.nr,
                   to + fgemm_packed_b_size(gemm_, k, first));
  }

  void plan() {
    const size_t rows = static_cast<size_t>(n_gates_ * hidden_), in = static_cast<size_t>(in_);
    const size_t hidden = static_cast<size_t>(hidden_), first = static_cast<size_t>(first_rows());
    const size_t steps = static_cast<size_t>(Shape({time_, batch_}).numel()),
                 batch = static_cast<size_t>(batch_);
    Shape({time_, batch_, static_cast<int64_t>(rows)}).numel();
    w_floats_ = align64(fgemm_packed_b_size(gemm_, in, rows) * sizeof(float)) / sizeof(float);
    r_floats_ = align64((fgemm_packed_b_size(gemm_, hidden, first) +
                         (rows > first ? fgemm_packed_b_size(gemm_, hidden, rows - first) : 0)) *
                        sizeof(float)) /
                sizeof(float);
    if (constant_w_ && !packed_w_.data && constant_w_->numel() > 0) {
      packed_w_ =
          Tensor::allocate(DType::kFloat32, {n_directions_, static_cast<int64_t>(w_floats_)});
      for (int64_t d = 0; d < n_directions_; ++d)
        pack_w(constant_w_->as<float>() + static_cast<size_t>(d) * rows * in,
               packed_w_.as<float>() + static_cast<size_t>(d) * w_floats_);
    }
    if (constant_r_ && !packed_r_.data) {
      packed_r_ =
          Tensor::allocate(DType::kFloat32, {n_directions_, static_cast<int64_t>(r_floats_)});
      for (int64_t d = 0; d < n_directions_; ++d)
        pack_r(constant_r_->as<float>() + static_cast<size_t>(d) * rows * hidden,
               packed_r_.as<float>() + static_cast<size_t>(d) * r_floats_);
    }
    scratch_ = 0;
    const auto take = [&](size_t floats) {
      const size_t offset = scratch_;
      scratch_ += align64(floats * sizeof(float));
      return offset;
    };
    const size_t d = static_cast<size_t>(n_directions_);
    sequence_ = take(layout_ ? steps * in : 0);
    packed_x_ = take(fgemm_packed_a_size(steps, in));
    input_gates_ = take(steps * rows);
    gates_ = take(batch * rows);
    packed_h_ = take(fgemm_packed_a_size(batch, hidden));
    reset_h_ = take(batch * hidden);
    h_ = take(d * batch * hidden);
    c_ = take(d * batch * hidden);
    scratch_w_ = take(packed_w_.data ? 0 : w_floats_);
    scratch_r_ = take(packed_r_.data ? 0 : r_floats_);
  }

  // Steps after the end of a shorter sequence are zeros.
  void zero_sequence(RunContext& c) const {
    if (wants_[0] && has_lengths_) std::memset(c.output(0)->data, 0, c.output(0)->n_bytes());
  }

  const float* initial(RunContext& c, size_t input, int64_t d, int64_t b) const {
    const int64_t row = layout_ ? b * n_directions_ + d : d * batch_ + b;
    return c.input(input)->as<float>() + row * hidden_;
  }

  void product(const float* a, const float* packed_r, size_t n, float* packed_a, float* y,
               size_t ld_y, ThreadPool& pool) const {
    const size_t m = static_cast<size_t>(batch_), k = static_cast<size_t>(hidden_);
    const size_t blocks = (m + gemm_.mr - 1) / gemm_.mr, panels = (n + gemm_.nr - 1) / gemm_.nr;
    fgemm_pack_a(gemm_, m, k, a, k, 1, 0, blocks, packed_a);
    pool.parallel_for(static_cast<int64_t>(panels),
                      std::max<int64_t>(1, kGrain * 4 / static_cast<int64_t>(m * k * gemm_.nr + 1)),
                      [&](int64_t begin, int64_t end) {
                        FgemmParams p{};
                        p.m = m;
                        p.n = n;
                        p.k = k;
                        p.a = packed_a;
                        p.b = packed_r;
                        p.c = y;
                        p.ld_c = ld_y;
                        p.last_block = blocks;
                        p.first_panel = static_cast<size_t>(begin);
                        p.last_panel = static_cast<size_t>(end);
                        fgemm_run(gemm_, p);
                      });
  }

  void clipped(float* x, size_t n) const {
    if (has_clip_) fmath_.unaryClip(n, x, x, -clip_, clip_);
  }

  void direction(RunContext& c, int64_t d, const float* r, const float* r_bias,
                 std::byte* base) const {
    const auto at = [&](size_t offset) { return reinterpret_cast<float*>(base + offset); };
    const size_t hidden = static_cast<size_t>(hidden_),
                 rows = static_cast<size_t>(n_gates_) * hidden;
    const size_t first = static_cast<size_t>(first_rows());
    float* h = at(h_) + d * batch_ * hidden_;
    float* cell = at(c_) + d * batch_ * hidden_;
    start(c, d, h, cell);
    const float* peephole = has_p_ ? c.input(7)->as<float>() + d * 3 * hidden_ : nullptr;
    const bool reverse = n_directions_ == 2 ? d == 1 : first_reverse_;
    const size_t n_functions = activations_.size() / static_cast<size_t>(n_directions_);
    const Activation* f = activations_.data() + static_cast<size_t>(d) * n_functions;
    const float* r_new = r + fgemm_packed_b_size(gemm_, hidden, first);
    for (int64_t step = 0; step < time_; ++step) {
      product(h, r, first, at(packed_h_), at(gates_), rows, c.pool());
      if (cell_ == Cell::kGru && linear_before_reset_)
        product(h, r_new, hidden, at(packed_h_), at(gates_) + first, rows, c.pool());
      if (cell_ == Cell::kGru) {
        for (int64_t b = 0; b < batch_; ++b)
          gru_reset(time_of(c, step, b, reverse), b, at(input_gates_), at(gates_), r_bias, h, f,
                    at(reset_h_));
        if (!linear_before_reset_)
          product(at(reset_h_), r_new, hidden, at(packed_h_), at(gates_) + first, rows, c.pool());
      }
      for (int64_t b = 0; b < batch_; ++b) {
        const int64_t t = time_of(c, step, b, reverse);
        if (t < 0) continue;
        float* row_h = h + b * hidden_;
        const float* x_gates =
            at(input_gates_) +
            (static_cast<size_t>(t) * static_cast<size_t>(batch_) + static_cast<size_t>(b)) * rows;
        float* gates = at(gates_) + static_cast<size_t>(b) * rows;
        if (cell_ == Cell::kGru) {
          gru_finish(x_gates, gates, r_bias, row_h, f);
        } else {
          for (size_t i = 0; i < rows; ++i)
            gates[i] = x_gates[i] + gates[i] + (r_bias ? r_bias[i] : 0.0f);
          if (cell_ == Cell::kRnn) {
            clipped(gates, hidden);
            f[0](fmath_, hidden, gates);
            std::memcpy(row_h, gates, hidden * sizeof(float));
          } else {
            lstm(gates, peephole, row_h, cell + b * hidden_, f);
          }
        }
        if (wants_[0]) {
          const int64_t row =
              layout_ ? (b * time_ + t) * n_directions_ + d : (t * n_directions_ + d) * batch_ + b;
          std::memcpy(c.output(0)->as<float>() + row * hidden_, row_h, hidden * sizeof(float));
        }
      }
    }
  }

  // The time index that batch entry b reads at this step, -1 after its end.
  int64_t time_of(RunContext& c, int64_t step, int64_t b, bool reverse) const {
    const int64_t n = has_lengths_ ? c.input(4)->as<int32_t>()[b] : time_;
    if (step >= n) return -1;
    return reverse ? n - 1 - step : step;
  }

  void start(RunContext& c, int64_t d, float* h, float* cell) const {
    const size_t bytes = static_cast<size_t>(hidden_) * sizeof(float);
    for (int64_t b = 0; b < batch_; ++b) {
      if (has_h_)
        std::memcpy(h + b * hidden_, initial(c, 5, d, b), bytes);
      else
        std::memset(h + b * hidden_, 0, bytes);
      if (has_c_)
        std::memcpy(cell + b * hidden_, initial(c, 6, d, b), bytes);
      else
        std::memset(cell + b * hidden_, 0, bytes);
    }
  }

  // gates: i o f c, with peepholes i o f.
  void lstm(float* gates, const float* peephole, float* h, float* cell, const Activation* f) const {
    const size_t n = static_cast<size_t>(hidden_);
    float *i = gates, *o = gates + n, *forget = gates + 2 * n, *g = gates + 3 * n;
    if (peephole)
      for (size_t k = 0; k < n; ++k) {
        i[k] += peephole[k] * cell[k];
        forget[k] += peephole[2 * n + k] * cell[k];
      }
    clipped(i, n);
    clipped(forget, n);
    clipped(g, n);
    f[0](fmath_, n, i);
    f[0](fmath_, n, forget);
    if (input_forget_)
      for (size_t k = 0; k < n; ++k) forget[k] = 1.0f - i[k];
    f[1](fmath_, n, g);
    for (size_t k = 0; k < n; ++k) cell[k] = forget[k] * cell[k] + i[k] * g[k];
    if (peephole)
      for (size_t k = 0; k < n; ++k) o[k] += peephole[n + k] * cell[k];
    clipped(o, n);
    f[0](fmath_, n, o);
    std::memcpy(h, cell, n * sizeof(float));
    f[2](fmath_, n, h);
    for (size_t k = 0; k < n; ++k) h[k] *= o[k];
  }

  // gates: z r h. The update and reset gates, and the state that the reset leaves.
  void gru_reset(int64_t t, int64_t b, const float* input_gates, float* all_gates,
                 const float* r_bias, const float* h, const Activation* f, float* reset_h) const {
    const size_t n = static_cast<size_t>(hidden_), rows = 3 * n;
    float* gates = all_gates + static_cast<size_t>(b) * rows;
    const float* state = h + b * hidden_;
    float* reset = reset_h + b * hidden_;
    if (t < 0) {
      std::memcpy(reset, state, n * sizeof(float));
      return;
    }
    const float* x =
        input_gates +
        (static_cast<size_t>(t) * static_cast<size_t>(batch_) + static_cast<size_t>(b)) * rows;
    for (size_t i = 0; i < 2 * n; ++i) gates[i] = x[i] + gates[i] + (r_bias ? r_bias[i] : 0.0f);
    clipped(gates, 2 * n);
    f[0](fmath_, 2 * n, gates);
    for (size_t i = 0; i < n; ++i) reset[i] = gates[n + i] * state[i];
  }
  void gru_finish(const float* x, float* gates, const float* r_bias, float* h,
                  const Activation* f) const {
    const size_t n = static_cast<size_t>(hidden_);
    float *z = gates, *r = gates + n, *g = gates + 2 * n;
    for (size_t i = 0; i < n; ++i) {
      const float bias = r_bias ? r_bias[2 * n + i] : 0.0f;
      g[i] =
          linear_before_reset_ ? x[2 * n + i] + r[i] * (g[i] + bias) : x[2 * n + i] + g[i] + bias;
    }
    clipped(g, n);
    f[1](fmath_, n, g);
    for (size_t i = 0; i < n; ++i) h[i] = (1.0f - z[i]) * g[i] + z[i] * h[i];
  }

  void finish_states(RunContext& c, std::byte* base) const {
    for (size_t output = 1; output < 3; ++output) {
      if (!wants_[output]) continue;
      float* state = reinterpret_cast<float*>(base + (output == 1 ? h_ : c_));
      for (int64_t d = 0; d < n_directions_; ++d) {
        if (time_ == 0)
          start(c, d, reinterpret_cast<float*>(base + h_) + d * batch_ * hidden_,
                reinterpret_cast<float*>(base + c_) + d * batch_ * hidden_);
        for (int64_t b = 0; b < batch_; ++b)
          std::memcpy(c.output(output)->as<float>() +
                          (layout_ ? b * n_directions_ + d : d * batch_ + b) * hidden_,
                      state + (d * batch_ + b) * hidden_,
                      static_cast<size_t>(hidden_) * sizeof(float));
      }
    }
  }

  Cell cell_;
  int64_t hidden_;
  bool layout_;
  float clip_;
  bool has_clip_, input_forget_, linear_before_reset_;
  const FgemmKernel& gemm_;
  int64_t n_directions_ = 1, n_gates_ = 1, time_ = 0, batch_ = 0, in_ = 0;
  bool first_reverse_ = false, has_bias_ = false, has_lengths_ = false, has_h_ = false,
       has_c_ = false, has_p_ = false;
  bool wants_[3] = {};
  std::vector<Activation> activations_;
  std::shared_ptr<const Tensor> constant_w_, constant_r_;
  Tensor packed_w_, packed_r_;
  size_t w_floats_ = 0, r_floats_ = 0, scratch_ = 0;
  size_t sequence_ = 0, packed_x_ = 0, input_gates_ = 0, gates_ = 0, packed_h_ = 0, reset_h_ = 0,
         h_ = 0, c_ = 0;
  size_t scratch_w_ = 0, scratch_r_ = 0;
};

}  // namespace

std::unique_ptr<Kernel> make_rnn(const Node& n, const KernelContext& c) {
  return widened<Recurrent>(n, c, Cell::kRnn);
}
std::unique_ptr<Kernel> make_gru(const Node& n, const KernelContext& c) {
  return widened<Recurrent>(n, c, Cell::kGru);
}
std::unique_ptr<Kernel> make_lstm(const Node& n, const KernelContext& c) {
  return widened<Recurrent>(n, c, Cell::kLstm);
}

}  // namespace wia
