// SPDX-License-Identifier: Apache-2.0
// The one exception of libwia: thrown while loading and planning, caught in capi/ only.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "wia/ai011.h"

namespace wia {

class Error : public std::runtime_error {
 public:
  Error(wia_status_t status, const std::string& message)
      : std::runtime_error(message), status_(status) {}
  wia_status_t status() const { return status_; }

 private:
  wia_status_t status_;
};

[[noreturn]] inline void fail(wia_status_t status, const std::string& message) {
  throw Error(status, message);
}

// For a condition that a hostile or mistaken model can break.
inline void require(bool condition, const std::string& message) {
  if (!condition) throw Error(WIA_ERROR_INVALID_ARGUMENT, message);
}
inline void require(bool condition, const char* message) {
  if (!condition) throw Error(WIA_ERROR_INVALID_ARGUMENT, message);
}

}  // namespace wia
