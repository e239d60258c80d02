// SPDX-License-Identifier: Apache-2.0
// libFuzzer: any bytes as a model. Start from tests/runtime/corpus:
//   cmake --preset fuzz -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_COMPILER=clang && cmake --build
//   build-fuzz build-fuzz/fuzz_model -rss_limit_mb=2048 -timeout=10 work_folder
//   tests/runtime/corpus
#include "runtime/exercise.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)wia::exercise_model({data, size});
  return 0;
}
