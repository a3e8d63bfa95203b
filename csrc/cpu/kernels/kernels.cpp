#include "kernels/kernels.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "common/arguments.h"

namespace parley {

namespace baseline {
extern const Kernels kKernels;
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
namespace x86_64_v3 {
extern const Kernels kKernels;
}
namespace x86_64_v4 {
extern const Kernels kKernels;
}
namespace avx512_vnni {
extern const Kernels kKernels;
}
namespace avx512_bf16 {
extern const Kernels kKernels;
}
#endif

namespace {

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
// What x86-64-v3 and -v4 mean, one by one: by these names GCC 11 compiles for them, but knows them not here.
bool has_x86_64_v3() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("lzcnt") &&
         __builtin_cpu_supports("movbe");
}

bool has_x86_64_v4() {
  return has_x86_64_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
#endif

std::vector<const Kernels*> supported() {  // best first
  std::vector<const Kernels*> levels;
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  if (has_x86_64_v4()) {
    if (__builtin_cpu_supports("avx512vnni")) {
      if (__builtin_cpu_supports("avx512bf16")) levels.push_back(&avx512_bf16::kKernels);
      levels.push_back(&avx512_vnni::kKernels);
    }
    levels.push_back(&x86_64_v4::kKernels);
  }
  if (has_x86_64_v3()) levels.push_back(&x86_64_v3::kKernels);
#endif
  levels.push_back(&baseline::kKernels);
  return levels;
}

const Kernels& choose() {
  const auto levels = supported();
  const char* const wanted = std::getenv("PARLEY_CPU_LEVEL");
  if (wanted == nullptr || *wanted == '\0') return *levels.front();
  std::string names;
  for (const Kernels* level : levels) {
    if (std::string(wanted) == level->level) return *level;
    names += std::string(" ") + level->level;
  }
  STD_TORCH_CHECK(false, "PARLEY_CPU_LEVEL is ", wanted, ", this machine has", names);
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

std::string cpu_level() { return kernels().level; }

}  // namespace parley
