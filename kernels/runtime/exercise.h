// SPDX-License-Identifier: Apache-2.0
// For tests and the fuzzer: loads whatever the bytes are, runs it if it can be run, within small
// limits.
#pragma once

#include <cstring>
#include <span>

#include "runtime/session.h"

namespace wia {

enum class Exercised { kRefused, kLoaded, kRan };

// Anything but Error that leaves this is a fault of libwia.
inline Exercised exercise_model(std::span<const uint8_t> bytes) {
  constexpr size_t kMemory = size_t{64} << 20;
  constexpr int64_t kIterations = 100, kAnySize = 2, kMaxInput = 1 << 16;
  SessionOptions options;
  options.memory_limit = kMemory;
  options.max_loop_iterations = kIterations;
  Exercised reached = Exercised::kRefused;
  try {
    const auto session = Session::from_bytes(bytes, options);
    reached = Exercised::kLoaded;
    std::vector<Tensor> inputs;
    for (const Port& port : session->inputs()) {
      Shape shape;
      for (int64_t d : port.shape) shape.push_back(d < 0 ? kAnySize : d);
      if (port.dtype == DType::kUndefined || shape.numel() > kMaxInput) return reached;
      Tensor& input = inputs.emplace_back(Tensor::allocate(port.dtype, shape));
      // Small positive levels are also harmless indices, shapes and reals.
      for (size_t i = 0; i < input.n_bytes(); ++i)
        input.as<uint8_t>()[i] = i % dtype_size(port.dtype) ? 0 : i % 3;
    }
    (void)session->run(inputs);
    (void)session->run(inputs);
    reached = Exercised::kRan;
  } catch (const Error&) {
  }
  return reached;
}

}  // namespace wia
