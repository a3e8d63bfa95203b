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

#include "arguments.h"
#include "mma.h"
#include "reduce.h"

namespace parley::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kTokens = 16;  // that a warp takes at once
constexpr int kMostSplits = 64;
constexpr int kBlocksAtOnce = 2;  // on a multiprocessor, at least: for more of them registers would spill
constexpr int64_t kWantedBlocks = 4 * 132;  // so that a large GPU has enough to do
constexpr int64_t kLeastUnits = 4;          // of 16 tokens, that a warp of a split should have
constexpr float kLog2E = 1.44269504f;

template <typename T>
struct Decode {
  const T *queries, *key_cache, *value_cache, *sinks;
  T* out;
  float* partials;  // [num_seqs, num_heads, num_splits, kWidth + 2]: sums, the largest score, the total
  int32_t* counters;
  const int32_t *block_tables, *lengths;
  CacheStrides key_strides, value_strides;
  int64_t query_token, query_head, out_token, out_head, table_stride;
  int num_heads, group, num_tiles, block_shift, window;
  float scale, softcap;
};

// The tokens of a sequence that a split reads, by 16.
struct Range {
  int begin, end;
};

// What a lane holds of the keys or values of 16 tokens.
template <int kCount>
struct Pieces {
  uint4 items[kCount];
};

__device__ uint32_t word_of(const uint4& piece, int i) {
  return i == 0 ? piece.x : i == 1 ? piece.y : i == 2 ? piece.z : piece.w;
}

// Of the running softmax of one head: the largest score, in powers of two, and the sum of all weights
// relative to it.
struct Softmax {
  float largest, total;
};

__device__ Softmax no_softmax() { return {-INFINITY, 0}; }

// kRows: heads of a tile, 8 or 16. With 8 the lower half of each product is not looked at.
template <typename T, int kWidth, int kRows>
struct Tile {
  static constexpr int kHalves = kRows / 8;
  static constexpr int kKeyPieces = kWidth / 32;        // of 8 numbers: four lanes share a token's key
  static constexpr int kValuePieces = 4 * kWidth / 64;  // eight lanes share a token's value, each has four tokens
  static constexpr int kOutputs = kWidth / 8;           // products for each 16 tokens

  // Lane 4q + i holds heads q and q + 8, and of each 8 outputs two.
  float sums[kOutputs][2 * kHalves] = {};
  Softmax states[kHalves];

  __device__ Tile() {
    for (Softmax& state : states) state = no_softmax();
  }

  __device__ void scale_by(const float (&factors)[kHalves]) {
#pragma unroll
    for (int output = 0; output < kOutputs; ++output) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        sums[output][2 * half] *= factors[half];
        sums[output][2 * half + 1] *= factors[half];
      }
    }
  }
};

// The dim of the value that sums[output][which] of a lane belongs to.
__device__ int dim_of(int output, int i, int which) {
  return output / 8 * 64 + (2 * i + which) * 8 + output % 8;
}

template <typename T>
__device__ const T* token_of(
    const T* cache, const CacheStrides& strides, const int32_t* table, int token, int block_shift,
    int64_t head) {
  const int block = table[token >> block_shift], offset = token & ((1 << block_shift) - 1);
  return cache + block * strides.block + offset * strides.token + head * strides.head;
}

__device__ uint4 load_piece(const void* from) { return *static_cast<const uint4*>(from); }

// Keys of tokens quad and quad + 8 of 16: lane 4q + i has numbers 8i to 8i + 7 of each 32.
template <typename T, int kWidth>
__device__ void load_keys(
    const Decode<T>& d, const int32_t* table, int token, int64_t head,
    Pieces<kWidth / 32> (&keys)[2]) {
  const int quad = lane_of_thread() / 4, i = lane_of_thread() % 4;
  const T* const first = token_of(d.key_cache, d.key_strides, table, token, d.block_shift, head);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const T* const from = first + (quad + 8 * half) * d.key_strides.token + 8 * i;
#pragma unroll
    for (int piece = 0; piece < kWidth / 32; ++piece) {
      keys[half].items[piece] = load_piece(from + 32 * piece);
    }
  }
}

// Numbers 64 `part` to 64 `part` + 63 of the values of tokens 2i, 2i + 1, 2i + 8, 2i + 9: lane 4q + i has 8q to
// 8q + 7 of them. Behind the sequence another one may have left anything, which even a weight of 0 could make
// NaN of.
template <typename T>
__device__ void load_values(
    const Decode<T>& d, const int32_t* table, int token, int length, int64_t head, int part,
    Pieces<4>& values) {
  const int quad = lane_of_thread() / 4, i = lane_of_thread() % 4;
  const T* const first = token_of(d.value_cache, d.value_strides, table, token, d.block_shift, head);
#pragma unroll
  for (int of = 0; of < 4; ++of) {
    const int place = 2 * i + of % 2 + of / 2 * 8;
    const T* const from = first + place * d.value_strides.token + 64 * part + 8 * quad;
    values.items[of] = token + place < length ? load_piece(from) : uint4{0, 0, 0, 0};
  }
}

// Scores of 16 tokens: [8 tokens][head quad, tokens 2i and 2i + 1; then head quad + 8].
template <typename T, int kWidth, int kRows>
__device__ void multiply_keys(
    const uint4 (&queries)[16][kWidth / 8], const Pieces<kWidth / 32> (&keys)[2], float (&scores)[2][4]) {
  const int quad = lane_of_thread() / 4, i = lane_of_thread() % 4;
#pragma unroll
  for (int piece = 0; piece < kWidth / 32; ++piece) {
    const uint4 low = queries[quad][4 * piece + i];
    const uint4 high = kRows == 16 ? queries[quad + 8][4 * piece + i] : uint4{0, 0, 0, 0};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4& key = keys[half].items[piece];
      multiply_add<T>(scores[half], {low.x, high.x, low.y, high.y}, {key.x, key.y});
      multiply_add<T>(scores[half], {low.z, high.z, low.w, high.w}, {key.z, key.w});
    }
  }
}

// Pairs of tokens of the same dim: number `which` of two words each.
__device__ uint32_t pair_of(const uint4& first, const uint4& second, int number) {
  const uint32_t a = word_of(first, number / 2), b = word_of(second, number / 2);
  return number % 2 == 0 ? __byte_perm(a, b, 0x5410) : __byte_perm(a, b, 0x7632);
}

// Adds the values of one part, each times the weight of its token.
template <typename T, int kWidth, int kRows>
__device__ void add_values(
    Tile<T, kWidth, kRows>& tile, const float (&weights)[2][4], int part, const Pieces<4>& values) {
  const uint32_t shares[4] = {
      pack<T>(weights[0][0], weights[0][1]), kRows == 16 ? pack<T>(weights[0][2], weights[0][3]) : 0u,
      pack<T>(weights[1][0], weights[1][1]), kRows == 16 ? pack<T>(weights[1][2], weights[1][3]) : 0u};
  const uint4(&four)[4] = values.items;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    float(&of_tile)[kRows / 4] = tile.sums[8 * part + n];
    float sums[4] = {};
#pragma unroll
    for (int of = 0; of < kRows / 4; ++of) sums[of] = of_tile[of];
    multiply_add<T>(sums, shares, {pair_of(four[0], four[1], n), pair_of(four[2], four[3], n)});
#pragma unroll
    for (int of = 0; of < kRows / 4; ++of) of_tile[of] = sums[of];
  }
}

// Turns scores into weights and brings the sums so far to the new largest score.
template <typename T, int kWidth, int kRows>
__device__ void weigh(
    const Decode<T>& d, Tile<T, kWidth, kRows>& tile, int token, int first, int length,
    float (&scores)[2][4]) {
  constexpr int kHalves = kRows / 8;
  const int i = lane_of_thread() % 4;
  float factors[kHalves];
  bool has_grown = false;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    float largest = tile.states[half].largest;
#pragma unroll
    for (int tokens = 0; tokens < 2; ++tokens) {
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        float& score = scores[tokens][2 * half + which];
        const int place = token + 8 * tokens + 2 * i + which;
        score *= d.scale;
        if (d.softcap > 0) score = d.softcap * tanhf(score / d.softcap);
        score = place >= first && place < length ? score * kLog2E : -INFINITY;
        largest = fmaxf(largest, score);
      }
    }
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
    has_grown |= largest > tile.states[half].largest;
    // Of 16 tokens that are all out of sight nothing is known yet.
    factors[half] = largest == -INFINITY ? 1.0f : exp2f(tile.states[half].largest - largest);
    tile.states[half].largest = largest;
    float total = 0;
#pragma unroll
    for (int tokens = 0; tokens < 2; ++tokens) {
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        float& score = scores[tokens][2 * half + which];
        score = largest == -INFINITY ? 0.0f : exp2f(score - largest);
        total += score;
      }
    }
    tile.states[half].total = tile.states[half].total * factors[half] + total;  // of this lane's tokens
  }
  if (__any_sync(kAllLanes, has_grown)) tile.scale_by(factors);
}

// Adds what another part of the same heads has found. `sums` and `state` of one head.
__device__ void merge_states(Softmax& state, const Softmax& other, float& mine, float& theirs) {
  const float largest = fmaxf(state.largest, other.largest);
  mine = state.largest == -INFINITY ? 0.0f : exp2f(state.largest - largest);
  theirs = other.largest == -INFINITY ? 0.0f : exp2f(other.largest - largest);
  state = {largest, state.total * mine + other.total * theirs};
}

// What a warp leaves for another one.
template <int kWidth, int kRows>
struct Left {
  float sums[kRows][kWidth];
  Softmax states[kRows];
};

template <typename T, int kWidth, int kRows>
__device__ void leave(const Tile<T, kWidth, kRows>& tile, Left<kWidth, kRows>& left) {
  const int quad = lane_of_thread() / 4, i = lane_of_thread() % 4;
#pragma unroll
  for (int half = 0; half < kRows / 8; ++half) {
    const int row = quad + 8 * half;
#pragma unroll
    for (int output = 0; output < kWidth / 8; ++output) {
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        left.sums[row][dim_of(output, i, which)] = tile.sums[output][2 * half + which];
      }
    }
    if (i == 0) left.states[row] = tile.states[half];
  }
}

template <typename T, int kWidth, int kRows>
__device__ void join(Tile<T, kWidth, kRows>& tile, const Left<kWidth, kRows>& left) {
  const int quad = lane_of_thread() / 4, i = lane_of_thread() % 4;
#pragma unroll
  for (int half = 0; half < kRows / 8; ++half) {
    const int row = quad + 8 * half;
    float mine, theirs;
    merge_states(tile.states[half], left.states[row], mine, theirs);
#pragma unroll
    for (int output = 0; output < kWidth / 8; ++output) {
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        float& sum = tile.sums[output][2 * half + which];
        sum = sum * mine + left.sums[row][dim_of(output, i, which)] * theirs;
      }
    }
  }
}

// The result of one head from its sums; a sink takes weight and gives nothing.
template <typename T>
__device__ float divisor_of(const Decode<T>& d, int head, const Softmax& state) {
  float total = state.total;
  if (d.sinks != nullptr && total > 0) total += exp2f(to_float(d.sinks[head]) * kLog2E - state.largest);
  return total > 0 ? 1 / total : 0.0f;
}

// The block that is done last with some heads of a sequence puts all splits together.
template <typename T, int kWidth>
__device__ void finish(const Decode<T>& d, int sequence, int first_head, int num_heads, int num_splits) {
  for (int row = warp_of_thread(); row < num_heads; row += kWarps) {
    const int head = first_head + row;
    const float* const parts =
        d.partials + (int64_t{sequence} * d.num_heads + head) * num_splits * (kWidth + 2);
    Softmax state = no_softmax();
    float sums[kWidth / kWarpThreads] = {};
    for (int split = 0; split < num_splits; ++split) {
      const float* const part = parts + split * (kWidth + 2);
      float mine, theirs;
      merge_states(state, {__ldcg(part + kWidth), __ldcg(part + kWidth + 1)}, mine, theirs);
#pragma unroll
      for (int n = 0; n < kWidth / kWarpThreads; ++n) {
        sums[n] = sums[n] * mine + __ldcg(part + lane_of_thread() + n * kWarpThreads) * theirs;
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

// Blocks: [splits, key-value heads and tiles of their queries, sequences].
template <typename T, int kWidth, int kRows>
__global__ void __launch_bounds__(kWarps * kWarpThreads, kBlocksAtOnce) decode(Decode<T> d) {
  __shared__ uint4 queries[16][kWidth / 8];
  __shared__ Left<kWidth, kRows> lefts[2];
  __shared__ bool is_last;
  constexpr int kParts = kWidth / 64;
  constexpr bool kIsAhead = kWidth <= 128;  // of wider heads registers hold either keys or values
  const int quad = lane_of_thread() / 4, i = lane_of_thread() % 4, warp = warp_of_thread();
  const int sequence = blockIdx.z, kv_head = blockIdx.y / d.num_tiles, tile_index = blockIdx.y % d.num_tiles;
  const int num_splits = gridDim.x, split = blockIdx.x;
  const int first_head = kv_head * d.group + tile_index * kRows;
  const int num_heads = min(kRows, d.group - tile_index * kRows);
  const int32_t* const table = d.block_tables + sequence * d.table_stride;

  for (int place = threadIdx.x; place < 16 * (kWidth / 8); place += kWarps * kWarpThreads) {
    const int row = place / (kWidth / 8), piece = place % (kWidth / 8);
    const T* const query = d.queries + sequence * d.query_token + (first_head + row) * d.query_head;
    queries[row][piece] = row < num_heads ? load_piece(query + 8 * piece) : uint4{0, 0, 0, 0};
  }
  __syncthreads();

  const int length = d.lengths[sequence];
  const int first = d.window > 0 ? max(0, length - d.window) : 0;
  const int first_unit = first / kTokens, num_units = (length + kTokens - 1) / kTokens - first_unit;
  const int share = (num_units + num_splits - 1) / num_splits;
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
          d.partials + ((int64_t{sequence} * d.num_heads + head) * num_splits + split) * (kWidth + 2);
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
  __threadfence();  // what was written is seen by whoever sees the counter
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
  const int64_t wanted = std::min((kWantedBlocks + num_blocks - 1) / num_blocks, num_units / (kWarps * kLeastUnits));
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
