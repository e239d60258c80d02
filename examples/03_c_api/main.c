/* SPDX-License-Identifier: Apache-2.0
 * Loads an ONNX model, runs it once, prints what comes out. C99, and wia/ai011.h only.
 *
 *   cc main.c -lwia -o run_model && ./run_model model.onnx
 *
 * Inputs are filled with 0, 1, 2 ... so that the output is the same each time; a dimension without a size gets 1.
 */
#include <stdio.h>
#include <stdlib.h>

#include "wia/ai011.h"

#define MAX_PORTS 16
#define SHOWN 8

/* Ends the program with libwia's own words when a call has failed. */
static void check(wia_status_t status) {
  wia_error_info_t error;
  if (status == WIA_SUCCESS) return;
  wia_get_last_error(NULL, &error);
  fprintf(stderr, "error: %s: %s (%s)\n", error.function, error.message, wia_get_error_string(status));
  exit(1);
}

static size_t count_elements(const wia_tensor_desc_t* desc) {
  size_t n = 1;
  int d;
  for (d = 0; d < desc->rank; ++d) n *= (size_t)desc->dims[d];
  return n;
}

static wia_tensor_t make_input(wia_context_t ctx, const wia_port_info_t* port) {
  wia_tensor_desc_t desc = {0};
  wia_tensor_t tensor;
  void* data;
  size_t i;
  int d;
  desc.dtype = port->dtype;
  desc.rank = port->rank < 0 ? 0 : port->rank;
  for (d = 0; d < desc.rank; ++d) desc.dims[d] = port->dims[d] < 0 ? 1 : port->dims[d];
  check(wia_allocate_tensor(ctx, &desc, &tensor));
  check(wia_get_tensor_data(tensor, &data));
  for (i = 0; i < count_elements(&desc); ++i) {
    switch (port->dtype) {
      case WIA_FLOAT32: ((float*)data)[i] = (float)i; break;
      case WIA_INT64: ((int64_t*)data)[i] = (int64_t)i; break;
      case WIA_INT32: ((int32_t*)data)[i] = (int32_t)i; break;
      case WIA_UINT8: ((uint8_t*)data)[i] = (uint8_t)i; break;
      case WIA_INT8: ((int8_t*)data)[i] = (int8_t)(i % 128); break;
      default: fprintf(stderr, "error: input '%s' has an element type that this example does not fill\n", port->name); exit(1);
    }
  }
  return tensor;
}

static void print_output(const wia_port_info_t* port, wia_tensor_t tensor) {
  wia_tensor_desc_t desc;
  size_t i, n;
  int d;
  check(wia_get_tensor_desc(tensor, &desc));
  n = count_elements(&desc);
  printf("%s [", port->name);
  for (d = 0; d < desc.rank; ++d) printf("%s%lld", d ? ", " : "", (long long)desc.dims[d]);
  printf("]:");
  for (i = 0; i < n && i < SHOWN; ++i) {
    switch (desc.dtype) {
      case WIA_FLOAT32: printf(" %g", (double)((float*)desc.data)[i]); break;
      case WIA_INT64: printf(" %lld", (long long)((int64_t*)desc.data)[i]); break;
      case WIA_INT32: printf(" %d", ((int32_t*)desc.data)[i]); break;
      case WIA_UINT8: printf(" %d", ((uint8_t*)desc.data)[i]); break;
      case WIA_INT8: printf(" %d", ((int8_t*)desc.data)[i]); break;
      default: printf(" ?"); break;
    }
  }
  printf(n > SHOWN ? " ...\n" : "\n");
}

int main(int argc, char** argv) {
  wia_context_t ctx;
  wia_model_t model;
  wia_session_t session;
  wia_device_t device;
  wia_device_info_t device_info;
  wia_port_info_t port;
  wia_tensor_t inputs[MAX_PORTS], outputs[MAX_PORTS] = {NULL};
  int n_inputs, n_outputs, i;

  if (argc != 2) {
    fprintf(stderr, "usage: %s model.onnx\n", argv[0]);
    return 2;
  }
  check(wia_get_current_device(&device));
  check(wia_get_device_info(device, &device_info));
  printf("device: %s\n", device_info.name);

  check(wia_create_context(NULL, &ctx));
  check(wia_load_model(ctx, argv[1], &model));
  check(wia_create_session(ctx, model, NULL, &session));
  check(wia_destroy_model(model));

  check(wia_get_session_input_count(session, &n_inputs));
  check(wia_get_session_output_count(session, &n_outputs));
  if (n_inputs > MAX_PORTS || n_outputs > MAX_PORTS) {
    fprintf(stderr, "error: more than %d inputs or outputs\n", MAX_PORTS);
    return 1;
  }
  for (i = 0; i < n_inputs; ++i) {
    check(wia_get_session_input(session, i, &port));
    inputs[i] = make_input(ctx, &port);
  }
  check(wia_run_session(session, inputs, n_inputs, outputs, n_outputs, NULL));
  for (i = 0; i < n_outputs; ++i) {
    check(wia_get_session_output(session, i, &port));
    print_output(&port, outputs[i]);
  }
  check(wia_destroy_context(ctx)); /* and all that was made in it */
  return 0;
}
