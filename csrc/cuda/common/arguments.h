// How the CUDA ops check their arguments and start kernels.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <utility>

#include "common/elements.h"
#include "ops.h"

namespace parley::cuda {

using torch::headeronly::ScalarType;

// The stream that torch uses now on the tensor's device.
inline cudaStream_t stream_of([[maybe_unused]] const Tensor& tensor) {
  void* stream = nullptr;
#if defined(USE_CUDA)
  aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream);
#endif
  return static_cast<cudaStream_t>(stream);
}

// Queues `kernel` on the stream. Nothing is started for an empty grid.
template <typename... Parameters, typename... Arguments>
void launch(
    const Tensor& on, void (*kernel)(Parameters...), dim3 grid, unsigned num_threads,
    Arguments... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(num_threads);
  config.stream = stream_of(on);
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
  STD_TORCH_CHECK(error == cudaSuccess, "a kernel could not be started: ", cudaGetErrorString(error));
}

// Calls `call` with a value of the tensor's type of floats.
template <typename Call>
void with_floats(const Tensor& tensor, Call call) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float: return call(float{});
    case ScalarType::BFloat16: return call(BFloat16{});
    case ScalarType::Half: return call(Half{});
    default: STD_TORCH_CHECK(false, "tensors of numbers are float32, bfloat16 or float16");
  }
}

// The same, without float32.
template <typename Call>
void with_half_floats(const Tensor& tensor, Call call) {
  switch (tensor.scalar_type()) {
    case ScalarType::BFloat16: return call(BFloat16{});
    case ScalarType::Half: return call(Half{});
    default: STD_TORCH_CHECK(false, "tensors of numbers are bfloat16 or float16");
  }
}

template <typename T>
const T* data_of(const Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}

template <typename T>
const T* data_of(const std::optional<Tensor>& tensor) {
  return tensor ? data_of<T>(*tensor) : nullptr;
}

template <typename T>
T* written_of(const Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

// A vector of `count` numbers in one run.
inline void check_column(const Tensor& tensor, ScalarType type, int64_t count, const char* name) {
  STD_TORCH_CHECK(
      tensor.dim() == 1 && tensor.scalar_type() == type && tensor.is_contiguous() &&
          tensor.size(0) == count,
      name, " must be ", count, " numbers of its type in one run");
}

inline bool begins_at_vector(const Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
}

// A matrix whose rows lie in runs that vectors of 16 bytes can read.
inline void check_rows(const Tensor& tensor, ScalarType type, int64_t num_rows, const char* name) {
  const int64_t of_vector = 16 / (type == ScalarType::Float ? 4 : 2);
  STD_TORCH_CHECK(
      tensor.dim() == 2 && tensor.scalar_type() == type && tensor.size(0) == num_rows &&
          tensor.stride(1) == 1,
      name, " must be ", num_rows, " rows of the same type as the others, each in one run");
  STD_TORCH_CHECK(
      tensor.size(1) % of_vector == 0 && tensor.stride(0) % of_vector == 0 && begins_at_vector(tensor),
      name, " must have rows of a multiple of 16 bytes, and begin at one");
}

// Where a head of a token lies in a cache.
struct CacheStrides {
  int64_t block, token, head;  // numbers of elements
};

inline CacheStrides strides_of(const Tensor& cache) {
  return {cache.stride(0), cache.stride(1), cache.stride(2)};
}

inline void check_cache(const Tensor& key_cache, const Tensor& value_cache, ScalarType type) {
  STD_TORCH_CHECK(key_cache.dim() == 4 && value_cache.dim() == 4, "caches have 4 dimensions");
  STD_TORCH_CHECK(
      key_cache.scalar_type() == type && value_cache.scalar_type() == type,
      "caches have the type of what is stored in them");
  for (int64_t i = 0; i < 3; ++i) {
    STD_TORCH_CHECK(key_cache.size(i) == value_cache.size(i), "caches differ in blocks or heads");
  }
  STD_TORCH_CHECK(
      key_cache.stride(3) == 1 && value_cache.stride(3) == 1, "a head's numbers lie in one run");
}

// Tables of blocks and lengths, of as many sequences.
inline void check_sequences(const Tensor& block_tables, const Tensor& seq_lens) {
  STD_TORCH_CHECK(
      block_tables.scalar_type() == ScalarType::Int && block_tables.dim() == 2 &&
          block_tables.stride(1) == 1 && block_tables.size(0) == seq_lens.size(0),
      "block_tables are int32 [num_seqs, max_blocks]");
  check_column(seq_lens, ScalarType::Int, block_tables.size(0), "seq_lens");
}

}  // namespace parley::cuda
