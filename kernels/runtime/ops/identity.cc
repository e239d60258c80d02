// SPDX-License-Identifier: Apache-2.0
// Identity: the same bytes.
#include "runtime/kernel.h"

namespace wia {
namespace {

class Identity final : public Kernel {
 public:
  Inferred infer(InferContext& context) override {
    context.set(0, context.dtype(0), context.shape(0));
    return Inferred::kDone;
  }
  int alias_of() const override { return 0; }
  void run(RunContext&) override {}
};

}  // namespace

std::unique_ptr<Kernel> make_identity(const Node& node, const KernelContext&) {
  require(node.inputs.size() == 1 && node.outputs.size() == 1,
          node.where() + ": takes one input and makes one output");
  return std::make_unique<Identity>();
}

}  // namespace wia
