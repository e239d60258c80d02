// SPDX-License-Identifier: Apache-2.0
// For kernel benchmarks: the median CPU time of a call, and one line of output.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace wia {

inline double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// The median over 15 samples, each long enough to be timed.
template <class Body>
double median_seconds(const Body& body) {
  double start = cpu_seconds();
  body();
  const double once = cpu_seconds() - start;
  const int repeats = once > 2e-3 ? 1 : static_cast<int>(2e-3 / (once + 1e-7)) + 1;
  std::vector<double> samples;
  for (int sample = 0; sample < 15; ++sample) {
    start = cpu_seconds();
    for (int i = 0; i < repeats; ++i) body();
    samples.push_back((cpu_seconds() - start) / repeats);
  }
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

inline void print_rate(const char* kernel, const char* shape, double operations, double seconds,
                       const char* unit) {
  std::printf("%-28s %-46s %9.3f us %8.2f G%s/s\n", kernel, shape, seconds * 1e6,
              operations / seconds * 1e-9, unit);
}

}  // namespace wia
