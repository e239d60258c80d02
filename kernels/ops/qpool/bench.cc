// SPDX-License-Identifier: Apache-2.0
// Every pooling kernel that this CPU can run, on the pools of classifiers.
#include <cstring>

#include "base/cpu.h"
#include "ops/qpool/qpool.h"
#include "ops/timing.h"

namespace wia {
namespace {

void measure(const QPoolKernel& kernel, const char* name, size_t in, size_t channels, size_t size,
             size_t stride, bool average) {
  QPool p;
  p.in_h = p.in_w = in;
  p.channels = channels;
  p.kernel_h = p.kernel_w = size;
  p.stride_h = p.stride_w = stride;
  p.out_h = p.out_w = (in - size) / stride + 1;
  std::vector<uint8_t> x(in * in * channels, 9), out(p.out_h * p.out_w * channels);
  std::vector<const uint8_t*> scratch(size * size);
  const double seconds = median_seconds([&] {
    (average ? qaveragepool_run : qmaxpool_run)(kernel, p, x.data(), out.data(), scratch.data(), 0,
                                                p.out_h);
  });
  print_rate(kernel.name, name, static_cast<double>(p.out_h * p.out_w * channels * size * size),
             seconds, "levels");
}

}  // namespace
}  // namespace wia

int main(int argc, char** argv) {
  using namespace wia;
  const uint32_t isa = cpu::detect();
#define WIA_KERNEL(features, name)                                                      \
  if (cpu::supports(isa, features) && (argc < 2 || std::strcmp(argv[1], #name) == 0)) { \
    measure(name, "max 3x3 112 64 /2", 112, 64, 3, 2, false);                           \
    measure(name, "average 7x7 7 2048", 7, 2048, 7, 1, true);                           \
  }
#include "ops/qpool/kernels.inc"
#undef WIA_KERNEL
}
