// SPDX-License-Identifier: Apache-2.0
// Convolution through every GEMM kernel that this CPU can run, on the layers of well-known
// networks.
#include <cstring>

#include "base/cpu.h"
#include "ops/qconv/qconv.h"
#include "ops/timing.h"

namespace wia {
namespace {

struct Layer {
  const char* name;
  size_t in, in_c, out_c, kernel, stride;
  bool add;
};
constexpr Layer kLayers[] = {
    {"ResNet stem 7x7 224 3-64 /2", 224, 3, 64, 7, 2, false},
    {"ResNet 1x1 56 64-64", 56, 64, 64, 1, 1, false},
    {"ResNet 3x3 56 64-64", 56, 64, 64, 3, 1, false},
    {"ResNet 1x1 56 64-256 + add", 56, 64, 256, 1, 1, true},
    {"ResNet 1x1 56 256-64", 56, 256, 64, 1, 1, false},
    {"ResNet 3x3 28 128-128", 28, 128, 128, 3, 1, false},
    {"ResNet 1x1 28 128-512 + add", 28, 128, 512, 1, 1, true},
    {"ResNet 1x1 28 512-128", 28, 512, 128, 1, 1, false},
    {"ResNet 3x3 14 256-256", 14, 256, 256, 3, 1, false},
    {"ResNet 1x1 14 256-1024 + add", 14, 256, 1024, 1, 1, true},
    {"ResNet 1x1 14 1024-256", 14, 1024, 256, 1, 1, false},
    {"ResNet 3x3 7 512-512", 7, 512, 512, 3, 1, false},
    {"ResNet 1x1 7 2048-512", 7, 2048, 512, 1, 1, false},
    {"ResNet 1x1 7 512-2048 + add", 7, 512, 2048, 1, 1, true},
    {"MobileNet stem 3x3 224 3-32 /2", 224, 3, 32, 3, 2, false},
    {"MobileNet 1x1 112 32-16", 112, 32, 16, 1, 1, false},
    {"MobileNet 1x1 112 16-96", 112, 16, 96, 1, 1, false},
    {"MobileNet 1x1 56 96-24", 56, 96, 24, 1, 1, false},
    {"MobileNet 1x1 56 24-144", 56, 24, 144, 1, 1, false},
    {"MobileNet 1x1 28 144-32", 28, 144, 32, 1, 1, false},
    {"MobileNet 1x1 28 32-192", 28, 32, 192, 1, 1, false},
    {"MobileNet 1x1 14 192-64", 14, 192, 64, 1, 1, false},
    {"MobileNet 1x1 14 64-384", 14, 64, 384, 1, 1, false},
    {"MobileNet 1x1 14 384-96", 14, 384, 96, 1, 1, false},
    {"MobileNet 1x1 7 160-960", 7, 160, 960, 1, 1, false},
    {"MobileNet 1x1 7 960-320", 7, 960, 320, 1, 1, false},
    {"MobileNet 1x1 7 320-1280", 7, 320, 1280, 1, 1, false},
    {"OCR det 3x3 160 24-24", 160, 24, 24, 3, 1, false},
    {"OCR det 9x9 40 96-24", 40, 96, 24, 9, 1, false},
};

uint8_t* aligned(std::vector<uint8_t>& v) {
  return v.data() + (64 - reinterpret_cast<uintptr_t>(v.data()) % 64) % 64;
}

void measure(const QGemm& kernel, const Layer& layer) {
  QConv c;
  c.in_h = c.in_w = layer.in;
  c.in_c = layer.in_c;
  c.out_c = layer.out_c;
  c.kernel_h = c.kernel_w = layer.kernel;
  c.stride_h = c.stride_w = layer.stride;
  c.pad_top = c.pad_left = static_cast<ptrdiff_t>(layer.kernel / 2);
  c.out_h = c.out_w = (layer.in - 1) / layer.stride + 1;
  const size_t taps = layer.kernel * layer.kernel, pixels = c.out_h * c.out_w;
  std::vector<uint8_t> x(c.in_h * c.in_w * c.in_c, 77), out(pixels * c.out_c),
      other(pixels * c.out_c);
  std::vector<uint8_t> room(qconv_packed_bytes(kernel, c) + 64),
      scratch(qconv_scratch_bytes(kernel, c) + 64);
  std::vector<int8_t> w(taps * c.in_c * c.out_c);
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<int8_t>(i * 37 % 255 - 127);
  const float multiplier = 1e-4f;
  QConvWeights weights;
  weights.data = w.data();
  weights.stride_o = static_cast<ptrdiff_t>(taps * c.in_c);
  weights.stride_h = static_cast<ptrdiff_t>(c.kernel_w * c.in_c);
  weights.stride_w = static_cast<ptrdiff_t>(c.in_c);
  weights.stride_i = 1;
  weights.multiplier = &multiplier;
  weights.multiplier_stride = 0;
  qconv_pack(kernel, c, weights, aligned(room));
  QConvRun run;
  run.packed = aligned(room);
  run.x = x.data();
  run.out = out.data();
  run.scratch = aligned(scratch);
  run.pixel_end = pixels;
  QEpilogue e;
  e.zero_point = 128;
  if (layer.add) {
    e.residual = other.data();
    e.ld_residual = c.out_c;
    e.sum_a_multiplier = e.sum_b_multiplier = 0.5f;
    e.sum_a_zero_point = 128;
  }
  const double seconds = median_seconds([&] { qconv_run(kernel, c, run, e); });
  print_rate(kernel.name, layer.name, static_cast<double>(pixels * taps * c.in_c * c.out_c),
             seconds, "MAC");
}

}  // namespace
}  // namespace wia

int main(int argc, char** argv) {
  using namespace wia;
  const uint32_t isa = cpu::detect();
#define WIA_KERNEL(features, name)                                                    \
  if (cpu::supports(isa, features) &&                                                 \
      (argc > 1 ? std::strcmp(argv[1], #name) == 0 : &name != &qgemm_u8s8_reference)) \
    for (const Layer& layer : kLayers) measure(name, layer);
#include "ops/qgemm/kernels.inc"
#undef WIA_KERNEL
}
