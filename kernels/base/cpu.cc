// SPDX-License-Identifier: Apache-2.0
// CPU detection and the WIA_ISA cap.
#include "base/cpu.h"

#include <cstdlib>

#include "base/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace wia::cpu {
namespace {

struct Isa {
  const char* name;
  uint32_t bit;
  uint32_t below;  // what a cap at this name keeps
};
constexpr Isa kIsas[] = {
    {"reference", kNone, kNone},
    {"avx2", kAvx2, kAvx2},
    {"avxvnni", kAvxVnni, kAvx2 | kAvxVnni},
    {"avx512vnni", kAvx512Vnni, kAvx2 | kAvxVnni | kAvx512Vnni},
    {"neon", kNeon, kNeon},
    {"neondot", kNeonDot, kNeon | kNeonDot},
    {"neoni8mm", kNeonI8mm, kNeon | kNeonDot | kNeonI8mm},
};

#if defined(__x86_64__)
uint64_t xgetbv0() {
  uint32_t lo, hi;
  __asm__("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  return (uint64_t{hi} << 32) | lo;
}

uint32_t detect_now() {
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return kNone;
  const bool osxsave = c & (1u << 27), fma = c & (1u << 12), f16c = c & (1u << 29);
  if (!osxsave || !fma || !f16c) return kNone;
  const uint64_t xcr0 = xgetbv0();
  const bool ymm = (xcr0 & 0x6) == 0x6, zmm = (xcr0 & 0xe6) == 0xe6;
  if (!ymm || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & (1u << 5))) return kNone;
  uint32_t mask = kAvx2;
  const bool avx512 = (b & (1u << 16)) && (b & (1u << 17)) && (b & (1u << 30)) && (b & (1u << 31));
  if (zmm && avx512 && (c & (1u << 11))) mask |= kAvx512Vnni;
  uint32_t a1, b1, c1, d1;
  if (__get_cpuid_count(7, 1, &a1, &b1, &c1, &d1) && (a1 & (1u << 4))) mask |= kAvxVnni;
  return mask;
}
#elif defined(__aarch64__) && defined(__linux__)
uint32_t detect_now() {
  constexpr unsigned long kHwcapAsimdDp = 1ul << 20, kHwcap2I8mm = 1ul << 13;
  uint32_t mask = kNeon;
  if (getauxval(AT_HWCAP) & kHwcapAsimdDp) {
    mask |= kNeonDot;
    if (getauxval(AT_HWCAP2) & kHwcap2I8mm) mask |= kNeonI8mm;
  }
  return mask;
}
#elif defined(__aarch64__) && defined(__APPLE__)
bool has(const char* name) {
  int value = 0;
  size_t size = sizeof(value);
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}
uint32_t detect_now() {
  uint32_t mask = kNeon;
  if (has("hw.optional.arm.FEAT_DotProd")) {
    mask |= kNeonDot;
    if (has("hw.optional.arm.FEAT_I8MM")) mask |= kNeonI8mm;
  }
  return mask;
}
#else
uint32_t detect_now() { return kNone; }
#endif

}  // namespace

uint32_t detect() {
  static const uint32_t mask = detect_now();
  return mask;
}

uint32_t mask_for(const std::string& isa) {
  std::string name = isa;
  if (name.empty()) {
    const char* forced = std::getenv("WIA_ISA");
    if (!forced || !*forced) return detect();
    name = forced;
  }
  std::string known;
  for (const Isa& entry : kIsas) {
    if (name == entry.name) {
      if (!supports(detect(), entry.bit)) {
        fail(WIA_ERROR_NOT_SUPPORTED,
             "WIA_ISA '" + name + "': this CPU cannot run it; its best is " + isa_name(detect()));
      }
      return detect() & entry.below;
    }
    known += std::string(known.empty() ? "" : ", ") + entry.name;
  }
  fail(WIA_ERROR_INVALID_ARGUMENT, "WIA_ISA '" + name + "' is not known; use one of " + known);
}

std::vector<std::string> usable_isas() {
  std::vector<std::string> names;
  for (const Isa& entry : kIsas)
    if (supports(detect(), entry.bit)) names.push_back(entry.name);
  return names;
}

const char* isa_name(uint32_t mask) {
  const char* name = "reference";
  for (const Isa& entry : kIsas)
    if (entry.bit && (mask & entry.bit)) name = entry.name;
  return name;
}

}  // namespace wia::cpu
