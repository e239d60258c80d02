// SPDX-License-Identifier: Apache-2.0
// The table of operators, made from ops.inc.
#include <map>
#include <utility>

#include "runtime/kernel.h"

namespace wia {

#define WIA_OP(domain, op_type, make) \
  std::unique_ptr<Kernel> make(const Node& node, const KernelContext& context);
#include "runtime/ops.inc"
#undef WIA_OP

namespace {

const OpEntry kOps[] = {
#define WIA_OP(domain, op_type, make) {domain, #op_type, make},
#include "runtime/ops.inc"
#undef WIA_OP
    {"", "", nullptr},
};

}  // namespace

std::span<const OpEntry> all_ops() { return {kOps, std::size(kOps) - 1}; }

const OpEntry* find_op(const std::string& domain, const std::string& op_type) {
  static const auto* const index = [] {
    auto* map = new std::map<std::pair<std::string, std::string>, const OpEntry*>;
    for (const OpEntry& entry : all_ops())
      map->emplace(std::pair{entry.domain, entry.op_type}, &entry);
    return map;
  }();
  auto it = index->find({domain, op_type});
  return it == index->end() ? nullptr : it->second;
}

}  // namespace wia
