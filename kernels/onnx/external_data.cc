// SPDX-License-Identifier: Apache-2.0
// Tensors stored beside the model.
#include "onnx/external_data.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace wia::onnx {
namespace fs = std::filesystem;
namespace {

std::string checked_path(const std::string& folder, const std::string& tensor,
                         const std::string& location) {
  const std::string where = "tensor '" + tensor + "': external data '" + location + "'";
  require(!folder.empty(),
          where + " cannot be found from a model in memory; load the model by its path");
  const fs::path relative = fs::path(location);
  require(!location.empty() && location.find('\0') == std::string::npos && relative.is_relative() &&
              std::none_of(relative.begin(), relative.end(),
                           [](const fs::path& part) { return part == ".."; }),
          where + " must be a file name relative to the model's folder, without '..'");
  std::error_code error;
  const fs::path base = fs::canonical(folder, error);
  require(!error, where + ": the model's folder '" + folder + "' cannot be resolved");
  const fs::path real = fs::canonical(base / relative, error);
  require(!error, where + ": no such file in '" + folder + "'");
  const auto [end, rest] = std::mismatch(base.begin(), base.end(), real.begin(), real.end());
  require(end == base.end(), where + " is a link that leaves the model's folder");
  require(fs::is_regular_file(real, error), where + " is not a regular file");
  return real.string();
}

}  // namespace

void ExternalData::read(const std::string& tensor, const std::string& location, uint64_t offset,
                        std::span<uint8_t> out) {
  auto it = resolved_.find(location);
  if (it == resolved_.end())
    it = resolved_.emplace(location, checked_path(folder_, tensor, location)).first;
  std::ifstream file(it->second, std::ios::binary | std::ios::ate);
  require(file.good(), "tensor '" + tensor + "': cannot open external data '" + it->second + "'");
  const uint64_t size = static_cast<uint64_t>(file.tellg());
  require(offset <= size && out.size() <= size - offset,
          "tensor '" + tensor + "': external data '" + location + "' has " + std::to_string(size) +
              " bytes, but " + std::to_string(out.size()) + " are wanted from byte " +
              std::to_string(offset));
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(out.size()));
  require(static_cast<size_t>(file.gcount()) == out.size(),
          "tensor '" + tensor + "': cannot read external data '" + it->second + "'");
}

std::string read_file(const std::string& path) {
  std::error_code error;
  require(fs::exists(path, error), "'" + path + "': no such file");
  require(fs::is_regular_file(path, error), "'" + path + "' is not a file");
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  require(file.good(), "'" + path + "': cannot open it");
  std::string bytes(static_cast<size_t>(file.tellg()), '\0');
  file.seekg(0);
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  require(static_cast<size_t>(file.gcount()) == bytes.size(), "'" + path + "': cannot read it");
  return bytes;
}

}  // namespace wia::onnx
