// SPDX-License-Identifier: Apache-2.0
// Cast and CastLike between all element types.
#include <cmath>

#include "runtime/ops/op.h"

namespace wia {
namespace {

// A 4-bit integer, unpacked to one byte.
template <bool kSigned>
struct Int4 {
  uint8_t bits;
  operator int64_t() const { return kSigned ? static_cast<int8_t>(bits) : bits; }
};
using SInt4 = Int4<true>;
using UInt4 = Int4<false>;

template <class Body>
bool dispatch_all(DType dtype, Body&& body) {
  if (dtype == DType::kInt4) return body.template operator()<SInt4>(), true;
  if (dtype == DType::kUint4) return body.template operator()<UInt4>(), true;
  return dispatch<float, double, Half, BFloat16, Float8E4M3, Float8E5M2, bool>(dtype, body) ||
         dispatch_integers(dtype, body);
}

template <class T>
constexpr bool kIsInt4 = std::is_same_v<T, SInt4> || std::is_same_v<T, UInt4>;
template <class T>
constexpr bool kSmallFloat = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16> ||
                             std::is_same_v<T, Float8E4M3> || std::is_same_v<T, Float8E5M2>;

// Towards zero, then the low bits, as numpy does on x86-64; NaN and what int64 cannot hold give 0
// or its ends.
template <class To>
To float_to_integer(double x) {
  if constexpr (std::is_same_v<To, uint64_t>) {
    if (x >= 0x1p63) return saturated<uint64_t>(x);
  }
  return static_cast<To>(static_cast<uint64_t>(saturated<int64_t>(x)));
}

template <class To, class From>
To convert(From from, bool saturate) {
  if constexpr (std::is_same_v<To, From>) {
    return from;
  } else if constexpr (kSmallFloat<From>) {
    return convert<To, float>(static_cast<float>(from), saturate);
  } else if constexpr (kIsInt4<From>) {
    return convert<To, int64_t>(static_cast<int64_t>(from), saturate);
  } else if constexpr (std::is_same_v<To, bool>) {
    return from != From{0};
  } else if constexpr (kSmallFloat<To>) {
    float x;
    if constexpr (std::is_same_v<From, float>)
      x = from;
    else if constexpr (std::is_same_v<From, double>)
      x = to_odd_float(from);
    else
      x = to_odd_float(static_cast<double>(from));
    To to;
    if constexpr (std::is_same_v<To, Float8E4M3>)
      to.bits = float_to_e4m3(x, saturate);
    else if constexpr (std::is_same_v<To, Float8E5M2>)
      to.bits = float_to_e5m2(x, saturate);
    else
      to = To(x);
    return to;
  } else if constexpr (kIsInt4<To>) {
    int64_t v;
    if constexpr (std::is_floating_point_v<From>)
      v = saturated<int64_t>(std::nearbyint(from));
    else
      v = static_cast<int64_t>(from);
    To to;
    if constexpr (std::is_same_v<To, SInt4>)
      to.bits = static_cast<uint8_t>(((v & 15) ^ 8) - 8);
    else
      to.bits = static_cast<uint8_t>(v & 15);
    return to;
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    return float_to_integer<To>(static_cast<double>(from));
  } else {
    return static_cast<To>(from);
  }
}

class Cast final : public Op {
 public:
  Cast(const Node& node, const KernelContext& context, bool like)
      : Op(node, context),
        like_(like),
        to_(like ? 0 : node.i("to", 0)),
        saturate_(node.i("saturate", 1) != 0) {
    check(to_ >= 0 && to_ < 127, "'to' is no element type");
  }
  Inferred infer(InferContext& c) override {
    check_inputs(c, like_ ? 2 : 1);
    from_ = c.dtype(0);
    out_ = like_ ? c.dtype(1) : static_cast<DType>(to_);
    if (!dispatch_all(from_, []<class T>() {}))
      unsupported(std::string("cannot cast from ") + dtype_name(from_));
    if (!dispatch_all(out_, []<class T>() {}))
      unsupported(std::string("cannot cast to ") + dtype_name(out_) + " (data type " +
                  std::to_string(static_cast<int>(out_)) + ")");
    c.set(0, out_, c.shape(0));
    return Inferred::kDone;
  }
  bool may_overwrite(size_t input) const override {
    return input == 0 && dtype_size(from_) == dtype_size(out_);
  }
  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    Tensor& y = *c.output(0);
    c.pool().parallel_for(x.numel(), kGrain, [&](int64_t begin, int64_t end) {
      dispatch_all(from_, [&]<class From>() {
        dispatch_all(out_, [&]<class To>() {
          const From* in = x.as<From>();
          To* out = y.as<To>();
          for (int64_t i = begin; i < end; ++i) out[i] = convert<To, From>(in[i], saturate_);
        });
      });
    });
  }

 private:
  bool like_;
  int64_t to_;
  bool saturate_;
  DType from_ = DType::kUndefined, out_ = DType::kUndefined;
};

}  // namespace

std::unique_ptr<Kernel> make_cast(const Node& n, const KernelContext& c) {
  return std::make_unique<Cast>(n, c, false);
}
std::unique_ptr<Kernel> make_cast_like(const Node& n, const KernelContext& c) {
  return std::make_unique<Cast>(n, c, true);
}

}  // namespace wia
