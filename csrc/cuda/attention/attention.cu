// paged_attention: any mixed batch of prefills and decodes, any widths and block size, with sinks, windows
// and softcap. One warp for each query of each head: it is written to be right everywhere. What is common
// has faster ways, such as decode_attention.cu for single queries.
#include "common/arguments.h"
#include "common/reduce.h"

namespace parley::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMostWidth = 512;
constexpr int kMostOutputs = kMostWidth / kWarpThreads;  // of a lane

template <typename T>
struct Attention {
  const T *queries, *key_cache, *value_cache, *sinks;
  T* out;
  const int32_t *block_tables, *bounds, *lengths;
  CacheStrides key_strides, value_strides;
  int64_t query_token, query_head, out_token, out_head, table_stride;
  int64_t num_tokens, num_seqs, num_heads, group, head_dim, value_dim, block_size, window;
  float scale, softcap;
};

// The last sequence that begins at or before this token, which is not empty then.
__device__ int64_t sequence_of(const int32_t* bounds, int64_t num_seqs, int64_t token) {
  int64_t low = 0, high = num_seqs - 1;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (bounds[middle] <= token) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Keys are taken by 32: each lane computes the score of one, then all add up the values of all. Sums are
// kept relative to the largest score so far (online softmax, Milakov and Gimelshein 2018).
template <typename T>
__global__ void attend(Attention<T> a) {
  __shared__ float queries[kWarps][kMostWidth];
  const int lane = lane_of_thread();
  const int64_t unit = int64_t{blockIdx.x} * kWarps + warp_of_thread();
  if (unit >= a.num_tokens * a.num_heads) return;
  const int64_t token = unit / a.num_heads, head = unit % a.num_heads, kv_head = head / a.group;
  const int64_t sequence = sequence_of(a.bounds, a.num_seqs, token);
  const int64_t place = a.lengths[sequence] - a.bounds[sequence + 1] + token;  // of the query
  const int64_t first = a.window > 0 && place >= a.window ? place - a.window + 1 : 0;
  const int32_t* const table = a.block_tables + sequence * a.table_stride;

  float* const query = queries[warp_of_thread()];
  for (int64_t i = lane; i < a.head_dim; i += kWarpThreads) {
    query[i] = to_float(a.queries[token * a.query_token + head * a.query_head + i]) * a.scale;
  }
  __syncwarp();
  float largest = -INFINITY, total = 0, sums[kMostOutputs] = {};
  for (int64_t base = first; base <= place; base += kWarpThreads) {
    const int64_t mine = base + lane;
    float score = -INFINITY;
    if (mine <= place) {
      const T* const key = a.key_cache + table[mine / a.block_size] * a.key_strides.block +
                           mine % a.block_size * a.key_strides.token + kv_head * a.key_strides.head;
      score = 0;
      for (int64_t i = 0; i < a.head_dim; ++i) score += query[i] * to_float(key[i]);
      if (a.softcap > 0) score = a.softcap * tanhf(score / a.softcap);
    }
    const float larger = fmaxf(largest, max_of_warp(score));
    const float shrunk = expf(largest - larger), weight = expf(score - larger);
    largest = larger;
    total = total * shrunk + sum_of_warp(weight);
    for (int i = 0; i < kMostOutputs; ++i) sums[i] *= shrunk;
    const int64_t num_keys = min(int64_t{kWarpThreads}, place + 1 - base);
    for (int of = 0; of < num_keys; ++of) {
      const float share = __shfl_sync(kAllLanes, weight, of);
      const int64_t other = base + of;
      const T* const value = a.value_cache + table[other / a.block_size] * a.value_strides.block +
                             other % a.block_size * a.value_strides.token + kv_head * a.value_strides.head;
      for (int i = 0; i < kMostOutputs; ++i) {
        const int64_t dim = lane + int64_t{i} * kWarpThreads;
        if (dim < a.value_dim) sums[i] += share * to_float(value[dim]);
      }
    }
  }
  if (a.sinks != nullptr) total += expf(to_float(a.sinks[head]) - largest);
  T* const to = a.out + token * a.out_token + head * a.out_head;
  for (int i = 0; i < kMostOutputs; ++i) {
    const int64_t dim = lane + int64_t{i} * kWarpThreads;
    if (dim < a.value_dim) to[dim] = from_float<T>(sums[i] / total);
  }
}

}  // namespace

void paged_attention(
    const Tensor& query, const Tensor& key_cache, const Tensor& value_cache, const Tensor& block_tables,
    const Tensor& cu_seqlens_q, const Tensor& seq_lens, const Tensor& out, double scale,
    int64_t sliding_window, double softcap, std::optional<Tensor> sinks) {
  const ScalarType type = query.scalar_type();
  check_cache(key_cache, value_cache, type);
  check_sequences(block_tables, seq_lens);
  check_column(cu_seqlens_q, ScalarType::Int, seq_lens.size(0) + 1, "cu_seqlens_q");
  STD_TORCH_CHECK(
      query.dim() == 3 && out.dim() == 3 && out.scalar_type() == type && query.stride(2) == 1 &&
          out.stride(2) == 1 && query.size(0) == out.size(0) && query.size(1) == out.size(1),
      "queries and out are [num_tokens, num_heads, dim] of one type");
  STD_TORCH_CHECK(
      query.size(2) == key_cache.size(3) && out.size(2) == value_cache.size(3) &&
          query.size(1) % key_cache.size(2) == 0,
      "queries or out differ from the cache in heads or dims");
  STD_TORCH_CHECK(
      query.size(2) <= kMostWidth && out.size(2) <= kMostWidth, "heads are at most ", kMostWidth, " wide");
  if (sinks) check_column(*sinks, type, query.size(1), "sinks");
  if (seq_lens.size(0) == 0) return;
  with_floats(query, [&](auto element) {
    using T = decltype(element);
    const Attention<T> attention{
        data_of<T>(query), data_of<T>(key_cache), data_of<T>(value_cache), data_of<T>(sinks),
        written_of<T>(out), data_of<int32_t>(block_tables), data_of<int32_t>(cu_seqlens_q),
        data_of<int32_t>(seq_lens), strides_of(key_cache), strides_of(value_cache), query.stride(0),
        query.stride(1), out.stride(0), out.stride(1), block_tables.stride(0), query.size(0),
        seq_lens.size(0), query.size(1), query.size(1) / key_cache.size(2), query.size(2), out.size(2),
        key_cache.size(1), sliding_window, static_cast<float>(scale), static_cast<float>(softcap)};
    const int64_t num_units = query.size(0) * query.size(1);
    launch(query, attend<T>, dim3((num_units + kWarps - 1) / kWarps), kWarps * kWarpThreads, attention);
  });
}

}  // namespace parley::cuda
