// SPDX-License-Identifier: Apache-2.0
// WIA-AI-011 phase 2, the C API of accelerator runtimes. The only public header of libwia.
//
// Implemented: level 1 (devices, contexts, device memory, matmul, conv2d, FLOAT32) and level 2
// (streams, events, memory types, the tensor operators, FLOAT16 and INT8), and of level 3 profiling
// by instrumentation. Beside them, in the same manner, models: wia_load_model, wia_create_session,
// wia_run_session.
//
// Every function returns a wia_status_t. A failed call leaves its results as they were;
// wia_get_last_error tells this thread what was wrong, with which object, and what to do. Handles
// are checked: one that was destroyed, or is of another kind, is WIA_ERROR_INVALID_ARGUMENT and
// never a crash. No call prints, aborts or throws. Any thread may call; two threads may use one
// context at a time, and take turns inside operators and sessions.
#ifndef WIA_AI011_H_
#define WIA_AI011_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define WIA_API __declspec(dllexport)
#else
#define WIA_API __attribute__((visibility("default")))
#endif

// Callers in any language may pass any number where an enum is due: in C++ too every number is a
// value of it.
#ifdef __cplusplus
#define WIA_ENUM : int
#else
#define WIA_ENUM
#endif

// ---- Status and errors

typedef enum wia_status_t WIA_ENUM {
  WIA_SUCCESS = 0,
  WIA_ERROR_INVALID_ARGUMENT = 1,
  WIA_ERROR_OUT_OF_MEMORY = 2,
  WIA_ERROR_DEVICE_NOT_FOUND = 3,
  WIA_ERROR_NOT_SUPPORTED = 4,
  WIA_ERROR_RUNTIME_ERROR = 5
} wia_status_t;

typedef struct wia_device_s* wia_device_t;
typedef struct wia_context_s* wia_context_t;
typedef struct wia_stream_s* wia_stream_t;
typedef struct wia_event_s* wia_event_t;
typedef struct wia_buffer_s* wia_buffer_t;
typedef struct wia_tensor_s* wia_tensor_t;
typedef struct wia_model_s* wia_model_t;
typedef struct wia_session_s* wia_session_t;

#define WIA_MAX_ERROR_LENGTH 2048
typedef struct wia_error_info_t {
  wia_status_t status;
  char function[64];                   // the call that failed: "wia_matmul"
  char message[WIA_MAX_ERROR_LENGTH];  // one line
} wia_error_info_t;

// A short English name of the status; never NULL.
WIA_API const char* wia_get_error_string(wia_status_t status);
// The last failure of this thread; WIA_SUCCESS and empty texts when there was none. ctx may be
// NULL.
WIA_API wia_status_t wia_get_last_error(wia_context_t ctx, wia_error_info_t* info);

// ---- Devices. libwia has one: the CPU.

typedef struct wia_device_info_t {
  char name[128];  // "CPU (avx512vnni)"
  char vendor[64];
  char isa[32];          // the instruction set in force: WIA_ISA, else the best of the CPU
  int compute_units;     // hardware threads
  int compliance_level;  // 2
} wia_device_info_t;

// The peak_* and bandwidth figures are measured, not looked up: at the first query of the process,
// for at most about 0.1 s, one thread runs a 256 x 256 x 256 wia_matmul of that type, and a copy of
// 32 MB; the best of several, times compute_units for the products, is reported (2 operations a
// multiply-add; bytes read plus bytes written). They are what the operators of this library reach,
// with threads that do not hinder each other; not what the silicon could.
typedef struct wia_capability_t {
  float peak_tflops_fp32;
  float peak_tflops_fp16;  // FLOAT16 is computed in float32
  float peak_tflops_int8;
  size_t total_memory;           // bytes, of the machine
  size_t memory_bandwidth_gbps;  // 10^9 bytes a second, rounded down
  bool supports_unified_memory;  // true: the device's memory is the host's
  bool supports_pinned_memory;  // true: as above; nothing is page-locked, as nothing is transferred
  bool supports_fp16;
  bool supports_bfloat16;
  bool supports_int8;
  bool supports_sparse_ops;      // false
  bool supports_dynamic_shapes;  // true
  int max_tensor_dims;           // WIA_MAX_DIMS
  size_t max_tensor_size;        // elements
  int max_batch_size;            // INT_MAX: limited by memory alone
} wia_capability_t;

// The library's list of devices; not to be freed.
WIA_API wia_status_t wia_enumerate_devices(wia_device_t** devices, int* count);
WIA_API wia_status_t wia_get_device_info(wia_device_t device, wia_device_info_t* info);
WIA_API wia_status_t wia_query_capabilities(wia_device_t device, wia_capability_t* caps);
// The device of this thread's contexts when their configuration names none.
WIA_API wia_status_t wia_set_current_device(wia_device_t device);
WIA_API wia_status_t wia_get_current_device(wia_device_t* device);

// ---- Contexts

typedef struct wia_context_config_t {
  wia_device_t device;      // NULL: the current device
  size_t memory_pool_size;  // bytes that all buffers, tensors and sessions together may take; 0:
                            // the machine's memory
  int max_streams;          // at most this many at a time; 0: no limit
  bool profiling_enabled;   // begin as after wia_start_profiling
} wia_context_config_t;

// config may be NULL. Destroying a context destroys what was made in it; those handles are then
// invalid.
WIA_API wia_status_t wia_create_context(const wia_context_config_t* config, wia_context_t* ctx);
WIA_API wia_status_t wia_destroy_context(wia_context_t ctx);
WIA_API wia_status_t wia_context_synchronize(wia_context_t ctx);
// Threads that share one operator, and one session made without its own number; 1 until set.
WIA_API wia_status_t wia_context_set_threads(wia_context_t ctx, int n_threads);

// ---- Streams and events. On the CPU device work is done, in order, when the call that asked for
// it returns: a stream is always idle, and an event that was recorded has happened. A NULL stream
// is the context's own.

typedef enum wia_stream_type_t WIA_ENUM {
  WIA_STREAM_COMPUTE = 0,
  WIA_STREAM_TRANSFER = 1
} wia_stream_type_t;

WIA_API wia_status_t wia_create_stream(wia_context_t ctx, wia_stream_type_t type,
                                       wia_stream_t* stream);
WIA_API wia_status_t wia_destroy_stream(wia_stream_t stream);
WIA_API wia_status_t wia_stream_synchronize(wia_stream_t stream);
WIA_API wia_status_t wia_stream_query(wia_stream_t stream, bool* is_idle);
WIA_API wia_status_t wia_create_event(wia_event_t* event);
WIA_API wia_status_t wia_destroy_event(wia_event_t event);
WIA_API wia_status_t wia_record_event(wia_event_t event, wia_stream_t stream);
WIA_API wia_status_t wia_stream_wait_event(wia_stream_t stream, wia_event_t event);

// ---- Memory. The four types are the same memory here, and the host may read and write all of it.

typedef enum wia_memory_type_t WIA_ENUM {
  WIA_MEMORY_DEVICE = 0,
  WIA_MEMORY_PINNED = 1,
  WIA_MEMORY_UNIFIED = 2,
  WIA_MEMORY_MANAGED = 3
} wia_memory_type_t;

typedef enum wia_memory_flags_t WIA_ENUM {
  WIA_MEMORY_FLAG_NONE = 0,
  WIA_MEMORY_FLAG_ZERO = 1 /* filled with zeros */
} wia_memory_flags_t;

typedef struct wia_memory_desc_t {
  size_t size;  // bytes, > 0
  wia_memory_type_t type;
  size_t alignment;  // a power of two; 0: 64
  wia_memory_flags_t flags;
  wia_device_t device_affinity;  // NULL: the context's
} wia_memory_desc_t;

WIA_API wia_status_t wia_allocate_memory(wia_context_t ctx, const wia_memory_desc_t* desc,
                                         wia_buffer_t* buffer);
// Tensors that lie in the buffer keep its memory until they are freed.
WIA_API wia_status_t wia_free_memory(wia_buffer_t buffer);
WIA_API wia_status_t wia_get_buffer_pointer(wia_buffer_t buffer, void** pointer,
                                            size_t* size);  // size may be NULL
WIA_API wia_status_t wia_memcpy(void* dst, const void* src, size_t size);
WIA_API wia_status_t wia_memcpy_async(void* dst, const void* src, size_t size, wia_stream_t stream);
WIA_API wia_status_t wia_memset(void* ptr, int value, size_t size);

// ---- Tensors

#define WIA_MAX_DIMS 8

// The values are those of onnx.TensorProto.DataType.
typedef enum wia_datatype_t WIA_ENUM {
  WIA_UNDEFINED = 0,
  WIA_FLOAT32 = 1,
  WIA_UINT8 = 2,
  WIA_INT8 = 3,
  WIA_UINT16 = 4,
  WIA_INT16 = 5,
  WIA_INT32 = 6,
  WIA_INT64 = 7,
  WIA_BOOL = 9,
  WIA_FLOAT16 = 10,
  WIA_FLOAT64 = 11,
  WIA_UINT32 = 12,
  WIA_UINT64 = 13,
  WIA_BFLOAT16 = 16,
  WIA_FP8_E4M3 = 17,
  WIA_FP8_E5M2 = 19,
  WIA_UINT4 = 21,  // one byte an element
  WIA_INT4 = 22    // one byte an element
} wia_datatype_t;

// The order in which a 4-dimensional tensor of pictures lists its dimensions; the memory order is
// that of the dimensions unless strides say otherwise. Only wia_conv2d looks at it; weights are O,
// I, H, W in place of N, C, H, W.
typedef enum wia_layout_t WIA_ENUM {
  WIA_LAYOUT_NCHW = 0,
  WIA_LAYOUT_NHWC = 1,
  WIA_LAYOUT_CHWN = 2
} wia_layout_t;

typedef enum wia_quantization_scheme_t WIA_ENUM {
  WIA_QUANTIZATION_NONE = 0,
  WIA_QUANTIZATION_PER_TENSOR_SYMMETRIC = 1,   // one scale, zero point 0
  WIA_QUANTIZATION_PER_TENSOR_ASYMMETRIC = 2,  // one scale and zero point
  WIA_QUANTIZATION_PER_CHANNEL_ASYMMETRIC = 3  // one of each for each index of channel_axis
} wia_quantization_scheme_t;

// real = (q - zero_point) * scale. Copied when the tensor is made.
typedef struct wia_quantization_t {
  wia_quantization_scheme_t scheme;
  const float* scales;         // count of them, finite and > 0
  const int32_t* zero_points;  // count of them, within the element type; NULL: all 0
  int count;                   // 1, or the size of channel_axis
  int channel_axis;
} wia_quantization_t;

typedef struct wia_tensor_desc_t {
  wia_datatype_t dtype;
  int rank;  // 0 to WIA_MAX_DIMS
  int64_t dims[WIA_MAX_DIMS];
  int64_t strides[WIA_MAX_DIMS];  // elements, >= 0; all 0: dense, the last dimension fastest
  wia_layout_t layout;
  wia_quantization_t quantization;  // of INT8, UINT8, and INT32 biases
  wia_buffer_t buffer;              // where the elements lie; NULL: memory of the tensor's own
  size_t offset_bytes;              // of element 0 in the buffer
  void* data;  // or memory of the caller's, which must outlive the tensor; with buffer NULL
} wia_tensor_desc_t;

WIA_API wia_status_t wia_allocate_tensor(wia_context_t ctx, const wia_tensor_desc_t* desc,
                                         wia_tensor_t* tensor);
WIA_API wia_status_t wia_free_tensor(wia_tensor_t tensor);
// Element 0.
WIA_API wia_status_t wia_get_tensor_data(wia_tensor_t tensor, void** data);
// The description with strides filled in; quantization points into the tensor.
WIA_API wia_status_t wia_get_tensor_desc(wia_tensor_t tensor, wia_tensor_desc_t* desc);

// ---- Operators. Outputs are allocated by the caller with the right shape; an output may be one of
// the inputs. FLOAT32, FLOAT16 and BFLOAT16: all tensors of one type. INT8 and UINT8: every tensor
// has quantization, the result is the integer arithmetic of docs/quantization.md, equations (7) to
// (14), equal on every CPU.

typedef struct wia_matmul_config_t {
  bool transpose_a, transpose_b;  // of the last two dimensions
  float alpha, beta;              // C = alpha * A B + beta * C
} wia_matmul_config_t;

typedef struct wia_conv2d_config_t {
  int stride[2];    // height, width; 0 is 1
  int padding[2];   // zeros on both sides
  int dilation[2];  // 0 is 1
  int groups;       // 0 is 1
} wia_conv2d_config_t;

typedef struct wia_softmax_config_t {
  int axis;           // negative: from the last
  float temperature;  // softmax(x / temperature); 0 is 1
} wia_softmax_config_t;

typedef enum wia_reduce_op_t WIA_ENUM {
  WIA_REDUCE_SUM = 0,
  WIA_REDUCE_PROD = 1,
  WIA_REDUCE_MIN = 2,
  WIA_REDUCE_MAX = 3,
  WIA_REDUCE_AVG = 4
} wia_reduce_op_t;

typedef struct wia_reduce_config_t {
  wia_reduce_op_t op;
  int axes[WIA_MAX_DIMS];
  int n_axes;      // 0: all
  bool keep_dims;  // size 1 instead of gone
} wia_reduce_config_t;

typedef struct wia_transpose_config_t {
  int permutation[WIA_MAX_DIMS];  // output dimension i is input dimension permutation[i]
} wia_transpose_config_t;

typedef struct wia_concatenate_config_t {
  int axis;
} wia_concatenate_config_t;

// A and B of 2 dimensions or more, batches broadcast. config NULL: no transpose, alpha 1, beta 0.
WIA_API wia_status_t wia_matmul(wia_context_t ctx, wia_tensor_t A, wia_tensor_t B, wia_tensor_t C,
                                const wia_matmul_config_t* config, wia_stream_t stream);
// bias: [output channels], or NULL; INT32 with scale input * weight for quantized tensors. config
// NULL: all defaults.
WIA_API wia_status_t wia_conv2d(wia_context_t ctx, wia_tensor_t input, wia_tensor_t weight,
                                wia_tensor_t bias, wia_tensor_t output,
                                const wia_conv2d_config_t* config, wia_stream_t stream);
WIA_API wia_status_t wia_relu(wia_context_t ctx, wia_tensor_t input, wia_tensor_t output,
                              wia_stream_t stream);
WIA_API wia_status_t wia_gelu(wia_context_t ctx, wia_tensor_t input, wia_tensor_t output,
                              wia_stream_t stream);  // by erf
WIA_API wia_status_t wia_sigmoid(wia_context_t ctx, wia_tensor_t input, wia_tensor_t output,
                                 wia_stream_t stream);
// config NULL: the last axis, temperature 1.
WIA_API wia_status_t wia_softmax(wia_context_t ctx, wia_tensor_t input, wia_tensor_t output,
                                 const wia_softmax_config_t* config, wia_stream_t stream);
// Shapes broadcast as numpy's.
WIA_API wia_status_t wia_add(wia_context_t ctx, wia_tensor_t a, wia_tensor_t b, wia_tensor_t output,
                             wia_stream_t stream);
WIA_API wia_status_t wia_multiply(wia_context_t ctx, wia_tensor_t a, wia_tensor_t b,
                                  wia_tensor_t output, wia_stream_t stream);
WIA_API wia_status_t wia_div(wia_context_t ctx, wia_tensor_t a, wia_tensor_t b, wia_tensor_t output,
                             wia_stream_t stream);
WIA_API wia_status_t wia_reduce(wia_context_t ctx, wia_tensor_t input, wia_tensor_t output,
                                const wia_reduce_config_t* config, wia_stream_t stream);
// The output's own shape is the new one.
WIA_API wia_status_t wia_reshape(wia_context_t ctx, wia_tensor_t input, wia_tensor_t output,
                                 wia_stream_t stream);
WIA_API wia_status_t wia_transpose(wia_context_t ctx, wia_tensor_t input, wia_tensor_t output,
                                   const wia_transpose_config_t* config, wia_stream_t stream);
WIA_API wia_status_t wia_concatenate(wia_context_t ctx, const wia_tensor_t* inputs, int count,
                                     wia_tensor_t output, const wia_concatenate_config_t* config,
                                     wia_stream_t stream);

// ---- Models: any ONNX file within libwia's operators, quantized or not.

// Reads and checks the file; tensors stored beside it are read too.
WIA_API wia_status_t wia_load_model(wia_context_t ctx, const char* path, wia_model_t* model);
WIA_API wia_status_t wia_load_model_from_memory(wia_context_t ctx, const void* bytes, size_t size,
                                                wia_model_t* model);
WIA_API wia_status_t wia_destroy_model(wia_model_t model);

typedef struct wia_session_config_t {
  int n_threads;    // 0: the context's
  const char* isa;  // the best instruction set to use: "reference", "avx2" ...; NULL: the
                    // environment's WIA_ISA, else all
  int64_t max_loop_iterations;  // of a Loop or Scan in one run, with those inside it; 0: 10 million
} wia_session_config_t;

// Compiles the model; it may be destroyed after. config may be NULL.
WIA_API wia_status_t wia_create_session(wia_context_t ctx, wia_model_t model,
                                        const wia_session_config_t* config, wia_session_t* session);
WIA_API wia_status_t wia_destroy_session(wia_session_t session);

typedef struct wia_port_info_t {
  const char* name;                     // lives as long as the session
  wia_datatype_t dtype;                 // WIA_UNDEFINED: the model does not say
  int rank;                             // -1: the model does not say
  int64_t dims[WIA_MAX_DIMS];           // -1: any size
  const char* dim_names[WIA_MAX_DIMS];  // "batch"; "" for a number or a dimension without a name
} wia_port_info_t;

WIA_API wia_status_t wia_get_session_input_count(wia_session_t session, int* count);
WIA_API wia_status_t wia_get_session_output_count(wia_session_t session, int* count);
WIA_API wia_status_t wia_get_session_input(wia_session_t session, int index, wia_port_info_t* info);
WIA_API wia_status_t wia_get_session_output(wia_session_t session, int index,
                                            wia_port_info_t* info);
// inputs: as many as the model has, in its order. outputs: likewise; each is a tensor of the right
// type and shape to be filled, or NULL, and then set to a new dense tensor that the caller frees.
WIA_API wia_status_t wia_run_session(wia_session_t session, const wia_tensor_t* inputs,
                                     int n_inputs, wia_tensor_t* outputs, int n_outputs,
                                     wia_stream_t stream);

// ---- Profiling: the time of each operator and session run of a context.

typedef enum wia_profile_mode_t WIA_ENUM {
  WIA_PROFILE_SAMPLING = 0,  // not supported
  WIA_PROFILE_INSTRUMENTATION = 1,
  WIA_PROFILE_HARDWARE_COUNTERS = 2  // not supported
} wia_profile_mode_t;

typedef struct wia_profiling_config_t {
  bool profiling_enabled;  // false: the call does nothing
  wia_profile_mode_t mode;
} wia_profiling_config_t;

typedef struct wia_profile_entry_t {
  const char* name;  // "wia_matmul", "wia_run_session"
  uint64_t count;
  uint64_t total_ns;
} wia_profile_entry_t;

typedef struct wia_profile_results_t {
  const wia_profile_entry_t*
      entries;  // by name; valid until profiling starts again or the context goes
  int count;
} wia_profile_results_t;

// config NULL: instrumentation. output_file: where wia_stop_profiling writes the results as JSON;
// NULL: nowhere.
WIA_API wia_status_t wia_start_profiling(wia_context_t ctx, const wia_profiling_config_t* config,
                                         const char* output_file);
WIA_API wia_status_t wia_stop_profiling(wia_context_t ctx);
WIA_API wia_status_t wia_get_profile_results(wia_context_t ctx, wia_profile_results_t* results);

#ifdef __cplusplus
}
#endif
#endif  // WIA_AI011_H_
