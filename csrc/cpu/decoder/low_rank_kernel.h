// Products of an adapter: few rows at a time, read where they lie, and a matrix that is read once for them.
#pragma once

#include "common/vectors.h"
#include "product/group_kernel.h"

namespace parley::PARLEY_ISA {

// Rows whose sums fit into registers: each has two, of every other input, so that one row alone does not
// wait for each of its sums.
#if PARLEY_WIDTH == 16
constexpr int kFewRows = 8;
#elif PARLEY_WIDTH == 8
constexpr int kFewRows = 2;
#else
constexpr int kFewRows = 1;
#endif

constexpr int64_t kAhead = 64;  // inputs: what is fetched meanwhile of this panel, the next, or the next matrix

PARLEY_INLINE Floats load_next(const float* panel, int which) { return load(panel + which * kPanel); }

PARLEY_INLINE Floats load_next(const BFloat16* panel, int which) { return load_input(panel, which); }

// 16 outputs of so many rows. Their order of sums is the same for any number of rows.
template <typename W, int kRows>
PARLEY_INLINE void sum_panel(const W* panel, int64_t num_inputs, const float* const* rows, Floats* sums) {
  Floats even[kRows], odd[kRows];
  unrolled<kRows>([&](auto row) PARLEY_LAMBDA { even[row] = odd[row] = splat(0.0f); });
  int64_t input = 0;
  for (; input + 2 <= num_inputs; input += 2) {
    __builtin_prefetch(panel + (input + kAhead) * kPanel, 0, 2);
    if constexpr (std::is_same_v<W, float>) __builtin_prefetch(panel + (input + kAhead + 1) * kPanel, 0, 2);
    const Floats first = load_next(panel + input * kPanel, 0);
    const Floats second = load_next(panel + input * kPanel, 1);
    unrolled<kRows>([&](auto row) PARLEY_LAMBDA {
      add_product(even[row], splat(rows[row][input]), first);
      add_product(odd[row], splat(rows[row][input + 1]), second);
    });
  }
  if constexpr (std::is_same_v<W, float>) {
    if (input < num_inputs) {
      const Floats last = load(panel + input * kPanel);
      unrolled<kRows>([&](auto row) PARLEY_LAMBDA {
        add_product(even[row], splat(rows[row][input]), last);
      });
    }
  }
  unrolled<kRows>([&](auto row) PARLEY_LAMBDA {
    add(even[row], odd[row]);
    sums[row] = even[row];
  });
}

PARLEY_INLINE void write_panel(float* to, int64_t num_outputs, bool adds, const Floats& sums) {
  if (num_outputs >= kPanel) {
    Floats result = sums;
    if (adds) add(result, load(to));
    store(to, result);
    return;
  }
  float result[kPanel];
  store(result, sums);
  for (int64_t i = 0; i < num_outputs; ++i) to[i] = adds ? to[i] + result[i] : result[i];
}

template <typename W, int kRows>
void multiply_few(const LowRankProduct& p, int64_t first_row, int64_t begin, int64_t end) {
  for (int64_t panel = begin; panel < end; ++panel) {
    const W* const weights = static_cast<const W*>(p.panels) + panel * p.num_inputs * kPanel;
    if (p.adds) {
      for (int row = 0; row < kRows; ++row) {
        __builtin_prefetch(p.outs[first_row + row] + (panel + 2) * p.panel_stride, 1);
      }
    }
    Floats sums[kRows];
    sum_panel<W, kRows>(weights, p.num_inputs, p.rows + first_row, sums);
    for (int row = 0; row < kRows; ++row) {
      float* const to = p.outs[first_row + row] + panel * p.panel_stride;
      write_panel(to, p.num_outputs - panel * kPanel, p.adds, sums[row]);
    }
  }
}

using MultiplyFew = void (*)(const LowRankProduct& p, int64_t first_row, int64_t begin, int64_t end);

// By the number of rows, from 1 on.
template <typename W>
constexpr std::array<MultiplyFew, kFewRows> kMultiplyFew = []<int... i>(std::integer_sequence<int, i...>) {
  return std::array<MultiplyFew, kFewRows>{multiply_few<W, i + 1>...};
}(std::make_integer_sequence<int, kFewRows>{});

// Panels [begin, end) of the outputs of all rows.
void multiply_low_rank(const LowRankProduct& p, int64_t begin, int64_t end) {
  for (int64_t row = 0; row < p.num_rows; row += kFewRows) {
    const int64_t index = std::min<int64_t>(p.num_rows - row, kFewRows) - 1;
    const MultiplyFew multiply =
        p.format == Format::kFloat32 ? kMultiplyFew<float>[index] : kMultiplyFew<BFloat16>[index];
    multiply(p, row, begin, end);
  }
}

}  // namespace parley::PARLEY_ISA
