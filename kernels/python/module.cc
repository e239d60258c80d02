// SPDX-License-Identifier: Apache-2.0
// wia_quant._native: translates types between Python and runtime/session.h, nothing else.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "base/cpu.h"
#include "base/histogram.h"
#include "runtime/session.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using wia::DType;
using Array = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

DType dtype_named(const std::string& name) {
  for (int i = 1; i <= static_cast<int>(DType::kInt4); ++i)
    if (name == wia::dtype_name(static_cast<DType>(i))) return static_cast<DType>(i);
  wia::fail(WIA_ERROR_NOT_SUPPORTED, "arrays of " + name + " are not supported");
}

// name, element type, has a shape, dimensions (-1 unknown), their names
using PortTuple =
    std::tuple<std::string, std::string, bool, std::vector<int64_t>, std::vector<std::string>>;

std::vector<PortTuple> to_tuples(const std::vector<wia::Port>& ports) {
  std::vector<PortTuple> out;
  for (const wia::Port& p : ports)
    out.emplace_back(p.name, wia::dtype_name(p.dtype), p.has_shape,
                     std::vector<int64_t>(p.shape.begin(), p.shape.end()), p.dim_names);
  return out;
}

// An array that keeps the tensor's memory alive; element types numpy does not have come as unsigned
// integers.
nb::object to_array(const wia::Tensor& tensor) {
  nb::dlpack::dtype dtype{static_cast<uint8_t>(nb::dlpack::dtype_code::UInt),
                          static_cast<uint8_t>(wia::dtype_size(tensor.dtype) * 8), 1};
  switch (tensor.dtype) {
    case DType::kFloat16:
    case DType::kFloat32:
    case DType::kFloat64:
      dtype.code = static_cast<uint8_t>(nb::dlpack::dtype_code::Float);
      break;
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
    case DType::kInt4:
      dtype.code = static_cast<uint8_t>(nb::dlpack::dtype_code::Int);
      break;
    case DType::kBool:
      dtype.code = static_cast<uint8_t>(nb::dlpack::dtype_code::Bool);
      break;
    default:
      break;
  }
  std::vector<size_t> shape(tensor.shape.begin(), tensor.shape.end());
  nb::capsule owner(new std::shared_ptr<void>(tensor.owner),
                    [](void* p) noexcept { delete static_cast<std::shared_ptr<void>*>(p); });
  return nb::cast(
      nb::ndarray<nb::numpy>(tensor.data, shape.size(), shape.data(), owner, nullptr, dtype));
}

wia::SessionOptions to_options(size_t threads, const std::string& isa, size_t memory_limit,
                               int64_t max_loop_iterations, bool optimize) {
  return {threads, isa, memory_limit, max_loop_iterations, optimize};
}

}  // namespace

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const wia::Error& e) {
      // (status, message): runtime.py has the table of statuses.
      // Attributes of a broken file may be in the message, and need not be UTF-8.
      const std::string message = e.what();
      nb::object text = nb::steal(PyUnicode_DecodeUTF8(
          message.data(), static_cast<Py_ssize_t>(message.size()), "backslashreplace"));
      PyErr_SetObject(PyExc_RuntimeError, nb::make_tuple(static_cast<int>(e.status()), text).ptr());
    }
  });

  nb::class_<wia::Session>(m, "Session")
      .def_static(
          "from_file",
          [](const std::string& path, size_t threads, const std::string& isa, size_t memory_limit,
             int64_t loops, bool optimize) {
            nb::gil_scoped_release release;
            return wia::Session::from_file(path,
                                           to_options(threads, isa, memory_limit, loops, optimize));
          },
          "path"_a, "threads"_a, "isa"_a, "memory_limit"_a, "max_loop_iterations"_a, "optimize"_a)
      .def_static(
          "from_bytes",
          [](nb::bytes bytes, size_t threads, const std::string& isa, size_t memory_limit,
             int64_t loops, bool optimize) {
            const auto* data = static_cast<const uint8_t*>(bytes.data());
            const size_t size = bytes.size();
            nb::gil_scoped_release release;
            return wia::Session::from_bytes(
                {data, size}, to_options(threads, isa, memory_limit, loops, optimize));
          },
          "model"_a, "threads"_a, "isa"_a, "memory_limit"_a, "max_loop_iterations"_a, "optimize"_a)
      .def("inputs", [](const wia::Session& s) { return to_tuples(s.inputs()); })
      .def("outputs", [](const wia::Session& s) { return to_tuples(s.outputs()); })
      .def("metadata", [](const wia::Session& s) { return s.metadata(); })
      .def(
          "run",
          [](wia::Session& s, const std::vector<std::pair<std::string, Array>>& inputs) {
            std::vector<wia::Tensor> feeds;
            for (const auto& [dtype, array] : inputs) {
              wia::Tensor& feed = feeds.emplace_back();
              feed.dtype = dtype_named(dtype);
              for (size_t i = 0; i < array.ndim(); ++i)
                feed.shape.push_back(static_cast<int64_t>(array.shape(i)));
              feed.data = const_cast<void*>(array.data());
            }
            std::vector<wia::Tensor> results;
            {
              nb::gil_scoped_release release;
              results = s.run(feeds);
            }
            nb::list out;
            for (const wia::Tensor& result : results) out.append(to_array(result));
            return out;
          },
          "inputs"_a)
      .def("plan_declared", &wia::Session::plan_declared, nb::call_guard<nb::gil_scoped_release>())
      .def("set_profiling", &wia::Session::set_profiling, "on"_a)
      .def("report",
           [](wia::Session& s) {
             nb::list out;
             for (const wia::NodeReport& r : s.report()) {
               nb::dict node;
               node["name"] = r.name;
               node["op_type"] = r.op_type;
               node["domain"] = r.domain;
               node["kernel"] = r.implementation;
               node["kind"] = r.kind;
               node["inputs"] = r.inputs;
               node["outputs"] = r.outputs;
               node["input_shapes"] = r.input_shapes;
               node["output_shapes"] = r.output_shapes;
               node["runs"] = r.n_runs;
               node["total_ns"] = r.total_ns;
               out.append(node);
             }
             return out;
           })
      .def("arena_bytes", &wia::Session::arena_bytes)
      .def("weight_bytes", &wia::Session::weight_bytes)
      .def("isa", &wia::Session::isa)
      .def("threads", &wia::Session::n_threads);

  m.def(
      "count_bins",
      [](nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu> x,
         float inverse_width, int32_t first,
         nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> counts) {
        nb::gil_scoped_release released;
        return wia::count_bins(x.data(), x.size(), inverse_width, first, counts.data(),
                               counts.size());
      },
      "x"_a, "inverse_width"_a, "first"_a, "counts"_a);
  m.def("isa", [] { return wia::cpu::isa_name(wia::cpu::mask_for("")); });
  m.def("usable_isas", &wia::cpu::usable_isas);
  m.def("operators", [] {
    std::vector<std::pair<std::string, std::string>> out;
    for (const wia::OpEntry& op : wia::all_ops()) out.emplace_back(op.domain, op.op_type);
    return out;
  });
}
