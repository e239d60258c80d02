// SPDX-License-Identifier: Apache-2.0
#include "base/budget.h"

#include "base/tensor.h"
#include "base/testing.h"

using namespace wia;

TEST(tensors_under_a_budget_are_counted_until_they_go) {
  auto budget = std::make_shared<MemoryBudget>(1024);
  const BudgetScope scope(budget);
  {
    const Tensor a = Tensor::allocate(DType::kFloat32, {100});
    CHECK_EQ(budget->used(), size_t{448});  // 400, in whole lines of 64
    const Tensor shared = a;
    CHECK_EQ(budget->used(), size_t{448});
  }
  CHECK_EQ(budget->used(), size_t{0});
}

TEST(more_than_the_budget_is_an_error_and_leaves_it_as_it_was) {
  auto budget = std::make_shared<MemoryBudget>(1024);
  const BudgetScope scope(budget);
  CHECK_THROWS(Tensor::allocate(DType::kFloat32, {1000}), "memory limit of 1024 bytes");
  CHECK_THROWS(Tensor::allocate(DType::kFloat64, {int64_t{1} << 40}), "memory limit");
  CHECK_EQ(budget->used(), size_t{0});
}

TEST(scopes_nest) {
  auto outer = std::make_shared<MemoryBudget>(1024), inner = std::make_shared<MemoryBudget>(1024);
  const BudgetScope a(outer);
  {
    const BudgetScope b(inner);
    CHECK(BudgetScope::current() == inner);
  }
  CHECK(BudgetScope::current() == outer);
}

TEST(a_machine_has_memory) { CHECK(physical_memory() > (size_t{64} << 20)); }

WIA_TEST_MAIN
