// SPDX-License-Identifier: Apache-2.0
// Tensors stored beside the model, in files that must lie in the model's own folder.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace wia::onnx {

class ExternalData {
 public:
  // folder: where the model file lies; empty for a model without a file, which can have no external
  // data.
  explicit ExternalData(std::string folder) : folder_(std::move(folder)) {}
  // Fills `out` from byte `offset` of the file `location`. Throws Error for a path that leaves the
  // folder (absolute,
  // "..", a link), a missing file, or one that is too short.
  void read(const std::string& tensor, const std::string& location, uint64_t offset,
            std::span<uint8_t> out);

 private:
  std::string folder_;
  std::map<std::string, std::string> resolved_;  // location -> path, checked
};

// All bytes of a file; throws Error naming it.
std::string read_file(const std::string& path);

}  // namespace wia::onnx
