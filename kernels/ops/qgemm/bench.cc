// SPDX-License-Identifier: Apache-2.0
// Every GEMM kernel that this CPU can run, on the products of transformers and classifiers. An
// argument picks a kernel.
#include <cstring>

#include "base/cpu.h"
#include "ops/qgemm/qgemm.h"
#include "ops/timing.h"

namespace wia {
namespace {

struct Product {
  const char* name;
  size_t m, k, n;
};
constexpr Product kProducts[] = {
    {"MiniLM qkv 128x384x384", 128, 384, 384},
    {"MiniLM up 128x384x1536", 128, 384, 1536},
    {"MiniLM down 128x1536x384", 128, 1536, 384},
    {"BERT qkv 128x768x768", 128, 768, 768},
    {"BERT up 128x768x3072", 128, 768, 3072},
    {"BERT down 128x3072x768", 128, 3072, 768},
    {"attention 128x64x128", 128, 64, 128},
    {"attention 128x128x64", 128, 128, 64},
    {"GEMV 1x768x3072", 1, 768, 3072},
    {"GEMV 1x3072x768", 1, 3072, 768},
    {"classifier 1x2048x1000", 1, 2048, 1000},
    {"classifier 1x1280x1000", 1, 1280, 1000},
    {"OCR head 40x120x6625", 40, 120, 6625},
};

uint8_t* aligned(std::vector<uint8_t>& v) {
  return v.data() + (64 - reinterpret_cast<uintptr_t>(v.data()) % 64) % 64;
}

void measure(const QGemm& kernel, const Product& p) {
  std::vector<uint8_t> a(p.m * p.k, 77), out(p.m * p.n),
      room(qgemm_packed_bytes(kernel, 1, p.k, p.n) + 64);
  std::vector<int8_t> b(p.k * p.n);
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<int8_t>(i * 37 % 255 - 127);
  const float multiplier = 1e-4f;
  QGemmB described;
  described.data = b.data();
  described.segment_k = p.k;
  described.n = p.n;
  described.stride_k = static_cast<ptrdiff_t>(p.n);
  described.stride_n = 1;
  described.multiplier = &multiplier;
  described.multiplier_stride = 0;
  qgemm_pack(kernel, described, aligned(room));
  QGemmRun run;
  run.packed = aligned(room);
  run.k = p.k;
  run.n = p.n;
  run.a = a.data();
  run.lda = p.k;
  run.out = out.data();
  run.ld_out = p.n;
  run.row_end = p.m;
  QEpilogue e;
  e.zero_point = 128;
  const double seconds = median_seconds([&] { qgemm_run(kernel, run, e); });
  print_rate(kernel.name, p.name, static_cast<double>(p.m * p.k * p.n), seconds, "MAC");
}

}  // namespace
}  // namespace wia

int main(int argc, char** argv) {
  using namespace wia;
  const uint32_t isa = cpu::detect();
#define WIA_KERNEL(features, name)                                                    \
  if (cpu::supports(isa, features) &&                                                 \
      (argc > 1 ? std::strcmp(argv[1], #name) == 0 : &name != &qgemm_u8s8_reference)) \
    for (const Product& p : kProducts) measure(name, p);
#include "ops/qgemm/kernels.inc"
#undef WIA_KERNEL
}
