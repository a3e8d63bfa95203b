// One token of one row: the best, or the one that a random number points at.
//
// The number is looked up in the cumulative weights, in the order of tokens, or from the heaviest token
// downwards where only the best may come. For that nothing is sorted but the two buckets of similar weights
// in which the selection ends and in which the number falls. Weights are summed as double, so that the
// order of a sum does not decide on which side of a border the number is.
#pragma once

#include "common/vectors.h"
#include "kernels/sampling.h"

namespace parley::PARLEY_ISA {

static_assert(kPadding % kLanes == 0 && kBlock % kLanes == 0);

PARLEY_INLINE float find_maximum(const float* logits, int64_t vocab) {
  Floats best = splat(-std::numeric_limits<float>::infinity());
  IntPart nothing[kParts] = {};  // where a logit is no number
  int64_t i = 0;
  for (; i + kLanes <= vocab; i += kLanes) {
    const Floats part = load(logits + i);
    keep_larger(best, part);
    for (int j = 0; j < kParts; ++j) nothing[j] |= part.parts[j] != part.parts[j];
  }
  float maximum = max_of(best);
  bool has_nothing = false;
  for (int j = 0; j < kParts; ++j) {
    for (int lane = 0; lane < PARLEY_WIDTH; ++lane) has_nothing |= nothing[j][lane] != 0;
  }
  for (; i < vocab; ++i) {
    maximum = logits[i] > maximum ? logits[i] : maximum;
    has_nothing |= logits[i] != logits[i];
  }
  return has_nothing ? std::numeric_limits<float>::quiet_NaN() : maximum;
}

PARLEY_INLINE int64_t find_first(const float* logits, int64_t vocab, float wanted) {
  int64_t begin = 0;
  for (; begin + kBlock <= vocab; begin += kBlock) {
    IntPart found = {};
    for (int64_t i = begin; i < begin + kBlock; i += PARLEY_WIDTH) {
      found |= load_part(logits + i) == wanted;
    }
    bool any = false;
    for (int lane = 0; lane < PARLEY_WIDTH; ++lane) any |= found[lane] != 0;
    if (any) break;
  }
  return std::find(logits + begin, logits + vocab, wanted) - logits;
}

// e^((logit - maximum) / temperature), 0 where that is below `least`; padded with 0 to whole vectors.
PARLEY_INLINE void weigh_tokens(const Choice& c, float maximum, float* weights) {
  const int64_t padded = (c.vocab + kLanes - 1) / kLanes * kLanes;
  float least = static_cast<float>(c.min_p);
  if (least < c.min_p) least = std::nextafter(least, 2.0f);  // no float lies between
  float last[kLanes];
  for (int64_t i = 0; i < padded; i += kLanes) {
    const float* from = c.logits + i;
    if (i + kLanes > c.vocab) {
      std::fill(last, last + kLanes, -std::numeric_limits<float>::infinity());
      std::copy(from, c.logits + c.vocab, last);
      from = last;
    }
    Floats scaled = load(from);
    for (int j = 0; j < kParts; ++j) {
      scaled.parts[j] = (scaled.parts[j] - maximum) / c.temperature;
    }
    Floats weight = exp_of(scaled, 0.0f);
    for (int j = 0; j < kParts; ++j) {
      weight.parts[j] = weight.parts[j] < least ? FloatPart{} : weight.parts[j];
    }
    store(weights + i, weight);
  }
}

// The first token whose cumulative weight is above `uniform` times all weight.
PARLEY_INLINE int64_t choose_of_all(const Choice& c, ChoiceScratch& scratch) {
  const float* const weights = scratch.weights.data();
  scratch.masses.clear();
  double total = 0;
  for (int64_t begin = 0; begin < c.vocab; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, c.vocab);
    double lanes[kLanes] = {};
    for (int64_t i = begin; i < end; i += kLanes) {  // after the last token there are zeros
      for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += weights[i + lane];
    }
    double mass = 0;
    for (const double lane : lanes) mass += lane;
    scratch.masses.push_back(mass);
    total += mass;
  }
  const double wanted = c.uniform * total;
  double before = 0;
  size_t block = 0;
  while (block + 1 < scratch.masses.size() && before + scratch.masses[block] <= wanted) {
    before += scratch.masses[block++];
  }
  const int64_t begin = static_cast<int64_t>(block) * kBlock;
  const int64_t end = std::min(begin + kBlock, c.vocab);
  int64_t heavy = begin;  // where rounding leaves the number after the last token
  for (int64_t i = begin; i < end; ++i) {
    if (weights[i] == 0) continue;
    heavy = i;
    before += weights[i];
    if (before > wanted) break;
  }
  return heavy;
}

PARLEY_INLINE int64_t bucket_of(float weight) {
  uint32_t bits;
  std::memcpy(&bits, &weight, sizeof(bits));
  return std::min<int64_t>(bits >> kBucketShift, kNumBuckets - 1);
}

// The tokens of a bucket, the heaviest first and of equals the lowest id.
PARLEY_INLINE void collect(const Choice& c, int64_t bucket, ChoiceScratch& scratch) {
  scratch.members.clear();
  for (int64_t token = 0; token < c.vocab; ++token) {
    if (bucket_of(scratch.weights[token]) == bucket) {
      scratch.members.emplace_back(-scratch.weights[token], token);
    }
  }
  std::sort(scratch.members.begin(), scratch.members.end());
}

// Where walking down from the heaviest token ends: `count` tokens and their `mass` lie in the buckets
// above `bucket`.
struct Place {
  int64_t bucket = kNumBuckets - 1, count = 0;
  double mass = 0;
};

// Down to the bucket in which `is_reached(count, mass)` becomes true, or the lightest one with any weight.
template <typename Reached>
PARLEY_INLINE Place walk(const ChoiceScratch& scratch, int64_t lightest, Reached is_reached) {
  Place place;
  for (; place.bucket > lightest; --place.bucket) {
    const int64_t count = place.count + scratch.counts[place.bucket];
    const double mass = place.mass + scratch.masses[place.bucket];
    if (is_reached(count, mass)) break;
    place.count = count, place.mass = mass;
  }
  return place;
}

// As choose_of_all, of the `top_k` heaviest tokens and of these the fewest that hold `top_p`.
PARLEY_INLINE int64_t choose_of_best(const Choice& c, ChoiceScratch& scratch) {
  scratch.masses.assign(kNumBuckets, 0.0);
  scratch.counts.assign(kNumBuckets, 0);
  for (int64_t token = 0; token < c.vocab; ++token) {
    const int64_t bucket = bucket_of(scratch.weights[token]);
    scratch.masses[bucket] += scratch.weights[token];
    ++scratch.counts[bucket];
  }
  int64_t lightest = 1;  // in bucket 0 there are zeros alone
  while (scratch.counts[lightest] == 0) ++lightest;
  double total = 0;
  if (c.top_k < c.vocab) {
    const Place place = walk(scratch, lightest, [&](int64_t count, double) { return count >= c.top_k; });
    total = place.mass;
    collect(c, place.bucket, scratch);
    for (size_t i = 0; i < scratch.members.size(); ++i) {
      if (place.count + static_cast<int64_t>(i) >= c.top_k) break;
      total -= scratch.members[i].first;  // negative there
    }
  } else {
    for (int64_t bucket = kNumBuckets - 1; bucket > 0; --bucket) total += scratch.masses[bucket];
  }

  double kept = total;
  int64_t num_kept = c.top_k;
  if (c.top_p < 1) {
    const double border = c.top_p * total;
    const Place place = walk(scratch, lightest, [&](int64_t count, double mass) {
      return mass >= border || count >= c.top_k;
    });
    collect(c, place.bucket, scratch);
    kept = place.mass, num_kept = place.count;
    for (const auto& [negative, token] : scratch.members) {
      if (num_kept > 0 && (kept >= border || num_kept >= c.top_k)) break;
      kept -= negative, ++num_kept;
    }
  }

  const double wanted = c.uniform * kept;
  const Place place = walk(scratch, lightest, [&](int64_t count, double mass) {
    return mass > wanted || count >= num_kept;
  });
  collect(c, place.bucket, scratch);
  double cumulative = place.mass;
  int64_t count = place.count, chosen = -1;
  for (const auto& [negative, token] : scratch.members) {
    if (chosen >= 0 && count >= num_kept) break;
    chosen = token, ++count;
    cumulative -= negative;
    if (cumulative > wanted) break;
  }
  return chosen;
}

int64_t choose(const Choice& c, ChoiceScratch& scratch) {
  const float maximum = find_maximum(c.logits, c.vocab);
  if (!std::isfinite(maximum)) return -1;
  if (c.temperature == 0) return find_first(c.logits, c.vocab, maximum);
  weigh_tokens(c, maximum, scratch.weights.data());
  const bool is_cut = c.top_k < c.vocab || c.top_p < 1;
  return is_cut ? choose_of_best(c, scratch) : choose_of_all(c, scratch);
}

}  // namespace parley::PARLEY_ISA
