// choose_tokens: a token for each row of logits, by the row's own random number.
//
// Nothing is sorted. Weights are whole numbers, 2^40 the heaviest, so that their sums are exact in any order.
// To find where the weight of the heaviest tokens reaches a share, or their number a count, three passes sort
// weights by the upper, the middle and the lower bits of their float32 into a histogram each, and narrow the
// place down to one weight (a radix selection). After the first pass mostly few tokens can still be chosen:
// they are copied out of the row, and all that follows reads these alone. Tokens of the same weight stand by
// their ids.
#include <algorithm>

#include "common/arguments.h"
#include "common/reduce.h"

namespace parley::cuda {
namespace {

using Mass = unsigned long long;  // as atomicAdd names it

constexpr int kThreads = 512, kWarps = kThreads / kWarpThreads;
constexpr int kBins = 2048, kOfThread = kBins / kThreads;
constexpr int kMostHeaviest = 1024;  // that are copied out of a row
constexpr int kAtOnce = 4;  // vectors that a thread reads before it looks at the first of them
constexpr int kMostTokens = 1 << 23;  // whose weights a sum has room for
constexpr float kOne = 1099511627776.0f;  // 2^40
constexpr int kNumLevels = 3;

// Calls `each(token, logit)` for the tokens from `begin` to `end` that fall to thread `first` of `step`, in the
// order of their ids. Only whole vectors keep the memory busy enough.
template <typename Each>
__device__ void for_each_logit(
    const float* logits, int begin, int end, int first, int step, const Each& each) {
  const int before_vectors = (16 - static_cast<int>(reinterpret_cast<uintptr_t>(logits + begin) % 16)) % 16 / 4;
  const int aligned = min(end, begin + before_vectors), num_vectors = (end - aligned) / 4;
  const auto* const vectors = reinterpret_cast<const float4*>(logits + aligned);
  const auto each_of = [&](int index, const float4& vector) {
    const int token = aligned + 4 * index;
    each(token, vector.x);
    each(token + 1, vector.y);
    each(token + 2, vector.z);
    each(token + 3, vector.w);
  };
  if (begin + first < aligned) each(begin + first, logits[begin + first]);
  int index = first;
  for (; index + (kAtOnce - 1) * step < num_vectors; index += kAtOnce * step) {
    float4 read[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) read[i] = vectors[index + i * step];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) each_of(index + i * step, read[i]);
  }
  for (; index < num_vectors; index += step) each_of(index, vectors[index]);
  const int rest = aligned + 4 * num_vectors + first;
  if (rest < end) each(rest, logits[rest]);
}

// A row's numbers, as its threads see them.
struct Row {
  const float* logits;
  int vocab;
  float largest, temperature;
  double min_p;

  // Relative to the best token's.
  __device__ float weight_of(float logit) const {
    const float weight = expf((logit - largest) / temperature);
    return weight < min_p ? 0.0f : weight;
  }
};

__device__ Mass mass_of(float weight) { return static_cast<Mass>(weight * kOne); }

// Weights are not negative, so that their bits are in their order.
__device__ unsigned key_of(float weight) { return __float_as_uint(weight); }

// Of a level's bits: where they begin, and how many values they have.
__device__ int shift_of(int level) { return level == 0 ? 20 : level == 1 ? 9 : 0; }
__device__ int bins_of(int level) { return level == 2 ? 512 : 2048; }

// The token at which the sum from the heaviest downwards passes a target.
struct Crossing {
  float weight;   // its own
  Mass above;     // of all heavier tokens
  Mass place;     // among those of the same weight, by id

  // Of all tokens down to this one.
  __device__ Mass mass() const { return above + (place + 1) * mass_of(weight); }
};

// A histogram. In shared memory a GPU adds 32 bits in one instruction, and 64 in a loop: so masses lie in halves.
struct Bins {
  unsigned counts[kBins], low[kBins], high[kBins];

  __device__ void clear() {
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads) counts[bin] = low[bin] = high[bin] = 0;
  }

  __device__ void add(unsigned bin, Mass mass) {
    const auto lower = static_cast<unsigned>(mass);
    const unsigned before = atomicAdd(&low[bin], lower);
    const unsigned upper = static_cast<unsigned>(mass >> 32) + (before + lower < before ? 1 : 0);
    if (upper != 0) atomicAdd(&high[bin], upper);
  }

  __device__ Mass mass_of(int bin) const { return Mass{high[bin]} << 32 | low[bin]; }

  // Of all bins from `first` on.
  template <typename Measure>
  __device__ Mass sum(int first, Measure measure_of) const {
    Mass own = 0;
    for (int bin = first + threadIdx.x; bin < kBins; bin += kThreads) own += measure_of(bin);
    return sum_of_block(own);
  }
};

// Tokens that may still be chosen, in no order.
struct Heaviest {
  float weights[kMostHeaviest];
  int ids[kMostHeaviest];
  int count;
};

// Shared by the threads of a row.
struct Memory {
  Bins bins;
  Heaviest heaviest;
};

// What is looked for among: all tokens of a row, or its heaviest, once they are known to be few.
struct Tokens {
  const Row& row;
  Memory& memory;
  bool are_few = false;

  // Calls `each(weight)` for those that fall to this thread.
  template <typename Each>
  __device__ void for_each(const Each& each) const {
    if (are_few) {
      const Heaviest& heaviest = memory.heaviest;
      for (int i = threadIdx.x; i < heaviest.count; i += kThreads) each(heaviest.weights[i]);
    } else {
      for_each_logit(row.logits, 0, row.vocab, threadIdx.x, kThreads, [&](int, float logit) {
        each(row.weight_of(logit));
      });
    }
  }

  // Copies those whose keys are not below `least` out of the row.
  __device__ void keep_heaviest(unsigned least) {
    Heaviest& heaviest = memory.heaviest;
    if (threadIdx.x == 0) heaviest.count = 0;
    __syncthreads();
    for_each_logit(row.logits, 0, row.vocab, threadIdx.x, kThreads, [&](int token, float logit) {
      const float weight = row.weight_of(logit);
      if (key_of(weight) < least) return;
      const int place = atomicAdd(&heaviest.count, 1);
      heaviest.weights[place] = weight;
      heaviest.ids[place] = token;
    });
    __syncthreads();
    are_few = true;
  }
};

// Adds up bins from the last to the first; gives the one in which the sum passes `target` and the sum
// before.
struct FoundBin {
  int bin;
  Mass before;
};

template <typename Measure>
__device__ FoundBin find_bin(Mass target, Measure measure_of) {
  __shared__ FoundBin found;
  const int first = kBins - 1 - static_cast<int>(threadIdx.x) * kOfThread;  // this thread's, downwards
  Mass sum = 0;
  for (int i = 0; i < kOfThread; ++i) sum += measure_of(first - i);
  Mass before = sum_before_in_block(sum);
  if (before <= target && target < before + sum) {
    for (int i = 0; i < kOfThread; ++i) {
      const Mass own = measure_of(first - i);
      if (target < before + own) {
        found = {first - i, before};
        break;
      }
      before += own;
    }
  }
  __syncthreads();
  return found;
}

// The first token, from the heaviest downwards, at which the sum of what is measured is above a target: the
// number of tokens if `is_count`, else their mass. `target_of` names it, given the mass of all tokens; it must
// be above for all tokens together.
template <typename TargetOf>
__device__ Crossing find_crossing(Tokens& tokens, bool is_count, TargetOf target_of) {
  Bins& bins = tokens.memory.bins;
  const auto mass_in = [&](int bin) { return bins.mass_of(bin); };
  const auto count_in = [&](int bin) { return Mass{bins.counts[bin]}; };
  unsigned prefix = 0;
  Mass target = 0, above = 0;
  for (int level = 0; level < kNumLevels; ++level) {
    const int shift = shift_of(level), num_bins = bins_of(level);
    __syncthreads();
    bins.clear();
    __syncthreads();
    unsigned num_zeros = 0;  // weights of zero, often most of them: the last of all, in the first bin
    tokens.for_each([&](float weight) {
      const unsigned key = key_of(weight);
      if (level > 0 && (key ^ prefix) >> shift_of(level - 1) != 0) return;
      const unsigned bin = key >> shift & (num_bins - 1);
      if (key == 0) {
        ++num_zeros;
      } else {
        atomicAdd(&bins.counts[bin], 1u);
      }
      if (const Mass mass = mass_of(weight); mass != 0) bins.add(bin, mass);
    });
    if (num_zeros != 0) atomicAdd(&bins.counts[0], num_zeros);
    __syncthreads();
    if (level == 0) target = target_of(bins.sum(0, mass_in));
    const FoundBin found =
        find_bin(target, [&](int bin) { return is_count ? count_in(bin) : mass_in(bin); });
    target -= found.before;
    above += bins.sum(found.bin + 1, mass_in);
    prefix |= static_cast<unsigned>(found.bin) << shift;
    if (!tokens.are_few && level == 0 && bins.sum(found.bin, count_in) <= kMostHeaviest) {
      tokens.keep_heaviest(prefix);
    }
  }
  const float weight = __uint_as_float(prefix);
  return {weight, above, target / (is_count ? 1 : mass_of(weight))};
}

// The token at which the sum of `measure(logit)` over the ids, from the first on, is above a target, which
// `target_of` names, given the sum of all.
template <typename Measure, typename TargetOf>
__device__ int find_in_order(const Row& row, Measure measure, TargetOf target_of) {
  __shared__ Mass sums[kWarps];
  __shared__ int found;
  const int warp = warp_of_thread(), lane = lane_of_thread();
  int begin = 0, end = row.vocab;
  Mass before = 0, target = 0;
  for (bool is_first = true; is_first || end - begin > kThreads; is_first = false) {
    const int length = (end - begin + kWarps - 1) / kWarps;  // of the run of ids that a warp reads
    const int from = min(end, begin + warp * length), to = min(end, from + length);
    Mass sum = 0;
    for_each_logit(
        row.logits, from, to, lane, kWarpThreads, [&](int, float logit) { sum += measure(logit); });
    sum = sum_of_warp(sum);
    __syncthreads();
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    if (is_first) {
      Mass total = 0;
      for (int i = 0; i < kWarps; ++i) total += sums[i];
      target = target_of(total);
    }
    int run = 0;
    while (run < kWarps - 1 && target >= before + sums[run]) before += sums[run++];
    begin = min(end, begin + run * length);
    end = min(end, begin + length);
  }
  const int token = begin + threadIdx.x;
  const Mass own = token < end ? measure(row.logits[token]) : 0;
  const Mass earlier = before + sum_before_in_block(own);
  if (threadIdx.x == 0) found = row.vocab - 1;
  __syncthreads();
  if (earlier <= target && target < earlier + own) found = token;
  __syncthreads();
  return found;
}

// The token of this weight with so many of lower ids.
__device__ int find_equal(const Heaviest& heaviest, float weight, Mass place) {
  __shared__ int found;
  for (int i = threadIdx.x; i < heaviest.count; i += kThreads) {
    if (heaviest.weights[i] != weight) continue;
    Mass num_lower = 0;
    for (int k = 0; k < heaviest.count; ++k) {
      num_lower += heaviest.weights[k] == weight && heaviest.ids[k] < heaviest.ids[i] ? 1 : 0;
    }
    if (num_lower == place) found = heaviest.ids[i];
  }
  __syncthreads();
  return found;
}

struct Numbers {
  const double *temperatures, *min_p, *top_p, *uniforms;
  const int64_t* top_k;
};

// The largest logit of a row and its token, the first of several.
struct Best {
  float logit;
  int token;
};

__device__ Best find_best(const float* logits, int vocab) {
  __shared__ int first;
  Best own{-INFINITY, vocab};  // of this thread's tokens
  bool is_wrong = false;
  for_each_logit(logits, 0, vocab, threadIdx.x, kThreads, [&](int token, float logit) {
    is_wrong |= isnan(logit);
    if (logit > own.logit) own = {logit, token};
  });
  const float largest = reduce_block(own.logit, -INFINITY, [](float a, float b) { return fmaxf(a, b); });
  const int num_wrong = sum_of_block(is_wrong ? 1 : 0);
  if (num_wrong > 0 || isinf(largest)) return {largest, -1};
  const int token = own.logit == largest ? own.token : vocab;
  const int best = reduce_block(token, vocab, [](int a, int b) { return a < b ? a : b; });
  if (threadIdx.x == 0) first = best;
  __syncthreads();
  return {largest, first};
}

__device__ int choose(const Row& row, Memory& memory, int64_t top_k, double top_p, double uniform) {
  const bool is_counted = top_k < row.vocab;
  if (!is_counted && top_p >= 1) {
    return find_in_order(
        row, [&](float logit) { return mass_of(row.weight_of(logit)); },
        [&](Mass total) { return static_cast<Mass>(uniform * total); });
  }
  Tokens tokens{row, memory};
  Mass kept = 0;
  if (is_counted) kept = find_crossing(tokens, true, [&](Mass) { return static_cast<Mass>(top_k - 1); }).mass();
  if (top_p < 1) {  // the fewest that reach the share: the first sum that is above what is just below it
    kept = find_crossing(tokens, false, [&](Mass total) {
             const auto border = static_cast<Mass>(ceil(top_p * (is_counted ? kept : total)));
             return border > 0 ? border - 1 : 0;
           }).mass();
  }
  const Crossing chosen =
      find_crossing(tokens, false, [&](Mass) { return static_cast<Mass>(uniform * kept); });
  if (tokens.are_few) return find_equal(memory.heaviest, chosen.weight, chosen.place);
  return find_in_order(
      row, [&](float logit) -> Mass { return key_of(row.weight_of(logit)) == key_of(chosen.weight); },
      [&](Mass) { return chosen.place; });
}

// A block for each row.
__global__ void __launch_bounds__(kThreads, 1) choose_for_rows(
    const float* logits, int vocab, int64_t stride, Numbers numbers, int64_t* tokens) {
  __shared__ Memory memory;
  const int64_t index = blockIdx.x;
  const double temperature = numbers.temperatures[index];
  const Best best = find_best(logits + index * stride, vocab);
  int token = best.token;
  if (token >= 0 && temperature > 0) {
    const Row row{
        logits + index * stride, vocab, best.logit, static_cast<float>(temperature), numbers.min_p[index]};
    token = choose(row, memory, numbers.top_k[index], numbers.top_p[index], numbers.uniforms[index]);
  }
  if (threadIdx.x == 0) tokens[index] = token;
}

}  // namespace

void choose_tokens(
    const Tensor& logits, const Tensor& temperatures, const Tensor& min_p, const Tensor& top_p,
    const Tensor& top_k, const Tensor& uniforms, const Tensor& tokens) {
  STD_TORCH_CHECK(
      logits.dim() == 2 && logits.scalar_type() == ScalarType::Float && logits.stride(1) == 1 &&
          0 < logits.size(1) && logits.size(1) <= kMostTokens,
      "logits are float32 [rows, vocab], contiguous in a row");
  const int64_t num_rows = logits.size(0);
  check_column(temperatures, ScalarType::Double, num_rows, "temperatures");
  check_column(min_p, ScalarType::Double, num_rows, "min_p");
  check_column(top_p, ScalarType::Double, num_rows, "top_p");
  check_column(uniforms, ScalarType::Double, num_rows, "uniforms");
  check_column(top_k, ScalarType::Long, num_rows, "top_k");
  check_column(tokens, ScalarType::Long, num_rows, "tokens");
  const Numbers numbers{
      data_of<double>(temperatures), data_of<double>(min_p), data_of<double>(top_p),
      data_of<double>(uniforms), data_of<int64_t>(top_k)};
  launch(
      logits, choose_for_rows, dim3(num_rows), kThreads, data_of<float>(logits), logits.size(1),
      logits.stride(0), numbers, written_of<int64_t>(tokens));
}

}  // namespace parley::cuda
