// SPDX-License-Identifier: Apache-2.0
// TensorProto -> Tensor.
#include "onnx/tensor_proto.h"

#include <charconv>
#include <map>
#include <vector>

namespace wia::onnx {
namespace {

// The field that holds elements of a type when raw_data does not (onnx.proto).
enum class Typed { kFloat = 4, kInt32 = 5, kInt64 = 7, kDouble = 10, kUint64 = 11, kNone = 0 };

struct Storage {
  DType dtype;
  Typed typed;
  bool packed4 = false;  // two elements a byte, the low half first
};
constexpr Storage kStorage[] = {
    {DType::kFloat32, Typed::kFloat},    {DType::kFloat64, Typed::kDouble},
    {DType::kInt64, Typed::kInt64},      {DType::kUint64, Typed::kUint64},
    {DType::kUint32, Typed::kUint64},    {DType::kInt32, Typed::kInt32},
    {DType::kInt16, Typed::kInt32},      {DType::kUint16, Typed::kInt32},
    {DType::kInt8, Typed::kInt32},       {DType::kUint8, Typed::kInt32},
    {DType::kBool, Typed::kInt32},       {DType::kFloat16, Typed::kInt32},
    {DType::kBFloat16, Typed::kInt32},   {DType::kFloat8E4M3, Typed::kInt32},
    {DType::kFloat8E5M2, Typed::kInt32}, {DType::kUint4, Typed::kInt32, true},
    {DType::kInt4, Typed::kInt32, true},
};

const Storage& storage_of(DType dtype) {
  for (const Storage& storage : kStorage)
    if (storage.dtype == dtype) return storage;
  fail(WIA_ERROR_NOT_SUPPORTED, std::string("tensors of ") + dtype_name(dtype));
}

// Names of onnx.TensorProto.DataType that libwia has no type for.
const char* foreign_name(int64_t data_type) {
  switch (data_type) {
    case 8:
      return "string";
    case 14:
      return "complex64";
    case 15:
      return "complex128";
    case 18:
      return "float8e4m3fnuz";
    case 20:
      return "float8e5m2fnuz";
    case 23:
      return "float4e2m1";
    case 24:
      return "float8e8m0";
    case 25:
      return "uint2";
    case 26:
      return "int2";
    case 27:
      return "float6e2m3";
    case 28:
      return "float6e3m2";
    default:
      return nullptr;
  }
}

uint64_t to_uint64(const std::string& text, const std::string& where) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(error == std::errc() && end == text.data() + text.size(),
          where + ": '" + text + "' in external_data is no number");
  return value;
}

struct Proto {
  std::vector<int64_t> dims;
  int64_t data_type = 0;
  std::string name;
  bool external = false, has_raw = false, segment = false;
  Bytes raw;
  std::map<std::string, std::string> external_data;
  std::vector<Field> typed;
};

std::pair<std::string, std::string> read_entry(Bytes message) {
  std::pair<std::string, std::string> entry;
  Field field;
  for (Message m(message); m.next(field);) {
    if (field.number == 1) entry.first = field.string();
    if (field.number == 2) entry.second = field.string();
  }
  return entry;
}

Proto parse(Bytes message) {
  Proto proto;
  Field field;
  for (Message m(message); m.next(field);) {
    switch (field.number) {
      case 1:
        each_varint(field, [&](uint64_t d) { proto.dims.push_back(static_cast<int64_t>(d)); });
        break;
      case 2:
        proto.data_type = field.integer();
        break;
      case 3:
        proto.segment = true;
        break;
      case 4:
      case 5:
      case 7:
      case 10:
      case 11:
        proto.typed.push_back(field);
        break;
      case 8:
        proto.name = field.string();
        break;
      case 9:
        proto.raw = field.message();
        proto.has_raw = true;
        break;
      case 13:
        proto.external_data.insert(read_entry(field.message()));
        break;
      case 14:
        proto.external = field.integer() == 1;
        break;
      default:
        break;
    }
  }
  return proto;
}

// Writes elements of `n_bytes` one after the other, never past the end.
struct Sink {
  uint8_t* at;
  uint8_t* end;
  size_t n_bytes;
  bool overflow = false;
  void put(uint64_t bits) {
    if (static_cast<size_t>(end - at) < n_bytes) {
      overflow = true;
      return;
    }
    std::memcpy(at, &bits, n_bytes);
    at += n_bytes;
  }
};

void unpack4(Bytes packed, bool is_signed, size_t n, uint8_t* out) {
  for (size_t i = 0; i < n; ++i) {
    const uint8_t nibble = (packed[i / 2] >> (i % 2 ? 4 : 0)) & 0xf;
    out[i] = is_signed && (nibble & 8) ? static_cast<uint8_t>(nibble | 0xf0) : nibble;
  }
}

}  // namespace

DType to_dtype(int64_t data_type, const std::string& where) {
  for (const Storage& storage : kStorage)
    if (static_cast<int64_t>(storage.dtype) == data_type) return storage.dtype;
  const char* name = foreign_name(data_type);
  if (name)
    fail(WIA_ERROR_NOT_SUPPORTED, where + ": elements of type " + name + " are not supported");
  fail(WIA_ERROR_INVALID_ARGUMENT,
       where + ": " + std::to_string(data_type) + " is no ONNX element type");
}

NamedTensor read_tensor(Bytes message, ExternalData& external, const std::string& where) {
  const Proto proto = parse(message);
  const std::string what = proto.name.empty() ? where : "tensor '" + proto.name + "'";
  require(!proto.segment, what + ": tensors in segments are not supported");
  const DType dtype = to_dtype(proto.data_type, what);
  const Storage& storage = storage_of(dtype);
  require(proto.dims.size() <= static_cast<size_t>(Shape::kMaxRank),
          what + ": more than 8 dimensions");
  const Shape shape{std::span<const int64_t>(proto.dims)};
  require(shape.known(), what + ": a negative dimension in " + shape.str());
  const size_t n = static_cast<size_t>(shape.numel());
  const size_t stored = storage.packed4 ? (n + 1) / 2 : n * dtype_size(dtype);

  // Nothing is allocated for elements that the file does not have.
  size_t present = proto.raw.size();
  if (!proto.external && !proto.has_raw) {
    present = 0;
    for (const Field& field : proto.typed)
      present += field.type == WireType::kLength ? field.bytes.size() : 1;
    require(present >= (storage.packed4 ? stored : n), what + ": shape " + shape.str() + " needs " +
                                                           std::to_string(n) +
                                                           " elements, but the file has fewer");
  }

  Tensor tensor = Tensor::allocate(dtype, shape);
  uint8_t* out = tensor.as<uint8_t>();
  std::vector<uint8_t> packed(storage.packed4 ? stored : 0);
  const std::span<uint8_t> target =
      storage.packed4 ? std::span<uint8_t>(packed) : std::span<uint8_t>(out, stored);

  if (proto.external) {
    auto entry = [&](const char* key) {
      auto it = proto.external_data.find(key);
      return it == proto.external_data.end() ? std::string() : it->second;
    };
    require(!entry("location").empty(), what + ": external data without a location");
    if (!entry("length").empty()) {
      require(to_uint64(entry("length"), what) == stored,
              what + ": external data of " + entry("length") + " bytes, but shape " + shape.str() +
                  " of " + dtype_name(dtype) + " needs " + std::to_string(stored));
    }
    external.read(proto.name, entry("location"),
                  entry("offset").empty() ? 0 : to_uint64(entry("offset"), what), target);
  } else if (proto.has_raw && (!proto.raw.empty() || proto.typed.empty())) {
    require(present == stored, what + ": " + std::to_string(present) +
                                   " bytes of data, but shape " + shape.str() + " of " +
                                   dtype_name(dtype) + " needs " + std::to_string(stored));
    if (stored) std::memcpy(target.data(), proto.raw.data(), stored);
  } else {
    Sink sink{target.data(), target.data() + target.size(),
              storage.packed4 ? 1 : dtype_size(dtype)};
    for (const Field& field : proto.typed) {
      require(field.number == static_cast<uint32_t>(storage.typed),
              what + ": its elements are not in the field of " + dtype_name(dtype));
      if (storage.typed == Typed::kFloat)
        each_fixed(field, 4, [&](uint64_t bits) { sink.put(bits); });
      else if (storage.typed == Typed::kDouble)
        each_fixed(field, 8, [&](uint64_t bits) { sink.put(bits); });
      else
        each_varint(field, [&](uint64_t bits) { sink.put(bits); });
    }
    require(!sink.overflow && sink.at == sink.end,
            what + ": shape " + shape.str() + " needs " + std::to_string(n) +
                " elements, but the file has " + (sink.overflow ? "more" : "fewer"));
  }
  if (storage.packed4) unpack4(packed, dtype == DType::kInt4, n, out);
  if (dtype == DType::kBool) {
    for (size_t i = 0; i < n; ++i) out[i] = out[i] != 0;
  }
  return {proto.name, std::move(tensor)};
}

}  // namespace wia::onnx
