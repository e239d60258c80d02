// SPDX-License-Identifier: Apache-2.0
// Every depthwise kernel that this CPU can run, on the layers of mobile networks.
#include <cstring>

#include "base/cpu.h"
#include "ops/qdepthwise/qdepthwise.h"
#include "ops/timing.h"

namespace wia {
namespace {

struct Layer {
  const char* name;
  size_t in, channels, kernel, stride;
};
constexpr Layer kLayers[] = {
    {"3x3 112 32", 112, 32, 3, 1},    {"3x3 112 96 /2", 112, 96, 3, 2},
    {"3x3 56 144", 56, 144, 3, 1},    {"3x3 56 144 /2", 56, 144, 3, 2},
    {"3x3 28 192", 28, 192, 3, 1},    {"3x3 28 192 /2", 28, 192, 3, 2},
    {"3x3 14 384", 14, 384, 3, 1},    {"3x3 14 576", 14, 576, 3, 1},
    {"3x3 14 576 /2", 14, 576, 3, 2}, {"3x3 7 960", 7, 960, 3, 1},
    {"5x5 56 144 /2", 56, 144, 5, 2}, {"5x5 28 240", 28, 240, 5, 1},
    {"5x5 14 672", 14, 672, 5, 1},    {"5x5 7 1152", 7, 1152, 5, 1},
};

uint8_t* aligned(std::vector<uint8_t>& v) {
  return v.data() + (64 - reinterpret_cast<uintptr_t>(v.data()) % 64) % 64;
}

void measure(const QDepthwise& kernel, const Layer& layer) {
  QConv c;
  c.in_h = c.in_w = layer.in;
  c.in_c = c.out_c = c.groups = layer.channels;
  c.kernel_h = c.kernel_w = layer.kernel;
  c.stride_h = c.stride_w = layer.stride;
  c.pad_top = c.pad_left = static_cast<ptrdiff_t>(layer.kernel / 2);
  c.out_h = c.out_w = (layer.in - 1) / layer.stride + 1;
  const size_t taps = layer.kernel * layer.kernel, pixels = c.out_h * c.out_w;
  std::vector<uint8_t> x(c.in_h * c.in_w * c.in_c, 77), out(pixels * c.out_c);
  std::vector<uint8_t> room(qdepthwise_packed_bytes(kernel, c) + 64),
      scratch(qdepthwise_scratch_bytes(c) + 64);
  std::vector<int8_t> w(taps * c.in_c);
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<int8_t>(i * 37 % 255 - 127);
  const float multiplier = 1e-3f;
  QConvWeights weights;
  weights.data = w.data();
  weights.stride_o = static_cast<ptrdiff_t>(taps);
  weights.stride_h = static_cast<ptrdiff_t>(c.kernel_w);
  weights.stride_w = 1;
  weights.multiplier = &multiplier;
  weights.multiplier_stride = 0;
  qdepthwise_pack(kernel, c, weights, aligned(room));
  QConvRun run;
  run.packed = aligned(room);
  run.x = x.data();
  run.out = out.data();
  run.scratch = aligned(scratch);
  run.pixel_end = c.out_h;
  QEpilogue e;
  e.zero_point = 128;
  const double seconds = median_seconds([&] { qdepthwise_run(kernel, c, run, e); });
  print_rate(kernel.name, layer.name, static_cast<double>(pixels * taps * c.in_c), seconds, "MAC");
}

}  // namespace
}  // namespace wia

int main(int argc, char** argv) {
  using namespace wia;
  const uint32_t isa = cpu::detect();
#define WIA_KERNEL(features, name)                                                         \
  if (cpu::supports(isa, features) &&                                                      \
      (argc > 1 ? std::strcmp(argv[1], #name) == 0 : &name != &qdepthwise_u8s8_reference)) \
    for (const Layer& layer : kLayers) measure(name, layer);
#include "ops/qdepthwise/kernels.inc"
#undef WIA_KERNEL
}
