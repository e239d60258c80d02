// SPDX-License-Identifier: Apache-2.0
// Models and sessions of the C API.
#include "capi/view.h"
#include "onnx/reader.h"

using namespace wia;
using namespace wia::capi;

namespace {

void fill(const Port& port, wia_port_info_t* info) {
  *info = {};
  info->name = port.name.c_str();
  info->dtype = static_cast<wia_datatype_t>(port.dtype);
  info->rank = port.has_shape ? port.shape.rank() : -1;
  for (int d = 0; d < port.shape.rank(); ++d) {
    info->dims[d] = port.shape[d];
    info->dim_names[d] = port.dim_names[static_cast<size_t>(d)].c_str();
  }
}

void fill_at(const std::vector<Port>& ports, int index, wia_port_info_t* info, const char* what) {
  require(info != nullptr, "info must not be NULL");
  require(index >= 0 && static_cast<size_t>(index) < ports.size(),
          std::string(what) + " " + std::to_string(index) + ": the model has " +
              std::to_string(ports.size()));
  fill(ports[static_cast<size_t>(index)], info);
}

void require_count(int given, size_t wanted, const char* what) {
  require(
      given >= 0 && static_cast<size_t>(given) == wanted,
      "the model has " + std::to_string(wanted) + " " + what + ", not " + std::to_string(given));
}

std::shared_ptr<TensorObject> new_tensor(const Tensor& from) {
  auto object = std::make_shared<TensorObject>();
  object->dtype = from.dtype;
  object->shape = from.shape;
  int64_t stride = 1;
  for (int d = from.shape.rank(); d-- > 0;) {
    object->strides[d] = stride;
    stride *= from.shape[d];
  }
  object->memory = from.owner;
  object->data = static_cast<std::byte*>(from.data);
  return object;
}

}  // namespace

extern "C" wia_status_t wia_load_model(wia_context_t ctx, const char* path, wia_model_t* model) {
  return guard(__func__, [&] {
    auto context = get<Context>(ctx, "ctx");
    require(path != nullptr && model != nullptr, "path and model must not be NULL");
    const BudgetScope scope(context->budget);
    auto object = std::make_shared<Model>();
    object->graph = onnx::read_model_file(path);
    *model = adopt<wia_model_t>(context, std::move(object));
  });
}

extern "C" wia_status_t wia_load_model_from_memory(wia_context_t ctx, const void* bytes,
                                                   size_t size, wia_model_t* model) {
  return guard(__func__, [&] {
    auto context = get<Context>(ctx, "ctx");
    require(bytes != nullptr && model != nullptr, "bytes and model must not be NULL");
    const BudgetScope scope(context->budget);
    auto object = std::make_shared<Model>();
    object->graph = onnx::read_model({static_cast<const uint8_t*>(bytes), size}, "");
    *model = adopt<wia_model_t>(context, std::move(object));
  });
}

extern "C" wia_status_t wia_destroy_model(wia_model_t model) {
  return guard(__func__, [&] { release<Model>(model, "model"); });
}

extern "C" wia_status_t wia_create_session(wia_context_t ctx, wia_model_t model,
                                           const wia_session_config_t* config,
                                           wia_session_t* session) {
  return guard(__func__, [&] {
    auto context = get<Context>(ctx, "ctx");
    auto source = get_in<Model>(*context, model, "model");
    require(session != nullptr, "session must not be NULL");
    SessionOptions options;
    options.budget = context->budget;
    {
      const std::lock_guard lock(context->running);
      options.n_threads = context->pool->size();
    }
    if (config) {
      require(config->n_threads >= 0, "config->n_threads must not be negative");
      require(config->max_loop_iterations >= 0, "config->max_loop_iterations must not be negative");
      if (config->n_threads > 0) options.n_threads = static_cast<size_t>(config->n_threads);
      if (config->isa) options.isa = config->isa;
      if (config->max_loop_iterations > 0)
        options.max_loop_iterations = config->max_loop_iterations;
    }
    auto object = std::make_shared<SessionObject>();
    object->session = Session::from_graph(clone(source->graph), options);
    *session = adopt<wia_session_t>(context, std::move(object));
  });
}

extern "C" wia_status_t wia_destroy_session(wia_session_t session) {
  return guard(__func__, [&] { release<SessionObject>(session, "session"); });
}

extern "C" wia_status_t wia_get_session_input_count(wia_session_t session, int* count) {
  return guard(__func__, [&] {
    auto object = get<SessionObject>(session, "session");
    require(count != nullptr, "count must not be NULL");
    *count = static_cast<int>(object->session->inputs().size());
  });
}

extern "C" wia_status_t wia_get_session_output_count(wia_session_t session, int* count) {
  return guard(__func__, [&] {
    auto object = get<SessionObject>(session, "session");
    require(count != nullptr, "count must not be NULL");
    *count = static_cast<int>(object->session->outputs().size());
  });
}

extern "C" wia_status_t wia_get_session_input(wia_session_t session, int index,
                                              wia_port_info_t* info) {
  return guard(__func__, [&] {
    auto object = get<SessionObject>(session, "session");
    fill_at(object->session->inputs(), index, info, "input");
  });
}

extern "C" wia_status_t wia_get_session_output(wia_session_t session, int index,
                                               wia_port_info_t* info) {
  return guard(__func__, [&] {
    auto object = get<SessionObject>(session, "session");
    fill_at(object->session->outputs(), index, info, "output");
  });
}

extern "C" wia_status_t wia_run_session(wia_session_t session, const wia_tensor_t* inputs,
                                        int n_inputs, wia_tensor_t* outputs, int n_outputs,
                                        wia_stream_t stream) {
  return guard(__func__, [&] {
    auto object = get<SessionObject>(session, "session");
    auto context = object->context.lock();
    require(context != nullptr, "the session's context was destroyed");
    check_stream(*context, stream);
    require_count(n_inputs, object->session->inputs().size(), "inputs");
    require_count(n_outputs, object->session->outputs().size(), "outputs");
    require((inputs || n_inputs == 0) && (outputs || n_outputs == 0),
            "inputs and outputs must not be NULL");
    const Timed timed(*context, __func__);
    const BudgetScope scope(context->budget);
    std::vector<std::shared_ptr<TensorObject>> given,
        targets;  // alive through the run, whatever other threads free
    std::vector<Tensor> feeds;
    for (int i = 0; i < n_inputs; ++i) {
      given.push_back(
          get_in<TensorObject>(*context, inputs[i], ("inputs[" + std::to_string(i) + "]").c_str()));
      feeds.push_back(to_dense(View(*given.back())));
    }
    for (int i = 0; i < n_outputs; ++i) {
      targets.push_back(outputs[i]
                            ? get_in<TensorObject>(*context, outputs[i],
                                                   ("outputs[" + std::to_string(i) + "]").c_str())
                            : nullptr);
    }
    const std::vector<Tensor> results = object->session->run(feeds);
    for (int i = 0; i < n_outputs; ++i) {
      if (!targets[i]) continue;
      require(targets[i]->dtype == results[i].dtype && targets[i]->shape == results[i].shape,
              "outputs[" + std::to_string(i) + "] is " + dtype_name(targets[i]->dtype) + " " +
                  targets[i]->shape.str() + ", but the model makes " +
                  dtype_name(results[i].dtype) + " " + results[i].shape.str());
    }
    for (int i = 0; i < n_outputs; ++i) {
      if (targets[i])
        from_dense(results[i], View(*targets[i]));
      else
        outputs[i] = adopt<wia_tensor_t>(context, new_tensor(results[i]));
    }
  });
}
