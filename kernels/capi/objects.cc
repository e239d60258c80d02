// SPDX-License-Identifier: Apache-2.0
// The table of live handles.
#include "capi/objects.h"

#include <unordered_map>

namespace wia::capi {
namespace {

struct Table {
  std::mutex mutex;
  std::unordered_map<uintptr_t, std::shared_ptr<Object>> objects;
  uintptr_t next = 0x1000;
};

// Never destroyed: handles may be used while the process ends.
Table& table() {
  static Table* const the = new Table;
  return *the;
}

}  // namespace

uintptr_t add_object(std::shared_ptr<Object> object) {
  const std::lock_guard lock(table().mutex);
  const uintptr_t handle = table().next;
  table().next += 16;  // looks like a pointer, and is none
  table().objects.emplace(handle, std::move(object));
  return handle;
}

std::shared_ptr<Object> find_object(const void* handle) {
  const std::lock_guard lock(table().mutex);
  auto it = table().objects.find(reinterpret_cast<uintptr_t>(handle));
  return it == table().objects.end() ? nullptr : it->second;
}

void remove_object(uintptr_t handle) {
  std::shared_ptr<Object> last;  // destroyed after the lock is released
  const std::lock_guard lock(table().mutex);
  auto it = table().objects.find(handle);
  if (it == table().objects.end()) return;
  last = std::move(it->second);
  table().objects.erase(it);
}

void check_stream(const Context& context, wia_stream_t stream) {
  if (stream) (void)get_in<Stream>(context, stream, "stream");
}

}  // namespace wia::capi
