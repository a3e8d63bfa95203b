// What one of the two products of an adapter is: shared by adapters.cpp, which asks for it, and
// low_rank_kernel.h, which computes it.
#pragma once

#include <cstdint>

#include "kernels/product.h"

namespace parley {

// Some rows, wherever they lie, with a matrix in panels as product.h has them. Everything but the matrix is
// float32.
struct LowRankProduct {
  Format format;         // float32 or bfloat16; of bfloat16 the inputs are even
  const void* panels;
  int64_t num_inputs, num_outputs;
  const float* const* rows;
  float* const* outs;    // of each row its first output; panels of outputs are `panel_stride` apart
  int64_t num_rows, panel_stride;
  bool adds;             // to what is there
};

}  // namespace parley
