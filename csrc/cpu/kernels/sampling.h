// What a random choice from one row of logits is: shared by sampling.cpp, which is asked for rows, and
// sampling_kernel.h, which chooses.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace parley {

constexpr int kBucketShift = 18;  // weights fall into buckets by their sign, exponent and 5 more bits
constexpr int64_t kNumBuckets = (0x3f800000 >> kBucketShift) + 1;  // the heaviest weight is 1
constexpr int64_t kBlock = 512;  // tokens looked at before asking whether the one is among them
constexpr int64_t kPadding = 16;  // weights come in whole vectors of any instruction set

struct Choice {
  const float* logits;  // [vocab]
  int64_t vocab;
  float temperature;  // 0: the best token
  double min_p;       // tokens below this share of the best one's weight are out
  double top_p;       // of what is left the fewest that hold this share of the weight, 1 = all
  int64_t top_k;      // after at most so many, `vocab` = all
  double uniform;     // in [0, 1)
};

// Memory that one thread keeps from row to row; a line of the cache begins each, so that threads that note
// what they found do not wait for one another.
struct alignas(64) ChoiceScratch {
  // Makes room for all that `choose` puts here, so that it never throws: a team's work must not.
  void fit(int64_t vocab) {
    const size_t padded = (vocab + kPadding - 1) / kPadding * kPadding;
    if (weights.size() < padded) weights.resize(padded);
    masses.reserve(std::max(kNumBuckets, (vocab + kBlock - 1) / kBlock));
    counts.reserve(kNumBuckets);
    members.reserve(vocab);  // all may be alike
  }

  std::vector<float> weights;                      // [vocab rounded up]
  std::vector<double> masses;                      // of buckets or blocks
  std::vector<int64_t> counts;                     // of buckets
  std::vector<std::pair<float, int64_t>> members;  // of one bucket: negative weight, token
};

// The token; -1 where the largest logit is not finite, or some logit is no number. A random choice, whose
// temperature is not 0, needs scratch that was fitted to this vocabulary.
using Choose = int64_t (*)(const Choice&, ChoiceScratch&);

}  // namespace parley
