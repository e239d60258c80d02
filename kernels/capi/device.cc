// SPDX-License-Identifier: Apache-2.0
// The CPU as a device: what it is, and what it measurably does.
#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstring>
#include <thread>

#include "base/cpu.h"
#include "capi/objects.h"

using namespace wia;
using namespace wia::capi;

namespace {

wia_device_t the_device() {
  static const wia_device_t device =
      reinterpret_cast<wia_device_t>(add_object(std::make_shared<Device>()));
  return device;
}

int hardware_threads() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

constexpr double kBudgetSeconds = 0.02;  // a figure

// The least time of one call, of as many as fit the budget and at least two.
template <class Body>
double best_seconds(Body body) {
  body();  // the first compiles, packs and touches the memory
  double best = 1e30;
  const double start = seconds();
  do {
    const double begin = seconds();
    body();
    best = std::min(best, seconds() - begin);
  } while (seconds() - start < kBudgetSeconds);
  return best;
}

void check(wia_status_t status) {
  wia_error_info_t error;
  if (status == WIA_SUCCESS) return;
  (void)wia_get_last_error(nullptr, &error);
  throw Error(status, error.message);
}

// 10^12 operations a second of a matrix product of this type on one thread; 0 when there is no
// kernel for it.
float matmul_tflops(wia_datatype_t dtype) {
  constexpr int64_t kSize = 256;
  wia_context_t context = nullptr;
  check(wia_create_context(nullptr, &context));
  struct Closer {
    wia_context_t context;
    ~Closer() { (void)wia_destroy_context(context); }
  } closer{context};
  const float scale = 1.0f;
  wia_tensor_desc_t desc = {};
  desc.dtype = dtype;
  desc.rank = 2;
  desc.dims[0] = desc.dims[1] = kSize;
  if (dtype == WIA_INT8)
    desc.quantization = {WIA_QUANTIZATION_PER_TENSOR_SYMMETRIC, &scale, nullptr, 1, 0};
  wia_tensor_t t[3] = {};
  for (wia_tensor_t& tensor : t) {
    check(wia_allocate_tensor(context, &desc, &tensor));
    void* data = nullptr;
    check(wia_get_tensor_data(tensor, &data));
    std::memset(data, 0,
                static_cast<size_t>(kSize * kSize) * dtype_size(static_cast<DType>(dtype)));
  }
  const double best =
      best_seconds([&] { check(wia_matmul(context, t[0], t[1], t[2], nullptr, nullptr)); });
  return static_cast<float>(2.0 * kSize * kSize * kSize / best * 1e-12);
}

size_t copy_gbps() {
  constexpr size_t kBytes = size_t{32} << 20;
  std::vector<char> from(kBytes, 1), to(kBytes, 0);
  const double best = best_seconds([&] { std::memcpy(to.data(), from.data(), kBytes); });
  return static_cast<size_t>(2.0 * kBytes / best * 1e-9);
}

wia_capability_t measure() {
  wia_capability_t c = {};
  const float n = static_cast<float>(hardware_threads());
  c.peak_tflops_fp32 = n * matmul_tflops(WIA_FLOAT32);
  c.peak_tflops_fp16 = n * matmul_tflops(WIA_FLOAT16);
  c.peak_tflops_int8 = n * matmul_tflops(WIA_INT8);
  c.total_memory = physical_memory();
  c.memory_bandwidth_gbps = copy_gbps();
  c.supports_unified_memory = c.supports_pinned_memory = true;
  c.supports_fp16 = c.supports_bfloat16 = c.supports_int8 = true;
  c.supports_sparse_ops = false;
  c.supports_dynamic_shapes = true;
  c.max_tensor_dims = WIA_MAX_DIMS;
  c.max_tensor_size = size_t{1} << 40;
  c.max_batch_size = INT_MAX;
  return c;
}

thread_local wia_device_t t_current = nullptr;

}  // namespace

extern "C" wia_status_t wia_enumerate_devices(wia_device_t** devices, int* count) {
  return guard(__func__, [&] {
    require(devices != nullptr && count != nullptr, "devices and count must not be NULL");
    static wia_device_t list[] = {the_device()};
    *devices = list;
    *count = 1;
  });
}

extern "C" wia_status_t wia_get_device_info(wia_device_t device, wia_device_info_t* info) {
  return guard(__func__, [&] {
    (void)get<Device>(device, "device");
    require(info != nullptr, "info must not be NULL");
    const char* isa = cpu::isa_name(cpu::mask_for(""));
    wia_device_info_t made = {};
    std::snprintf(made.name, sizeof(made.name), "CPU (%s)", isa);
    std::snprintf(made.vendor, sizeof(made.vendor), "libwia");
    std::snprintf(made.isa, sizeof(made.isa), "%s", isa);
    made.compute_units = hardware_threads();
    made.compliance_level = 2;
    *info = made;
  });
}

extern "C" wia_status_t wia_query_capabilities(wia_device_t device, wia_capability_t* caps) {
  return guard(__func__, [&] {
    (void)get<Device>(device, "device");
    require(caps != nullptr, "caps must not be NULL");
    static const wia_capability_t measured = measure();
    *caps = measured;
  });
}

extern "C" wia_status_t wia_set_current_device(wia_device_t device) {
  return guard(__func__, [&] {
    (void)get<Device>(device, "device");
    t_current = device;
  });
}

extern "C" wia_status_t wia_get_current_device(wia_device_t* device) {
  return guard(__func__, [&] {
    require(device != nullptr, "device must not be NULL");
    *device = t_current ? t_current : the_device();
  });
}
