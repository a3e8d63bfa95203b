// What the CPU ops share: how they check and read their arguments.
#pragma once

#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdint>
#include <cstring>

#include "ops.h"

namespace parley {

using torch::headeronly::ScalarType;

struct BFloat16 {
  uint16_t bits;
};

inline const char* name_of(ScalarType type) {
  switch (type) {
    case ScalarType::Float: return "float32";
    case ScalarType::Double: return "float64";
    case ScalarType::BFloat16: return "bfloat16";
    case ScalarType::Long: return "int64";
    default: return "other";
  }
}

// The values of a tensor that must be `count` of them in one run.
template <typename T>
const T* read_column(const Tensor& tensor, int64_t count, const char* name) {
  constexpr ScalarType kType = torch::headeronly::CppTypeToScalarType<T>::value;
  STD_TORCH_CHECK(
      tensor.scalar_type() == kType && tensor.dim() == 1 && tensor.is_contiguous() &&
          tensor.size(0) == count,
      name, " must be ", count, " ", name_of(kType), " in one run");
  return static_cast<const T*>(tensor.const_data_ptr());
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
