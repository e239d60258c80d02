// SPDX-License-Identifier: Apache-2.0
// The protobuf wire format.
#include "onnx/wire.h"

namespace wia::onnx {

bool is_utf8(Bytes text) {
  for (size_t i = 0; i < text.size();) {
    const uint8_t lead = text[i++];
    if (lead < 0x80) continue;
    const int n_more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    if (lead < 0xc2 || lead > 0xf4 || text.size() - i < static_cast<size_t>(n_more)) return false;
    uint32_t code = lead & (0x3fu >> n_more);
    for (int k = 0; k < n_more; ++k) {
      const uint8_t next = text[i++];
      if ((next & 0xc0) != 0x80) return false;
      code = code << 6 | (next & 0x3fu);
    }
    // Overlong forms, surrogates, and what is beyond Unicode.
    constexpr uint32_t kLeast[] = {0x80, 0x800, 0x10000};
    if (code < kLeast[n_more - 1] || (code >= 0xd800 && code < 0xe000) || code > 0x10ffff)
      return false;
  }
  return true;
}

uint64_t take_varint(Bytes& rest) {
  constexpr size_t kMaxBytes = 10;
  uint64_t value = 0;
  for (size_t i = 0; i < kMaxBytes && i < rest.size(); ++i) {
    value |= static_cast<uint64_t>(rest[i] & 0x7f) << (7 * i);
    if (!(rest[i] & 0x80)) {
      rest = rest.subspan(i + 1);
      return value;
    }
  }
  Field::malformed(rest.size() < kMaxBytes ? "it ends inside a number"
                                           : "a number of more than 10 bytes");
}

uint64_t Message::varint() { return take_varint(rest_); }

uint64_t Message::fixed(size_t n_bytes) {
  if (rest_.size() < n_bytes) Field::malformed("it ends inside a number");
  uint64_t bits = 0;
  std::memcpy(&bits, rest_.data(), n_bytes);
  rest_ = rest_.subspan(n_bytes);
  return bits;
}

bool Message::next(Field& field) {
  if (rest_.empty()) return false;
  const uint64_t tag = varint();
  field.number = static_cast<uint32_t>(tag >> 3);
  if (tag >> 32 || field.number == 0) Field::malformed("a field number out of range");
  field.type = static_cast<WireType>(tag & 7);
  field.bytes = {};
  switch (field.type) {
    case WireType::kVarint:
      field.varint = varint();
      break;
    case WireType::kFixed64:
      field.varint = fixed(8);
      break;
    case WireType::kFixed32:
      field.varint = fixed(4);
      break;
    case WireType::kLength: {
      const uint64_t length = varint();
      if (length > rest_.size()) {
        Field::malformed("field " + std::to_string(field.number) + " of " + std::to_string(length) +
                         " bytes, where " + std::to_string(rest_.size()) +
                         " are left; is it truncated?");
      }
      field.bytes = rest_.first(static_cast<size_t>(length));
      rest_ = rest_.subspan(static_cast<size_t>(length));
      break;
    }
    default:
      Field::malformed("wire type " + std::to_string(tag & 7));
  }
  return true;
}

}  // namespace wia::onnx
