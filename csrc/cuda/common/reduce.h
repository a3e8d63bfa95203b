// Sums and maxima over the threads of a warp or a block. All of its threads must call.
#pragma once

#include <cuda_runtime.h>

namespace parley::cuda {

constexpr int kWarpThreads = 32;
constexpr int kMostWarps = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ inline int lane_of_thread() { return static_cast<int>(threadIdx.x) % kWarpThreads; }
__device__ inline int warp_of_thread() { return static_cast<int>(threadIdx.x) / kWarpThreads; }

// The result is in every thread. `combine` must be associative and commutative.
template <typename T, typename Combine>
__device__ T reduce_warp(T value, Combine combine) {
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

template <typename T>
__device__ T sum_of_warp(T value) {
  return reduce_warp(value, [](T a, T b) { return a + b; });
}

__device__ inline float max_of_warp(float value) {
  return reduce_warp(value, [](float a, float b) { return fmaxf(a, b); });
}

// `neutral` is what changes nothing. The block has whole warps.
template <typename T, typename Combine>
__device__ T reduce_block(T value, T neutral, Combine combine) {
  __shared__ T of_warps[kMostWarps];
  const int num_warps = static_cast<int>(blockDim.x) / kWarpThreads;
  value = reduce_warp(value, combine);
  if (num_warps == 1) return value;
  __syncthreads();  // others may still read what an earlier call left there
  if (lane_of_thread() == 0) of_warps[warp_of_thread()] = value;
  __syncthreads();
  return reduce_warp(lane_of_thread() < num_warps ? of_warps[lane_of_thread()] : neutral, combine);
}

template <typename T>
__device__ T sum_of_block(T value) {
  return reduce_block(value, T{0}, [](T a, T b) { return a + b; });
}

// The sum of all threads before this one.
template <typename T>
__device__ T sum_before_in_warp(T value) {
  T sum = value;
  for (int distance = 1; distance < kWarpThreads; distance *= 2) {
    const T before = __shfl_up_sync(kAllLanes, sum, distance);
    if (lane_of_thread() >= distance) sum += before;
  }
  return sum - value;
}

template <typename T>
__device__ T sum_before_in_block(T value) {
  __shared__ T of_warps[kMostWarps];
  const int num_warps = static_cast<int>(blockDim.x) / kWarpThreads;
  const T before = sum_before_in_warp(value);
  __syncthreads();
  if (lane_of_thread() == kWarpThreads - 1) of_warps[warp_of_thread()] = before + value;
  __syncthreads();
  T of_earlier{0};
  for (int warp = 0; warp < warp_of_thread() && warp < num_warps; ++warp) of_earlier += of_warps[warp];
  return of_earlier + before;
}

}  // namespace parley::cuda
