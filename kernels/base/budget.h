// SPDX-License-Identifier: Apache-2.0
// A cap on the memory of tensors, so that a hostile model cannot take the machine's.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

namespace wia {

// Bytes in use by the tensors allocated under a limit.
class MemoryBudget {
 public:
  explicit MemoryBudget(size_t limit) : limit_(limit) {}
  // Throws Error when `n_bytes` more would exceed the limit.
  void take(size_t n_bytes);
  void give_back(size_t n_bytes) { used_.fetch_sub(n_bytes, std::memory_order_relaxed); }
  size_t used() const { return used_.load(std::memory_order_relaxed); }
  size_t limit() const { return limit_; }

 private:
  const size_t limit_;
  std::atomic<size_t> used_{0};
};

// While it lives, Tensor::allocate of this thread takes from the budget.
class BudgetScope {
 public:
  explicit BudgetScope(std::shared_ptr<MemoryBudget> budget);
  ~BudgetScope();
  BudgetScope(const BudgetScope&) = delete;
  BudgetScope& operator=(const BudgetScope&) = delete;
  static const std::shared_ptr<MemoryBudget>& current();  // null without a scope

 private:
  std::shared_ptr<MemoryBudget> outer_;
};

// The memory of this machine, in bytes.
size_t physical_memory();

}  // namespace wia
