// The kernels of one instruction set, and which set this machine gets.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/low_rank.h"
#include "kernels/product.h"
#include "kernels/sampling.h"

namespace parley {

struct Kernels {
  const char* level;

  // Pieces [begin, end) of a product, for all rows.
  void (*multiply)(const Product&, int64_t begin, int64_t end);

  // Attention units of queries, keys and values of these types.
  AttendUnit attend_float, attend_bfloat16, attend_float_over_bfloat16, attend_float_over_int8;

  // Of a decoder layer, each for one row: see decoder_kernel.h.
  void (*normalize)(const float* x, const float* weight, int64_t size, float epsilon, float* out);
  void (*rotate)(float* head, const float* cosines, const float* sines, int64_t half);
  void (*store_float)(const float* key, const float* value, int64_t dim, void* keys, void* values);
  void (*store_bfloat16)(const float* key, const float* value, int64_t dim, void* keys, void* values);
  void (*store_int8)(
      const float* key, const float* value, int64_t dim, void* keys, void* values, float* key_scale,
      float* value_scale);
  void (*gate)(const float* pairs, int64_t num_panels, float* out);  // see product_kernel.h
  void (*multiply_low_rank)(const LowRankProduct&, int64_t begin, int64_t end);  // panels of outputs
  int64_t (*tallest_tile)(Format format);
  int64_t (*prepared_size)(Format format);
  void (*prepare)(const Weight& weight, const TilePart& part);
  void (*unpack_output)(const Weight& weight, int64_t output, float* out);

  // One token of one row of logits.
  Choose choose;
};

// Of the best set that this machine has, or of the lesser one that PARLEY_CPU_LEVEL names.
const Kernels& kernels();

}  // namespace parley
