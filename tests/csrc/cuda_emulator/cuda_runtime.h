// The part of CUDA that csrc/cuda uses, on a processor: so its kernels are tested where there is no GPU.
//
// Blocks run one after the other. The threads of a block are fibers, each with a stack of its own: one runs
// until it waits for others, at a barrier or in an exchange of its warp, and then the next one does. So all
// results are those of CUDA's rules; what depends on threads that run at the same time is not found.
#pragma once

#include <csetjmp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include <ucontext.h>

#define __global__
#define __device__
#define __shared__ static  // a block at a time, on one thread of the system
#define __launch_bounds__(...)

struct dim3 {
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  unsigned x, y, z;
};

struct uint4 {
  uint32_t x, y, z, w;
};

struct float4 {
  float x, y, z, w;
};

inline dim3 threadIdx, blockIdx, blockDim, gridDim;  // of the fiber that runs

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidConfiguration = 9 };
inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "invalid configuration argument";
}

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};

namespace cuda_emulator {

constexpr unsigned kWarp = 32;
constexpr unsigned kMaxThreads = 1024;
// No multiple of a page: the tops of all stacks would share a few lines of the cache.
constexpr size_t kStackBytes = (128 << 10) + 320;

[[noreturn]] inline void fail(const char* message) {
  std::fprintf(stderr, "CUDA emulator: %s\n", message);
  std::abort();
}

// Threads that wait for each other.
struct Barrier {
  unsigned arrived = 0, passed = 0;
};

struct Fiber {
  unsigned thread = 0;
  char* stack = nullptr;
  jmp_buf place;
  bool has_stack_in_use = false;  // from its first block on
  bool has_ended = true;
  const Barrier* waits_for = nullptr;
  unsigned passed = 0;  // of the barrier, when it came
};

struct Block {
  std::vector<Fiber>& fibers;
  unsigned num_threads;
  std::vector<Barrier> warps;
  std::vector<uint64_t> exchanged[2];  // a word for each thread; a warp takes the two in turn
  Barrier all;
  Fiber* current = nullptr;
  unsigned num_alive = 0;
  jmp_buf scheduler;
  std::function<void()> body;
};

inline Block*& running() {
  static Block* block = nullptr;
  return block;
}

// A fiber goes through one block after another; to make a new one each time would take most of the time.
inline void live() {
  for (;;) {
    Block& block = *running();
    Fiber& fiber = *block.current;
    block.body();
    fiber.has_ended = true;
    --block.num_alive;
    if (_setjmp(fiber.place) == 0) _longjmp(block.scheduler, 1);
  }
}

inline void resume(Block& block, Fiber& fiber) {
  block.current = &fiber;
  threadIdx = dim3(fiber.thread, 0, 0);
  if (_setjmp(block.scheduler) != 0) return;
  if (fiber.has_stack_in_use) _longjmp(fiber.place, 1);
  fiber.has_stack_in_use = true;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack;
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, live, 0);
  setcontext(&context);
}

// Until as many have come.
inline void wait(Barrier& barrier, unsigned number) {
  Block& block = *running();
  if (++barrier.arrived == number) {
    barrier.arrived = 0;
    ++barrier.passed;
    return;
  }
  Fiber& fiber = *block.current;
  fiber.waits_for = &barrier;
  fiber.passed = barrier.passed;
  if (_setjmp(fiber.place) == 0) _longjmp(block.scheduler, 1);
}

// Returns whether a thread of this warp has run: whether not all of them wait for another warp.
inline bool run_warp(Block& block, unsigned first) {
  bool has_run = false;
  for (unsigned i = first; i < first + kWarp; ++i) {
    Fiber& fiber = block.fibers[i];
    if (fiber.has_ended || (fiber.waits_for && fiber.waits_for->passed == fiber.passed)) continue;
    fiber.waits_for = nullptr;
    resume(block, fiber);
    has_run = true;
  }
  return has_run;
}

inline void run_block(Block& block) {
  block.all = Barrier{};
  for (Barrier& warp : block.warps) warp = Barrier{};
  for (unsigned i = 0; i < block.num_threads; ++i) {
    Fiber& fiber = block.fibers[i];
    fiber.thread = i;
    fiber.has_ended = false;
    fiber.waits_for = nullptr;
  }
  block.num_alive = block.num_threads;
  while (block.num_alive > 0) {
    bool has_run = false;
    for (unsigned first = 0; first < block.num_threads; first += kWarp) {
      while (run_warp(block, first)) has_run = true;  // as long as it can: its stacks are in the cache
    }
    if (!has_run) fail("threads wait for others that have ended or wait elsewhere");
  }
}

inline unsigned lane() { return threadIdx.x % kWarp; }
inline Barrier& warp_barrier() { return running()->warps[threadIdx.x / kWarp]; }

// What the threads of this warp give, until each of them gives something again.
template <typename T>
const uint64_t* gathered(unsigned mask, T value) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  if (mask != 0xffffffffu) fail("whole warps only");
  // Who is at the next exchange writes elsewhere, and at the one after it all have read this one.
  uint64_t* words = running()->exchanged[warp_barrier().passed % 2].data() + threadIdx.x / kWarp * kWarp;
  std::memcpy(&words[lane()], &value, sizeof(T));
  wait(warp_barrier(), kWarp);
  return words;
}

// What thread `from` of this warp gives.
template <typename T>
T exchange(unsigned mask, T value, unsigned from) {
  T result;
  std::memcpy(&result, &gathered(mask, value)[from % kWarp], sizeof(T));
  return result;
}

// Each has a stack of its own.
inline std::vector<Fiber> make_fibers() {
  static const std::unique_ptr<char[]> stacks{new char[kMaxThreads * kStackBytes]};
  std::vector<Fiber> fibers(kMaxThreads);
  for (unsigned i = 0; i < kMaxThreads; ++i) fibers[i].stack = stacks.get() + i * kStackBytes;
  return fibers;
}

}  // namespace cuda_emulator

inline void __syncthreads() {
  cuda_emulator::Block& block = *cuda_emulator::running();
  cuda_emulator::wait(block.all, block.num_threads);
}

inline void __syncwarp() { cuda_emulator::wait(cuda_emulator::warp_barrier(), cuda_emulator::kWarp); }

template <typename T>
T __shfl_sync(unsigned mask, T value, int from) {
  return cuda_emulator::exchange(mask, value, static_cast<unsigned>(from));
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
  return cuda_emulator::exchange(mask, value, cuda_emulator::lane() ^ static_cast<unsigned>(distance));
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, int distance) {
  const int from = static_cast<int>(cuda_emulator::lane()) - distance;
  return cuda_emulator::exchange(mask, value, from < 0 ? cuda_emulator::lane() : static_cast<unsigned>(from));
}

inline int __any_sync(unsigned mask, int value) {
  const uint64_t* words = cuda_emulator::gathered(mask, uint64_t{value != 0});
  for (unsigned lane = 0; lane < cuda_emulator::kWarp; ++lane) {
    if (words[lane] != 0) return 1;
  }
  return 0;
}

template <typename T, typename U>
T atomicAdd(T* to, U more) {
  const T before = *to;
  *to += static_cast<T>(more);
  return before;
}

inline void __threadfence() {}

template <typename T>
T __ldcg(const T* from) { return *from; }

inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t both = uint64_t{high} << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<uint32_t>(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  }
  return result;
}

// Exact as double, so that no compiler fuses it with what comes after it.
inline float __fmul_rn(float x, float y) { return static_cast<float>(double{x} * y); }

inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

inline float rsqrtf(float x) { return 1 / std::sqrt(x); }

template <typename T, typename U>
std::common_type_t<T, U> min(T a, U b) { return b < a ? b : a; }
template <typename T, typename U>
std::common_type_t<T, U> max(T a, U b) { return a < b ? b : a; }
using std::isinf;
using std::isnan;

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(
    const cudaLaunchConfig_t* config, void (*kernel)(Parameters...), Arguments&&... arguments) {
  using namespace cuda_emulator;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const unsigned num_threads = config->blockDim.x;
  if (config->gridDim.y > 65535 || config->gridDim.z > 65535) return cudaErrorInvalidConfiguration;
  if (num_threads % kWarp != 0 || num_threads > kMaxThreads) fail("blocks have whole warps, 1,024 threads at most");
  static std::vector<Fiber> fibers = make_fibers();
  Block block{.fibers = fibers, .num_threads = num_threads};
  ::gridDim = config->gridDim;
  ::blockDim = config->blockDim;
  block.warps.resize(num_threads / kWarp);
  for (auto& words : block.exchanged) words.resize(num_threads);
  block.body = [&] { kernel(arguments...); };
  running() = &block;
  for (unsigned z = 0; z < config->gridDim.z; ++z) {
    for (unsigned y = 0; y < config->gridDim.y; ++y) {
      for (unsigned x = 0; x < config->gridDim.x; ++x) {
        ::blockIdx = dim3(x, y, z);
        run_block(block);
      }
    }
  }
  running() = nullptr;
  return cudaSuccess;
}
