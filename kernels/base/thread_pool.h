// SPDX-License-Identifier: Apache-2.0
// Threads that share one loop at a time. Results must not depend on how the range is split.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace wia {

class ThreadPool {
 public:
  // n_threads >= 1, the caller's own included.
  explicit ThreadPool(size_t n_threads);
  ~ThreadPool();
  size_t size() const;
  // Calls body(begin, end) until [0, n) is covered, in pieces of at least `grain`; returns when all
  // are done. `body` must not throw. Spins only briefly before sleeping: a busy core must not stall
  // the others.
  void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace wia
