// Some queries with the keys and values of a span: products and nothing else.
#pragma once

#include "common/vectors.h"

namespace parley::PARLEY_ISA {

// Sums of so many vectors are held in registers at once: enough to hide how long each addition takes.
constexpr int kSums = PARLEY_WIDTH == 16 ? 24 : PARLEY_WIDTH == 8 ? 6 : 3;
// Queries that share a key or value once it is loaded: of a unit with more than kFew, and of others.
constexpr int kMany = PARLEY_WIDTH == 16 ? 12 : PARLEY_WIDTH == 8 ? 6 : 3;
constexpr int kFew = PARLEY_WIDTH == 16 ? 8 : PARLEY_WIDTH == 8 ? 4 : 2;

// Blocks that stay in the nearest cache while the few queries of a unit go through them.
constexpr int64_t kNear = 4;

template <typename T>
constexpr int kLineVectors = std::max<int>(1, 64 / (kLanes * sizeof(T)));  // in a line of a cache

constexpr int at_once(int num_queries, int most) {
  while (most > 1 && most * num_queries > kSums) most /= 2;
  return most;
}

// Scores of kQueries queries, [dim][query], against kBlocks blocks, each [dim][token]. With kFetches, `next`
// are fetched meanwhile: blocks lie anywhere, and the processor does not see where the next ones begin.
template <int kQueries, int kBlocks, bool kFetches, typename T>
PARLEY_INLINE void score_tile(
    const float* queries, int64_t key_dim, const T* const* keys, const T* const* next,
    float* scores) {
  Floats sums[kQueries][kBlocks];
  unrolled<kQueries, kBlocks>([&](auto q, auto block) PARLEY_LAMBDA { sums[q][block] = splat(0.0f); });
  for (int64_t dim = 0; dim < key_dim; ++dim) {
    Floats of_dim[kBlocks];
    unrolled<kBlocks>([&](auto block) PARLEY_LAMBDA {
      if (kFetches && dim % kLineVectors<T> == 0) __builtin_prefetch(next[block] + dim * kBlockSize);
      of_dim[block] = load(keys[block] + dim * kBlockSize);
    });
    unrolled<kQueries>([&](auto q) PARLEY_LAMBDA {
      const Floats query = splat(queries[dim * kQueries + q]);
      unrolled<kBlocks>([&](auto block) PARLEY_LAMBDA {
        add_product(sums[q][block], query, of_dim[block]);
      });
    });
  }
  unrolled<kQueries, kBlocks>([&](auto q, auto block) PARLEY_LAMBDA {
    store(scores + q * kSpan + block * kBlockSize, sums[q][block]);
  });
}

// Scores of kQueries queries against `num_blocks` blocks, several at once to hide latency. `num_left`:
// these and those after them, which are prefetched.
template <int kQueries, bool kFetches, typename T>
PARLEY_INLINE void score_queries(
    const float* queries, int64_t key_dim, const T* const* keys, int64_t num_blocks,
    int64_t num_left, float* scores) {
  constexpr int kAtOnce = at_once(kQueries, 4);
  int64_t block = 0;
  for (; block + kAtOnce <= num_blocks; block += kAtOnce) {
    const bool is_last = block + 2 * kAtOnce > num_left;
    score_tile<kQueries, kAtOnce, kFetches>(
        queries, key_dim, keys + block, keys + block + (is_last ? 0 : kAtOnce),
        scores + block * kBlockSize);
  }
  for (; block < num_blocks; ++block) {
    score_tile<kQueries, 1, false>(
        queries, key_dim, keys + block, keys + block, scores + block * kBlockSize);
  }
}

// Some values: of each block the first one, and the strides between tokens and between vectors of dims.
template <typename T>
struct Values {
  const T* const* blocks;
  int64_t token, vector;
};

// sums[q] += weights[q] · values over keys [first, last), for kQueries queries and kVectors vectors of dims.
// The next block is prefetched meanwhile, if a key before `limit` is in it.
template <int kQueries, int kVectors, bool kFetches, typename T>
PARLEY_INLINE void add_vectors(
    const float* weights, const Values<T>& values, int64_t first, int64_t last, int64_t limit,
    int64_t vector, float* sums, int64_t sums_stride) {
  Floats parts[kQueries][kVectors];
  unrolled<kQueries, kVectors>([&](auto q, auto i) PARLEY_LAMBDA {
    parts[q][i] = load(sums + q * sums_stride + (vector + i) * kLanes);
  });
  for (int64_t begin = first; begin < last;) {
    const int64_t block = begin / kBlockSize, end = std::min((block + 1) * kBlockSize, last);
    const T* from = values.blocks[block] + begin % kBlockSize * values.token + vector * values.vector;
    const T* next = values.blocks[end < limit ? block + 1 : block] + vector * values.vector;
    for (int64_t key = begin; key < end; ++key, from += values.token, next += values.token) {
      Floats of_key[kVectors];
      unrolled<kVectors>([&](auto i) PARLEY_LAMBDA {
        if (kFetches && i % kLineVectors<T> == 0) __builtin_prefetch(next + i * values.vector);
        of_key[i] = load(from + i * values.vector);
      });
      unrolled<kQueries>([&](auto q) PARLEY_LAMBDA {
        const Floats weight = splat(weights[q * kSpan + key]);
        unrolled<kVectors>([&](auto i) PARLEY_LAMBDA { add_product(parts[q][i], weight, of_key[i]); });
      });
    }
    begin = end;
  }
  unrolled<kQueries, kVectors>([&](auto q, auto i) PARLEY_LAMBDA {
    store(sums + q * sums_stride + (vector + i) * kLanes, parts[q][i]);
  });
}

// The same for all whole vectors.
template <int kQueries, bool kFetches, typename T>
PARLEY_INLINE void add_values(
    const float* weights, const Values<T>& values, int64_t first, int64_t last, int64_t limit,
    int64_t num_vectors, float* sums, int64_t sums_stride) {
  constexpr int kAtOnce = at_once(kQueries, 8);
  int64_t vector = 0;
  for (; vector + kAtOnce <= num_vectors; vector += kAtOnce) {
    add_vectors<kQueries, kAtOnce, kFetches>(
        weights, values, first, last, limit, vector, sums, sums_stride);
  }
  for (; vector < num_vectors; ++vector) {
    add_vectors<kQueries, 1, kFetches>(
        weights, values, first, last, limit, vector, sums, sums_stride);
  }
}

// Of a dim that is in no whole vector.
template <typename T>
PARLEY_INLINE void add_dim(
    const float* weights, const T* const* values, int64_t value_token, int64_t first, int64_t last,
    int64_t dim, float* sums) {
  for (int64_t key = first; key < last; ++key) {
    const T* const value = values[key / kBlockSize] + key % kBlockSize * value_token;
    sums[dim] += weights[key] * to_float(value[dim]);
  }
}

// Queries [q, num_queries) in runs that share a key or value once it is loaded, long ones first:
// work(q, constant kQueries).
template <int kRun, typename Work>
PARLEY_INLINE void for_runs(int64_t q, int64_t num_queries, Work work) {
  for (; q + kRun <= num_queries; q += kRun) work(q, std::integral_constant<int, kRun>{});
  if constexpr (kRun > 1) {
    for_runs<(kRun > 8 ? 8 : kRun > 4 ? 4 : kRun > 2 ? 2 : 1)>(q, num_queries, work);
  }
}

// Whether keys and values are made floats first. Of few queries each is loaded once or twice anyway.
template <typename T>
PARLEY_INLINE bool are_widened(int64_t num_queries) {
  return !std::is_same_v<T, float> && num_queries > kFew;
}

// The longest run where keys and values are read as they are.
template <typename T>
constexpr int kDirect = std::is_same_v<T, float> ? kMany : kFew;

// `count` vectors as floats, `stride` apart. What is fetched meanwhile is `next`.
template <typename T>
PARLEY_INLINE void widen(const T* from, int64_t count, const T* next, float* to, int64_t stride) {
  for (int64_t vector = 0; vector < count; ++vector) {
    if (vector % kLineVectors<T> == 0) __builtin_prefetch(next + vector * kLanes);
    store(to + vector * stride, load(from + vector * kLanes));
  }
}

// Of all queries with all keys.
template <typename T>
PARLEY_INLINE void score_all(
    Scratch& scratch, const Problem& p, int64_t num_queries, const T* const* keys,
    int64_t num_blocks, float* scores) {
  const float* const queries = scratch.queries.data();
  if (are_widened<T>(num_queries)) {
    const float* floats[kSpan / kBlockSize];
    for (int64_t block = 0; block < num_blocks; ++block) {
      float* const to = scratch.floats.data() + block * p.key_dim * kBlockSize;
      const T* const next = keys[std::min(block + 1, num_blocks - 1)];
      widen(keys[block], p.key_dim, next, to, kLanes);
      floats[block] = to;
    }
    for_runs<kMany>(0, num_queries, [&](int64_t q, auto run) PARLEY_LAMBDA {
      score_queries<run, false>(
          queries + q * p.key_dim, p.key_dim, floats, num_blocks, num_blocks, scores + q * kSpan);
    });
    return;
  }
  for (int64_t block = 0; block < num_blocks; block += kNear) {
    const int64_t num_left = num_blocks - block;
    for_runs<kDirect<T>>(0, num_queries, [&](int64_t q, auto run) PARLEY_LAMBDA {
      score_queries<run, true>(
          queries + q * p.key_dim, p.key_dim, keys + block, std::min(kNear, num_left), num_left,
          scores + q * kSpan + block * kBlockSize);
    });
  }
}

// The values of keys [first, last), weighted, to the sums of all queries.
template <typename T>
PARLEY_INLINE void add_all(
    Scratch& scratch, const Problem& p, int64_t num_queries, const float* weights,
    const T* const* values, int64_t first, int64_t last, float* sums, int64_t stride) {
  const int64_t num_vectors = p.value_dim / kLanes;
  if (are_widened<T>(num_queries)) {
    const float* floats[kSpan / kBlockSize];
    for (int64_t block = first / kBlockSize; block * kBlockSize < last; ++block) {
      const T* const next = values[(block + 1) * kBlockSize < last ? block + 1 : block];
      float* const to = scratch.floats.data() + block * kBlockSize * kLanes;  // [dim / 16][kSpan][16]
      for (int64_t token = 0; token < kBlockSize; ++token) {
        const int64_t place = token * p.value_token;
        widen(values[block] + place, num_vectors, next + place, to + token * kLanes, kSpan * kLanes);
      }
      floats[block] = to;
    }
    const Values<float> all{floats, kLanes, kLanes * kSpan};
    for_runs<kMany>(0, num_queries, [&](int64_t q, auto run) PARLEY_LAMBDA {
      add_values<run, false>(
          weights + q * kSpan, all, first, last, last, num_vectors, sums + q * stride, stride);
    });
  } else {
    constexpr int64_t kKeys = kNear * kBlockSize;
    const Values<T> all{values, p.value_token, kLanes};
    for (int64_t begin = first; begin < last;) {
      const int64_t end = std::min((begin / kKeys + 1) * kKeys, last);
      for_runs<kDirect<T>>(0, num_queries, [&](int64_t q, auto run) PARLEY_LAMBDA {
        add_values<run, true>(
            weights + q * kSpan, all, begin, end, last, num_vectors, sums + q * stride, stride);
      });
      begin = end;
    }
  }
  for (int64_t dim = num_vectors * kLanes; dim < p.value_dim; ++dim) {
    for (int64_t q = 0; q < num_queries; ++q) {
      add_dim(weights + q * kSpan, values, p.value_token, first, last, dim, sums + q * stride);
    }
  }
}

}  // namespace parley::PARLEY_ISA
