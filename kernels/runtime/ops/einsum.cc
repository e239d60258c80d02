// SPDX-License-Identifier: Apache-2.0
// Einsum: any equation by one loop over its output letters and its summed letters.
#include "runtime/ops/op.h"

namespace wia {
namespace {

class Einsum final : public Op {
 public:
  Einsum(const Node& node, const KernelContext& context)
      : Op(node, context), n_(node.inputs.size()) {
    std::string text;
    for (char ch : node.s("equation", ""))
      if (ch != ' ') text += ch;
    check(!text.empty(), "the equation is missing");
    const size_t arrow = text.find("->");
    explicit_ = arrow != std::string::npos;
    output_ = explicit_ ? text.substr(arrow + 2) : "";
    std::string left = text.substr(0, arrow);
    for (size_t from = 0;;) {
      const size_t comma = left.find(',', from);
      terms_.push_back(left.substr(from, comma - from));
      if (comma == std::string::npos) break;
      from = comma + 1;
    }
    check(terms_.size() == n_, "the equation has not one term for each input");
    for (const std::string& term : terms_) check_term(term);
    check_term(output_);
  }

  Inferred infer(InferContext& c) override {
    check_inputs(c, n_);
    dtype_ = c.dtype(0);
    if (!dispatch_numbers(dtype_, []<class T>() {})) bad_type(dtype_);
    // The dimensions of "..." become letters of their own: '0' is the last of them.
    int widest = 0;
    std::vector<std::string> terms;
    for (size_t i = 0; i < n_; ++i) {
      check_type(c.dtype(i), dtype_, "an input");
      const int letters = static_cast<int>(terms_[i].size()) - (has_dots(terms_[i]) ? 3 : 0);
      const int extra = c.shape(i).rank() - letters;
      check(has_dots(terms_[i]) ? extra >= 0 : extra == 0,
            "the term '" + terms_[i] + "' does not fit the shape " + c.shape(i).str());
      widest = std::max(widest, extra);
      terms.push_back(expanded(terms_[i], extra));
    }
    std::string out = expanded(output_, widest);
    if (!explicit_) {
      out = expanded("...", widest);
      for (char letter = 'A'; letter <= 'z'; ++letter) {
        size_t uses = 0;
        for (const std::string& term : terms)
          uses += static_cast<size_t>(std::count(term.begin(), term.end(), letter));
        if (uses == 1) out += letter;
      }
    }
    // Sizes by letter; 1 broadcasts.
    int64_t size[128];
    std::fill(std::begin(size), std::end(size), int64_t{-1});
    std::string all = out;
    for (size_t i = 0; i < n_; ++i)
      for (size_t d = 0; d < terms[i].size(); ++d) {
        const char letter = terms[i][d];
        int64_t& known = size[static_cast<int>(letter)];
        const int64_t n = c.shape(i)[static_cast<int>(d)];
        check(known < 0 || known == 1 || n == 1 || known == n,
              std::string("the dimension '") + letter + "' has two sizes");
        if (known < 0 || known == 1) known = n;
        if (all.find(letter) == std::string::npos) all += letter;
      }
    Shape shape;
    dims_.clear();
    n_out_ = out.size();
    for (size_t i = 0; i < all.size(); ++i) {
      const int64_t n = size[static_cast<int>(all[i])];
      check(n >= 0, std::string("the output's '") + all[i] + "' is in no input");
      if (i < n_out_) check(out.find(all[i]) == i, "the output names a dimension twice");
      if (i < n_out_) shape.push_back(n);
      dims_.push_back(n);
    }
    int64_t work = 1;
    for (int64_t d : dims_) {
      check(d == 0 || work <= (int64_t{1} << 46) / d, "the equation has too many terms");
      work *= d;
    }
    steps_.assign(n_, std::vector<int64_t>(all.size(), 0));
    for (size_t i = 0; i < n_; ++i) {
      const auto own = steps_of(c.shape(i));
      for (size_t d = 0; d < terms[i].size(); ++d)
        if (c.shape(i)[static_cast<int>(d)] != 1) steps_[i][all.find(terms[i][d])] += own[d];
    }
    shape.numel();
    c.set(0, dtype_, shape);
    return Inferred::kDone;
  }

  void run(RunContext& c) override {
    Tensor& y = *c.output(0);
    int64_t n_sum = 1;
    for (size_t d = n_out_; d < dims_.size(); ++d) n_sum *= dims_[d];
    dispatch_numbers(dtype_, [&]<class T>() {
      c.pool().parallel_for(y.numel(), std::max<int64_t>(1, kGrain / std::max<int64_t>(1, n_sum)),
                            [&](int64_t begin, int64_t end) {
                              for (int64_t o = begin; o < end; ++o)
                                y.as<T>()[o] = one<T>(c, o, n_sum);
                            });
    });
  }

 private:
  static bool has_dots(const std::string& term) { return term.find("...") != std::string::npos; }
  void check_term(const std::string& term) const {
    const size_t dots = term.find("...");
    for (size_t i = 0; i < term.size(); ++i) {
      if (dots != std::string::npos && i >= dots && i < dots + 3) continue;
      check((term[i] >= 'a' && term[i] <= 'z') || (term[i] >= 'A' && term[i] <= 'Z'),
            "the term '" + term + "' has something else than letters");
    }
  }
  static std::string expanded(const std::string& term, int extra) {
    const size_t dots = term.find("...");
    if (dots == std::string::npos) return term;
    std::string digits;
    for (int i = extra - 1; i >= 0; --i) digits += static_cast<char>('0' + i);
    return term.substr(0, dots) + digits + term.substr(dots + 3);
  }

  template <class T>
  T one(RunContext& c, int64_t o, int64_t n_sum) const {
    std::vector<int64_t> base(n_, 0);
    for (size_t d = n_out_; d-- > 0;) {
      const int64_t i = o % dims_[d];
      o /= dims_[d];
      for (size_t k = 0; k < n_; ++k) base[k] += i * steps_[k][d];
    }
    using Sum = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;
    Sum sum = 0;
    for (int64_t s = 0; s < n_sum; ++s) {
      Sum term = 1;
      for (size_t k = 0; k < n_; ++k) {
        int64_t at = base[k], rest = s;
        for (size_t d = dims_.size(); d-- > n_out_;) {
          at += rest % dims_[d] * steps_[k][d];
          rest /= dims_[d];
        }
        term *= static_cast<Sum>(c.input(k)->template as<T>()[at]);
      }
      sum += term;
    }
    return static_cast<T>(sum);
  }

  size_t n_, n_out_ = 0;
  bool explicit_ = false;
  std::string output_;
  std::vector<std::string> terms_;
  DType dtype_ = DType::kUndefined;
  std::vector<int64_t> dims_;                // output letters, then summed letters
  std::vector<std::vector<int64_t>> steps_;  // [input][letter]
};

}  // namespace

std::unique_ptr<Kernel> make_einsum(const Node& n, const KernelContext& c) {
  return widened<Einsum>(n, c);
}

}  // namespace wia
