// SPDX-License-Identifier: Apache-2.0
// The pool: one open loop, pieces claimed by counter, workers that join while it is open.
#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/error.h"

namespace wia {
namespace {

constexpr size_t kMaxThreads = 1024;
// More pieces than threads, so that one slowed down by another process takes fewer of them.
constexpr int64_t kPiecesPerThread = 4;
constexpr auto kSpin = std::chrono::microseconds(30);
constexpr int kPausesPerLook = 32;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Waits until ready(), for at most kSpin.
template <class Ready>
bool spin(Ready ready) {
  if (ready()) return true;
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (ready()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

thread_local bool t_inside = false;

}  // namespace

struct ThreadPool::Impl {
  // Low bits: workers inside the loop. kOpen: they may join. Above: a count of loops, so that none
  // joins one twice.
  static constexpr uint32_t kInside = 0xfff, kOpen = 0x1000, kLoop = 0x2000;
  alignas(64) std::atomic<uint32_t> state{0};
  alignas(64) std::atomic<int64_t> next{0};   // the first index nobody has claimed
  alignas(64) std::atomic<uint32_t> left{0};  // moved by the last worker to leave a closed loop
  alignas(64) std::atomic<bool> busy{false};  // a caller owns the pool
  std::atomic<bool> stop{false};
  int64_t n = 0, piece = 1;  // the loop; written while closed, read by those inside
  void* context = nullptr;
  Call call = nullptr;
  std::vector<std::thread> workers;

  void work() {
    for (;;) {
      const int64_t begin = next.fetch_add(piece, std::memory_order_relaxed);
      if (begin >= n) return;
      call(context, begin, std::min(begin + piece, n));
    }
  }

  bool join(uint32_t& seen, uint32_t last) {
    while ((seen & kOpen) && (seen & ~kInside) != last) {
      if (state.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel,
                                      std::memory_order_acquire))
        return true;
    }
    return false;
  }

  void worker() {
    t_inside = true;
    uint32_t last = 0;  // the loop this worker was in
    while (!stop.load(std::memory_order_acquire)) {
      uint32_t seen = state.load(std::memory_order_acquire);
      if (join(seen, last)) {
        last = seen & ~kInside;
        work();
        const uint32_t before = state.fetch_sub(1, std::memory_order_acq_rel);
        if ((before & (kOpen | kInside)) == 1) {
          left.fetch_add(1, std::memory_order_release);
          left.notify_one();
        }
        continue;
      }
      auto changed = [&] {
        const uint32_t now = state.load(std::memory_order_relaxed);
        return ((now & kOpen) && (now & ~kInside) != last) || stop.load(std::memory_order_relaxed);
      };
      if (!spin(changed)) {
        seen = state.load(std::memory_order_acquire);
        if (!((seen & kOpen) && (seen & ~kInside) != last) && !stop.load(std::memory_order_acquire))
          state.wait(seen, std::memory_order_acquire);
      }
    }
  }

  void close() {
    state.fetch_and(~kOpen, std::memory_order_acq_rel);
    auto empty = [&] { return (state.load(std::memory_order_acquire) & kInside) == 0; };
    if (spin(empty)) return;
    for (uint32_t seen = left.load(std::memory_order_acquire); !empty();
         seen = left.load(std::memory_order_acquire))
      left.wait(seen, std::memory_order_acquire);
  }
};

ThreadPool::ThreadPool(size_t n_threads) : n_threads_(n_threads) {
  require(
      n_threads >= 1 && n_threads <= kMaxThreads,
      "threads must be 1 to " + std::to_string(kMaxThreads) + ", not " + std::to_string(n_threads));
  if (n_threads == 1) return;
  impl_ = std::make_unique<Impl>();
  try {
    for (size_t i = 1; i < n_threads; ++i)
      impl_->workers.emplace_back([impl = impl_.get()] { impl->worker(); });
  } catch (const std::exception&) {
    const size_t made = impl_->workers.size();
    this->~ThreadPool();
    fail(WIA_ERROR_RUNTIME_ERROR, "the system gave " + std::to_string(made + 1) + " threads of " +
                                      std::to_string(n_threads));
  }
}

ThreadPool::~ThreadPool() {
  if (!impl_) return;
  impl_->stop.store(true, std::memory_order_release);
  impl_->state.fetch_add(Impl::kLoop,
                         std::memory_order_acq_rel);  // so that a worker about to sleep does not
  impl_->state.notify_all();
  for (std::thread& worker : impl_->workers) worker.join();
  impl_.reset();
}

void ThreadPool::share(int64_t n, int64_t grain, void* context, Call call) {
  Impl& impl = *impl_;
  if (t_inside || impl.busy.exchange(true, std::memory_order_acquire)) {
    call(context, 0, n);
    return;
  }
  t_inside = true;
  const int64_t most = static_cast<int64_t>(n_threads_) * kPiecesPerThread;
  impl.n = n;
  impl.piece = std::max(std::max<int64_t>(grain, 1), (n + most - 1) / most);
  impl.context = context;
  impl.call = call;
  impl.next.store(0, std::memory_order_relaxed);
  impl.state.fetch_add(Impl::kLoop | Impl::kOpen, std::memory_order_acq_rel);
  const int64_t pieces = (n + impl.piece - 1) / impl.piece;
  if (pieces >= static_cast<int64_t>(n_threads_)) {
    impl.state.notify_all();
  } else {
    for (int64_t i = 1; i < pieces; ++i) impl.state.notify_one();
  }
  impl.work();
  impl.close();
  t_inside = false;
  impl.busy.store(false, std::memory_order_release);
}

}  // namespace wia
