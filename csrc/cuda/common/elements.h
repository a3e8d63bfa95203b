// The types of numbers in memory, and how kernels read and write them: all arithmetic is float32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace parley::cuda {

using BFloat16 = __nv_bfloat16;
using Half = __half;

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(BFloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(Half x) { return __half2float(x); }

template <typename T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) { return x; }
template <>
__device__ inline BFloat16 from_float<BFloat16>(float x) { return __float2bfloat16_rn(x); }
template <>
__device__ inline Half from_float<Half>(float x) { return __float2half_rn(x); }

// As it will be when it is read again.
template <typename T>
__device__ float rounded(float x) {
  return to_float(from_float<T>(x));
}

// What one instruction reads: 16 bytes, which must lie at a multiple of 16.
template <typename T>
struct alignas(16) Vector {
  static constexpr int kSize = 16 / sizeof(T);
  T items[kSize];
};

template <typename T>
__device__ Vector<T> load_vector(const T* from) {
  return *reinterpret_cast<const Vector<T>*>(from);
}

template <typename T>
__device__ void store_vector(T* to, const Vector<T>& vector) {
  *reinterpret_cast<Vector<T>*>(to) = vector;
}

}  // namespace parley::cuda
