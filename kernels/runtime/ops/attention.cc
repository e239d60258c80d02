// SPDX-License-Identifier: Apache-2.0
// Attention, RotaryEmbedding, LinearAttention, CausalConvWithState, SwiGLU, TensorScatter.
#include <cmath>
#include <cstring>

#include "ops/fgemm/fgemm.h"
#include "runtime/ops/op.h"

namespace wia {
namespace {

// A [B, heads, length, size] view of a tensor that may be [B, length, heads * size].
struct Heads {
  int64_t batch = 0, heads = 0, length = 0, size = 0;
  int64_t batch_step = 0, head_step = 0, row_step = 0;

  const float* row(const float* base, int64_t b, int64_t h, int64_t t) const {
    return base + b * batch_step + h * head_step + t * row_step;
  }
};

class AttentionLike : public Op {
 public:
  using Op::Op;

 protected:
  Heads heads_of(const Shape& s, int64_t n_heads, const char* what) const {
    Heads v;
    v.batch = s[0];
    if (s.rank() == 4) {
      v.heads = s[1];
      v.length = s[2];
      v.size = s[3];
      v.row_step = v.size;
      v.head_step = v.length * v.size;
    } else {
      check(n_heads > 0 && s[2] % n_heads == 0,
            std::string(what) + ": the number of heads does not divide " + s.str());
      v.heads = n_heads;
      v.length = s[1];
      v.size = s[2] / n_heads;
      v.row_step = s[2];
      v.head_step = v.size;
    }
    v.batch_step = v.heads * v.length * v.size;
    return v;
  }
};

class Attention final : public AttentionLike {
 public:
  Attention(const Node& node, const KernelContext& context)
      : AttentionLike(node, context),
        causal_(node.i("is_causal", 0) != 0),
        q_heads_(node.i("q_num_heads", 0)),
        kv_heads_(node.i("kv_num_heads", 0)),
        has_scale_(node.has("scale")),
        scale_(node.f("scale", 0.0f)),
        softcap_(node.f("softcap", 0.0f)),
        mode_(node.i("qk_matmul_output_mode", 0)),
        left_(node.i("left_window_size", -1)),
        right_(node.i("right_window_size", -1)),
        gemm_(select_fgemm(context.isa)) {
    check(left_ >= -1 && right_ >= -1, "a window size is below -1");
    check(mode_ >= 0 && mode_ <= 3, "qk_matmul_output_mode is not 0 to 3");
  }
  Inferred infer(InferContext& c) override {
    check_inputs(c, 3);
    for (size_t i = 0; i < 3; ++i) {
      if (c.dtype(i) != DType::kFloat32) bad_type(c.dtype(i));
      check(c.shape(i).rank() == c.shape(0).rank() &&
                (c.shape(i).rank() == 3 || c.shape(i).rank() == 4),
            "Q, K and V have not three or four dimensions each");
    }
    q_ = heads_of(c.shape(0), q_heads_, "Q");
    k_ = heads_of(c.shape(1), kv_heads_, "K");
    v_ = heads_of(c.shape(2), kv_heads_, "V");
    check(k_.batch == q_.batch && v_.batch == q_.batch, "the batches differ");
    check(k_.heads == v_.heads && k_.length == v_.length && k_.size == q_.size,
          "Q, K and V do not fit each other");
    check(k_.heads > 0 && q_.heads % k_.heads == 0, "the heads of K do not divide those of Q");
    check(q_.size > 0, "the head size is 0");
    past_ = 0;
    has_past_ = given(c, 4);
    check(given(c, 5) == has_past_, "past_key and past_value are not given together");
    if (has_past_) {
      check(c.shape(4).rank() == 4 && c.shape(5).rank() == 4, "the past has not four dimensions");
      past_ = c.shape(4)[2];
      check(c.shape(4) == Shape({q_.batch, k_.heads, past_, k_.size}), "past_key does not fit K");
      check(c.shape(5) == Shape({q_.batch, k_.heads, past_, v_.size}), "past_value does not fit V");
      for (size_t i : {4, 5}) check_type(c.dtype(i), DType::kFloat32, "the past");
    }
    total_ = past_ + k_.length;
    has_lengths_ = given(c, 6);
    check(!(has_lengths_ && has_past_), "nonpad_kv_seqlen is given with a past");
    if (has_lengths_) {
      check_type(c.dtype(6), DType::kInt64, "nonpad_kv_seqlen");
      check(c.shape(6) == Shape({q_.batch}), "nonpad_kv_seqlen is not one number a batch entry");
    }
    has_mask_ = given(c, 3);
    if (has_mask_) {
      mask_ = c.shape(3);
      bool_mask_ = c.dtype(3) == DType::kBool;
      check(bool_mask_ || c.dtype(3) == DType::kFloat32, "the mask is neither bool nor float");
      check(mask_.rank() >= 1 && mask_.rank() <= 4, "the mask has not one to four dimensions");
      const int64_t wants[4] = {q_.batch, q_.heads, q_.length, total_};
      const auto steps = steps_of(mask_);
      for (int d = 0; d < 4; ++d) {
        const int own = d - (4 - mask_.rank());
        mask_step_[d] = 0;
        if (own < 0) continue;
        const bool last = d == 3;
        check(
            mask_[own] == wants[d] || (!last && mask_[own] == 1) || (last && mask_[own] <= total_),
            "the mask " + mask_.str() + " does not fit the scores");
        mask_step_[d] = mask_[own] == 1 && !last ? 0 : steps[own];
      }
      mask_columns_ = mask_[mask_.rank() - 1];
      if (mask_columns_ == 1 && opset_ < 24) {
        mask_step_[3] = 0;
        mask_columns_ = total_;
      }
    }
    const Shape out = c.shape(0).rank() == 4 ? Shape{q_.batch, q_.heads, q_.length, v_.size}
                                             : Shape{q_.batch, q_.length, q_.heads * v_.size};
    out.numel();
    rank4_ = c.shape(0).rank() == 4;
    c.set(0, DType::kFloat32, out);
    for (size_t i = 1; i < 4; ++i) wants_[i] = wanted(c, i);
    if (wants_[1]) c.set(1, DType::kFloat32, {q_.batch, k_.heads, total_, k_.size});
    if (wants_[2]) c.set(2, DType::kFloat32, {q_.batch, k_.heads, total_, v_.size});
    if (wants_[3]) c.set(3, DType::kFloat32, {q_.batch, q_.heads, q_.length, total_});
    Shape({q_.length, total_}).numel();
    const auto bytes = [](size_t floats) { return align64(floats * sizeof(float)); };
    const size_t nq = static_cast<size_t>(q_.length), nt = static_cast<size_t>(total_);
    const size_t d = static_cast<size_t>(q_.size), dv = static_cast<size_t>(v_.size);
    a_bytes_ = bytes(std::max(fgemm_packed_a_size(nq, d), fgemm_packed_a_size(nq, nt)));
    b_bytes_ =
        bytes(std::max(fgemm_packed_b_size(gemm_, d, nt), fgemm_packed_b_size(gemm_, nt, dv)));
    rows_bytes_ = bytes(std::max({nq * d, nt * d, nt * dv}));
    scores_bytes_ = bytes(nq * nt);
    slot_bytes_ = a_bytes_ + b_bytes_ + rows_bytes_ + scores_bytes_;
    return Inferred::kDone;
  }
  size_t scratch_bytes() const override { return slot_bytes_ * n_threads_; }
  std::string implementation() const override { return gemm_.name; }

  void run(RunContext& c) override {
    if (has_lengths_)
      for (int64_t b = 0; b < q_.batch; ++b) {
        const int64_t n = c.input(6)->as<int64_t>()[b];
        check(n >= 0 && n <= total_, "nonpad_kv_seqlen is outside the keys");
      }
    ScratchSlots slots(c.scratch(), slot_bytes_, n_threads_);
    c.pool().parallel_for(q_.batch * q_.heads, 1, [&](int64_t begin, int64_t end) {
      const ScratchSlots::Lease lease(slots);
      for (int64_t i = begin; i < end; ++i)
        head(c, i / q_.heads, i % q_.heads, lease.as<std::byte>());
    });
  }

 private:
  // K or V of one head as rows [total, size] with the past in front; written to `present` where it
  // is wanted.
  void gather(RunContext& c, const Heads& view, size_t input, size_t past_input, size_t output,
              int64_t b, int64_t h, float factor, float* rows, bool write) const {
    const float* now = c.input(input)->as<float>();
    float* present = write && wants_[output] ? c.output(output)->as<float>() : nullptr;
    for (int64_t t = 0; t < total_; ++t) {
      const float* from = t < past_ ? c.input(past_input)->as<float>() +
                                          ((b * view.heads + h) * past_ + t) * view.size
                                    : view.row(now, b, h, t - past_);
      for (int64_t i = 0; i < view.size; ++i) rows[t * view.size + i] = from[i] * factor;
      if (present)
        std::memcpy(present + ((b * view.heads + h) * total_ + t) * view.size, from,
                    static_cast<size_t>(view.size) * sizeof(float));
    }
  }

  void multiply(size_t m, size_t n, size_t k, const float* a, const float* b, size_t b_row_step,
                size_t b_column_step, float* packed_a, float* packed_b, float* y,
                size_t ld_y) const {
    FgemmParams p{};
    p.m = m;
    p.n = n;
    p.k = k;
    p.last_block = (m + gemm_.mr - 1) / gemm_.mr;
    p.last_panel = (n + gemm_.nr - 1) / gemm_.nr;
    fgemm_pack_a(gemm_, m, k, a, k, 1, 0, p.last_block, packed_a);
    fgemm_pack_b(gemm_, k, n, b, b_row_step, b_column_step, 0, p.last_panel, packed_b);
    p.a = packed_a;
    p.b = packed_b;
    p.c = y;
    p.ld_c = ld_y;
    fgemm_run(gemm_, p);
  }

  void head(RunContext& c, int64_t b, int64_t h, std::byte* scratch) const {
    float* packed_a = reinterpret_cast<float*>(scratch);
    float* packed_b = reinterpret_cast<float*>(scratch + a_bytes_);
    float* rows = reinterpret_cast<float*>(scratch + a_bytes_ + b_bytes_);
    float* scores = reinterpret_cast<float*>(scratch + a_bytes_ + b_bytes_ + rows_bytes_);
    const size_t nq = static_cast<size_t>(q_.length), nt = static_cast<size_t>(total_);
    const size_t d = static_cast<size_t>(q_.size), dv = static_cast<size_t>(v_.size);
    const int64_t group = q_.heads / k_.heads, kv = h / group;
    const bool first_of_group = h % group == 0;
    const float scale = has_scale_ ? scale_ : 1.0f / std::sqrt(static_cast<float>(q_.size));
    const float factor = std::sqrt(scale);
    float* raw =
        wants_[3] ? c.output(3)->as<float>() + (b * q_.heads + h) * q_.length * total_ : nullptr;

    // Q packed from scaled rows; then K takes the same buffer.
    const float* q = c.input(0)->as<float>();
    for (int64_t t = 0; t < q_.length; ++t) {
      const float* from = q_.row(q, b, h, t);
      for (int64_t i = 0; i < q_.size; ++i) rows[t * q_.size + i] = from[i] * factor;
    }
    FgemmParams p{};
    p.m = nq;
    p.n = nt;
    p.k = d;
    p.last_block = (nq + gemm_.mr - 1) / gemm_.mr;
    p.last_panel = (nt + gemm_.nr - 1) / gemm_.nr;
    fgemm_pack_a(gemm_, nq, d, rows, d, 1, 0, p.last_block, packed_a);
    gather(c, k_, 1, 4, 1, b, kv, factor, rows, first_of_group);
    fgemm_pack_b(gemm_, d, nt, rows, 1, d, 0, p.last_panel, packed_b);
    p.a = packed_a;
    p.b = packed_b;
    p.c = scores;
    p.ld_c = nt;
    fgemm_run(gemm_, p);

    const auto keep = [&](int64_t mode) {
      if (raw && mode_ == mode) std::memcpy(raw, scores, nq * nt * sizeof(float));
    };
    keep(0);
    if (softcap_ > 0) {
      for (size_t i = 0; i < nq * nt; ++i) scores[i] /= softcap_;
      fmath_.unaryTanh(nq * nt, scores, scores, 0, 0);
      for (size_t i = 0; i < nq * nt; ++i) scores[i] *= softcap_;
    }
    keep(1);
    for (int64_t t = 0; t < q_.length; ++t) bias_row(c, b, h, t, scores + t * total_);
    keep(2);
    for (int64_t t = 0; t < q_.length && total_ > 0; ++t) {
      float* row = scores + t * total_;
      if (fmath_.reduceMax(nt, row) == -std::numeric_limits<float>::infinity())
        std::fill_n(row, total_, 0.0f);
      else
        fmath_.softmax(nt, row, row);
    }
    keep(3);
    gather(c, v_, 2, 5, 2, b, kv, 1.0f, rows, first_of_group);
    float* y = c.output(0)->as<float>();
    const size_t ld = static_cast<size_t>(rank4_ ? v_.size : q_.heads * v_.size);
    float* out = rank4_ ? y + (b * q_.heads + h) * q_.length * v_.size
                        : y + b * q_.length * q_.heads * v_.size + h * v_.size;
    multiply(nq, dv, nt, scores, rows, dv, 1, packed_a, packed_b, out, ld);
  }

  void bias_row(RunContext& c, int64_t b, int64_t h, int64_t t, float* row) const {
    constexpr float kOut = -std::numeric_limits<float>::infinity();
    if (has_mask_) {
      const int64_t base = b * mask_step_[0] + h * mask_step_[1] + t * mask_step_[2];
      for (int64_t j = 0; j < total_; ++j) {
        if (j >= mask_columns_)
          row[j] = kOut;
        else if (!bool_mask_)
          row[j] += c.input(3)->as<float>()[base + j * mask_step_[3]];
        else if (!c.input(3)->as<bool>()[base + j * mask_step_[3]])
          row[j] = kOut;
      }
    }
    const int64_t length = has_lengths_ ? c.input(6)->as<int64_t>()[b] : total_;
    const int64_t offset = has_lengths_ && opset_ >= 24 ? length - q_.length : past_,
                  position = t + offset;
    for (int64_t j = 0; j < total_; ++j) {
      const bool out = (causal_ && j > position) || (left_ >= 0 && j < position - left_) ||
                       (right_ >= 0 && j > position + right_) || j >= length;
      if (out) row[j] = kOut;
    }
  }

  bool causal_;
  int64_t q_heads_, kv_heads_;
  bool has_scale_;
  float scale_, softcap_;
  int64_t mode_, left_, right_;
  const FgemmKernel& gemm_;
  Heads q_, k_, v_;
  int64_t past_ = 0, total_ = 0, mask_columns_ = 0, mask_step_[4] = {};
  bool has_past_ = false, has_lengths_ = false, has_mask_ = false, bool_mask_ = false,
       rank4_ = true, wants_[4] = {};
  Shape mask_;
  size_t a_bytes_ = 0, b_bytes_ = 0, rows_bytes_ = 0, scores_bytes_ = 0, slot_bytes_ = 0;
};

class RotaryEmbedding final : public AttentionLike {
 public:
  RotaryEmbedding(const Node& node, const KernelContext& context)
      : AttentionLike(node, context),
        interleaved_(node.i("interleaved", 0) != 0),
        n_heads_(node.i("num_heads", 0)),
        dim_(node.i("rotary_embedding_dim", 0)) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 3);
    const Shape& x = c.shape(0);
    if (c.dtype(0) != DType::kFloat32) bad_type(c.dtype(0));
    check(x.rank() == 3 || x.rank() == 4, "the input has not three or four dimensions");
    x_ = heads_of(x, n_heads_, "the input");
    rotated_ = dim_ == 0 ? x_.size : dim_;
    check(rotated_ >= 0 && rotated_ <= x_.size && rotated_ % 2 == 0,
          "rotary_embedding_dim is odd or too large");
    has_positions_ = given(c, 3);
    const Shape& cache = c.shape(1);
    check(cache == c.shape(2), "the caches differ in shape");
    check_type(c.dtype(1), DType::kFloat32, "a cache");
    check_type(c.dtype(2), DType::kFloat32, "a cache");
    check(cache.rank() == (has_positions_ ? 2 : 3),
          "the caches have the wrong number of dimensions");
    check(cache[cache.rank() - 1] == rotated_ / 2,
          "the caches' last dimension is not half of what is rotated");
    if (has_positions_) {
      check_type(c.dtype(3), DType::kInt64, "position_ids");
      check(c.shape(3) == Shape({x_.batch, x_.length}), "position_ids is not [batch, length]");
      n_positions_ = cache[0];
    } else {
      check(cache[0] == x_.batch && cache[1] == x_.length,
            "the caches are not [batch, length, ...]");
    }
    c.set(0, DType::kFloat32, x);
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const float* x = c.input(0)->as<float>();
    float* y = c.output(0)->as<float>();
    const int64_t half = rotated_ / 2;
    for (int64_t b = 0; b < x_.batch; ++b)
      for (int64_t t = 0; t < x_.length; ++t) {
        int64_t row = b * x_.length + t;
        if (has_positions_) {
          row = c.input(3)->as<int64_t>()[row];
          check(row >= 0 && row < n_positions_, "a position is outside the cache");
        }
        const float* cosine = c.input(1)->as<float>() + row * half;
        const float* sine = c.input(2)->as<float>() + row * half;
        for (int64_t h = 0; h < x_.heads; ++h) {
          const float* in = x_.row(x, b, h, t);
          float* out = y + (in - x);
          for (int64_t i = 0; i < half; ++i) {
            const int64_t first = interleaved_ ? 2 * i : i,
                          second = interleaved_ ? 2 * i + 1 : i + half;
            const float x1 = in[first], x2 = in[second];
            out[first] = cosine[i] * x1 - sine[i] * x2;
            out[second] = sine[i] * x1 + cosine[i] * x2;
          }
          for (int64_t i = rotated_; i < x_.size; ++i) out[i] = in[i];
        }
      }
  }

 private:
  bool interleaved_, has_positions_ = false;
  int64_t n_heads_, dim_, rotated_ = 0, n_positions_ = 0;
  Heads x_;
};

// S = exp(decay) S + k (beta (v - S' k))'; o = scale S' q, token after token.
class LinearAttention final : public AttentionLike {
 public:
  LinearAttention(const Node& node, const KernelContext& context)
      : AttentionLike(node, context),
        q_heads_(node.i("q_num_heads", 0)),
        kv_heads_(node.i("kv_num_heads", 0)),
        scale_(node.f("scale", 0.0f)) {
    const std::string rule = node.s("update_rule", "gated_delta");
    check(rule == "linear" || rule == "gated" || rule == "delta" || rule == "gated_delta",
          "update_rule '" + rule + "' is not known");
    gated_ = rule == "gated" || rule == "gated_delta";
    delta_ = rule == "delta" || rule == "gated_delta";
    check(q_heads_ > 0 && kv_heads_ > 0 && q_heads_ % kv_heads_ == 0,
          "q_num_heads is no multiple of kv_num_heads");
  }
  Inferred infer(InferContext& c) override {
    check_inputs(c, 3);
    for (size_t i = 0; i < 6; ++i)
      if (given(c, i)) {
        if (c.dtype(i) != DType::kFloat32) bad_type(c.dtype(i));
        check(c.shape(i).rank() == (i == 3 ? 4 : 3), "an input has the wrong number of dimensions");
      }
    q_ = heads_of(c.shape(0), q_heads_, "query");
    k_ = heads_of(c.shape(1), kv_heads_, "key");
    v_ = heads_of(c.shape(2), kv_heads_, "value");
    check(k_.batch == q_.batch && v_.batch == q_.batch && k_.length == q_.length &&
              v_.length == q_.length && k_.size == q_.size,
          "query, key and value do not fit each other");
    const Shape state = {q_.batch, kv_heads_, k_.size, v_.size};
    has_state_ = given(c, 3);
    if (has_state_) check(c.shape(3) == state, "past_state is not " + state.str());
    check(given(c, 4) == gated_, "decay is missing, or not used by this update_rule");
    check(given(c, 5) == delta_, "beta is missing, or not used by this update_rule");
    if (gated_) {
      decay_each_ = c.shape(4)[2] == kv_heads_ ? 1 : k_.size;
      check(c.shape(4) == Shape({q_.batch, q_.length, kv_heads_ * decay_each_}),
            "decay does not fit");
    }
    if (delta_) {
      beta_heads_ = c.shape(5)[2];
      check(c.shape(5) == Shape({q_.batch, q_.length, beta_heads_}) &&
                (beta_heads_ == 1 || beta_heads_ == kv_heads_),
            "beta does not fit");
    }
    const Shape out = {q_.batch, q_.length, q_heads_ * v_.size};
    c.set(0, DType::kFloat32, out);
    wants_state_ = wanted(c, 1);
    if (wants_state_) c.set(1, DType::kFloat32, state);
    state_bytes_ =
        align64(static_cast<size_t>(Shape({k_.size, v_.size}).numel() + v_.size) * sizeof(float));
    return Inferred::kDone;
  }
  size_t scratch_bytes() const override { return state_bytes_ * n_threads_; }
  void run(RunContext& c) override {
    ScratchSlots slots(c.scratch(), state_bytes_, n_threads_);
    c.pool().parallel_for(q_.batch * kv_heads_, 1, [&](int64_t begin, int64_t end) {
      const ScratchSlots::Lease lease(slots);
      for (int64_t i = begin; i < end; ++i)
        head(c, i / kv_heads_, i % kv_heads_, lease.as<float>());
    });
  }

 private:
  void head(RunContext& c, int64_t b, int64_t h, float* state) const {
    const int64_t dk = k_.size, dv = v_.size, group = q_heads_ / kv_heads_;
    const size_t n_state = static_cast<size_t>(dk * dv);
    float* write = state + n_state;
    const int64_t offset = (b * kv_heads_ + h) * dk * dv;
    if (has_state_)
      std::memcpy(state, c.input(3)->as<float>() + offset, n_state * sizeof(float));
    else
      std::fill_n(state, n_state, 0.0f);
    const float scale = scale_ == 0.0f ? 1.0f / std::sqrt(static_cast<float>(dk)) : scale_;
    for (int64_t t = 0; t < q_.length; ++t) {
      const float* key = k_.row(c.input(1)->as<float>(), b, h, t);
      const float* value = v_.row(c.input(2)->as<float>(), b, h, t);
      if (gated_) {
        const float* decay =
            c.input(4)->as<float>() + ((b * q_.length + t) * kv_heads_ + h) * decay_each_;
        for (int64_t i = 0; i < dk; ++i) {
          float factor;
          fmath_.unaryExp(1, decay + (decay_each_ == 1 ? 0 : i), &factor, 0, 0);
          for (int64_t j = 0; j < dv; ++j) state[i * dv + j] *= factor;
        }
      }
      for (int64_t j = 0; j < dv; ++j) write[j] = value[j];
      if (delta_) {
        const float beta =
            c.input(5)->as<float>()[(b * q_.length + t) * beta_heads_ + (beta_heads_ == 1 ? 0 : h)];
        for (int64_t j = 0; j < dv; ++j) {
          float recalled = 0;
          for (int64_t i = 0; i < dk; ++i) recalled += state[i * dv + j] * key[i];
          write[j] = beta * (value[j] - recalled);
        }
      }
      for (int64_t i = 0; i < dk; ++i)
        for (int64_t j = 0; j < dv; ++j) state[i * dv + j] += key[i] * write[j];
      for (int64_t g = 0; g < group; ++g) {
        const int64_t query_head = h * group + g;
        const float* query = q_.row(c.input(0)->as<float>(), b, query_head, t);
        float* out = c.output(0)->as<float>() + ((b * q_.length + t) * q_heads_ + query_head) * dv;
        for (int64_t j = 0; j < dv; ++j) {
          float sum = 0;
          for (int64_t i = 0; i < dk; ++i) sum += query[i] * state[i * dv + j];
          out[j] = scale * sum;
        }
      }
    }
    if (wants_state_)
      std::memcpy(c.output(1)->as<float>() + offset, state, n_state * sizeof(float));
  }

  int64_t q_heads_, kv_heads_;
  float scale_;
  bool gated_ = false, delta_ = false, has_state_ = false, wants_state_ = false;
  int64_t decay_each_ = 1, beta_heads_ = 1;
  Heads q_, k_, v_;
  size_t state_bytes_ = 0;
};

// Depthwise over time, each output from the k - 1 values before it and itself.
class CausalConvWithState final : public Op {
 public:
  CausalConvWithState(const Node& node, const KernelContext& context) : Op(node, context) {
    const std::string activation = node.s("activation", "none");
    check(activation == "none" || activation == "silu" || activation == "swish",
          "activation '" + activation + "' is not known");
    silu_ = activation != "none";
  }
  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    const Shape &x = c.shape(0), &w = c.shape(1);
    for (size_t i = 0; i < 4; ++i)
      if (given(c, i) && c.dtype(i) != DType::kFloat32) bad_type(c.dtype(i));
    check(x.rank() == 3, "the input is not [batch, channels, length]");
    check(w.rank() == 3 && w[0] == x[1] && w[1] == 1 && w[2] >= 1,
          "the weight is not [channels, 1, k]");
    n_ = x[0];
    channels_ = x[1];
    length_ = x[2];
    k_ = w[2];
    const Shape state = {n_, channels_, k_ - 1};
    has_bias_ = given(c, 2);
    if (has_bias_) check(c.shape(2) == Shape({channels_}), "the bias is not one number a channel");
    has_state_ = given(c, 3);
    if (has_state_) check(c.shape(3) == state, "past_state is not " + state.str());
    row_bytes_ = align64(static_cast<size_t>(Shape({length_ + k_ - 1}).numel()) * sizeof(float));
    c.set(0, DType::kFloat32, x);
    wants_state_ = wanted(c, 1);
    if (wants_state_) c.set(1, DType::kFloat32, state);
    return Inferred::kDone;
  }
  size_t scratch_bytes() const override { return row_bytes_ * n_threads_; }
  void run(RunContext& c) override {
    ScratchSlots slots(c.scratch(), row_bytes_, n_threads_);
    c.pool().parallel_for(n_ * channels_, 4, [&](int64_t begin, int64_t end) {
      const ScratchSlots::Lease lease(slots);
      float* padded = lease.as<float>();
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t i = 0; i < k_ - 1; ++i)
          padded[i] = has_state_ ? c.input(3)->as<float>()[r * (k_ - 1) + i] : 0.0f;
        std::copy_n(c.input(0)->as<float>() + r * length_, length_, padded + k_ - 1);
        float* y = c.output(0)->as<float>() + r * length_;
        const float* w = c.input(1)->as<float>() + r % channels_ * k_;
        std::fill_n(y, length_, 0.0f);
        for (int64_t k = 0; k < k_; ++k)
          fmath_.accumulate(static_cast<size_t>(length_), padded + k, w[k], y);
        if (has_bias_)
          fmath_.affine(static_cast<size_t>(length_), y, 1.0f,
                        c.input(2)->as<float>()[r % channels_], y);
        if (silu_) fmath_.unarySwish(static_cast<size_t>(length_), y, y, 1.0f, 0);
        if (wants_state_)
          std::copy_n(padded + length_, k_ - 1, c.output(1)->as<float>() + r * (k_ - 1));
      }
    });
  }

 private:
  bool silu_ = false, has_bias_ = false, has_state_ = false, wants_state_ = false;
  int64_t n_ = 0, channels_ = 0, length_ = 0, k_ = 1;
  size_t row_bytes_ = 0;
};

class SwiGlu final : public Op {
 public:
  SwiGlu(const Node& node, const KernelContext& context)
      : Op(node, context), alpha_(node.f("alpha", 1.0f)) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    for (size_t i = 0; i < 2; ++i)
      if (c.dtype(i) != DType::kFloat32) bad_type(c.dtype(i));
    check(c.shape(0) == c.shape(1), "A and B differ in shape");
    c.set(0, DType::kFloat32, c.shape(0));
    return Inferred::kDone;
  }
  bool may_overwrite(size_t input) const override { return input == 0; }
  void run(RunContext& c) override {
    const float *a = c.input(0)->as<float>(), *b = c.input(1)->as<float>();
    float* y = c.output(0)->as<float>();
    c.pool().parallel_for(c.output(0)->numel(), kGrain, [&](int64_t begin, int64_t end) {
      const size_t n = static_cast<size_t>(end - begin);
      fmath_.unarySwish(n, a + begin, y + begin, alpha_, 0);
      fmath_.binaryMul(n, y + begin, 1, b + begin, 1, y + begin);
    });
  }

 private:
  float alpha_;
};

// Writes `update` into the cache at a place of its own for each batch entry.
class TensorScatter final : public Op {
 public:
  TensorScatter(const Node& node, const KernelContext& context)
      : Op(node, context), axis_(node.i("axis", -2)) {
    const std::string mode = node.s("mode", "linear");
    check(mode == "linear" || mode == "circular", "mode '" + mode + "' is not known");
    circular_ = mode == "circular";
  }
  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    const Shape &cache = c.shape(0), &update = c.shape(1);
    check_type(c.dtype(1), c.dtype(0), "update");
    check(cache.rank() == update.rank(), "cache and update differ in their number of dimensions");
    const int axis = axis_of(axis_, cache.rank());
    check(axis > 0, "axis is the batch dimension");
    for (int d = 0; d < cache.rank(); ++d)
      check(d == axis ? update[d] <= cache[d] : update[d] == cache[d],
            "update does not fit the cache");
    has_places_ = given(c, 2);
    if (has_places_) {
      check_type(c.dtype(2), DType::kInt64, "write_indices");
      check(c.shape(2) == Shape({cache[0]}), "write_indices is not one number a batch entry");
    }
    dispatch_width(c.dtype(0), [](auto) {});
    batch_ = cache[0];
    outer_ = product(cache, 1, axis);
    n_ = cache[axis];
    length_ = update[axis];
    row_ = product(cache, axis + 1, cache.rank()) * static_cast<int64_t>(dtype_size(c.dtype(0)));
    c.set(0, c.dtype(0), cache);
    return Inferred::kDone;
  }
  bool may_overwrite(size_t input) const override { return input == 0; }
  void run(RunContext& c) override {
    const Tensor &cache = *c.input(0), &update = *c.input(1);
    Tensor& y = *c.output(0);
    if (y.data != cache.data && cache.n_bytes()) std::memcpy(y.data, cache.data, cache.n_bytes());
    for (int64_t b = 0; b < batch_; ++b) {
      const int64_t first = has_places_ ? c.input(2)->as<int64_t>()[b] : 0;
      check(first >= 0 && (circular_ || first <= n_ - length_),
            "a write index is outside the cache");
      for (int64_t o = b * outer_; o < (b + 1) * outer_; ++o)
        for (int64_t t = 0; t < length_; ++t) {
          const int64_t at = circular_ ? (first % n_ + t) % n_ : first + t;
          if (row_)
            std::memcpy(y.as<std::byte>() + (o * n_ + at) * row_,
                        update.as<std::byte>() + (o * length_ + t) * row_,
                        static_cast<size_t>(row_));
        }
    }
  }

 private:
  int64_t axis_;
  bool circular_ = false, has_places_ = false;
  int64_t batch_ = 0, outer_ = 0, n_ = 0, length_ = 0, row_ = 0;
};

}  // namespace

std::unique_ptr<Kernel> make_attention(const Node& n, const KernelContext& c) {
  return widened<Attention>(n, c);
}
std::unique_ptr<Kernel> make_rotary_embedding(const Node& n, const KernelContext& c) {
  return widened<RotaryEmbedding>(n, c);
}
std::unique_ptr<Kernel> make_linear_attention(const Node& n, const KernelContext& c) {
  return widened<LinearAttention>(n, c);
}
std::unique_ptr<Kernel> make_causal_conv_with_state(const Node& n, const KernelContext& c) {
  return widened<CausalConvWithState>(n, c);
}
std::unique_ptr<Kernel> make_swiglu(const Node& n, const KernelContext& c) {
  return widened<SwiGlu>(n, c);
}
std::unique_ptr<Kernel> make_tensor_scatter(const Node& n, const KernelContext& c) {
  return std::make_unique<TensorScatter>(n, c);
}

}  // namespace wia
