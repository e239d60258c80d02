// SPDX-License-Identifier: Apache-2.0
// What the runtime asks of an operator: its output shapes, then its work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "base/thread_pool.h"
#include "graph/graph.h"

namespace wia {

// What a kernel may know when it is made.
struct KernelContext {
  uint32_t isa;        // cpu feature mask, already capped
  const Graph* graph;  // for constants among the node's inputs: graph->values[id].constant
  size_t n_threads;
  int64_t max_loop_iterations = INT64_MAX;
};

// The inputs as far as they are known, and where the outputs' types and shapes go.
class InferContext {
 public:
  virtual ~InferContext() = default;
  virtual size_t n_inputs() const = 0;
  virtual bool has(size_t input) const = 0;  // present, not an omitted optional
  virtual DType dtype(size_t input) const = 0;
  virtual const Shape& shape(size_t input) const = 0;   // every dimension known
  virtual const Tensor* value(size_t input) const = 0;  // nullptr while the contents are not known
  virtual size_t n_outputs() const = 0;
  virtual bool wants(size_t output) const = 0;  // false: an omitted optional output
  virtual void set(size_t output, DType dtype, const Shape& shape) = 0;
};

// Buffers at run time. Inputs and outputs are dense and 64-byte aligned; outputs have the shapes
// that infer() set.
class RunContext {
 public:
  virtual ~RunContext() = default;
  virtual const Tensor* input(size_t i) const = 0;  // nullptr: an omitted optional
  virtual Tensor* output(size_t i) = 0;             // nullptr: an omitted optional
  virtual std::byte* scratch() = 0;  // 64-byte aligned, scratch_bytes() of them, contents undefined
  virtual ThreadPool& pool() = 0;
};

enum class Inferred {
  kDone,         // every wanted output was set
  kNeedsValues,  // the shapes depend on contents that are not known yet: ask again at run time
  kAtRun,        // never known before run(): run() makes its outputs itself (NonZero, If, Loop)
};

// One operator of one model. Made once when a session is created (weights are packed in the
// constructor); infer() is called for each new set of input shapes, then run() any number of times.
// Everything that can fail fails in the constructor or in infer(); run() may throw only for
// contents that nothing could check before (an index out of range).
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual Inferred infer(InferContext& context) = 0;
  virtual size_t scratch_bytes() const { return 0; }
  // What the kernel holds from one run to the next: weights in its own layout, tables, subgraphs.
  virtual size_t owned_bytes() const { return 0; }
  // An output 0 that is the bytes of this input under another shape (Reshape, Identity ...), -1 for
  // none: no copy.
  virtual int alias_of() const { return -1; }
  // True when output 0 may be written over this input of the same size: element i depends on no
  // other element.
  virtual bool may_overwrite(size_t input) const {
    (void)input;
    return false;
  }
  // True when the constructor took all it needs from this constant input: its memory may be freed,
  // and run() then finds its data null.
  virtual bool consumed(size_t input) const {
    (void)input;
    return false;
  }
  // True when the outputs depend on input shapes alone (Shape, Size): run() is called at plan time,
  // data() unread.
  virtual bool from_shapes_only() const { return false; }
  virtual void run(RunContext& context) = 0;
  // The name of the implementation for `inspect`: "qconv_u8s8_avx512vnni", "reference".
  virtual std::string implementation() const { return "reference"; }
};

using MakeKernel = std::unique_ptr<Kernel> (*)(const Node& node, const KernelContext& context);

struct OpEntry {
  const char* domain;  // "" is ai.onnx
  const char* op_type;
  MakeKernel make;
};

// The table of runtime/ops.inc. nullptr when libwia has no such operator.
const OpEntry* find_op(const std::string& domain, const std::string& op_type);
std::span<const OpEntry> all_ops();

}  // namespace wia
