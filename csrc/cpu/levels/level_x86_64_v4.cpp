// Kernels for x86 with AVX-512 (F, BW, CD, DQ, VL).
#include "levels/level_includes.h"

#ifdef PARLEY_X86
#pragma GCC target("arch=x86-64-v4")
#define PARLEY_ISA x86_64_v4
#define PARLEY_WIDTH 16
#include "levels/level.h"
#endif
