// SPDX-License-Identifier: Apache-2.0
// Names of the statuses, and the last error of each thread.
#include <algorithm>
#include <cstring>

#include "capi/guard.h"
#include "capi/objects.h"

namespace wia::capi {
namespace {

thread_local wia_error_info_t t_last = {};

void copy_text(char* to, size_t size, const char* from) {
  const size_t n = std::min(std::strlen(from), size - 1);
  std::memcpy(to, from, n);
  to[n] = '\0';
}

}  // namespace

wia_status_t record(const char* function, wia_status_t status, const char* message) noexcept {
  t_last.status = status;
  copy_text(t_last.function, sizeof(t_last.function), function);
  copy_text(t_last.message, sizeof(t_last.message), message);
  return status;
}

}  // namespace wia::capi

using namespace wia;
using namespace wia::capi;

extern "C" const char* wia_get_error_string(wia_status_t status) {
  switch (status) {
    case WIA_SUCCESS:
      return "success";
    case WIA_ERROR_INVALID_ARGUMENT:
      return "invalid argument";
    case WIA_ERROR_OUT_OF_MEMORY:
      return "out of memory";
    case WIA_ERROR_DEVICE_NOT_FOUND:
      return "device not found";
    case WIA_ERROR_NOT_SUPPORTED:
      return "not supported";
    case WIA_ERROR_RUNTIME_ERROR:
      return "runtime error";
  }
  return "unknown status";
}

extern "C" wia_status_t wia_get_last_error(wia_context_t ctx, wia_error_info_t* info) {
  (void)ctx;
  // Not through guard(): a failure here must not replace what is asked for.
  if (!info) return WIA_ERROR_INVALID_ARGUMENT;
  *info = capi::t_last;
  return WIA_SUCCESS;
}
