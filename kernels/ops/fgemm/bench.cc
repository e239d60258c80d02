// SPDX-License-Identifier: Apache-2.0
// Every fgemm kernel that this CPU can run, on the products of transformers and convolutional nets.
// An argument picks a kernel.
#include <cstring>
#include <vector>

#include "ops/fgemm/fgemm.h"
#include "ops/timing.h"

namespace wia {
namespace {

struct Product {
  const char* name;
  size_t m, k, n;
};
constexpr Product kProducts[] = {
    {"BERT qkv 128x768x768", 128, 768, 768},    {"BERT up 128x768x3072", 128, 768, 3072},
    {"BERT down 128x3072x768", 128, 3072, 768}, {"attention 128x64x128", 128, 64, 128},
    {"ResNet 1x1 64x256x3136", 64, 256, 3136},  {"ResNet 3x3 128x1152x784", 128, 1152, 784},
    {"ResNet 3x3 512x4608x49", 512, 4608, 49},  {"MobileNet 1x1 96x16x12544", 96, 16, 12544},
    {"GEMV 1x768x3072", 1, 768, 3072},          {"classifier 1x2048x1000", 1, 2048, 1000},
};

void measure(const FgemmKernel& kernel, const Product& p) {
  std::vector<float> a(p.m * p.k, 0.5f), b(fgemm_packed_b_size(kernel, p.k, p.n), 0.25f),
      c(p.m * p.n);
  FgemmParams params{};
  params.m = p.m;
  params.k = p.k;
  params.n = p.n;
  params.a = a.data();
  params.b = b.data();
  params.c = c.data();
  params.ld_c = p.n;
  params.last_block = (p.m + kernel.mr - 1) / kernel.mr;
  params.last_panel = (p.n + kernel.nr - 1) / kernel.nr;
  const double seconds = median_seconds([&] { fgemm_run(kernel, params); });
  print_rate(kernel.name, p.name, static_cast<double>(p.m * p.n) * static_cast<double>(p.k),
             seconds, "MAC");
}

}  // namespace
}  // namespace wia

int main(int argc, char** argv) {
  using namespace wia;
  for (const Product& product : kProducts) {
#define WIA_KERNEL(features, name)                                                          \
  if (cpu::supports(cpu::detect(), features) && (argc < 2 || !std::strcmp(argv[1], #name))) \
    measure(name, product);
#include "ops/fgemm/kernels.inc"
#undef WIA_KERNEL
  }
}
