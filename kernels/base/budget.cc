// SPDX-License-Identifier: Apache-2.0
// A cap on the memory of tensors.
#include "base/budget.h"

#include <unistd.h>

#include <string>
#include <utility>

#include "base/error.h"

namespace wia {
namespace {

thread_local std::shared_ptr<MemoryBudget> t_budget;

}  // namespace

void MemoryBudget::take(size_t n_bytes) {
  const size_t before = used_.fetch_add(n_bytes, std::memory_order_relaxed);
  if (n_bytes <= limit_ && before <= limit_ - n_bytes) return;
  give_back(n_bytes);
  fail(WIA_ERROR_OUT_OF_MEMORY,
       std::to_string(n_bytes) + " bytes more would exceed the memory limit of " +
           std::to_string(limit_) + " bytes (" + std::to_string(before) + " in use)");
}

BudgetScope::BudgetScope(std::shared_ptr<MemoryBudget> budget)
    : outer_(std::exchange(t_budget, std::move(budget))) {}
BudgetScope::~BudgetScope() { t_budget = std::move(outer_); }
const std::shared_ptr<MemoryBudget>& BudgetScope::current() { return t_budget; }

size_t physical_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  constexpr size_t kFallback = size_t{1} << 32;
  return pages > 0 && page > 0 ? static_cast<size_t>(pages) * static_cast<size_t>(page) : kFallback;
}

}  // namespace wia
