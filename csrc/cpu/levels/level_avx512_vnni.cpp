// Kernels for x86 with AVX-512 and its dot products of int8 (VNNI).
#include "levels/level_includes.h"

#ifdef PARLEY_X86
#pragma GCC target("arch=x86-64-v4,avx512vnni")
#define PARLEY_ISA avx512_vnni
#define PARLEY_WIDTH 16
#define PARLEY_DOT_INT8
#include "levels/level.h"
#endif
