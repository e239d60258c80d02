// SPDX-License-Identifier: Apache-2.0
// The one place where exceptions end: every body of the C API runs inside guard().
#pragma once

#include <exception>
#include <new>
#include <string>

#include "base/error.h"

namespace wia::capi {

// Keeps the failure for wia_get_last_error of this thread; returns its status. Does not throw.
wia_status_t record(const char* function, wia_status_t status, const char* message) noexcept;

template <class Body>
wia_status_t guard(const char* function, Body body) noexcept {
  try {
    body();
    return WIA_SUCCESS;
  } catch (const Error& e) {
    return record(function, e.status(), e.what());
  } catch (const std::bad_alloc&) {
    return record(function, WIA_ERROR_OUT_OF_MEMORY, "the system has no more memory");
  } catch (const std::exception& e) {
    return record(function, WIA_ERROR_RUNTIME_ERROR, e.what());
  } catch (...) {
    return record(function, WIA_ERROR_RUNTIME_ERROR, "an unknown exception");
  }
}

}  // namespace wia::capi
