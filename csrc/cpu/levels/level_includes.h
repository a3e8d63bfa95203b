// What kernels need of the standard library and of each other: included before a level's instruction set
// is asked for, so that nothing in it is compiled for a machine that has more than others.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/arguments.h"
#include "kernels/kernels.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define PARLEY_X86
#include <immintrin.h>
#endif
