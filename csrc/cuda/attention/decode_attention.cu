// decode_attention: one query for each sequence over its blocks, written to wait for nothing but the memory.
// What it reaches of that no GPU has shown yet.
//
// A warp takes 16 tokens at a time and multiplies them with the queries of up to 16 heads that share a
// key-value head, on the tensor cores. Keys and values go from memory into registers in runs of 16 bytes, in
// the very order in which those want them: a dot product may take its numbers in any order, and so may the
// outputs stand, as long as queries and results are ordered likewise. Only the pairs of values that lie below
// one another are put beside each other. Where there are few sequences, their contexts are split (as
// Flash-Decoding does, Dao et al. 2023), and the block that is done last puts the parts together.
#include <algorithm>

#include "attention/decode_tile.h"

namespace parley::cuda {
namespace {

constexpr int kMostSplits = 64;
constexpr int kBlocksAtOnce = 2;  // on a multiprocessor, at least: for more of them registers would spill
constexpr int64_t kWantedBlocks = 4 * 132;  // so that a large GPU has enough to do
constexpr int64_t kLeastUnits = 4;          // of 16 tokens, that a warp of a split has of the longest context

// The result of one head from its sums; a sink takes weight and gives nothing.
template <typename T>
__device__ float divisor_of(const Decode<T>& d, int head, const Softmax& state) {
  float total = state.total;
  if (d.sinks != nullptr && total > 0) total += exp2f(to_float(d.sinks[head]) * kLog2E - state.largest);
  return total > 0 ? 1 / total : 0.0f;
}

// The block that is done last with some heads of a sequence puts the splits together. What all of them weigh
// is found out first, so that none has to wait for the one before it.
template <typename T, int kWidth>
__device__ void finish(const Decode<T>& d, int sequence, int first_head, int num_heads, int num_splits) {
  for (int row = warp_of_thread(); row < num_heads; row += kWarps) {
    const int head = first_head + row;
    const float* const parts = d.partials + (int64_t{sequence} * d.num_heads + head) * gridDim.x * (kWidth + 2);
    Softmax state = no_softmax();  // of every 32nd split, and then of all
    for (int split = lane_of_thread(); split < num_splits; split += kWarpThreads) {
      const float* const part = parts + split * (kWidth + 2);
      float mine, theirs;
      merge_states(state, {__ldcg(part + kWidth), __ldcg(part + kWidth + 1)}, mine, theirs);
    }
    const float largest = max_of_warp(state.largest);
    state.total = sum_of_warp(state.largest == -INFINITY ? 0.0f : state.total * exp2f(state.largest - largest));
    state.largest = largest;
    float sums[kWidth / kWarpThreads] = {};
#pragma unroll 4
    for (int split = 0; split < num_splits; ++split) {
      const float* const part = parts + split * (kWidth + 2);
      const float theirs = __ldcg(part + kWidth);
      const float weight = theirs == -INFINITY ? 0.0f : exp2f(theirs - largest);
#pragma unroll
      for (int n = 0; n < kWidth / kWarpThreads; ++n) {
        sums[n] += __ldcg(part + lane_of_thread() + n * kWarpThreads) * weight;
      }
    }
    const float factor = divisor_of(d, head, state);
    T* const to = d.out + sequence * d.out_token + head * d.out_head;
#pragma unroll
    for (int n = 0; n < kWidth / kWarpThreads; ++n) {
      to[lane_of_thread() + n * kWarpThreads] = from_float<T>(sums[n] * factor);
    }
  }
}

// Blocks: [splits, key-value heads and tiles of their queries, sequences]. There are as many splits as the
// longest context may want; a shorter one uses the first of them, and each of those has work for all its warps.
template <typename T, int kWidth, int kRows>
__global__ void __launch_bounds__(kWarps * kWarpThreads, kBlocksAtOnce) decode(Decode<T> d) {
  __shared__ uint4 queries[16][kWidth / 8];
  __shared__ Left<kWidth, kRows> lefts[2];
  __shared__ bool is_last;
  constexpr int kParts = kWidth / 64;
  constexpr bool kIsAhead = kWidth <= 128;  // of wider heads registers hold either keys or values
  const int quad = lane_of_thread() / 4, i = lane_of_thread() % 4, warp = warp_of_thread();
  const int sequence = blockIdx.z, kv_head = blockIdx.y / d.num_tiles, tile_index = blockIdx.y % d.num_tiles;
  const int split = blockIdx.x;
  const int length = d.lengths[sequence];
  const int first = d.window > 0 ? max(0, length - d.window) : 0;
  const int first_unit = first / kTokens, num_units = (length + kTokens - 1) / kTokens - first_unit;
  const int share = max(kWarps, (num_units + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x));
  const int num_splits = max(1, (num_units + share - 1) / share);
  if (split >= num_splits) return;
  const int first_head = kv_head * d.group + tile_index * kRows;
  const int num_heads = min(kRows, d.group - tile_index * kRows);
  const int32_t* const table = d.block_tables + sequence * d.table_stride;

  for (int place = threadIdx.x; place < 16 * (kWidth / 8); place += kWarps * kWarpThreads) {
    const int row = place / (kWidth / 8), piece = place % (kWidth / 8);
    const T* const query = d.queries + sequence * d.query_token + (first_head + row) * d.query_head;
    queries[row][piece] = row < num_heads ? load_piece(query + 8 * piece) : uint4{0, 0, 0, 0};
  }
  __syncthreads();

  const Range range{first_unit + split * share, first_unit + min(num_units, (split + 1) * share)};

  Tile<T, kWidth, kRows> tile;
  Pieces<kWidth / 32> keys[2];
  if (kIsAhead && range.begin + warp < range.end) {
    load_keys<T, kWidth>(d, table, (range.begin + warp) * kTokens, kv_head, keys);
  }
  for (int unit = range.begin + warp; unit < range.end; unit += kWarps) {
    const int token = unit * kTokens;
    Pieces<4> values[kParts];
    if constexpr (kIsAhead) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        load_values(d, table, token, length, kv_head, part, values[part]);
      }
    } else {
      load_keys<T, kWidth>(d, table, token, kv_head, keys);
    }
    float scores[2][4] = {};
    multiply_keys<T, kWidth, kRows>(queries, keys, scores);
    if (kIsAhead && unit + kWarps < range.end) {  // while values are waited for
      load_keys<T, kWidth>(d, table, token + kWarps * kTokens, kv_head, keys);
    }
    weigh(d, tile, token, first, length, scores);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if constexpr (!kIsAhead) load_values(d, table, token, length, kv_head, part, values[part]);
      add_values(tile, scores, part, values[part]);
    }
  }
  for (Softmax& state : tile.states) {
    state.total += __shfl_xor_sync(kAllLanes, state.total, 1);
    state.total += __shfl_xor_sync(kAllLanes, state.total, 2);
  }

  if (warp >= 2) leave(tile, lefts[warp - 2]);
  __syncthreads();
  if (warp < 2) join(tile, lefts[warp]);
  __syncthreads();
  if (warp == 1) leave(tile, lefts[0]);
  __syncthreads();
  if (warp == 0) {
    join(tile, lefts[0]);
#pragma unroll
    for (int half = 0; half < kRows / 8; ++half) {
      const int row = quad + 8 * half, head = first_head + row;
      if (row >= num_heads) continue;
      const Softmax& state = tile.states[half];
      T* const to = d.out + sequence * d.out_token + head * d.out_head;
      float* const part =
          d.partials + ((int64_t{sequence} * d.num_heads + head) * gridDim.x + split) * (kWidth + 2);
      const float factor = divisor_of(d, head, state);
#pragma unroll
      for (int output = 0; output < kWidth / 8; ++output) {
#pragma unroll
        for (int which = 0; which < 2; ++which) {
          const float sum = tile.sums[output][2 * half + which];
          const int dim = dim_of(output, i, which);
          if (num_splits == 1) {
            to[dim] = from_float<T>(sum * factor);
          } else {
            part[dim] = sum;
          }
        }
      }
      if (num_splits > 1 && i == 0) {
        part[kWidth] = state.largest;
        part[kWidth + 1] = state.total;
      }
    }
  }
  if (num_splits == 1) return;
  __threadfence();  // who sees the counter also sees what was written before it
  __syncthreads();
  int32_t* const counter = d.counters + int64_t{sequence} * gridDim.y + blockIdx.y;
  if (threadIdx.x == 0) {
    is_last = atomicAdd(counter, 1) == num_splits - 1;
    if (is_last) *counter = 0;  // for the next call
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  finish<T, kWidth>(d, sequence, first_head, num_heads, num_splits);
}

template <typename T, int kWidth>
void start(const Tensor& on, const Decode<T>& decode_with, dim3 grid, int64_t rows) {
  const auto kernel = rows == 8 ? decode<T, kWidth, 8> : decode<T, kWidth, 16>;
  launch(on, kernel, grid, kWarps * kWarpThreads, decode_with);
}

bool is_vector_aligned(const Tensor& tensor, int64_t num_strides) {
  bool is_aligned = begins_at_vector(tensor);
  for (int64_t i = 0; i < num_strides; ++i) is_aligned &= tensor.stride(i) % 8 == 0;
  return is_aligned;
}

}  // namespace

bool can_decode(int64_t head_dim, int64_t block_size) {
  const bool is_power = block_size > 0 && (block_size & (block_size - 1)) == 0;
  return (head_dim == 64 || head_dim == 128 || head_dim == 256) && is_power && block_size >= kTokens;
}

void decode_attention(
    const Tensor& query, const Tensor& key_cache, const Tensor& value_cache, const Tensor& block_tables,
    const Tensor& seq_lens, const Tensor& out, const Tensor& partials, const Tensor& counters, double scale,
    int64_t sliding_window, double softcap, std::optional<Tensor> sinks) {
  const ScalarType type = query.scalar_type();
  check_cache(key_cache, value_cache, type);
  check_sequences(block_tables, seq_lens);
  const int64_t num_seqs = seq_lens.size(0), num_heads = query.size(1), num_kv_heads = key_cache.size(2);
  const int64_t head_dim = key_cache.size(3), block_size = key_cache.size(1);
  STD_TORCH_CHECK(
      can_decode(head_dim, block_size) && value_cache.size(3) == head_dim,
      "heads are 64, 128 or 256 wide, and blocks a power of two of at least 16, got ", head_dim, " and ",
      block_size);
  STD_TORCH_CHECK(
      query.dim() == 3 && out.dim() == 3 && out.scalar_type() == type && query.size(0) == num_seqs &&
          out.size(0) == num_seqs && out.size(1) == num_heads && query.size(2) == head_dim &&
          out.size(2) == head_dim && num_heads % num_kv_heads == 0 && query.stride(2) == 1 &&
          out.stride(2) == 1,
      "queries and out are [num_seqs, num_heads, head_dim] of one type");
  STD_TORCH_CHECK(
      is_vector_aligned(query, 2) && is_vector_aligned(key_cache, 3) && is_vector_aligned(value_cache, 3),
      "heads begin at multiples of 16 bytes");
  STD_TORCH_CHECK(
      partials.scalar_type() == ScalarType::Float && partials.is_contiguous(), "partials are float32");
  check_column(counters, ScalarType::Int, counters.size(0), "counters");
  STD_TORCH_CHECK(counters.size(0) >= num_seqs * num_heads, "there are too few counters");
  if (sinks) check_column(*sinks, type, num_heads, "sinks");
  if (num_seqs == 0) return;

  const int64_t group = num_heads / num_kv_heads, rows = group <= 8 ? 8 : 16;
  const int64_t num_tiles = (group + rows - 1) / rows, num_blocks = num_seqs * num_kv_heads * num_tiles;
  const int64_t num_units = block_tables.size(1) * block_size / kTokens;  // at most
  const int64_t room = partials.numel() / (num_seqs * num_heads * (head_dim + 2));
  const int64_t wanted = std::min(kWantedBlocks / num_blocks, num_units / (kWarps * kLeastUnits));
  const int64_t num_splits = std::clamp<int64_t>(std::min(wanted, room), 1, kMostSplits);

  with_half_floats(query, [&](auto element) {
    using T = decltype(element);
    int block_shift = 0;
    while ((int64_t{1} << block_shift) < block_size) ++block_shift;
    const Decode<T> d{
        data_of<T>(query), data_of<T>(key_cache), data_of<T>(value_cache), data_of<T>(sinks),
        written_of<T>(out), written_of<float>(partials), written_of<int32_t>(counters),
        data_of<int32_t>(block_tables), data_of<int32_t>(seq_lens), strides_of(key_cache),
        strides_of(value_cache), query.stride(0), query.stride(1), out.stride(0), out.stride(1),
        block_tables.stride(0), static_cast<int>(num_heads), static_cast<int>(group),
        static_cast<int>(num_tiles), block_shift, static_cast<int>(sliding_window),
        static_cast<float>(scale), static_cast<float>(softcap)};
    const dim3 grid(num_splits, num_kv_heads * num_tiles, num_seqs);
    if (head_dim == 64) return start<T, 64>(query, d, grid, rows);
    if (head_dim == 128) return start<T, 128>(query, d, grid, rows);
    return start<T, 256>(query, d, grid, rows);
  });
}

}  // namespace parley::cuda
