// One product of the tensor cores: sums [16, 8] += a [16, 16] * b [16, 8], by a whole warp.
//
// Which lane holds what (PTX, mma.m16n8k16), with quad = lane / 4 and i = lane % 4; each word has two
// numbers, the lower one first:
//   a[0]  row quad,     columns 2i, 2i + 1        b[0]  rows 2i, 2i + 1, column quad
//   a[1]  row quad + 8, columns 2i, 2i + 1        b[1]  rows 2i + 8, 2i + 9, column quad
//   a[2]  row quad,     columns 2i + 8, 2i + 9    sums[0], sums[1]  row quad,     columns 2i, 2i + 1
//   a[3]  row quad + 8, columns 2i + 8, 2i + 9    sums[2], sums[3]  row quad + 8, columns 2i, 2i + 1
#pragma once

#include <cstring>

#include "common/elements.h"
#include "common/reduce.h"

namespace parley::cuda {

template <typename T>
__device__ uint32_t pack(float low, float high) {
  const T both[2] = {from_float<T>(low), from_float<T>(high)};
  uint32_t word;
  memcpy(&word, both, sizeof(word));
  return word;
}

#if defined(__CUDACC__)

template <typename T>
__device__ void multiply_add(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

#else  // the same in steps, for processors

template <typename T>
__device__ void multiply_add(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  const int quad = lane_of_thread() / 4, i = lane_of_thread() % 4;
  for (int part = 0; part < 8; ++part) {  // two numbers of 16 in each row of a and each column of b
    const int of_part = part % 4, half = part / 4;
    for (int row = 0; row < 2; ++row) {
      const uint32_t left = __shfl_sync(kAllLanes, a[row + 2 * half], 4 * quad + of_part);
      for (int column = 0; column < 2; ++column) {
        const uint32_t right = __shfl_sync(kAllLanes, b[half], 4 * (2 * i + column) + of_part);
        T lefts[2], rights[2];
        memcpy(lefts, &left, sizeof(left));
        memcpy(rights, &right, sizeof(right));
        for (int n = 0; n < 2; ++n) sums[2 * row + column] += to_float(lefts[n]) * to_float(rights[n]);
      }
    }
  }
}

#endif

}  // namespace parley::cuda
