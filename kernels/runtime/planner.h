// SPDX-License-Identifier: Apache-2.0
// Where each intermediate tensor lies in one block of memory.
#pragma once

#include <cstddef>
#include <vector>

namespace wia {

struct Buffer {
  size_t n_bytes = 0;
  int first = 0, last = 0;  // the steps it lives through, both included
  size_t offset = 0;        // the answer: a multiple of 64
};

// Sets the offsets so that no two buffers alive in one step overlap; returns the bytes of the
// block. Best fit, largest first; for more than 4096 buffers in the order of steps.
size_t place_buffers(std::vector<Buffer>& buffers);

}  // namespace wia
