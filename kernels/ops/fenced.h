// SPDX-License-Identifier: Apache-2.0
// For kernel tests: arrays that end at an unreadable page, with canaries before them, and
// adversarial fills.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/cpu.h"
#include "base/testing.h"

namespace wia {

// n elements of T. Reading or writing past the end is a fault; check() finds a write before the
// start.
template <class T>
class Fenced {
 public:
  explicit Fenced(size_t n) : n_(n) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t body = (n * sizeof(T) + kCanary + page - 1) / page * page;
    bytes_ = body + page;
    base_ = static_cast<uint8_t*>(
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || mprotect(base_ + body, page, PROT_NONE) != 0) std::abort();
    data_ = reinterpret_cast<T*>(base_ + body - n * sizeof(T));
    std::memset(base_, 0xA5, body);
  }
  ~Fenced() { munmap(base_, bytes_); }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;
  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return n_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  void check() const {
    const uint8_t* first = reinterpret_cast<const uint8_t*>(data_);
    for (size_t i = 1; i <= kCanary; ++i) CHECK_EQ(first[-static_cast<ptrdiff_t>(i)], 0xA5);
  }

 private:
  static constexpr size_t kCanary = 64;
  size_t n_, bytes_;
  uint8_t* base_;
  T* data_;
};

// 64-byte aligned bytes, for packed weights and scratch.
class Aligned {
 public:
  explicit Aligned(size_t n) : bytes_(n + 64, std::byte{0xA5}) {}
  void* data() {
    const uintptr_t at = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + (64 - at % 64) % 64;
  }

 private:
  std::vector<std::byte> bytes_;
};

// Fills: anything; only the extremes (what saturating instructions get wrong); one constant
// extreme.
enum class Fill { kRandom, kExtremes, kMax };

template <class T>
void fill(T* data, size_t n, Fill how, std::mt19937& random, int lo, int hi) {
  std::uniform_int_distribution<int> any(lo, hi), coin(0, 1);
  for (size_t i = 0; i < n; ++i) {
    const int value = how == Fill::kRandom ? any(random)
                      : how == Fill::kMax  ? hi
                      : coin(random)       ? hi
                                           : lo;
    data[i] = static_cast<T>(value);
  }
}

}  // namespace wia
