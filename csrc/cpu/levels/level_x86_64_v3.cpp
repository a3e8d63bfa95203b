// Kernels for x86 with AVX2 and FMA.
#include "levels/level_includes.h"

#ifdef PARLEY_X86
#pragma GCC target("arch=x86-64-v3")
#define PARLEY_ISA x86_64_v3
#define PARLEY_WIDTH 8
#include "levels/level.h"
#endif
