// SPDX-License-Identifier: Apache-2.0
// Element types, shapes, and tensors: dense, row-major, 64-byte aligned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>

#include "base/error.h"

namespace wia {

// The values are those of onnx.TensorProto.DataType.
enum class DType : int8_t {
  kUndefined = 0,
  kFloat32 = 1,
  kUint8 = 2,
  kInt8 = 3,
  kUint16 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kString = 8,
  kBool = 9,
  kFloat16 = 10,
  kFloat64 = 11,
  kUint32 = 12,
  kUint64 = 13,
  kBFloat16 = 16,
  kFloat8E4M3 = 17,
  kFloat8E5M2 = 19,
  kUint4 = 21,
  kInt4 = 22,
};

// Bytes of one element in memory. 4-bit types are unpacked to one byte an element when loaded.
size_t dtype_size(DType dtype);
const char* dtype_name(DType dtype);

// Dimensions, outermost first; at most kMaxRank. A dimension of -1 is unknown (in graphs, never in
// tensors).
class Shape {
 public:
  static constexpr int kMaxRank = 8;
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims)
      : Shape(std::span<const int64_t>(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const int64_t> dims) {
    require(dims.size() <= kMaxRank, "a tensor of more than 8 dimensions");
    for (int64_t d : dims) dims_[rank_++] = d;
  }
  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[i]; }
  int64_t& operator[](int i) { return dims_[i]; }
  const int64_t* begin() const { return dims_; }
  const int64_t* end() const { return dims_ + rank_; }
  std::span<const int64_t> dims() const { return {dims_, static_cast<size_t>(rank_)}; }
  void push_back(int64_t d) {
    require(rank_ < kMaxRank, "a tensor of more than 8 dimensions");
    dims_[rank_++] = d;
  }
  bool operator==(const Shape& other) const;
  bool known() const;  // no dimension is -1
  // Product of the dimensions; throws Error when it, or its bytes, would overflow or exceed 2^40.
  int64_t numel() const;
  std::string str() const;  // "[1, 3, 224, 224]"

 private:
  int rank_ = 0;
  int64_t dims_[kMaxRank] = {};
};

// A tensor that may own its memory (owner set) or borrow it. Copying shares the memory.
struct Tensor {
  DType dtype = DType::kUndefined;
  Shape shape;
  void* data = nullptr;
  std::shared_ptr<void> owner;

  // Owned, 64-byte aligned, uninitialised memory.
  static Tensor allocate(DType dtype, const Shape& shape);
  template <class T>
  T* as() {
    return static_cast<T*>(data);
  }
  template <class T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
  int64_t numel() const { return shape.numel(); }
  size_t n_bytes() const { return static_cast<size_t>(numel()) * dtype_size(dtype); }
};

}  // namespace wia
