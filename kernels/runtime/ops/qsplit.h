// SPDX-License-Identifier: Apache-2.0
// How the rows and panels of an integer product are shared among threads: blocks of rows; panels
// too when the rows do not keep all threads busy.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/qgemm/qgemm.h"

namespace wia {

class RowsAndPanels {
 public:
  RowsAndPanels(size_t rows, size_t panels, size_t n_threads)
      : rows_(rows),
        panels_(static_cast<int64_t>(panels)),
        blocks_(static_cast<int64_t>((rows + kQGemmRows - 1) / kQGemmRows)) {
    const int64_t wanted = n_threads > 1 ? kTasksPerThread * static_cast<int64_t>(n_threads) : 1;
    if (blocks_ < wanted && blocks_ > 0)
      parts_ = std::max<int64_t>(1, std::min(panels_, (wanted + blocks_ - 1) / blocks_));
    grain_ = parts_ > 1 ? 1 : std::max<int64_t>(1, blocks_ / wanted);
  }

  int64_t tasks() const { return blocks_ * parts_; }
  int64_t grain() const { return grain_; }

  // body(row_begin, row_end, panel_begin, panel_end) for tasks [begin, end).
  template <class Body>
  void each(int64_t begin, int64_t end, Body&& body) const {
    if (parts_ == 1) {
      body(static_cast<size_t>(begin) * kQGemmRows,
           std::min(rows_, static_cast<size_t>(end) * kQGemmRows), size_t{0},
           static_cast<size_t>(panels_));
      return;
    }
    for (int64_t task = begin; task < end; ++task) {
      const int64_t block = task / parts_, part = task % parts_;
      body(static_cast<size_t>(block) * kQGemmRows,
           std::min(rows_, static_cast<size_t>(block + 1) * kQGemmRows),
           static_cast<size_t>(panels_ * part / parts_),
           static_cast<size_t>(panels_ * (part + 1) / parts_));
    }
  }

 private:
  static constexpr int64_t kTasksPerThread = 4;
  size_t rows_;
  int64_t panels_, blocks_, parts_ = 1, grain_ = 1;
};

}  // namespace wia
