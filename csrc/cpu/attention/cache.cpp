// store_kv: each token's key and value to its slot of the KV cache.
#include <torch/csrc/stable/ops.h>

#include "common/arguments.h"

namespace parley {
namespace {

constexpr int64_t kSerialElements = 1 << 15;  // below it, a second thread costs more than it gives

template <typename T>
void store_tokens(
    const Tensor& key, const Tensor& value, const Tensor& key_cache, const Tensor& value_cache,
    const int64_t* slots, int64_t begin, int64_t end) {
  const auto* keys = static_cast<const T*>(key.const_data_ptr());
  const auto* values = static_cast<const T*>(value.const_data_ptr());
  auto* key_blocks = static_cast<T*>(key_cache.mutable_data_ptr());
  auto* value_blocks = static_cast<T*>(value_cache.mutable_data_ptr());
  const int64_t num_heads = key.size(1), key_dim = key.size(2), value_dim = value.size(2);
  for (int64_t token = begin; token < end; ++token) {
    if (slots[token] < 0) continue;
    const int64_t block = slots[token] / kBlockSize, offset = slots[token] % kBlockSize;
    for (int64_t head = 0; head < num_heads; ++head) {
      const T* from = keys + token * key.stride(0) + head * key.stride(1);
      T* to = key_blocks + block * key_cache.stride(0) + head * key_cache.stride(2) + offset;
      for (int64_t dim = 0; dim < key_dim; ++dim) to[dim * kBlockSize] = from[dim];
      std::memcpy(
          value_blocks + block * value_cache.stride(0) + offset * value_cache.stride(1) +
              head * value_cache.stride(2),
          values + token * value.stride(0) + head * value.stride(1), value_dim * sizeof(T));
    }
  }
}

}  // namespace

void store_kv_cpu(
    const Tensor& key, const Tensor& value, const Tensor& key_cache, const Tensor& value_cache,
    const Tensor& slot_mapping) {
  check_cache(key_cache, value_cache);
  const int64_t num_tokens = slot_mapping.size(0);
  STD_TORCH_CHECK(
      key.dim() == 3 && value.dim() == 3 && key.size(0) == num_tokens &&
          value.size(0) == num_tokens,
      "keys and values are [num_tokens, num_kv_heads, dim], for ", num_tokens, " slots");
  STD_TORCH_CHECK(
      key.size(1) == key_cache.size(2) && value.size(1) == key_cache.size(2) &&
          key.size(2) == key_cache.size(3) && value.size(2) == value_cache.size(3),
      "keys or values differ from their cache in heads or dims");
  STD_TORCH_CHECK(
      key.scalar_type() == key_cache.scalar_type() && value.scalar_type() == key_cache.scalar_type(),
      "keys and values are ", name_of(key_cache.scalar_type()), " as their cache, got ",
      name_of(key.scalar_type()), " and ", name_of(value.scalar_type()));
  STD_TORCH_CHECK(
      (key.stride(2) == 1 || key.size(2) == 1) && (value.stride(2) == 1 || value.size(2) == 1),
      "the last dimension must be contiguous");
  STD_TORCH_CHECK(
      slot_mapping.scalar_type() == ScalarType::Long && slot_mapping.is_contiguous(),
      "slot_mapping is contiguous int64");
  const auto* slots = static_cast<const int64_t*>(slot_mapping.const_data_ptr());
  const int64_t num_slots = key_cache.size(0) * kBlockSize;
  for (int64_t token = 0; token < num_tokens; ++token) {
    STD_TORCH_CHECK(slots[token] < num_slots, "slot ", slots[token], " of ", num_slots);
  }
  const int64_t per_token = key.size(1) * (key.size(2) + value.size(2));
  torch::stable::parallel_for(
      0, num_tokens, kSerialElements / (per_token + 1) + 1, [&](int64_t begin, int64_t end) {
        if (key.scalar_type() == ScalarType::Float) {
          store_tokens<float>(key, value, key_cache, value_cache, slots, begin, end);
        } else {
          store_tokens<BFloat16>(key, value, key_cache, value_cache, slots, begin, end);
        }
      });
}

}  // namespace parley
