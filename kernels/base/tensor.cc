// SPDX-License-Identifier: Apache-2.0
// Element types, shapes, and tensors.
#include "base/tensor.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "base/budget.h"

namespace wia {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 40;
constexpr size_t kAlignment = 64;

struct DTypeInfo {
  DType dtype;
  size_t size;
  const char* name;
};
constexpr DTypeInfo kDTypes[] = {
    {DType::kFloat32, 4, "float32"},
    {DType::kUint8, 1, "uint8"},
    {DType::kInt8, 1, "int8"},
    {DType::kUint16, 2, "uint16"},
    {DType::kInt16, 2, "int16"},
    {DType::kInt32, 4, "int32"},
    {DType::kInt64, 8, "int64"},
    {DType::kString, 0, "string"},
    {DType::kBool, 1, "bool"},
    {DType::kFloat16, 2, "float16"},
    {DType::kFloat64, 8, "float64"},
    {DType::kUint32, 4, "uint32"},
    {DType::kUint64, 8, "uint64"},
    {DType::kBFloat16, 2, "bfloat16"},
    {DType::kFloat8E4M3, 1, "float8e4m3fn"},
    {DType::kFloat8E5M2, 1, "float8e5m2"},
    {DType::kUint4, 1, "uint4"},
    {DType::kInt4, 1, "int4"},
};

const DTypeInfo* find(DType dtype) {
  for (const DTypeInfo& info : kDTypes)
    if (info.dtype == dtype) return &info;
  return nullptr;
}

}  // namespace

size_t dtype_size(DType dtype) {
  const DTypeInfo* info = find(dtype);
  return info ? info->size : 0;
}

const char* dtype_name(DType dtype) {
  const DTypeInfo* info = find(dtype);
  return info ? info->name : "undefined";
}

bool Shape::operator==(const Shape& other) const {
  return std::equal(begin(), end(), other.begin(), other.end());
}

bool Shape::known() const {
  return std::none_of(begin(), end(), [](int64_t d) { return d < 0; });
}

int64_t Shape::numel() const {
  int64_t n = 1;
  for (int64_t d : *this) {
    require(d >= 0, "a tensor with an unknown dimension has no size");
    if (d == 0) return 0;
    require(n <= kMaxElements / d, "a tensor of more than 2^40 elements");
    n *= d;
  }
  return n;
}

std::string Shape::str() const {
  std::string out = "[";
  for (int i = 0; i < rank_; ++i) out += (i ? ", " : "") + std::to_string(dims_[i]);
  return out + "]";
}

Tensor Tensor::allocate(DType dtype, const Shape& shape) {
  Tensor t;
  t.dtype = dtype;
  t.shape = shape;
  const size_t n_bytes = static_cast<size_t>(shape.numel()) * dtype_size(dtype);
  const size_t padded = (std::max<size_t>(n_bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  const auto& budget = BudgetScope::current();
  if (budget) budget->take(padded);
  t.data = std::aligned_alloc(kAlignment, padded);
  if (!t.data) {
    if (budget) budget->give_back(padded);
    fail(WIA_ERROR_OUT_OF_MEMORY, "cannot allocate " + std::to_string(padded) + " bytes");
  }
  if (budget) {
    t.owner = std::shared_ptr<void>(t.data, [budget, padded](void* data) {
      std::free(data);
      budget->give_back(padded);
    });
  } else {
    t.owner = std::shared_ptr<void>(t.data, std::free);
  }
  return t;
}

}  // namespace wia
