// SPDX-License-Identifier: Apache-2.0
// An ONNX model file -> Graph: names resolved, functions inlined, subgraphs' outer values lifted,
// nodes sorted.
#pragma once

#include <span>
#include <string>

#include "graph/graph.h"

namespace wia::onnx {

// Throws Error naming the node or tensor for whatever is malformed, and for what libwia does not
// take: sparse tensors, sequences, strings. Unknown operators are left to the runtime, which lists
// them together.
//
// bytes: the file. folder: where external data lies; empty for a model in memory.
Graph read_model(std::span<const uint8_t> bytes, const std::string& folder);
Graph read_model_file(const std::string& path);

}  // namespace wia::onnx
