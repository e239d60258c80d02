// SPDX-License-Identifier: Apache-2.0
// What is done to every graph before kernels are made of it: constants folded, passes run.
#pragma once

#include "runtime/kernel.h"

namespace wia {

// optimize false: only constants are folded.
void simplify(Graph& graph, const KernelContext& context, bool optimize = true);

}  // namespace wia
