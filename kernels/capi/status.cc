// SPDX-License-Identifier: Apache-2.0
// Names of the statuses.
#include "wia/ai011.h"

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
