// choose_tokens: a token for each row of logits, by the row's own random number.
//
// Nothing is sorted. Weights are whole numbers, 2^40 the heaviest, so that their sums are exact in any order.
// To find where the weight of the heaviest tokens reaches a share, or their number a count, three passes over
// the row sort weights by the upper, the middle and the lower bits of their float32 into a histogram each, and
// narrow the place down to one weight (a radix selection). Tokens of the same weight stand by their ids.
#include <algorithm>

#include "common/arguments.h"
#include "common/reduce.h"

namespace parley::cuda {
namespace {

using Mass = unsigned long long;  // as atomicAdd names it

constexpr int kThreads = 512, kWarps = kThreads / kWarpThreads;
constexpr int kBins = 2048, kOfThread = kBins / kThreads;
constexpr float kOne = 1099511627776.0f;  // 2^40: the sum of 2^23 tokens still fits
constexpr int kNumLevels = 3;

// A row's numbers, as its threads see them.
struct Row {
  const float* logits;
  int64_t vocab;
  float largest, temperature;
  double min_p;

  // Relative to the best token's.
  __device__ float weight_of(int64_t token) const {
    const float weight = expf((logits[token] - largest) / temperature);
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

// The first token, from the heaviest downwards, at which the sum of what is measured is above `target`: the
// number of tokens if `is_count`, else their mass. It must be above for all tokens together.
__device__ Crossing find_crossing(const Row& row, bool is_count, Mass target) {
  __shared__ Bins bins;
  unsigned prefix = 0;
  Mass above_measured = 0, above = 0;
  for (int level = 0; level < kNumLevels; ++level) {
    const int shift = shift_of(level), num_bins = bins_of(level);
    __syncthreads();
    bins.clear();
    __syncthreads();
    unsigned num_zeros = 0;  // weights of zero, often most of them: the last of all, in the first bin
    for (int64_t token = threadIdx.x; token < row.vocab; token += kThreads) {
      const float weight = row.weight_of(token);
      const unsigned key = key_of(weight);
      if (level > 0 && (key ^ prefix) >> shift_of(level - 1) != 0) continue;
      const unsigned bin = key >> shift & (num_bins - 1);
      if (key == 0) {
        ++num_zeros;
      } else if (is_count) {
        atomicAdd(&bins.counts[bin], 1u);
      }
      if (const Mass mass = mass_of(weight); mass != 0) bins.add(bin, mass);
    }
    if (is_count && num_zeros != 0) atomicAdd(&bins.counts[0], num_zeros);
    __syncthreads();
    const FoundBin found = find_bin(
        target - above_measured, [&](int bin) { return is_count ? Mass{bins.counts[bin]} : bins.mass_of(bin); });
    above_measured += found.before;
    Mass heavier = 0;
    for (int bin = found.bin + 1 + threadIdx.x; bin < kBins; bin += kThreads) heavier += bins.mass_of(bin);
    above += sum_of_block(heavier);
    prefix |= static_cast<unsigned>(found.bin) << shift;
  }
  const float weight = __uint_as_float(prefix);
  const Mass each = is_count ? 1 : mass_of(weight);
  return {weight, above, (target - above_measured) / each};
}

// The token at which the sum of `measure(token)` over the ids, from the first on, is above `target`.
template <typename Measure>
__device__ int64_t find_in_order(int64_t vocab, Mass target, Measure measure) {
  __shared__ Mass sums[kWarps];
  __shared__ int64_t found;
  const int warp = warp_of_thread(), lane = lane_of_thread();
  const int64_t length = (vocab + kWarps - 1) / kWarps;  // of the run of ids that a warp reads
  Mass sum = 0;
  for (int64_t token = warp * length + lane; token < min(vocab, (warp + 1) * length); token += kWarpThreads) {
    sum += measure(token);
  }
  sum = sum_of_warp(sum);
  __syncthreads();
  if (lane == 0) sums[warp] = sum;
  if (threadIdx.x == 0) found = vocab - 1;
  __syncthreads();
  Mass before = 0;
  for (int earlier = 0; earlier < warp; ++earlier) before += sums[earlier];
  if (before <= target && target < before + sum) {  // the same for the whole warp
    const int64_t end = min(vocab, (warp + 1) * length);
    for (int64_t base = warp * length; base < end; base += kWarpThreads) {
      const Mass own = base + lane < end ? measure(base + lane) : 0;
      const Mass earlier = before + sum_before_in_warp(own);
      if (earlier <= target && target < earlier + own) found = base + lane;
      before += sum_of_warp(own);
      if (target < before) break;
    }
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
  int64_t token;
};

__device__ Best find_best(const float* logits, int64_t vocab) {
  __shared__ int64_t first;
  Best own{-INFINITY, vocab};  // of this thread's tokens
  bool is_wrong = false;
#pragma unroll 4
  for (int64_t token = threadIdx.x; token < vocab; token += kThreads) {
    const float logit = logits[token];
    is_wrong |= isnan(logit);
    if (logit > own.logit) own = {logit, token};
  }
  const float largest = reduce_block(own.logit, -INFINITY, [](float a, float b) { return fmaxf(a, b); });
  const int num_wrong = sum_of_block(is_wrong ? 1 : 0);
  if (num_wrong > 0 || isinf(largest)) return {largest, -1};
  const int64_t token = own.logit == largest ? own.token : vocab;
  const int64_t best = reduce_block(token, vocab, [](int64_t a, int64_t b) { return a < b ? a : b; });
  if (threadIdx.x == 0) first = best;
  __syncthreads();
  return {largest, first};
}

__device__ int64_t choose(const Row& row, int64_t top_k, double top_p, double uniform) {
  const auto mass = [&](int64_t token) { return mass_of(row.weight_of(token)); };
  Mass total = 0;
  if (top_k >= row.vocab) {
    for (int64_t token = threadIdx.x; token < row.vocab; token += kThreads) total += mass(token);
    total = sum_of_block(total);
    if (top_p >= 1) return find_in_order(row.vocab, static_cast<Mass>(uniform * total), mass);
  } else {
    total = find_crossing(row, true, static_cast<Mass>(top_k - 1)).mass();
  }
  if (top_p < 1) {  // the fewest that reach the share: the first sum that is above what is just below it
    const auto border = static_cast<Mass>(ceil(top_p * total));
    total = find_crossing(row, false, border > 0 ? border - 1 : 0).mass();
  }
  const Crossing chosen = find_crossing(row, false, static_cast<Mass>(uniform * total));
  return find_in_order(row.vocab, chosen.place, [&](int64_t token) -> Mass {
    return key_of(row.weight_of(token)) == key_of(chosen.weight);
  });
}

// A block for each row.
__global__ void __launch_bounds__(kThreads, 1) choose_for_rows(
    const float* logits, int64_t vocab, int64_t stride, Numbers numbers, int64_t* tokens) {
  const int64_t index = blockIdx.x;
  const double temperature = numbers.temperatures[index];
  const Best best = find_best(logits + index * stride, vocab);
  int64_t token = best.token;
  if (token >= 0 && temperature > 0) {
    const Row row{
        logits + index * stride, vocab, best.logit, static_cast<float>(temperature), numbers.min_p[index]};
    token = choose(row, numbers.top_k[index], numbers.top_p[index], numbers.uniforms[index]);
  }
  if (threadIdx.x == 0) tokens[index] = token;
}

}  // namespace

void choose_tokens(
    const Tensor& logits, const Tensor& temperatures, const Tensor& min_p, const Tensor& top_p,
    const Tensor& top_k, const Tensor& uniforms, const Tensor& tokens) {
  STD_TORCH_CHECK(
      logits.dim() == 2 && logits.scalar_type() == ScalarType::Float && logits.stride(1) == 1 &&
          logits.size(1) > 0,
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
