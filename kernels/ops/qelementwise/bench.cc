// SPDX-License-Identifier: Apache-2.0
// Every elementwise kernel that this CPU can run, on tensors that fit in the second-level cache.
#include <cstring>

#include "base/cpu.h"
#include "ops/qelementwise/qelementwise.h"
#include "ops/timing.h"

namespace wia {
namespace {

void measure(const QElementwise& kernel) {
  constexpr size_t kRows = 784, kColumns = 144, kSize = kRows * kColumns;
  std::vector<uint8_t> a(kSize, 70), b(kSize, 90), out(kSize), table(256);
  std::vector<float> real(kSize, 0.7f);
  for (size_t i = 0; i < 256; ++i) table[i] = static_cast<uint8_t>(255 - i);
  QQuantize q;
  q.scale = 0.01f;
  q.zero_point = 128;
  QBinary binary;
  binary.rows = kRows;
  binary.columns = kColumns;
  binary.a = {a.data(), kColumns, 1, 100};
  binary.b = {b.data(), kColumns, 1, 120};
  binary.a_multiplier = binary.b_multiplier = 0.01f;
  binary.out = out.data();
  binary.ld_out = kColumns;
  QBinary gate = binary;
  gate.b.stride_row = 0;
  const auto print = [&](const char* what, double seconds) {
    print_rate(kernel.name, what, kSize, seconds, "elements");
  };
  print("quantize", median_seconds([&] { kernel.quantize(q, kSize, real.data(), out.data()); }));
  print("dequantize",
        median_seconds([&] { kernel.dequantize(0.01f, 128, 0, kSize, a.data(), real.data()); }));
  print("table", median_seconds([&] { kernel.table(table.data(), kSize, a.data(), out.data()); }));
  print("add", median_seconds([&] { kernel.add(binary); }));
  print("mul by channel", median_seconds([&] { kernel.mul(gate); }));
}

}  // namespace
}  // namespace wia

int main(int argc, char** argv) {
  using namespace wia;
  const uint32_t isa = cpu::detect();
#define WIA_KERNEL(features, name) \
  if (cpu::supports(isa, features) && (argc < 2 || std::strcmp(argv[1], #name) == 0)) measure(name);
#include "ops/qelementwise/kernels.inc"
#undef WIA_KERNEL
}
