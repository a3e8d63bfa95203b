// What a random choice from one row of logits is: shared by sampling.cpp, which is asked for rows, and
// sampling_kernel.h, which chooses.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace parley {

constexpr int kBucketShift = 18;  // weights fall into buckets by their sign, exponent and 5 more bits
constexpr int64_t kNumBuckets = (0x3f800000 >> kBucketShift) + 1;  // the heaviest weight is 1

struct Choice {
  const float* logits;  // [vocab]
  int64_t vocab;
  float temperature;  // 0: the best token
  double min_p;       // tokens below this share of the best one's weight are out
  double top_p;       // of what is left the fewest that hold this share of the weight, 1 = all
  int64_t top_k;      // after at most so many, `vocab` = all
  double uniform;     // in [0, 1)
};

// Memory that one thread keeps from row to row.
struct ChoiceScratch {
  std::vector<float> weights;                      // [vocab]
  std::vector<double> masses;                      // of buckets or blocks
  std::vector<int64_t> counts;                     // of buckets
  std::vector<std::pair<float, int64_t>> members;  // of one bucket: negative weight, token
};

// The token; -1 where the largest logit is not finite, or some logit is no number.
using Choose = int64_t (*)(const Choice&, ChoiceScratch&);

}  // namespace parley
