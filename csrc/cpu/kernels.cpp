#include "kernels.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "common.h"

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

std::vector<const Kernels*> supported() {  // best first
  std::vector<const Kernels*> levels;
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  if (__builtin_cpu_supports("x86-64-v4")) {
    if (__builtin_cpu_supports("avx512vnni")) {
      if (__builtin_cpu_supports("avx512bf16")) levels.push_back(&avx512_bf16::kKernels);
      levels.push_back(&avx512_vnni::kKernels);
    }
    levels.push_back(&x86_64_v4::kKernels);
  }
  if (__builtin_cpu_supports("x86-64-v3")) levels.push_back(&x86_64_v3::kKernels);
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
