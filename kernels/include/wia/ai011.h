// SPDX-License-Identifier: Apache-2.0
// WIA-AI-011 phase 2, the C API of accelerator runtimes. The only public header of libwia.
#ifndef WIA_AI011_H_
#define WIA_AI011_H_

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define WIA_API __declspec(dllexport)
#else
#define WIA_API __attribute__((visibility("default")))
#endif

typedef enum wia_status_t {
  WIA_SUCCESS = 0,
  WIA_ERROR_INVALID_ARGUMENT = 1,
  WIA_ERROR_OUT_OF_MEMORY = 2,
  WIA_ERROR_DEVICE_NOT_FOUND = 3,
  WIA_ERROR_NOT_SUPPORTED = 4,
  WIA_ERROR_RUNTIME_ERROR = 5
} wia_status_t;

// A short English name of the status; never NULL.
WIA_API const char* wia_get_error_string(wia_status_t status);

#ifdef __cplusplus
}
#endif
#endif  // WIA_AI011_H_
