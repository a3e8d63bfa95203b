// Panels [begin, end) of a linear layer, for all rows. Included once per instruction set, as vectors.h
// is.
//
// Each output is summed over the inputs in order, kDepth of them at a time, in a lane of its own: so its
// bits do not depend on how many rows there are, on which of them it belongs to, or on threads.

#include "vectors.h"

namespace parley::PARLEY_ISA {

constexpr int64_t kDepth = 128;  // inputs summed before they join the total: less rounding
constexpr int kTileRows = 6;

// kRows rows by kPanels panels, which are read once.
template <int kRows, int kPanels>
PARLEY_INLINE void linear_tile(const LinearProblem& p, int64_t first_row, int64_t first_panel) {
  const float* const rows = p.rows + first_row * p.row_stride;
  const float* const panels = p.panels + first_panel * p.num_inputs * kPanel;
  Floats totals[kRows][kPanels];
  for (int64_t begin = 0; begin == 0 || begin < p.num_inputs; begin += kDepth) {
    const int64_t end = std::min(begin + kDepth, p.num_inputs);
    Floats sums[kRows][kPanels];
    for (auto& row : sums) {
      for (Floats& sum : row) sum = splat(0.0f);
    }
    for (int64_t input = begin; input < end; ++input) {
      for (int panel = 0; panel < kPanels; ++panel) {
        const Floats weight = load(panels + (panel * p.num_inputs + input) * kPanel);
        for (int row = 0; row < kRows; ++row) {
          add_scaled(sums[row][panel], rows[row * p.row_stride + input], weight);
        }
      }
    }
    for (int row = 0; row < kRows; ++row) {
      for (int panel = 0; panel < kPanels; ++panel) {
        if (begin == 0) {
          totals[row][panel] = sums[row][panel];
        } else {
          add(totals[row][panel], sums[row][panel]);
        }
      }
    }
  }
  for (int panel = 0; panel < kPanels; ++panel) {
    const int64_t output = (first_panel + panel) * kPanel;
    const int64_t num_outputs = std::min(kPanel, p.num_outputs - output);
    for (int row = 0; row < kRows; ++row) {
      float result[kPanel];
      store(result, totals[row][panel]);
      float* const to = p.out + (first_row + row) * p.out_stride + output;
      for (int64_t i = 0; i < num_outputs; ++i) {
        to[i] = p.bias ? result[i] + p.bias[output + i] : result[i];
      }
    }
  }
}

// All of a panel's rows while the panel is in the cache; few rows take several panels at once, so that
// enough sums grow side by side to hide the latency of each.
void compute_panels(const LinearProblem& p, int64_t begin, int64_t end) {
  int64_t panel = begin;
  if (p.num_rows == 1) {
    for (; panel + 4 <= end; panel += 4) linear_tile<1, 4>(p, 0, panel);
  } else if (p.num_rows == 2) {
    for (; panel + 2 <= end; panel += 2) linear_tile<2, 2>(p, 0, panel);
  }
  for (; panel < end; ++panel) {
    int64_t row = 0;
    for (; row + kTileRows <= p.num_rows; row += kTileRows) linear_tile<kTileRows, 1>(p, row, panel);
    switch (p.num_rows - row) {
      case 5: linear_tile<5, 1>(p, row, panel); break;
      case 4: linear_tile<4, 1>(p, row, panel); break;
      case 3: linear_tile<3, 1>(p, row, panel); break;
      case 2: linear_tile<2, 1>(p, row, panel); break;
      case 1: linear_tile<1, 1>(p, row, panel); break;
    }
  }
}

}  // namespace parley::PARLEY_ISA
