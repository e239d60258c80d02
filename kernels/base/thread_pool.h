// SPDX-License-Identifier: Apache-2.0
// Threads that share one loop at a time. Results must not depend on how the range is split.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace wia {

class ThreadPool {
 public:
  // n_threads >= 1, the caller's own included: 1 makes no thread at all.
  explicit ThreadPool(size_t n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  size_t size() const { return n_threads_; }

  // Calls body(begin, end) until [0, n) is covered, in pieces of at least `grain`; returns when all
  // are done. `body` must not throw. Inside another parallel_for, or while another thread uses the
  // pool, the caller runs it all. Spins only briefly before sleeping, and waits for no thread that
  // has not begun: a busy core must not stall the others. Allocates nothing.
  template <class Body>
  void parallel_for(int64_t n, int64_t grain, Body&& body) {
    if (n <= 0) return;
    if (n_threads_ == 1 || n <= grain) {
      body(int64_t{0}, n);
      return;
    }
    using Plain = std::remove_reference_t<Body>;
    share(n, grain, const_cast<void*>(static_cast<const void*>(&body)),
          [](void* context, int64_t begin, int64_t end) {
            (*static_cast<Plain*>(context))(begin, end);
          });
  }

 private:
  using Call = void (*)(void* context, int64_t begin, int64_t end);
  void share(int64_t n, int64_t grain, void* context, Call call);

  struct Impl;
  size_t n_threads_;
  std::unique_ptr<Impl> impl_;  // null for one thread
};

}  // namespace wia
