// SPDX-License-Identifier: Apache-2.0
// What this CPU and its operating system can do, and the user's cap on it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace wia::cpu {

// Bits of a feature mask. A kernel file needs all bits of its line in kernels.inc.
enum : uint32_t {
  kNone = 0,
  kAvx2 = 1u << 0,        // AVX2, FMA, F16C
  kAvxVnni = 1u << 1,     // and AVX-VNNI (VEX)
  kAvx512Vnni = 1u << 2,  // and AVX512 F, BW, VL, DQ, VNNI
  kNeon = 1u << 3,        // every aarch64
  kNeonDot = 1u << 4,     // and dotprod
  kNeonI8mm = 1u << 5,    // and i8mm
};

// The instruction sets a path may be capped at, slowest first: "reference", "avx2", "avxvnni",
// "avx512vnni", "neon", "neondot", "neoni8mm". detect() is what the machine has; mask_for("avx2")
// keeps avx2 and below.
uint32_t detect();
// Throws Error on an unknown name, or one that this CPU cannot run. Empty: the environment's
// WIA_ISA, else detect().
uint32_t mask_for(const std::string& isa);
// The names that mask_for() takes on this CPU, "reference" first.
std::vector<std::string> usable_isas();
// The name of the highest set bit; "reference" for none.
const char* isa_name(uint32_t mask);

inline bool supports(uint32_t have, uint32_t need) { return (have & need) == need; }

}  // namespace wia::cpu
