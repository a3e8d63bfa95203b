// Kernels for any machine: plain C++, whatever the compiler makes of it.
#include "levels/level_includes.h"

#undef PARLEY_X86
#define PARLEY_ISA baseline
#define PARLEY_WIDTH 4
#include "levels/level.h"
