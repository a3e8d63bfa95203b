// Some queries with the keys and values of a span in bfloat16, by instructions that multiply pairs and add
// both products to a float.
//
// Queries and weights are rounded to bfloat16 for that, as rows are for products with such weights. Pairs are
// two dims of a key, and the values of two tokens that begin with an even one: so what a query's sums are does
// not depend on the other queries, nor on which keys these see.
#pragma once

#include "attention/attention_tiles.h"
#include "common/vectors.h"

namespace parley::PARLEY_ISA {

PARLEY_INLINE __m512i load_words(const void* from) { return _mm512_loadu_si512(from); }

// Neighbours of 16 words: what is at i and at 16 + i of 32 halves.
PARLEY_INLINE __m512i paired_halves(__m512i halves) {
  const __m512i places = _mm512_set_epi16(
      31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
      23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(places, halves);
}

PARLEY_INLINE __m512i two_of(__m256i low, __m256i high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

PARLEY_INLINE __m256i load_half(const BFloat16* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

// Into the second cache: what the nearest one waits for at a time is too little for the memory's speed.
PARLEY_INLINE void fetch(const BFloat16* from) { __builtin_prefetch(from, 0, 2); }

PARLEY_INLINE void add_dot(Floats& sums, __m512i pairs, Pair factor) {
  const __m512i factors = _mm512_set1_epi32(static_cast<int>(factor));
  asm("vdpbf16ps %2, %1, %0" : "+v"(sums.parts[0]) : "v"(pairs), "v"(factors));
}

// ---- scores ------------------------------------------------------------------------------------------

// Dims 2i and 2i + 1 of a block's keys.
template <bool kArePairs>
PARLEY_INLINE __m512i load_key_pair(const BFloat16* keys, int64_t pair, int64_t key_dim) {
  const BFloat16* const from = keys + pair * 2 * kBlockSize;
  if constexpr (kArePairs) {
    return load_words(from);
  } else if (2 * pair + 1 < key_dim) {
    return paired_halves(load_words(from));
  } else {
    return paired_halves(two_of(load_half(from), _mm256_setzero_si256()));
  }
}

// Scores of kQueries queries, pairs [dim / 2][query], against kBlocks blocks. Those kNear ahead are
// prefetched.
template <int kQueries, int kBlocks, bool kArePairs>
PARLEY_INLINE void score_pairs(
    const Pair* queries, int64_t key_dim, const BFloat16* const* keys, float* scores) {
  Floats sums[kQueries][kBlocks];
  unrolled<kQueries, kBlocks>([&](auto q, auto block) PARLEY_LAMBDA { sums[q][block] = splat(0.0f); });
  for (int64_t pair = 0; pair < (key_dim + 1) / 2; ++pair) {
    __m512i of_pair[kBlocks];
    unrolled<kBlocks>([&](auto block) PARLEY_LAMBDA {
      if (!kArePairs) fetch(keys[block + kNear] + pair * 2 * kBlockSize);
      of_pair[block] = load_key_pair<kArePairs>(keys[block], pair, key_dim);
    });
    unrolled<kQueries>([&](auto q) PARLEY_LAMBDA {
      unrolled<kBlocks>([&](auto block) PARLEY_LAMBDA {
        add_dot(sums[q][block], of_pair[block], queries[pair * kQueries + q]);
      });
    });
  }
  unrolled<kQueries, kBlocks>([&](auto q, auto block) PARLEY_LAMBDA {
    store(scores + q * kSpan + block * kBlockSize, sums[q][block]);
  });
}

template <int kQueries, bool kArePairs>
PARLEY_INLINE void score_blocks(
    const Pair* queries, int64_t key_dim, const BFloat16* const* keys, int64_t num_blocks, float* scores) {
  constexpr int kAtOnce = at_once(kQueries, 4);
  int64_t block = 0;
  for (; block + kAtOnce <= num_blocks; block += kAtOnce) {
    score_pairs<kQueries, kAtOnce, kArePairs>(
        queries, key_dim, keys + block, scores + block * kBlockSize);
  }
  for (; block < num_blocks; ++block) {
    score_pairs<kQueries, 1, kArePairs>(queries, key_dim, keys + block, scores + block * kBlockSize);
  }
}

// Of all queries with all keys.
PARLEY_INLINE void score_all(
    Scratch& scratch, const Problem& p, int64_t num_queries, const BFloat16* const* keys,
    int64_t num_blocks, float* scores) {
  const int64_t num_pairs = (p.key_dim + 1) / 2;
  const auto* const queries = reinterpret_cast<const Pair*>(scratch.queries.data());
  if (num_queries > kFew) {
    const BFloat16* pairs[kSpan / kBlockSize];
    for (int64_t block = 0; block < num_blocks; ++block) {
      const BFloat16* const next = keys[std::min(block + 1, num_blocks - 1)];
      auto* const to = reinterpret_cast<BFloat16*>(scratch.floats.data()) + block * num_pairs * 2 * kBlockSize;
      for (int64_t pair = 0; pair < num_pairs; ++pair) {
        fetch(next + pair * 2 * kBlockSize);
        _mm512_storeu_si512(
            to + pair * 2 * kBlockSize, load_key_pair<false>(keys[block], pair, p.key_dim));
      }
      pairs[block] = to;
    }
    for_runs<kMany>(0, num_queries, [&](int64_t q, auto run) PARLEY_LAMBDA {
      score_blocks<run, true>(
          queries + q * num_pairs, p.key_dim, pairs, num_blocks, scores + q * kSpan);
    });
    return;
  }
  for (int64_t block = 0; block < num_blocks; block += kNear) {
    for_runs<kFew>(0, num_queries, [&](int64_t q, auto run) PARLEY_LAMBDA {
      score_blocks<run, false>(
          queries + q * num_pairs, p.key_dim, keys + block, std::min(kNear, num_blocks - block),
          scores + q * kSpan + block * kBlockSize);
    });
  }
}

// ---- values ------------------------------------------------------------------------------------------

// Two tokens' dims [16 * vector, 16 * vector + 16). Where one of them is not asked for, 0 in its place: there
// may be no number.
template <int kVectors>
struct ValuePairs {
  __m512i words[kVectors];

  PARLEY_MEMBER ValuePairs(const BFloat16* even, int64_t stride, bool has_even, bool has_odd) {
    unrolled<kVectors>([&](auto i) PARLEY_LAMBDA {
      const __m256i zero = _mm256_setzero_si256();
      const __m256i low = has_even ? load_half(even + i * kLanes) : zero;
      const __m256i high = has_odd ? load_half(even + stride + i * kLanes) : zero;
      words[i] = paired_halves(two_of(low, high));
    });
  }
};

// sums[q] += weights[q] · values over keys [first, last), for kQueries queries and kVectors vectors of dims.
// Weights are pairs [query][kSpan / 2]. As much of the blocks kNear ahead is prefetched meanwhile.
template <int kQueries, int kVectors>
PARLEY_INLINE void add_value_pairs(
    const Pair* weights, const BFloat16* const* values, int64_t value_token, int64_t first, int64_t last,
    int64_t vector, float* sums, int64_t sums_stride) {
  Floats parts[kQueries][kVectors];
  unrolled<kQueries, kVectors>([&](auto q, auto i) PARLEY_LAMBDA {
    parts[q][i] = load(sums + q * sums_stride + (vector + i) * kLanes);
  });
  const auto add = [&](int64_t key, const ValuePairs<kVectors>& pairs) PARLEY_LAMBDA {
    unrolled<kQueries>([&](auto q) PARLEY_LAMBDA {
      unrolled<kVectors>([&](auto i) PARLEY_LAMBDA {
        add_dot(parts[q][i], pairs.words[i], weights[q * (kSpan / 2) + key / 2]);
      });
    });
  };
  for (int64_t key = first & ~int64_t{1}; key < last;) {
    const int64_t block = key / kBlockSize, end = std::min((block + 1) * kBlockSize, last);
    const BFloat16* from = values[block] + key % kBlockSize * value_token + vector * kLanes;
    const BFloat16* next = values[block + kNear] + key % kBlockSize * value_token + vector * kLanes;
    if (key < first) {
      add(key, ValuePairs<kVectors>(from, value_token, false, key + 1 < last));
      key += 2, from += 2 * value_token;
    }
    for (; key + 1 < end; key += 2, from += 2 * value_token, next += 2 * value_token) {
      unrolled<kVectors>([&](auto i) PARLEY_LAMBDA {
        if (i % 2 == 0) fetch(next + i * kLanes);
        if (i % 2 == 0) fetch(next + value_token + i * kLanes);
      });
      add(key, ValuePairs<kVectors>(from, value_token, true, true));
    }
    if (key < end) {
      add(key, ValuePairs<kVectors>(from, value_token, true, false));
      key += 2;
    }
  }
  unrolled<kQueries, kVectors>([&](auto q, auto i) PARLEY_LAMBDA {
    store(sums + q * sums_stride + (vector + i) * kLanes, parts[q][i]);
  });
}

// The same of pairs that were made before: [dim / 16][kSpan / 2][16].
template <int kQueries, int kVectors>
PARLEY_INLINE void add_made_pairs(
    const Pair* weights, const Pair* values, int64_t first, int64_t last, int64_t vector, float* sums,
    int64_t sums_stride) {
  Floats parts[kQueries][kVectors];
  unrolled<kQueries, kVectors>([&](auto q, auto i) PARLEY_LAMBDA {
    parts[q][i] = load(sums + q * sums_stride + (vector + i) * kLanes);
  });
  const Pair* from = values + (vector * (kSpan / 2) + first / 2) * kLanes;
  for (int64_t pair = first / 2; pair < (last + 1) / 2; ++pair, from += kLanes) {
    __m512i of_pair[kVectors];
    unrolled<kVectors>([&](auto i) PARLEY_LAMBDA {
      of_pair[i] = load_words(from + i * (kSpan / 2) * kLanes);
    });
    unrolled<kQueries>([&](auto q) PARLEY_LAMBDA {
      unrolled<kVectors>([&](auto i) PARLEY_LAMBDA {
        add_dot(parts[q][i], of_pair[i], weights[q * (kSpan / 2) + pair]);
      });
    });
  }
  unrolled<kQueries, kVectors>([&](auto q, auto i) PARLEY_LAMBDA {
    store(sums + q * sums_stride + (vector + i) * kLanes, parts[q][i]);
  });
}

// work(vector, constant kVectors) for all whole vectors, `kAtOnce` together while there are so many.
template <int kAtOnce, typename Work>
PARLEY_INLINE void for_vectors(int64_t num_vectors, Work work) {
  int64_t vector = 0;
  for (; vector + kAtOnce <= num_vectors; vector += kAtOnce) {
    work(vector, std::integral_constant<int, kAtOnce>{});
  }
  for (; vector < num_vectors; ++vector) work(vector, std::integral_constant<int, 1>{});
}

// The values of keys [first, last), weighted, to the sums of all queries. Their weights become pairs.
PARLEY_INLINE void add_all(
    Scratch& scratch, const Problem& p, int64_t num_queries, float* weights,
    const BFloat16* const* values, int64_t first, int64_t last, float* sums, int64_t stride) {
  const int64_t num_vectors = p.value_dim / kLanes;
  for (int64_t dim = num_vectors * kLanes; dim < p.value_dim; ++dim) {
    for (int64_t q = 0; q < num_queries; ++q) {
      add_dim(weights + q * kSpan, values, p.value_token, first, last, dim, sums + q * stride);
    }
  }
  // In the first half of their own place: pair i is read at 2i and 2i + 1, and written at i.
  auto* const pairs = reinterpret_cast<Pair*>(weights);
  for (int64_t q = 0; q < num_queries; ++q) {
    const float* const from = weights + q * kSpan;
    Pair* const to = pairs + q * (kSpan / 2);
    for (int64_t key = 0; key < last; key += 2 * kLanes) {
      const __m512 low = _mm512_loadu_ps(from + key), high = _mm512_loadu_ps(from + key + kLanes);
      const __m512bh halves = _mm512_cvtne2ps_pbh(high, low);
      std::memcpy(to + key / 2, &halves, sizeof(halves));
    }
  }
  if (num_queries > kFew) {
    auto* const made = reinterpret_cast<Pair*>(scratch.floats.data());
    for (int64_t key = first & ~int64_t{1}; key < last; key += 2) {
      const int64_t block = key / kBlockSize, place = key % kBlockSize * p.value_token;
      const BFloat16* const next = values[(block + 1) * kBlockSize < last ? block + 1 : block] + place;
      for (int64_t vector = 0; vector < num_vectors; ++vector) {
        if (vector % 2 == 0) fetch(next + vector * kLanes);
        if (vector % 2 == 0) fetch(next + p.value_token + vector * kLanes);
        const ValuePairs<1> one(
            values[block] + place + vector * kLanes, p.value_token, key >= first, key + 1 < last);
        _mm512_storeu_si512(made + (vector * (kSpan / 2) + key / 2) * kLanes, one.words[0]);
      }
    }
    for_runs<kMany>(0, num_queries, [&](int64_t q, auto run) PARLEY_LAMBDA {
      for_vectors<at_once(run, 8)>(num_vectors, [&](int64_t vector, auto count) PARLEY_LAMBDA {
        add_made_pairs<run, count>(
            pairs + q * (kSpan / 2), made, first, last, vector, sums + q * stride, stride);
      });
    });
    return;
  }
  constexpr int64_t kKeys = kNear * kBlockSize;
  for (int64_t begin = first; begin < last;) {
    const int64_t end = std::min((begin / kKeys + 1) * kKeys, last);
    for_runs<kFew>(0, num_queries, [&](int64_t q, auto run) PARLEY_LAMBDA {
      for_vectors<at_once(run, 8)>(num_vectors, [&](int64_t vector, auto count) PARLEY_LAMBDA {
        add_value_pairs<run, count>(
            pairs + q * (kSpan / 2), values, p.value_token, begin, end, vector, sums + q * stride,
            stride);
      });
    });
    begin = end;
  }
}

}  // namespace parley::PARLEY_ISA
