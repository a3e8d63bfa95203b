// What the CPU ops share: the checks of their arguments.
#pragma once

#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdint>
#include <cstring>

#include "../ops.h"

namespace parley {

using torch::headeronly::ScalarType;

struct BFloat16 {
  uint16_t bits;
};

inline const char* name_of(ScalarType type) {
  return type == ScalarType::Float ? "float32" : type == ScalarType::BFloat16 ? "bfloat16" : "other";
}

inline void check_cache(const Tensor& key_cache, const Tensor& value_cache) {
  STD_TORCH_CHECK(key_cache.dim() == 4 && value_cache.dim() == 4, "caches have 4 dimensions");
  STD_TORCH_CHECK(
      key_cache.size(1) == kBlockSize && value_cache.size(1) == kBlockSize, "blocks hold ",
      kBlockSize, " tokens, got ", key_cache.size(1), " and ", value_cache.size(1));
  STD_TORCH_CHECK(
      key_cache.size(0) == value_cache.size(0) && key_cache.size(2) == value_cache.size(2),
      "caches differ in blocks or heads");
  STD_TORCH_CHECK(
      key_cache.stride(1) == 1 && key_cache.stride(3) == kBlockSize,
      "keys lie as [block][head][dim][token], got strides ", key_cache.stride(1), " of tokens and ",
      key_cache.stride(3), " of dims");
  STD_TORCH_CHECK(value_cache.stride(3) == 1, "values lie as [block][head][token][dim]");
  STD_TORCH_CHECK(
      key_cache.scalar_type() == value_cache.scalar_type() &&
          (key_cache.scalar_type() == ScalarType::Float ||
           key_cache.scalar_type() == ScalarType::BFloat16),
      "caches are float32 or bfloat16, got ", name_of(key_cache.scalar_type()), " and ",
      name_of(value_cache.scalar_type()));
}

// Types and sizes of what says which blocks a sequence reads; their numbers are checked by make_units.
inline void check_sequences(
    const Tensor& block_tables, const Tensor& cu_seqlens_q, const Tensor& seq_lens) {
  for (const Tensor* indices : {&block_tables, &cu_seqlens_q, &seq_lens}) {
    STD_TORCH_CHECK(
        indices->scalar_type() == ScalarType::Int && indices->is_contiguous(),
        "block_tables, cu_seqlens_q and seq_lens are contiguous int32");
  }
  STD_TORCH_CHECK(
      block_tables.dim() == 2 && block_tables.size(0) == seq_lens.size(0) &&
          cu_seqlens_q.size(0) == seq_lens.size(0) + 1,
      "block_tables, cu_seqlens_q and seq_lens differ in sequences");
}

}  // namespace parley
