// SPDX-License-Identifier: Apache-2.0
// The C API as a caller meets it: results, and what every misuse answers.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/testing.h"
#include "onnx/testing.h"
#include "wia/ai011.h"

namespace {

namespace proto = wia::onnx::testing;

std::string last_error() {
  wia_error_info_t info;
  (void)wia_get_last_error(nullptr, &info);
  return info.message;
}

void ok(wia_status_t status) {
  if (status != WIA_SUCCESS) throw wia::testing::Failure(last_error());
}

#define CHECK_FAILS(call, wanted, text)                                                \
  do {                                                                                 \
    CHECK_EQ(static_cast<int>(call), static_cast<int>(wanted));                        \
    if (last_error().find(text) == std::string::npos)                                  \
      ::wia::testing::fail_at(__FILE__, __LINE__, #call " said '", last_error(), "'"); \
  } while (0)

struct Context {
  Context() { ok(wia_create_context(nullptr, &handle)); }
  ~Context() { (void)wia_destroy_context(handle); }
  operator wia_context_t() const { return handle; }
  wia_context_t handle = nullptr;
};

struct Grid {
  std::vector<float> scales;
  std::vector<int32_t> zero_points;
  int axis = -1;
};

template <class T>
constexpr wia_datatype_t dtype_of() {
  if constexpr (std::is_same_v<T, float>) return WIA_FLOAT32;
  if constexpr (std::is_same_v<T, int8_t>) return WIA_INT8;
  if constexpr (std::is_same_v<T, uint8_t>) return WIA_UINT8;
  if constexpr (std::is_same_v<T, int32_t>) return WIA_INT32;
  return WIA_UNDEFINED;
}

wia_tensor_desc_t describe(wia_datatype_t dtype, const std::vector<int64_t>& dims) {
  wia_tensor_desc_t desc = {};
  desc.dtype = dtype;
  desc.rank = static_cast<int>(dims.size());
  std::copy(dims.begin(), dims.end(), desc.dims);
  return desc;
}

template <class T>
wia_tensor_t make(wia_context_t ctx, const std::vector<int64_t>& dims, const std::vector<T>& values,
                  const Grid& grid = {}, wia_layout_t layout = WIA_LAYOUT_NCHW) {
  wia_tensor_desc_t desc = describe(dtype_of<T>(), dims);
  desc.layout = layout;
  if (!grid.scales.empty()) {
    desc.quantization.scheme = grid.axis < 0 ? WIA_QUANTIZATION_PER_TENSOR_ASYMMETRIC
                                             : WIA_QUANTIZATION_PER_CHANNEL_ASYMMETRIC;
    desc.quantization.scales = grid.scales.data();
    desc.quantization.zero_points = grid.zero_points.empty() ? nullptr : grid.zero_points.data();
    desc.quantization.count = static_cast<int>(grid.scales.size());
    desc.quantization.channel_axis = std::max(grid.axis, 0);
  }
  wia_tensor_t tensor = nullptr;
  ok(wia_allocate_tensor(ctx, &desc, &tensor));
  void* data = nullptr;
  ok(wia_get_tensor_data(tensor, &data));
  if (!values.empty()) std::memcpy(data, values.data(), values.size() * sizeof(T));
  return tensor;
}

template <class T>
std::vector<T> read(wia_tensor_t tensor) {
  wia_tensor_desc_t desc;
  ok(wia_get_tensor_desc(tensor, &desc));
  size_t n = 1;
  for (int d = 0; d < desc.rank; ++d) n *= static_cast<size_t>(desc.dims[d]);
  const T* data = static_cast<const T*>(desc.data);
  return {data, data + n};
}

std::vector<float> random_floats(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> draw(-1, 1);
  std::vector<float> values(n);
  for (float& v : values) v = draw(random);
  return values;
}

std::vector<int8_t> random_levels(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int8_t> values(n);
  for (int8_t& v : values) v = static_cast<int8_t>(static_cast<int>(random() % 255) - 127);
  return values;
}

void check_close(const std::vector<float>& got, const std::vector<float>& wanted) {
  CHECK_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    // Sums of fewer than 100 products of magnitude below 1.
    if (!(std::fabs(got[i] - wanted[i]) <= 100 * 1.2e-7f * (1 + std::fabs(wanted[i]))))
      wia::testing::fail_at(__FILE__, __LINE__, "element ", i, ": ", got[i], ", not ", wanted[i]);
  }
}

std::vector<float> naive_matmul(const std::vector<float>& a, const std::vector<float>& b, size_t m,
                                size_t k, size_t n) {
  std::vector<float> c(m * n);
  for (size_t i = 0; i < m; ++i)
    for (size_t j = 0; j < n; ++j) {
      double sum = 0;
      for (size_t l = 0; l < k; ++l) sum += double{a[i * k + l]} * b[l * n + j];
      c[i * n + j] = static_cast<float>(sum);
    }
  return c;
}

// Equation (8).
int8_t requantize(int32_t acc, float scale_x, float scale_w, float scale_y, int zero_point) {
  const float m = scale_x * scale_w / scale_y;
  const float level = std::nearbyint(static_cast<float>(acc) * m) + static_cast<float>(zero_point);
  return static_cast<int8_t>(std::clamp(level, -128.0f, 127.0f));
}

std::string relu_model() {
  proto::Proto graph;
  graph.message(proto::kNode, proto::node("Relu", {"x"}, {"y"}, "the_relu"))
      .text(2, "g")
      .message(proto::kInput, proto::value_info("x", 1, {-1, 3}))
      .message(proto::kOutput, proto::value_info("y", 1, {-1, 3}));
  return proto::model(graph).bytes();
}

}  // namespace

TEST(the_cpu_is_a_device) {
  wia_device_t* devices = nullptr;
  int count = 0;
  ok(wia_enumerate_devices(&devices, &count));
  CHECK_EQ(count, 1);
  wia_device_info_t info;
  ok(wia_get_device_info(devices[0], &info));
  CHECK(std::string(info.name).find(info.isa) != std::string::npos);
  CHECK(info.compute_units >= 1);
  wia_device_t current = nullptr;
  ok(wia_get_current_device(&current));
  CHECK(current == devices[0]);
  ok(wia_set_current_device(devices[0]));
}

TEST(capabilities_are_measured) {
  wia_device_t* devices = nullptr;
  int count = 0;
  ok(wia_enumerate_devices(&devices, &count));
  wia_capability_t caps, again;
  ok(wia_query_capabilities(devices[0], &caps));
  CHECK(caps.peak_tflops_fp32 > 0 && caps.peak_tflops_fp16 > 0 && caps.peak_tflops_int8 > 0);
  CHECK(caps.total_memory > 0 && caps.max_tensor_dims == 8);
  ok(wia_query_capabilities(devices[0], &again));
  CHECK_EQ(caps.peak_tflops_fp32, again.peak_tflops_fp32);
}

TEST(stale_foreign_and_null_handles_are_invalid_arguments) {
  wia_context_t ctx = nullptr;
  ok(wia_create_context(nullptr, &ctx));
  wia_stream_t stream = nullptr;
  ok(wia_create_stream(ctx, WIA_STREAM_COMPUTE, &stream));
  wia_tensor_t tensor = make<float>(ctx, {2}, {1, 2});
  CHECK_FAILS(wia_relu(ctx, nullptr, tensor, nullptr), WIA_ERROR_INVALID_ARGUMENT,
              "input must not be NULL");
  CHECK_FAILS(wia_relu(ctx, reinterpret_cast<wia_tensor_t>(stream), tensor, nullptr),
              WIA_ERROR_INVALID_ARGUMENT, "input is no live tensor");
  const Context other;
  CHECK_FAILS(wia_relu(other, tensor, tensor, nullptr), WIA_ERROR_INVALID_ARGUMENT,
              "another context");
  int local = 0;
  CHECK_FAILS(wia_free_tensor(reinterpret_cast<wia_tensor_t>(&local)), WIA_ERROR_INVALID_ARGUMENT,
              "no live tensor");
  ok(wia_destroy_context(ctx));
  CHECK_FAILS(wia_destroy_context(ctx), WIA_ERROR_INVALID_ARGUMENT, "no live context");
  CHECK_FAILS(wia_free_tensor(tensor), WIA_ERROR_INVALID_ARGUMENT,
              "no live tensor");  // went with its context
  CHECK_FAILS(wia_stream_synchronize(stream), WIA_ERROR_INVALID_ARGUMENT, "no live stream");
  CHECK_FAILS(wia_create_context(nullptr, nullptr), WIA_ERROR_INVALID_ARGUMENT,
              "ctx must not be NULL");
}

TEST(the_last_error_is_that_of_the_thread_and_names_the_call) {
  CHECK_FAILS(wia_destroy_context(nullptr), WIA_ERROR_INVALID_ARGUMENT, "ctx must not be NULL");
  wia_error_info_t info;
  ok(wia_get_last_error(nullptr, &info));
  CHECK_EQ(std::string(info.function), "wia_destroy_context");
  std::string elsewhere = "?";
  std::thread([&] { elsewhere = last_error(); }).join();
  CHECK_EQ(elsewhere, "");
  CHECK_EQ(wia_get_last_error(nullptr, nullptr), WIA_ERROR_INVALID_ARGUMENT);
}

TEST(streams_and_events_keep_order) {
  const Context ctx;
  wia_stream_t a = nullptr, b = nullptr;
  wia_event_t event = nullptr;
  ok(wia_create_stream(ctx, WIA_STREAM_COMPUTE, &a));
  ok(wia_create_stream(ctx, WIA_STREAM_TRANSFER, &b));
  ok(wia_create_event(&event));
  float from[4] = {1, 2, 3, 4}, to[4] = {};
  ok(wia_memcpy_async(to, from, sizeof(from), b));
  ok(wia_record_event(event, b));
  ok(wia_stream_wait_event(a, event));
  bool idle = false;
  ok(wia_stream_query(a, &idle));
  CHECK(idle && to[3] == 4);
  ok(wia_stream_synchronize(a));
  ok(wia_context_synchronize(ctx));
  ok(wia_destroy_event(event));
  ok(wia_destroy_stream(a));
}

TEST(max_streams_is_kept) {
  wia_context_config_t config = {};
  config.max_streams = 1;
  wia_context_t ctx = nullptr;
  ok(wia_create_context(&config, &ctx));
  wia_stream_t a = nullptr, b = nullptr;
  ok(wia_create_stream(ctx, WIA_STREAM_COMPUTE, &a));
  CHECK_FAILS(wia_create_stream(ctx, WIA_STREAM_COMPUTE, &b), WIA_ERROR_RUNTIME_ERROR,
              "destroy one");
  ok(wia_destroy_stream(a));
  ok(wia_create_stream(ctx, WIA_STREAM_COMPUTE, &b));
  ok(wia_destroy_context(ctx));
}

TEST(memory_is_aligned_counted_and_given_back) {
  wia_context_config_t config = {};
  config.memory_pool_size = 1 << 20;
  wia_context_t ctx = nullptr;
  ok(wia_create_context(&config, &ctx));
  wia_memory_desc_t desc = {};
  desc.size = 1000;
  desc.alignment = 256;
  desc.flags = WIA_MEMORY_FLAG_ZERO;
  desc.type = WIA_MEMORY_PINNED;
  wia_buffer_t buffer = nullptr;
  ok(wia_allocate_memory(ctx, &desc, &buffer));
  void* pointer = nullptr;
  size_t size = 0;
  ok(wia_get_buffer_pointer(buffer, &pointer, &size));
  CHECK_EQ(size, size_t{1000});
  CHECK_EQ(reinterpret_cast<uintptr_t>(pointer) % 256, uintptr_t{0});
  CHECK_EQ(static_cast<char*>(pointer)[999], 0);
  ok(wia_memset(pointer, 7, 1000));
  CHECK_EQ(static_cast<char*>(pointer)[999], 7);
  desc.size = 2 << 20;
  wia_buffer_t too_large = nullptr;
  CHECK_FAILS(wia_allocate_memory(ctx, &desc, &too_large), WIA_ERROR_OUT_OF_MEMORY, "memory limit");
  desc.size = SIZE_MAX - 3;
  CHECK_FAILS(wia_allocate_memory(ctx, &desc, &too_large), WIA_ERROR_INVALID_ARGUMENT, "too large");
  desc.size = 8;
  desc.alignment = 48;
  CHECK_FAILS(wia_allocate_memory(ctx, &desc, &too_large), WIA_ERROR_INVALID_ARGUMENT,
              "power of two");
  ok(wia_free_memory(buffer));
  CHECK_FAILS(wia_free_memory(buffer), WIA_ERROR_INVALID_ARGUMENT, "no live buffer");
  CHECK_FAILS(wia_memcpy(nullptr, pointer, 1), WIA_ERROR_INVALID_ARGUMENT, "NULL");
  ok(wia_destroy_context(ctx));
}

TEST(tensors_in_a_buffer_may_not_leave_it_and_outlive_its_handle) {
  const Context ctx;
  wia_memory_desc_t memory = {};
  memory.size = 64;
  wia_buffer_t buffer = nullptr;
  ok(wia_allocate_memory(ctx, &memory, &buffer));
  wia_tensor_desc_t desc = describe(WIA_FLOAT32, {4, 4});
  desc.buffer = buffer;
  wia_tensor_t tensor = nullptr;
  ok(wia_allocate_tensor(ctx, &desc, &tensor));
  desc.offset_bytes = 4;
  wia_tensor_t outside = nullptr;
  CHECK_FAILS(wia_allocate_tensor(ctx, &desc, &outside), WIA_ERROR_INVALID_ARGUMENT,
              "the buffer has 64");
  desc.offset_bytes = SIZE_MAX - 3;
  CHECK_FAILS(wia_allocate_tensor(ctx, &desc, &outside), WIA_ERROR_INVALID_ARGUMENT,
              "the buffer has 64");
  ok(wia_free_memory(buffer));
  ok(wia_relu(ctx, tensor, tensor, nullptr));
}

TEST(tensor_descriptions_that_make_no_sense_are_refused) {
  const Context ctx;
  wia_tensor_t t = nullptr;
  auto refused = [&](wia_tensor_desc_t desc, const char* text) {
    CHECK_FAILS(wia_allocate_tensor(ctx, &desc, &t), WIA_ERROR_INVALID_ARGUMENT, text);
  };
  refused(describe(static_cast<wia_datatype_t>(8), {1}), "no element type");
  refused(describe(static_cast<wia_datatype_t>(77), {1}), "no element type");
  refused(describe(WIA_FLOAT32, {-1}), "must not be negative");
  refused(describe(WIA_FLOAT32, {int64_t{1} << 40, 2}), "2^40");
  wia_tensor_desc_t desc = describe(WIA_FLOAT32, {1});
  desc.rank = 9;
  refused(desc, "0 to 8");
  desc = describe(WIA_FLOAT32, {2, 2});
  desc.strides[0] = -1;
  refused(desc, "strides");
  desc.strides[0] = INT64_MAX;
  refused(desc, "strides");
  desc = describe(WIA_FLOAT32, {2});
  const float scale = 0;
  desc.quantization = {WIA_QUANTIZATION_PER_TENSOR_SYMMETRIC, &scale, nullptr, 1, 0};
  refused(desc, "quantization is for INT8");
  desc.dtype = WIA_INT8;
  refused(desc, "scales[0] is not > 0");
  desc.quantization.scheme = WIA_QUANTIZATION_PER_CHANNEL_ASYMMETRIC;
  refused(desc, "count must be 2");
  desc.quantization.channel_axis = 5;
  refused(desc, "channel_axis is out of range");
}

TEST(matmul_is_the_product) {
  const Context ctx;
  const auto a = random_floats(5 * 7, 1), b = random_floats(7 * 3, 2);
  wia_tensor_t A = make<float>(ctx, {5, 7}, a), B = make<float>(ctx, {7, 3}, b),
               C = make<float>(ctx, {5, 3}, {});
  ok(wia_matmul(ctx, A, B, C, nullptr, nullptr));
  check_close(read<float>(C), naive_matmul(a, b, 5, 7, 3));
}

TEST(matmul_transposes_scales_and_adds) {
  const Context ctx;
  const auto a = random_floats(5 * 7, 3), b = random_floats(7 * 3, 4), c = random_floats(5 * 3, 5);
  std::vector<float> at(a.size()), bt(b.size());
  for (size_t i = 0; i < 5; ++i)
    for (size_t k = 0; k < 7; ++k) at[k * 5 + i] = a[i * 7 + k];
  for (size_t k = 0; k < 7; ++k)
    for (size_t j = 0; j < 3; ++j) bt[j * 7 + k] = b[k * 3 + j];
  wia_tensor_t A = make<float>(ctx, {7, 5}, at), B = make<float>(ctx, {3, 7}, bt),
               C = make<float>(ctx, {5, 3}, c);
  const wia_matmul_config_t config = {true, true, 2.0f, 0.5f};
  ok(wia_matmul(ctx, A, B, C, &config, nullptr));
  auto wanted = naive_matmul(a, b, 5, 7, 3);
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = 2 * wanted[i] + 0.5f * c[i];
  check_close(read<float>(C), wanted);
}

TEST(strided_tensors_are_read_and_written_where_they_lie) {
  const Context ctx;
  // The transpose of a dense [3, 2], and an output with a gap after each row.
  std::vector<float> x = {1, -2, 3, -4, 5, -6}, y(8, 9);
  wia_tensor_desc_t desc = describe(WIA_FLOAT32, {2, 3});
  desc.data = x.data();
  desc.strides[0] = 1;
  desc.strides[1] = 2;
  wia_tensor_t X = nullptr, Y = nullptr;
  ok(wia_allocate_tensor(ctx, &desc, &X));
  desc.data = y.data();
  desc.strides[0] = 4;
  desc.strides[1] = 1;
  ok(wia_allocate_tensor(ctx, &desc, &Y));
  ok(wia_relu(ctx, X, Y, nullptr));
  CHECK(y == (std::vector<float>{1, 3, 5, 9, 0, 0, 0, 9}));
}

TEST(int8_matmul_is_equation_8_exactly) {
  const Context ctx;
  const size_t m = 9, k = 37, n = 11;
  const auto a = random_levels(m * k, 6), b = random_levels(k * n, 7);
  const Grid grid_a{{0.02f}, {5}}, grid_b{{}, {}, 1}, grid_c{{0.7f}, {-3}};
  Grid per_column = grid_b;
  for (size_t j = 0; j < n; ++j)
    per_column.scales.push_back(0.01f + 0.003f * static_cast<float>(j));
  wia_tensor_t A = make<int8_t>(ctx, {9, 37}, a, grid_a),
               B = make<int8_t>(ctx, {37, 11}, b, per_column),
               C = make<int8_t>(ctx, {9, 11}, {}, grid_c);
  ok(wia_matmul(ctx, A, B, C, nullptr, nullptr));
  const auto got = read<int8_t>(C);
  for (size_t i = 0; i < m; ++i)
    for (size_t j = 0; j < n; ++j) {
      int32_t acc = 0;
      for (size_t l = 0; l < k; ++l) acc += (a[i * k + l] - 5) * b[l * n + j];
      CHECK_EQ(got[i * n + j], requantize(acc, grid_a.scales[0], per_column.scales[j], 0.7f, -3));
    }
}

TEST(conv2d_is_the_same_in_both_layouts) {
  const Context ctx;
  const int64_t C = 4, H = 6, W = 5, O = 3;
  const auto x = random_floats(static_cast<size_t>(C * H * W), 8),
             w = random_floats(static_cast<size_t>(O * C * 9), 9),
             bias = random_floats(static_cast<size_t>(O), 10);
  auto nhwc = [](const std::vector<float>& from, int64_t n, int64_t c, int64_t h, int64_t wd) {
    std::vector<float> to(from.size());
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < c; ++j)
        for (int64_t k = 0; k < h; ++k)
          for (int64_t l = 0; l < wd; ++l)
            to[static_cast<size_t>(((i * h + k) * wd + l) * c + j)] =
                from[static_cast<size_t>(((i * c + j) * h + k) * wd + l)];
    return to;
  };
  wia_conv2d_config_t config = {};
  config.padding[0] = config.padding[1] = 1;
  config.stride[0] = 2;
  wia_tensor_t B = make<float>(ctx, {O}, bias);
  wia_tensor_t y1 = make<float>(ctx, {1, O, 3, 5}, {}),
               y2 = make<float>(ctx, {1, 3, 5, O}, {}, {}, WIA_LAYOUT_NHWC);
  ok(wia_conv2d(ctx, make<float>(ctx, {1, C, H, W}, x), make<float>(ctx, {O, C, 3, 3}, w), B, y1,
                &config, nullptr));
  ok(wia_conv2d(ctx, make<float>(ctx, {1, H, W, C}, nhwc(x, 1, C, H, W), {}, WIA_LAYOUT_NHWC),
                make<float>(ctx, {O, 3, 3, C}, nhwc(w, O, C, 3, 3), {}, WIA_LAYOUT_NHWC), B, y2,
                &config, nullptr));
  CHECK(read<float>(y2) == nhwc(read<float>(y1), 1, O, 3, 5));
  // And is the sum it should be, at one inner pixel.
  double sum = bias[1];
  for (int64_t c = 0; c < C; ++c)
    for (int64_t i = 0; i < 3; ++i)
      for (int64_t j = 0; j < 3; ++j)
        sum += double{x[static_cast<size_t>((c * H + 2 - 1 + i) * W + 2 - 1 + j)]} *
               w[static_cast<size_t>((C + c) * 9 + i * 3 + j)];
  CHECK(std::fabs(read<float>(y1)[static_cast<size_t>((1 * 3 + 1) * 5 + 2)] - sum) < 1e-5);
}

TEST(int8_conv2d_is_equation_8_exactly) {
  const Context ctx;
  const auto x = random_levels(2 * 4 * 4, 11), w = random_levels(3 * 2, 12);
  const std::vector<int32_t> bias = {100, -200, 3000};
  const std::vector<float> scales_w = {0.01f, 0.02f, 0.005f};
  Grid grid_bias{{}, {}, 0};
  for (float s : scales_w) grid_bias.scales.push_back(0.04f * s);
  wia_tensor_t X = make<int8_t>(ctx, {1, 2, 4, 4}, x, {{0.04f}, {-7}}),
               W = make<int8_t>(ctx, {3, 2, 1, 1}, w, {scales_w, {}, 0}),
               B = make<int32_t>(ctx, {3}, bias, grid_bias),
               Y = make<int8_t>(ctx, {1, 3, 4, 4}, {}, {{0.3f}, {10}});
  ok(wia_conv2d(ctx, X, W, B, Y, nullptr, nullptr));
  const auto got = read<int8_t>(Y);
  for (size_t o = 0; o < 3; ++o)
    for (size_t p = 0; p < 16; ++p) {
      int32_t acc = bias[o];
      for (size_t c = 0; c < 2; ++c) acc += (x[c * 16 + p] + 7) * w[o * 2 + c];
      CHECK_EQ(got[o * 16 + p], requantize(acc, 0.04f, scales_w[o], 0.3f, 10));
    }
}

TEST(int8_add_and_multiply_are_equations_12_and_13_exactly) {
  const Context ctx;
  const auto a = random_levels(64, 13), b = random_levels(64, 14);
  wia_tensor_t A = make<int8_t>(ctx, {64}, a, {{0.05f}, {3}}),
               B = make<int8_t>(ctx, {64}, b, {{0.02f}, {-9}}),
               Y = make<int8_t>(ctx, {64}, {}, {{0.06f}, {1}});
  ok(wia_add(ctx, A, B, Y, nullptr));
  auto got = read<int8_t>(Y);
  const float ma = static_cast<float>(double{0.05f} / double{0.06f}),
              mb = static_cast<float>(double{0.02f} / double{0.06f});
  for (size_t i = 0; i < 64; ++i) {
    const float left = static_cast<float>(a[i] - 3) * ma, right = static_cast<float>(b[i] + 9) * mb;
    CHECK_EQ(got[i],
             static_cast<int8_t>(std::clamp(std::nearbyint(left + right) + 1, -128.0f, 127.0f)));
  }
  ok(wia_multiply(ctx, A, B, Y, nullptr));
  got = read<int8_t>(Y);
  for (size_t i = 0; i < 64; ++i)
    CHECK_EQ(got[i], requantize((a[i] - 3) * (b[i] + 9), 0.05f, 0.02f, 0.06f, 1));
}

TEST(softmax_divides_by_the_temperature) {
  const Context ctx;
  wia_tensor_t X = make<float>(ctx, {2, 3}, {1, 2, 3, 4, 4, 4}), Y = make<float>(ctx, {2, 3}, {});
  const wia_softmax_config_t config = {-1, 2.0f};
  ok(wia_softmax(ctx, X, Y, &config, nullptr));
  const auto y = read<float>(Y);
  const double sum = std::exp(0.5) + std::exp(1.0) + std::exp(1.5);
  CHECK(std::fabs(y[2] - std::exp(1.5) / sum) < 1e-6 && std::fabs(y[4] - 1.0 / 3) < 1e-6);
  const wia_softmax_config_t bad = {5, 1.0f};
  CHECK_FAILS(wia_softmax(ctx, X, Y, &bad, nullptr), WIA_ERROR_INVALID_ARGUMENT, "out of range");
}

TEST(elementwise_operators_broadcast) {
  const Context ctx;
  wia_tensor_t a = make<float>(ctx, {2, 3}, {1, 2, 3, 4, 5, 6}),
               b = make<float>(ctx, {3}, {1, 2, 4}), y = make<float>(ctx, {2, 3}, {});
  ok(wia_add(ctx, a, b, y, nullptr));
  CHECK(read<float>(y) == (std::vector<float>{2, 4, 7, 5, 7, 10}));
  ok(wia_multiply(ctx, a, b, y, nullptr));
  CHECK(read<float>(y) == (std::vector<float>{1, 4, 12, 4, 10, 24}));
  ok(wia_div(ctx, a, b, y, nullptr));
  CHECK(read<float>(y) == (std::vector<float>{1, 1, 0.75f, 4, 2.5f, 1.5f}));
  ok(wia_gelu(ctx, make<float>(ctx, {1}, {1}), y = make<float>(ctx, {1}, {}), nullptr));
  CHECK(std::fabs(read<float>(y)[0] - 0.841344746f) < 1e-6f);
  ok(wia_sigmoid(ctx, make<float>(ctx, {1}, {0}), y, nullptr));
  CHECK_EQ(read<float>(y)[0], 0.5f);
}

TEST(reduce_reshape_transpose_and_concatenate_move_what_they_should) {
  const Context ctx;
  wia_tensor_t x = make<float>(ctx, {2, 3}, {1, 2, 3, 4, 5, 6});
  wia_reduce_config_t reduce = {};
  reduce.op = WIA_REDUCE_AVG;
  reduce.axes[0] = 1;
  reduce.n_axes = 1;
  wia_tensor_t y = make<float>(ctx, {2}, {});
  ok(wia_reduce(ctx, x, y, &reduce, nullptr));
  CHECK(read<float>(y) == (std::vector<float>{2, 5}));
  reduce.n_axes = 0;
  reduce.op = WIA_REDUCE_MAX;
  y = make<float>(ctx, {}, {});
  ok(wia_reduce(ctx, x, y, &reduce, nullptr));
  CHECK(read<float>(y) == (std::vector<float>{6}));

  y = make<float>(ctx, {3, 2}, {});
  ok(wia_reshape(ctx, x, y, nullptr));
  CHECK(read<float>(y) == (std::vector<float>{1, 2, 3, 4, 5, 6}));
  CHECK_FAILS(wia_reshape(ctx, x, make<float>(ctx, {4}, {}), nullptr), WIA_ERROR_INVALID_ARGUMENT,
              "cannot reshape [2, 3] to [4]");

  wia_transpose_config_t transpose = {};
  transpose.permutation[0] = 1;
  ok(wia_transpose(ctx, x, y, &transpose, nullptr));
  CHECK(read<float>(y) == (std::vector<float>{1, 4, 2, 5, 3, 6}));
  transpose.permutation[0] = 0;
  CHECK_FAILS(wia_transpose(ctx, x, y, &transpose, nullptr), WIA_ERROR_INVALID_ARGUMENT, "once");

  const wia_tensor_t parts[] = {x, x};
  const wia_concatenate_config_t concat = {1};
  y = make<float>(ctx, {2, 6}, {});
  ok(wia_concatenate(ctx, parts, 2, y, &concat, nullptr));
  CHECK(read<float>(y) == (std::vector<float>{1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6}));
}

TEST(moving_int8_elements_keeps_their_levels_or_changes_the_grid) {
  const Context ctx;
  wia_tensor_t x = make<int8_t>(ctx, {1, 3}, {-128, 0, 127}, {{0.5f}, {0}});
  wia_tensor_t same = make<int8_t>(ctx, {3, 1}, {}, {{0.5f}, {0}}),
               coarser = make<int8_t>(ctx, {3, 1}, {}, {{1.0f}, {10}});
  ok(wia_reshape(ctx, x, same, nullptr));
  CHECK(read<int8_t>(same) == (std::vector<int8_t>{-128, 0, 127}));
  ok(wia_reshape(ctx, x, coarser, nullptr));
  CHECK(read<int8_t>(coarser) == (std::vector<int8_t>{-54, 10, 74}));
}

TEST(types_and_shapes_that_do_not_fit_are_named) {
  const Context ctx;
  wia_tensor_t f = make<float>(ctx, {2, 2}, {}), i = make<int32_t>(ctx, {2, 2}, {}),
               q = make<int8_t>(ctx, {2, 2}, {});
  CHECK_FAILS(wia_add(ctx, f, i, f, nullptr), WIA_ERROR_INVALID_ARGUMENT,
              "a and b must have one element type, not float32 and int32");
  CHECK_FAILS(wia_add(ctx, q, q, q, nullptr), WIA_ERROR_INVALID_ARGUMENT,
              "int8 without quantization");
  CHECK_FAILS(wia_relu(ctx, f, make<float>(ctx, {4}, {}), nullptr), WIA_ERROR_INVALID_ARGUMENT,
              "the result is float32 [2, 2], but the output tensor is float32 [4]");
  CHECK_FAILS(wia_conv2d(ctx, f, f, nullptr, f, nullptr, nullptr), WIA_ERROR_INVALID_ARGUMENT,
              "must have 4 dimensions");
  CHECK(wia_matmul(ctx, make<float>(ctx, {2, 3}, {}), f, f, nullptr, nullptr) != WIA_SUCCESS);
}

TEST(a_model_is_loaded_and_run) {
  const Context ctx;
  const std::string bytes = relu_model();
  wia_model_t model = nullptr;
  wia_session_t session = nullptr;
  ok(wia_load_model_from_memory(ctx, bytes.data(), bytes.size(), &model));
  ok(wia_create_session(ctx, model, nullptr, &session));
  ok(wia_destroy_model(model));
  int n = 0;
  ok(wia_get_session_input_count(session, &n));
  CHECK_EQ(n, 1);
  wia_port_info_t port;
  ok(wia_get_session_input(session, 0, &port));
  CHECK_EQ(std::string(port.name), "x");
  CHECK(port.dtype == WIA_FLOAT32 && port.rank == 2 && port.dims[0] == -1 && port.dims[1] == 3);
  CHECK_EQ(std::string(port.dim_names[0]), "d0");
  CHECK_FAILS(wia_get_session_output(session, 1, &port), WIA_ERROR_INVALID_ARGUMENT,
              "output 1: the model has 1");

  wia_tensor_t x = make<float>(ctx, {2, 3}, {-1, 2, -3, 4, -5, 6}), y = nullptr;
  ok(wia_run_session(session, &x, 1, &y, 1, nullptr));
  CHECK(read<float>(y) == (std::vector<float>{0, 2, 0, 4, 0, 6}));
  wia_tensor_t given = make<float>(ctx, {2, 3}, {});
  ok(wia_run_session(session, &x, 1, &given, 1, nullptr));
  CHECK(read<float>(given) == read<float>(y));

  wia_tensor_t wrong = make<float>(ctx, {2, 4}, {}), none = nullptr;
  CHECK_FAILS(wia_run_session(session, &wrong, 1, &none, 1, nullptr), WIA_ERROR_INVALID_ARGUMENT,
              "input 'x': expected shape [d0, 3], got [2, 4]");
  CHECK(none == nullptr);
  CHECK_FAILS(wia_run_session(session, &x, 1, &wrong, 1, nullptr), WIA_ERROR_INVALID_ARGUMENT,
              "the model makes float32 [2, 3]");
  CHECK_FAILS(wia_run_session(session, &x, 0, &none, 1, nullptr), WIA_ERROR_INVALID_ARGUMENT,
              "1 inputs, not 0");
}

TEST(a_bool_may_be_any_byte) {
  const Context ctx;
  proto::Proto graph;
  graph.message(proto::kNode, proto::node("Not", {"x"}, {"y"}))
      .message(proto::kInput, proto::value_info("x", 9, {3}))
      .message(proto::kOutput, proto::value_info("y", 9, {3}));
  const std::string bytes = proto::model(graph).bytes();
  wia_model_t model = nullptr;
  wia_session_t session = nullptr;
  ok(wia_load_model_from_memory(ctx, bytes.data(), bytes.size(), &model));
  ok(wia_create_session(ctx, model, nullptr, &session));
  wia_tensor_desc_t desc = describe(WIA_BOOL, {3});
  uint8_t values[] = {0, 1, 0xfe};
  desc.data = values;
  wia_tensor_t x = nullptr, y = nullptr;
  ok(wia_allocate_tensor(ctx, &desc, &x));
  ok(wia_run_session(session, &x, 1, &y, 1, nullptr));
  CHECK(read<uint8_t>(y) == (std::vector<uint8_t>{1, 0, 0}));
}

TEST(models_that_cannot_be_loaded_say_why) {
  const Context ctx;
  wia_model_t model = nullptr;
  CHECK_FAILS(wia_load_model(ctx, "/nowhere.onnx", &model), WIA_ERROR_INVALID_ARGUMENT,
              "'/nowhere.onnx': no such file");
  CHECK_FAILS(wia_load_model_from_memory(ctx, "abc", 3, &model), WIA_ERROR_INVALID_ARGUMENT,
              "not a valid ONNX file");
  std::string bytes = relu_model();
  bytes.replace(bytes.find("Relu"), 4, "Xelu");
  ok(wia_load_model_from_memory(ctx, bytes.data(), bytes.size(), &model));
  wia_session_t session = nullptr;
  CHECK_FAILS(wia_create_session(ctx, model, nullptr, &session), WIA_ERROR_NOT_SUPPORTED,
              "Xelu of domain 'ai.onnx' (1 node: 'the_relu')");
  wia_session_config_t config = {};
  config.isa = "z80";
  CHECK_FAILS(wia_create_session(ctx, model, &config, &session), WIA_ERROR_INVALID_ARGUMENT,
              "'z80' is not known");
}

TEST(profiling_counts_calls) {
  const Context ctx;
  wia_tensor_t x = make<float>(ctx, {4}, {1, 2, 3, 4});
  ok(wia_start_profiling(ctx, nullptr, nullptr));
  ok(wia_relu(ctx, x, x, nullptr));
  ok(wia_relu(ctx, x, x, nullptr));
  ok(wia_stop_profiling(ctx));
  ok(wia_relu(ctx, x, x, nullptr));
  wia_profile_results_t results;
  ok(wia_get_profile_results(ctx, &results));
  CHECK_EQ(results.count, 1);
  CHECK_EQ(std::string(results.entries[0].name), "wia_relu");
  CHECK_EQ(results.entries[0].count, uint64_t{2});
  const wia_profiling_config_t sampling = {true, WIA_PROFILE_SAMPLING};
  CHECK_FAILS(wia_start_profiling(ctx, &sampling, nullptr), WIA_ERROR_NOT_SUPPORTED,
              "WIA_PROFILE_INSTRUMENTATION");
  ok(wia_start_profiling(ctx, nullptr, "/nowhere/profile.json"));
  CHECK_FAILS(wia_stop_profiling(ctx), WIA_ERROR_RUNTIME_ERROR,
              "cannot write the profile to '/nowhere/profile.json'");
}

TEST(threads_give_the_same_bytes) {
  const auto a = random_floats(64 * 100, 20), b = random_floats(100 * 80, 21);
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2, 4}) {
    const Context ctx;
    ok(wia_context_set_threads(ctx, threads));
    wia_tensor_t c = make<float>(ctx, {64, 80}, {});
    ok(wia_matmul(ctx, make<float>(ctx, {64, 100}, a), make<float>(ctx, {100, 80}, b), c, nullptr,
                  nullptr));
    results.push_back(read<float>(c));
  }
  CHECK(results[0] == results[1] && results[0] == results[2]);
  const Context ctx;
  CHECK_FAILS(wia_context_set_threads(ctx, 0), WIA_ERROR_INVALID_ARGUMENT, "at least 1");
}

WIA_TEST_MAIN
