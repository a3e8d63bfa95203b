// What a warp of decode_attention does with 16 tokens of a sequence and up to 16 heads that share its keys:
// loads, scores, running softmax (Milakov and Gimelshein 2018), weighted values; and how what two warps have
// found is put together. decode_attention.cu says why numbers lie as they do.
#pragma once

#include "attention/mma.h"
#include "common/arguments.h"
#include "common/reduce.h"

namespace parley::cuda {

constexpr int kWarps = 4;
constexpr int kTokens = 16;  // that a warp takes at once
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

__device__ inline uint32_t word_of(const uint4& piece, int i) {
  return i == 0 ? piece.x : i == 1 ? piece.y : i == 2 ? piece.z : piece.w;
}

// Of the running softmax of one head: the largest score, in powers of two, and the sum of all weights
// relative to it.
struct Softmax {
  float largest, total;
};

__device__ inline Softmax no_softmax() { return {-INFINITY, 0}; }

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
__device__ inline int dim_of(int output, int i, int which) {
  return output / 8 * 64 + (2 * i + which) * 8 + output % 8;
}

template <typename T>
__device__ const T* token_of(
    const T* cache, const CacheStrides& strides, const int32_t* table, int token, int block_shift,
    int64_t head) {
  const int block = table[token >> block_shift], offset = token & ((1 << block_shift) - 1);
  return cache + block * strides.block + offset * strides.token + head * strides.head;
}

__device__ inline uint4 load_piece(const void* from) { return *static_cast<const uint4*>(from); }

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
// 8q + 7 of them. After the sequence another one may have left anything, which even a weight of 0 could make
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
__device__ inline uint32_t pair_of(const uint4& first, const uint4& second, int number) {
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
__device__ inline void merge_states(Softmax& state, const Softmax& other, float& mine, float& theirs) {
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

}  // namespace parley::cuda
