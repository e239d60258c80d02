// SPDX-License-Identifier: Apache-2.0
// Contexts, streams and events.
#include "base/cpu.h"
#include "capi/objects.h"

namespace wia::capi {

std::shared_ptr<Context> make_context(size_t memory_limit) {
  auto context = std::make_shared<Context>();
  context->isa = cpu::mask_for("");
  context->pool = std::make_unique<ThreadPool>(1);
  context->budget = std::make_shared<MemoryBudget>(memory_limit ? memory_limit : physical_memory());
  return context;
}

}  // namespace wia::capi

using namespace wia;
using namespace wia::capi;

extern "C" wia_status_t wia_create_context(const wia_context_config_t* config, wia_context_t* ctx) {
  return guard(__func__, [&] {
    require(ctx != nullptr, "ctx must not be NULL");
    if (config && config->device) (void)get<Device>(config->device, "config->device");
    require(!config || config->max_streams >= 0, "config->max_streams must not be negative");
    auto context = make_context(config ? config->memory_pool_size : 0);
    if (config) {
      context->max_streams = config->max_streams;
      context->profiling = config->profiling_enabled;
    }
    *ctx = reinterpret_cast<wia_context_t>(add_object(std::move(context)));
  });
}

extern "C" wia_status_t wia_destroy_context(wia_context_t ctx) {
  return guard(__func__, [&] {
    auto context = get<Context>(ctx, "ctx");
    std::set<uintptr_t> children;
    {
      const std::lock_guard lock(context->children_mutex);
      children.swap(context->children);
    }
    for (uintptr_t child : children) remove_object(child);
    remove_object(reinterpret_cast<uintptr_t>(ctx));
  });
}

extern "C" wia_status_t wia_context_synchronize(wia_context_t ctx) {
  return guard(__func__, [&] {
    auto context = get<Context>(ctx, "ctx");
    const std::lock_guard lock(context->running);  // an operator in another thread ends first
  });
}

extern "C" wia_status_t wia_context_set_threads(wia_context_t ctx, int n_threads) {
  return guard(__func__, [&] {
    auto context = get<Context>(ctx, "ctx");
    require(n_threads >= 1, "n_threads must be at least 1, not " + std::to_string(n_threads));
    auto pool = std::make_unique<ThreadPool>(static_cast<size_t>(n_threads));
    const std::lock_guard lock(context->running);
    context->pool.swap(pool);
    context->operators.clear();  // kernels may have been made for another number
  });
}

extern "C" wia_status_t wia_create_stream(wia_context_t ctx, wia_stream_type_t type,
                                          wia_stream_t* stream) {
  return guard(__func__, [&] {
    auto context = get<Context>(ctx, "ctx");
    require(stream != nullptr, "stream must not be NULL");
    require(type == WIA_STREAM_COMPUTE || type == WIA_STREAM_TRANSFER,
            "type is no wia_stream_type_t");
    if (context->max_streams > 0) {
      int n_streams = 0;
      {
        const std::lock_guard lock(context->children_mutex);
        for (uintptr_t child : context->children)
          n_streams +=
              dynamic_cast<Stream*>(find_object(reinterpret_cast<void*>(child)).get()) != nullptr;
      }
      if (n_streams >= context->max_streams) {
        fail(WIA_ERROR_RUNTIME_ERROR, "the context has its " +
                                          std::to_string(context->max_streams) +
                                          " streams already; destroy one, or raise max_streams");
      }
    }
    *stream = adopt<wia_stream_t>(context, std::make_shared<Stream>());
  });
}

extern "C" wia_status_t wia_destroy_stream(wia_stream_t stream) {
  return guard(__func__, [&] { release<Stream>(stream, "stream"); });
}

extern "C" wia_status_t wia_stream_synchronize(wia_stream_t stream) {
  return guard(__func__, [&] { (void)get<Stream>(stream, "stream"); });
}

extern "C" wia_status_t wia_stream_query(wia_stream_t stream, bool* is_idle) {
  return guard(__func__, [&] {
    (void)get<Stream>(stream, "stream");
    require(is_idle != nullptr, "is_idle must not be NULL");
    *is_idle = true;
  });
}

extern "C" wia_status_t wia_create_event(wia_event_t* event) {
  return guard(__func__, [&] {
    require(event != nullptr, "event must not be NULL");
    *event = reinterpret_cast<wia_event_t>(add_object(std::make_shared<Event>()));
  });
}

extern "C" wia_status_t wia_destroy_event(wia_event_t event) {
  return guard(__func__, [&] {
    (void)get<Event>(event, "event");
    remove_object(reinterpret_cast<uintptr_t>(event));
  });
}

extern "C" wia_status_t wia_record_event(wia_event_t event, wia_stream_t stream) {
  return guard(__func__, [&] {
    (void)get<Event>(event, "event");
    (void)get<Stream>(stream, "stream");
  });
}

extern "C" wia_status_t wia_stream_wait_event(wia_stream_t stream, wia_event_t event) {
  return guard(__func__, [&] {
    (void)get<Stream>(stream, "stream");
    (void)get<Event>(event, "event");
  });
}
