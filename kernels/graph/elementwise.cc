// SPDX-License-Identifier: Apache-2.0
// The table of elementwise operators.
#include "graph/elementwise.h"

#include <set>
#include <string>

namespace wia {

bool is_elementwise(const Node& node) {
  static const auto* const table = new std::set<std::string>{
      "Abs",         "Acos",
      "Acosh",       "Add",
      "And",         "Asin",
      "Asinh",       "Atan",
      "Atanh",       "Cast",
      "Ceil",        "Celu",
      "Clip",        "Cos",
      "Cosh",        "Div",
      "Elu",         "Equal",
      "Erf",         "Exp",
      "Floor",       "Gelu",
      "Greater",     "GreaterOrEqual",
      "HardSigmoid", "HardSwish",
      "Identity",    "IsInf",
      "IsNaN",       "LeakyRelu",
      "Less",        "LessOrEqual",
      "Log",         "Max",
      "Mean",        "Min",
      "Mish",        "Mod",
      "Mul",         "Neg",
      "Not",         "Or",
      "PRelu",       "Pow",
      "Reciprocal",  "Relu",
      "Round",       "Selu",
      "Shrink",      "Sigmoid",
      "Sign",        "Sin",
      "Sinh",        "Softplus",
      "Softsign",    "Sqrt",
      "Sub",         "Sum",
      "Swish",       "Tan",
      "Tanh",        "ThresholdedRelu",
      "Where",       "Xor",
  };
  if (node.opset < 7 && node.has("broadcast")) return false;  // not numpy's broadcasting
  return node.domain.empty() && node.outputs.size() == 1 && table->count(node.op_type) != 0;
}

}  // namespace wia
