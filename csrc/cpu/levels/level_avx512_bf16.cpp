// Kernels for x86 with AVX-512 and its dot products of bfloat16 and of int8 (VNNI).
#include "levels/level_includes.h"

#ifdef PARLEY_X86
#pragma GCC target("arch=x86-64-v4,avx512bf16,avx512vnni")
#define PARLEY_ISA avx512_bf16
#define PARLEY_WIDTH 16
#define PARLEY_DOT_BFLOAT16
#define PARLEY_DOT_INT8
#include "levels/level.h"
#endif
