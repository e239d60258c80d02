// SPDX-License-Identifier: Apache-2.0
// What stands behind the handles. A handle is a number that is never used twice, so a stale one is
// always noticed.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/budget.h"
#include "base/thread_pool.h"
#include "capi/guard.h"
#include "runtime/session.h"

namespace wia::capi {

struct Context;

struct Object {
  virtual ~Object() = default;
  std::weak_ptr<Context>
      context;  // that it was made in and goes with; none for contexts, devices, events
};

struct Device final : Object {
  static constexpr const char* kName = "device";
};

struct Stream final : Object {
  static constexpr const char* kName = "stream";
};

struct Event final : Object {
  static constexpr const char* kName = "event";
};

struct Buffer final : Object {
  static constexpr const char* kName = "buffer";
  std::shared_ptr<void> memory;
  size_t size = 0;
};

// The quantization of a tensor; no scales: none.
struct Quantization {
  std::vector<float> scales;
  std::vector<int32_t> zero_points;  // as many
  int axis = -1;                     // -1: per tensor
  wia_quantization_scheme_t scheme = WIA_QUANTIZATION_NONE;
  bool none() const { return scales.empty(); }
  bool operator==(const Quantization& other) const {
    return scales == other.scales && zero_points == other.zero_points && axis == other.axis;
  }
};

struct TensorObject final : Object {
  static constexpr const char* kName = "tensor";
  DType dtype = DType::kUndefined;
  Shape shape;
  int64_t strides[WIA_MAX_DIMS] = {};  // elements
  wia_layout_t layout = WIA_LAYOUT_NCHW;
  Quantization quantization;
  std::shared_ptr<void> memory;  // null: the caller's
  std::byte* data = nullptr;     // element 0
};

struct Model final : Object {
  static constexpr const char* kName = "model";
  Graph graph;
};

struct SessionObject final : Object {
  static constexpr const char* kName = "session";
  std::unique_ptr<Session> session;
};

struct Context final : Object {
  static constexpr const char* kName = "context";
  uint32_t isa = 0;
  int max_streams = 0;
  std::shared_ptr<MemoryBudget> budget;

  std::mutex running;  // held by one operator at a time; guards what follows
  std::unique_ptr<ThreadPool> pool;
  struct Operator {
    std::unique_ptr<Graph> graph;
    std::unique_ptr<Program> program;
  };
  std::map<std::string, Operator>
      operators;  // compiled ones, by what they compute and their shapes

  std::mutex profile_mutex;  // guards what follows
  bool profiling = false;
  std::string profile_file;
  std::map<std::string, std::pair<uint64_t, uint64_t>> profile;  // name -> count, ns
  std::vector<wia_profile_entry_t> profile_entries;

  std::mutex children_mutex;
  std::set<uintptr_t> children;  // handles made in it
};

// The table of live handles.
uintptr_t add_object(std::shared_ptr<Object> object);
std::shared_ptr<Object> find_object(const void* handle);  // null when there is none
void remove_object(uintptr_t handle);

// The object of a handle; throws Error naming the parameter when it is NULL, stale, or of another
// kind.
template <class T>
std::shared_ptr<T> get(const void* handle, const char* parameter) {
  require(handle != nullptr, std::string(parameter) + " must not be NULL");
  auto object = std::dynamic_pointer_cast<T>(find_object(handle));
  require(object != nullptr, std::string(parameter) + " is no live " + T::kName +
                                 "; was it destroyed, or is it of another kind?");
  return object;
}

// The object of a handle, which must be of this context.
template <class T>
std::shared_ptr<T> get_in(const Context& context, const void* handle, const char* parameter) {
  auto object = get<T>(handle, parameter);
  require(object->context.lock().get() == &context,
          std::string(parameter) + " was made in another context");
  return object;
}

// Makes a handle of an object that goes with the context.
template <class Handle, class T>
Handle adopt(const std::shared_ptr<Context>& context, std::shared_ptr<T> object) {
  object->context = context;
  const uintptr_t handle = add_object(std::move(object));
  const std::lock_guard lock(context->children_mutex);
  context->children.insert(handle);
  return reinterpret_cast<Handle>(handle);
}

// Ends a handle that adopt() made.
template <class T>
void release(const void* handle, const char* parameter) {
  auto object = get<T>(handle, parameter);
  const uintptr_t id = reinterpret_cast<uintptr_t>(handle);
  if (auto context = object->context.lock()) {
    const std::lock_guard lock(context->children_mutex);
    context->children.erase(id);
  }
  remove_object(id);
}

// NULL, or a live stream of the context.
void check_stream(const Context& context, wia_stream_t stream);

std::shared_ptr<Context> make_context(size_t memory_limit);

// Counts the time until it goes, when the context is profiling.
class Timed {
 public:
  Timed(Context& context, const char* name);
  ~Timed();
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  Context& context_;
  const char* name_;
  uint64_t start_ns_;
};

}  // namespace wia::capi
