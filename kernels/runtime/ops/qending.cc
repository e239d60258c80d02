// SPDX-License-Identifier: Apache-2.0
// How an integer product ends, as the attributes of its node say.
#include "runtime/ops/qending.h"

namespace wia {
namespace {

constexpr int64_t kLevels = 256;

int32_t level(const Node& node, const char* key, int64_t otherwise) {
  const int64_t value = node.i(key, otherwise);
  require(value >= 0 && value < kLevels,
          node.where() + ": attribute '" + key + "' is no uint8 level");
  return static_cast<int32_t>(value);
}

const uint8_t* table_of(const Node& node, const char* key, Tensor* keep) {
  const Tensor* table = node.tensor(key);
  if (!table) return nullptr;
  require(table->dtype == DType::kUint8 && table->numel() == kLevels,
          node.where() + ": attribute '" + key + "' is not a table of 256 levels");
  *keep = *table;
  return keep->as<uint8_t>();
}

}  // namespace

Ending::Ending(const Node& node) : quantized_(node.i("quantized", 1) != 0) {
  const Tensor* multiplier = node.tensor("multiplier");
  require(multiplier && multiplier->dtype == DType::kFloat32 && multiplier->numel() >= 1,
          node.where() + ": attribute 'multiplier' is missing");
  multiplier_ = *multiplier;
  if (const Tensor* bias = node.tensor("bias")) {
    require(bias->dtype == DType::kInt32, node.where() + ": attribute 'bias' is not int32");
    bias_ = *bias;
  }
  if (!quantized_) {
    epilogue_.output = QOutput::kF32;
    return;
  }
  epilogue_.zero_point = level(node, "zero_point", 0);
  epilogue_.qmin = static_cast<uint8_t>(level(node, "qmin", 0));
  epilogue_.qmax = static_cast<uint8_t>(level(node, "qmax", 255));
  epilogue_.table = table_of(node, "table", &table_);
  has_residual_ = node.i("residual", 0) != 0;
  if (!has_residual_) return;
  epilogue_.sum_a_zero_point = level(node, "sum_a_zero_point", 0);
  epilogue_.sum_b_zero_point = level(node, "sum_b_zero_point", 0);
  epilogue_.sum_zero_point = level(node, "sum_zero_point", 0);
  epilogue_.sum_a_multiplier = node.f("sum_a_multiplier", 0.0f);
  epilogue_.sum_b_multiplier = node.f("sum_b_multiplier", 0.0f);
  epilogue_.sum_qmin = static_cast<uint8_t>(level(node, "sum_qmin", 0));
  epilogue_.sum_qmax = static_cast<uint8_t>(level(node, "sum_qmax", 255));
  epilogue_.sum_table = table_of(node, "sum_table", &sum_table_);
}

void Ending::check_channels(const std::string& where, int64_t n) const {
  require(multiplier_.numel() == 1 || multiplier_.numel() == n,
          where + ": not one multiplier a channel");
  require(!bias_.data || bias_.numel() == n, where + ": not one bias a channel");
}

size_t Ending::residual_ld(const std::string& where, const Shape& residual,
                           const Shape& out) const {
  const int64_t n = out[out.rank() - 1];
  if (residual == out) return static_cast<size_t>(n);
  const bool row = residual.rank() >= 1 && residual.rank() <= out.rank() &&
                   residual[residual.rank() - 1] == n &&
                   product(residual, 0, residual.rank() - 1) == 1;
  require(row, where + ": the residual is " + residual.str() + " but the output " + out.str());
  return 0;
}

QEpilogue Ending::epilogue(const uint8_t* residual, size_t ld) const {
  QEpilogue epilogue = epilogue_;
  epilogue.residual = has_residual_ ? residual : nullptr;
  epilogue.ld_residual = ld;
  return epilogue;
}

}  // namespace wia
