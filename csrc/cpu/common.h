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

}  // namespace parley
