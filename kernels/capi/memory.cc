// SPDX-License-Identifier: Apache-2.0
// Buffers and copies.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "capi/objects.h"

using namespace wia;
using namespace wia::capi;

namespace {

constexpr size_t kMinAlignment = 64;
constexpr size_t kMaxAlignment = size_t{1} << 21;  // a huge page

}  // namespace

extern "C" wia_status_t wia_allocate_memory(wia_context_t ctx, const wia_memory_desc_t* desc,
                                            wia_buffer_t* buffer) {
  return guard(__func__, [&] {
    auto context = get<Context>(ctx, "ctx");
    require(desc != nullptr && buffer != nullptr, "desc and buffer must not be NULL");
    require(desc->size > 0, "desc->size must not be 0");
    require(desc->type >= WIA_MEMORY_DEVICE && desc->type <= WIA_MEMORY_MANAGED,
            "desc->type is no wia_memory_type_t");
    require((desc->flags & ~WIA_MEMORY_FLAG_ZERO) == 0,
            "desc->flags has bits that are no wia_memory_flags_t");
    if (desc->device_affinity) (void)get<Device>(desc->device_affinity, "desc->device_affinity");
    const size_t alignment = std::max(desc->alignment, kMinAlignment);
    require((desc->alignment & (desc->alignment - 1)) == 0 && alignment <= kMaxAlignment,
            "desc->alignment must be a power of two of at most 2 MB, not " +
                std::to_string(desc->alignment));
    require(desc->size <= SIZE_MAX - alignment, "desc->size is too large");
    const size_t padded = (desc->size + alignment - 1) / alignment * alignment;
    auto budget = context->budget;
    budget->take(padded);
    void* memory = std::aligned_alloc(alignment, padded);
    if (!memory) {
      budget->give_back(padded);
      fail(WIA_ERROR_OUT_OF_MEMORY, "cannot allocate " + std::to_string(padded) + " bytes");
    }
    auto object = std::make_shared<capi::Buffer>();
    object->size = desc->size;
    object->memory = std::shared_ptr<void>(memory, [budget, padded](void* p) {
      std::free(p);
      budget->give_back(padded);
    });
    if (desc->flags & WIA_MEMORY_FLAG_ZERO) std::memset(memory, 0, padded);
    *buffer = adopt<wia_buffer_t>(context, std::move(object));
  });
}

extern "C" wia_status_t wia_free_memory(wia_buffer_t buffer) {
  return guard(__func__, [&] { release<capi::Buffer>(buffer, "buffer"); });
}

extern "C" wia_status_t wia_get_buffer_pointer(wia_buffer_t buffer, void** pointer, size_t* size) {
  return guard(__func__, [&] {
    auto object = get<capi::Buffer>(buffer, "buffer");
    require(pointer != nullptr, "pointer must not be NULL");
    *pointer = object->memory.get();
    if (size) *size = object->size;
  });
}

extern "C" wia_status_t wia_memcpy(void* dst, const void* src, size_t size) {
  return guard(__func__, [&] {
    require(size == 0 || (dst && src), "dst and src must not be NULL");
    if (size) std::memmove(dst, src, size);
  });
}

extern "C" wia_status_t wia_memcpy_async(void* dst, const void* src, size_t size,
                                         wia_stream_t stream) {
  return guard(__func__, [&] {
    (void)get<Stream>(stream, "stream");
    require(size == 0 || (dst && src), "dst and src must not be NULL");
    if (size) std::memmove(dst, src, size);
  });
}

extern "C" wia_status_t wia_memset(void* ptr, int value, size_t size) {
  return guard(__func__, [&] {
    require(size == 0 || ptr, "ptr must not be NULL");
    if (size) std::memset(ptr, value, size);
  });
}
