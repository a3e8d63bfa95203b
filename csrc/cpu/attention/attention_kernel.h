// One unit of paged attention.
//
// Keys are taken in spans of kSpan tokens that begin at multiples of kSpan, whatever the batch and the
// chunk, and the sums of one query never mix with those of another; so a token's result depends on its
// sequence alone, to the last bit. Within a span: scores, then their weights, then weighted values;
// between spans the running maximum rescales what was summed before. Each stretch of spans is summed by
// itself, and then joins what was seen before it: so stretches may be different threads'.
#pragma once

#include "attention/attention_tiles.h"
#include "common/vectors.h"

#if defined(PARLEY_DOT_BFLOAT16)
#include "attention/attention_pairs.h"
#endif

namespace parley::PARLEY_ISA {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

// Turn the scores [begin, end) of one query into weights, 0 outside; rescale what came before.
PARLEY_INLINE void weigh(
    float* scores, int64_t begin, int64_t end, int64_t num_keys, float softcap, float* maximum,
    float* total, float* sums, int64_t value_dim) {
  std::fill(scores, scores + std::min(begin, num_keys), kNegativeInfinity);
  std::fill(scores + std::max<int64_t>(end, 0), scores + num_keys, kNegativeInfinity);
  if (softcap > 0) {
    for (int64_t key = begin; key < end; ++key) {
      scores[key] = softcap * std::tanh(scores[key] / softcap);
    }
  }
  Floats best = splat(*maximum);
  for (int64_t key = 0; key < num_keys; key += kLanes) {
    keep_larger(best, load(scores + key));
  }
  const float new_maximum = max_of(best);
  if (new_maximum != *maximum) {
    const float shrink = std::exp(*maximum - new_maximum);
    *total *= shrink;
    for (int64_t dim = 0; dim < value_dim; ++dim) sums[dim] *= shrink;
    *maximum = new_maximum;
  }
  Floats part = splat(0.0f);
  for (int64_t key = 0; key < num_keys; key += kLanes) {
    const Floats weight = exp_of(load(scores + key), new_maximum);
    store(scores + key, weight);
    add(part, weight);
  }
  *total += sum_of(part);
}

// Scores or weights of keys or values that are bytes, times what a byte of each token stands for.
PARLEY_INLINE void scale_blocks(float* numbers, const float* const* scales, int64_t num_blocks) {
  for (int64_t block = 0; block < num_blocks; ++block) {
    float* const of_block = numbers + block * kBlockSize;
    store(of_block, product(load(of_block), load(scales[block])));
  }
}

// The state of queries that have seen nothing.
PARLEY_INLINE void clear(const State& state, int64_t num_queries, int64_t stride) {
  std::fill(state.sums, state.sums + num_queries * stride, 0.0f);
  std::fill(state.maxima, state.maxima + num_queries, kNegativeInfinity);
  std::fill(state.totals, state.totals + num_queries, 0.0f);
}

// Whether a query has seen no key. Scores that are all NaN have no maximum either, but a total.
PARLEY_INLINE bool is_blind(const State& state, int64_t query) {
  return state.maxima[query] == kNegativeInfinity && state.totals[query] == 0;
}

// What a further stretch adds to what was seen before it.
PARLEY_INLINE void join(
    const State& seen, const State& stretch, int64_t num_queries, int64_t stride) {
  for (int64_t q = 0; q < num_queries; ++q) {
    if (is_blind(stretch, q)) continue;
    float* const to = seen.sums + q * stride;
    const float* const from = stretch.sums + q * stride;
    if (is_blind(seen, q)) {  // this is the first one
      seen.maxima[q] = stretch.maxima[q];
      seen.totals[q] = stretch.totals[q];
      std::copy(from, from + stride, to);
      continue;
    }
    const float maximum = std::max(seen.maxima[q], stretch.maxima[q]);
    const float old_share = std::exp(seen.maxima[q] - maximum);
    const float new_share = std::exp(stretch.maxima[q] - maximum);
    seen.maxima[q] = maximum;
    seen.totals[q] = seen.totals[q] * old_share + stretch.totals[q] * new_share;
    for (int64_t i = 0; i < stride; ++i) to[i] = to[i] * old_share + from[i] * new_share;
  }
}

// The queries of a unit. Q: queries, sinks and results; T: keys and values.
template <typename Q, typename T>
class Attention {
 public:
  PARLEY_MEMBER Attention(const Problem& p, const Unit& unit, Scratch& scratch)
      : p_(p),
        unit_(unit),
        scratch_(scratch),
        first_row_(p.cu_seqlens_q[unit.sequence] + unit.token),
        first_place_(
            p.seq_lens[unit.sequence] + unit.token -
            (p.cu_seqlens_q[unit.sequence + 1] - p.cu_seqlens_q[unit.sequence])),
        num_queries_(unit.num_tokens * p.group),
        head_(unit.kv_head * p.group),
        stride_(p.value_stride()),
        seen_(scratch.states.data(), num_queries_, stride_) {}

  // False if a result is no number.
  bool run() {
    pack_queries();
    const int64_t end = first_place_ + unit_.num_tokens;
    if (unit_.stretch >= 0) {
      see(unit_.stretch, part(unit_.stretch));
      std::atomic<int32_t>& left = p_.left[unit_.first_part];
      if (left.fetch_sub(1, std::memory_order_acq_rel) > 1) return true;
      left.store(unit_.num_parts, std::memory_order_relaxed);  // for the next layer
      begin();
      for (int64_t i = 0; i < unit_.num_parts; ++i) join(seen_, part(i), num_queries_, stride_);
    } else {
      const State stretch(
          scratch_.states.data() + State::size(num_queries_, stride_), num_queries_, stride_);
      begin();
      for (int64_t i = first_seen() / kStretch; i * kStretch < end; ++i) {
        see(i, stretch);
        join(seen_, stretch, num_queries_, stride_);
      }
    }
    return write();
  }

 private:
  // Query q: token q / group, head q % group.
  PARLEY_MEMBER int64_t row_of(int64_t q) const { return first_row_ + q / p_.group; }
  PARLEY_MEMBER int64_t head_of(int64_t q) const { return head_ + q % p_.group; }

  PARLEY_MEMBER int64_t first_seen() const {  // the first key in a window
    return p_.window ? std::max<int64_t>(0, first_place_ - p_.window + 1) : 0;
  }

  PARLEY_MEMBER State part(int64_t index) const {
    const int64_t size = State::size(p_.group, stride_);
    return State(p_.parts + (unit_.first_part + index) * size, p_.group, stride_);
  }

  // As the runs read them.
  PARLEY_MEMBER void pack_queries() {
    const Q* const query = static_cast<const Q*>(p_.query);
#if defined(PARLEY_DOT_BFLOAT16)
    if constexpr (std::is_same_v<T, BFloat16>) return pack_pairs(query);
#endif
    const auto pack = [&](int64_t first, int64_t run) {
      float* const to = scratch_.queries.data() + first * p_.key_dim;
      for (int64_t i = 0; i < run; ++i) {
        const Q* const from =
            query + row_of(first + i) * p_.query_token + head_of(first + i) * p_.query_head;
        for (int64_t dim = 0; dim < p_.key_dim; ++dim) {
          to[dim * run + i] = to_float(from[dim]) * p_.scale;
        }
      }
    };
    if (are_widened<T>(num_queries_)) {
      for_runs<kMany>(0, num_queries_, pack);
    } else {
      for_runs<kDirect<T>>(0, num_queries_, pack);
    }
  }

#if defined(PARLEY_DOT_BFLOAT16)
  PARLEY_MEMBER void pack_pairs(const Q* query) {
    constexpr int64_t kDims = 128;  // at once
    const int64_t num_pairs = (p_.key_dim + 1) / 2;
    const auto pack = [&](int64_t first, int64_t run) {
      auto* const to = reinterpret_cast<Pair*>(scratch_.queries.data()) + first * num_pairs;
      for (int64_t dim = 0; dim < p_.key_dim; dim += kDims) {
        const int64_t count = std::min(kDims, p_.key_dim - dim);
        Pair pairs[kMany][kDims / 2];
        for (int64_t i = 0; i < run; ++i) {
          const Q* const from =
              query + row_of(first + i) * p_.query_token + head_of(first + i) * p_.query_head;
          to_pairs(from + dim, count, p_.scale, pairs[i]);
        }
        interleave(pairs[0], kDims / 2, (count + 1) / 2, run, to + dim / 2 * run);
      }
    };
    if (num_queries_ > kFew) {
      for_runs<kMany>(0, num_queries_, pack);
    } else {
      for_runs<kFew>(0, num_queries_, pack);
    }
  }
#endif

  // A sink is seen before all keys: it takes weight and gives nothing.
  PARLEY_MEMBER void begin() {
    clear(seen_, num_queries_, stride_);
    if (!p_.sinks) return;
    for (int64_t q = 0; q < num_queries_; ++q) {
      seen_.maxima[q] = to_float(static_cast<const Q*>(p_.sinks)[head_of(q)]);
      seen_.totals[q] = 1.0f;
    }
  }

  // What the queries see of a stretch. Not inlined: it is most of the code, and asked for twice.
  [[gnu::noinline]] void see(int64_t stretch, const State& state) {
    clear(state, num_queries_, stride_);
    const int64_t end = std::min(first_place_ + unit_.num_tokens, (stretch + 1) * kStretch);
    const int64_t first = std::max(first_seen() / kSpan * kSpan, stretch * kStretch);
    for (int64_t span = first; span < end; span += kSpan) see_span(span, state);
  }

  // Of a later span, or else the first ones of the next head, which this thread most likely sees next.
  PARLEY_MEMBER const T* keys_after(int64_t span, int64_t block) const {
    const bool is_next_head = span >= first_place_ + unit_.num_tokens;
    const int64_t head = is_next_head && unit_.kv_head + 1 < p_.num_kv_heads ? unit_.kv_head + 1 : unit_.kv_head;
    const int64_t first = is_next_head ? first_seen() / kBlockSize : span / kBlockSize;
    const int64_t last = (first_place_ + unit_.num_tokens - 1) / kBlockSize;
    const int64_t number = p_.block_tables[unit_.sequence * p_.max_blocks + std::min(first + block, last)];
    return static_cast<const T*>(p_.key_cache) + number * p_.key_block + head * p_.key_head;
  }

  PARLEY_MEMBER void see_span(int64_t span, const State& state) {
    constexpr bool kAreBytes = std::is_same_v<T, int8_t>;
    const int64_t num_seen = std::min(kSpan, first_place_ + unit_.num_tokens - span);
    const int64_t num_blocks = (num_seen + kBlockSize - 1) / kBlockSize;
    const int64_t skipped = std::max<int64_t>(0, first_seen() - span);  // of no query's window
    const int32_t* const table = p_.block_tables + unit_.sequence * p_.max_blocks + span / kBlockSize;
    // After them what is read next, so that it can be fetched.
    const T *keys[kSpan / kBlockSize + kNear], *values[kSpan / kBlockSize + kNear];
    const float *key_scales[kSpan / kBlockSize], *value_scales[kSpan / kBlockSize];
    for (int64_t i = 0; i < num_blocks; ++i) {
      const int64_t block = table[i];
      keys[i] =
          static_cast<const T*>(p_.key_cache) + block * p_.key_block + unit_.kv_head * p_.key_head;
      values[i] = static_cast<const T*>(p_.value_cache) + block * p_.value_block +
                  unit_.kv_head * p_.value_head;
      if constexpr (kAreBytes) {
        key_scales[i] =
            p_.cache_scales + (2 * block * p_.num_kv_heads + unit_.kv_head) * kBlockSize;
        value_scales[i] = key_scales[i] + p_.num_kv_heads * kBlockSize;
      }
    }
    for (int64_t i = 0; i < kNear; ++i) {
      keys[num_blocks + i] = values[std::min(i, num_blocks - 1)];
      values[num_blocks + i] = keys_after(span + kSpan, i);
    }
    float* const scores = scratch_.scores.data();
    const int64_t empty_blocks = skipped / kBlockSize, empty = empty_blocks * kBlockSize;
    score_all(
        scratch_, p_, num_queries_, keys + empty_blocks, num_blocks - empty_blocks, scores + empty);
    for (int64_t q = 0; q < num_queries_; ++q) {
      float* const of_query = scores + q * kSpan;
      if constexpr (kAreBytes) {
        scale_blocks(of_query + empty, key_scales + empty_blocks, num_blocks - empty_blocks);
      }
      const int64_t place = first_place_ + q / p_.group - span;  // of the query, within the span
      const int64_t begin = p_.window ? std::max<int64_t>(0, place - p_.window + 1) : 0;
      const int64_t end = std::min(place + 1, num_seen);
      if (begin >= end) {  // another token of the unit sees this span, this one does not
        std::fill(of_query, of_query + num_blocks * kBlockSize, 0.0f);
        continue;
      }
      weigh(
          of_query, begin, end, num_blocks * kBlockSize, p_.softcap, &state.maxima[q],
          &state.totals[q], state.sums + q * stride_, p_.value_dim);
      if constexpr (kAreBytes) scale_blocks(of_query, value_scales, num_blocks);
    }
    add_all(scratch_, p_, num_queries_, scores, values, skipped, num_seen, state.sums, stride_);
  }

  PARLEY_MEMBER bool write() const {
    IntPart no_numbers{};  // of whole vectors, as a loop over numbers that looks at each is slow
    for (int64_t q = 0; q < num_queries_; ++q) {
      Q* const to =
          static_cast<Q*>(p_.out) + row_of(q) * p_.out_token + head_of(q) * p_.out_head;
      for (int64_t dim = 0; dim < p_.value_dim; dim += kLanes) {
        Floats results = load(seen_.sums + q * stride_ + dim);
        for (FloatPart& part : results.parts) {
          part /= seen_.totals[q];
          no_numbers |= part != part;
        }
        float lanes[kLanes];
        store(lanes, results);
        const int64_t count = std::min<int64_t>(kLanes, p_.value_dim - dim);
        if (count == kLanes) {
          for (int i = 0; i < kLanes; ++i) from_float(lanes[i], to + dim + i);
        } else {
          for (int64_t i = 0; i < count; ++i) from_float(lanes[i], to + dim + i);
        }
      }
    }
    for (int i = 0; i < PARLEY_WIDTH; ++i) {
      if (no_numbers[i]) return false;
    }
    return true;
  }

  const Problem& p_;
  const Unit& unit_;
  Scratch& scratch_;
  const int64_t first_row_, first_place_, num_queries_, head_, stride_;
  const State seen_;
};

template <typename Q, typename T>
void attend(const Problem& p, const Unit& unit, Scratch& scratch) {
  if (Attention<Q, T>(p, unit, scratch).run() || unit.num_tokens == 1) return;
  // The tokens of a unit share loops over keys, and 0 times a key's or value's NaN is NaN: so each by
  // itself, which meets only what it may see.
  for (int32_t i = 0; i < unit.num_tokens; ++i) {
    Unit token = unit;
    token.token += i;
    token.num_tokens = 1;
    Attention<Q, T>(p, token, scratch).run();
  }
}

}  // namespace parley::PARLEY_ISA
