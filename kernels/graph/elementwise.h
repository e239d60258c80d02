// SPDX-License-Identifier: Apache-2.0
// Which operators of ai.onnx are elementwise.
#pragma once

#include "graph/graph.h"

namespace wia {

// Element i of the one output is a function of the elements i of the broadcast inputs.
bool is_elementwise(const Node& node);

}  // namespace wia
