// SPDX-License-Identifier: Apache-2.0
// Writes ONNX messages for tests, field by field, valid or not.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace wia::onnx::testing {

class Proto {
 public:
  Proto& integer(uint32_t field, int64_t value) {
    varint(uint64_t{field} << 3);
    varint(static_cast<uint64_t>(value));
    return *this;
  }
  Proto& float32(uint32_t field, float value) {
    varint(uint64_t{field} << 3 | 5);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  Proto& text(uint32_t field, const std::string& value) {
    varint(uint64_t{field} << 3 | 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Proto& message(uint32_t field, const Proto& value) { return text(field, value.bytes_); }
  template <class T>
  Proto& raw(uint32_t field, const std::vector<T>& values) {
    return text(field, std::string(reinterpret_cast<const char*>(values.data()),
                                   values.size() * sizeof(T)));
  }
  Proto& packed(uint32_t field, const std::vector<int64_t>& values) {
    Proto body;
    for (int64_t v : values) body.varint(static_cast<uint64_t>(v));
    return message(field, body);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

// TensorProto without data.
inline Proto tensor(const std::string& name, int data_type, const std::vector<int64_t>& dims) {
  return Proto().packed(1, dims).integer(2, data_type).text(8, name);
}

// ValueInfoProto; a dimension below 0 is symbolic, "d<index>".
inline Proto value_info(const std::string& name, int data_type, const std::vector<int64_t>& dims) {
  Proto shape;
  for (size_t i = 0; i < dims.size(); ++i)
    shape.message(
        1, dims[i] >= 0 ? Proto().integer(1, dims[i]) : Proto().text(2, "d" + std::to_string(i)));
  return Proto().text(1, name).message(
      2, Proto().message(1, Proto().integer(1, data_type).message(2, shape)));
}

inline Proto node(const std::string& op_type, const std::vector<std::string>& inputs,
                  const std::vector<std::string>& outputs, const std::string& name = "") {
  Proto p;
  for (const auto& i : inputs) p.text(1, i);
  for (const auto& o : outputs) p.text(2, o);
  return p.text(3, name).text(4, op_type);
}

inline Proto opset(const std::string& domain, int64_t version) {
  return Proto().text(1, domain).integer(2, version);
}

inline Proto model(const Proto& graph, int64_t opset_version = 17, int64_t ir_version = 8) {
  return Proto().integer(1, ir_version).message(7, graph).message(8, opset("", opset_version));
}

// GraphProto fields.
inline constexpr uint32_t kNode = 1, kInitializer = 5, kInput = 11, kOutput = 12, kAttribute = 5;

}  // namespace wia::onnx::testing
