// What linear computes and in which pieces: shared by linear.cpp, which cuts the work, and
// linear_kernel.h, which does it.
#pragma once

#include <cstdint>

namespace parley {

constexpr int64_t kPanel = 16;  // outputs that grow side by side in one vector

struct LinearProblem {
  const float *rows, *panels, *bias;  // bias may be null
  float* out;
  int64_t num_rows, num_inputs, num_outputs, row_stride, out_stride;
};

using ComputePanels = void (*)(const LinearProblem&, int64_t begin, int64_t end);

}  // namespace parley
