// SPDX-License-Identifier: Apache-2.0
// The protobuf wire format, read where it lies. Every length is checked against the bytes that are
// there.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace wia::onnx {

using Bytes = std::span<const uint8_t>;

enum class WireType : uint8_t { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };

bool is_utf8(Bytes text);

// One field of a message: its number, and its value in the form of its wire type.
struct Field {
  uint32_t number = 0;
  WireType type = WireType::kVarint;
  uint64_t varint = 0;  // kVarint; kFixed32 and kFixed64 as raw bits
  Bytes bytes;          // kLength

  int64_t integer() const {
    expect(WireType::kVarint);
    return static_cast<int64_t>(varint);
  }
  float float32() const {
    expect(WireType::kFixed32);
    const uint32_t bits = static_cast<uint32_t>(varint);
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  Bytes message() const {
    expect(WireType::kLength);
    return bytes;
  }
  // Text: valid UTF-8, so that names can be printed and handed to any language.
  std::string string() const {
    expect(WireType::kLength);
    if (!is_utf8(bytes)) malformed("field " + std::to_string(number) + " is text, but not UTF-8");
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  void expect(WireType wanted) const {
    if (type != wanted)
      malformed("field " + std::to_string(number) + " has another wire type than ONNX gives it");
  }
  [[noreturn]] static void malformed(const std::string& what) {
    fail(WIA_ERROR_INVALID_ARGUMENT, "not a valid ONNX file: " + what);
  }
};

// Walks the fields of one message.
class Message {
 public:
  explicit Message(Bytes bytes) : rest_(bytes) {}
  // False at the end of the message.
  bool next(Field& field);

 private:
  uint64_t varint();
  uint64_t fixed(size_t n_bytes);
  Bytes rest_;
};

// The elements of a repeated scalar field, packed or not; one call per occurrence of the field.
template <class Add>
void each_varint(const Field& field, Add add);
template <class Add>
void each_fixed(const Field& field, size_t n_bytes, Add add);

// A varint at the front of `rest`, which moves past it.
uint64_t take_varint(Bytes& rest);

template <class Add>
void each_varint(const Field& field, Add add) {
  if (field.type == WireType::kVarint) return add(field.varint);
  Bytes rest = field.message();
  while (!rest.empty()) add(take_varint(rest));
}

template <class Add>
void each_fixed(const Field& field, size_t n_bytes, Add add) {
  if (field.type == (n_bytes == 4 ? WireType::kFixed32 : WireType::kFixed64))
    return add(field.varint);
  const Bytes packed = field.message();
  if (packed.size() % n_bytes != 0)
    Field::malformed("a packed field whose length is no multiple of its elements");
  for (size_t at = 0; at < packed.size(); at += n_bytes) {
    uint64_t bits = 0;
    std::memcpy(&bits, packed.data() + at, n_bytes);  // little-endian, as every CPU we run on
    add(bits);
  }
}

}  // namespace wia::onnx
