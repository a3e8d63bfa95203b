// store_kv: each token's key and value to its slot of the KV cache.
#include "common/arguments.h"
#include "common/reduce.h"

namespace parley::cuda {
namespace {

constexpr unsigned kThreads = 128;

// A block for each token and head.
template <typename T>
__global__ void store_heads(
    const T* keys, const T* values, T* key_cache, T* value_cache, const int64_t* slots, int64_t block_size,
    int64_t key_token, int64_t key_head, int64_t value_token, int64_t value_head, CacheStrides key_strides,
    CacheStrides value_strides, int64_t key_dim, int64_t value_dim) {
  const int64_t token = blockIdx.x, head = blockIdx.y, slot = slots[token];
  if (slot < 0) return;
  const int64_t block = slot / block_size, offset = slot % block_size;
  const T* const key = keys + token * key_token + head * key_head;
  const T* const value = values + token * value_token + head * value_head;
  T* const key_to = key_cache + block * key_strides.block + offset * key_strides.token + head * key_strides.head;
  T* const value_to =
      value_cache + block * value_strides.block + offset * value_strides.token + head * value_strides.head;
  for (int64_t i = threadIdx.x; i < key_dim; i += blockDim.x) key_to[i] = key[i];
  for (int64_t i = threadIdx.x; i < value_dim; i += blockDim.x) value_to[i] = value[i];
}

}  // namespace

void store_kv(
    const Tensor& key, const Tensor& value, const Tensor& key_cache, const Tensor& value_cache,
    const Tensor& slot_mapping) {
  check_cache(key_cache, value_cache, key.scalar_type());
  const int64_t num_tokens = slot_mapping.size(0), num_heads = key_cache.size(2);
  check_column(slot_mapping, ScalarType::Long, num_tokens, "slot_mapping");
  for (const auto& [rows, cache] : {std::pair{&key, &key_cache}, std::pair{&value, &value_cache}}) {
    STD_TORCH_CHECK(
        rows->dim() == 3 && rows->scalar_type() == cache->scalar_type() && rows->size(0) == num_tokens &&
            rows->size(1) == num_heads && rows->size(2) == cache->size(3) && rows->stride(2) == 1,
        "keys and values are [num_tokens, num_kv_heads, dim] for their cache, and of its type");
  }
  with_floats(key, [&](auto element) {
    using T = decltype(element);
    launch(
        key, store_heads<T>, dim3(num_tokens, num_heads), kThreads, data_of<T>(key), data_of<T>(value),
        written_of<T>(key_cache), written_of<T>(value_cache), data_of<int64_t>(slot_mapping),
        key_cache.size(1), key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        strides_of(key_cache), strides_of(value_cache), key.size(2), value.size(2));
  });
}

}  // namespace parley::cuda
