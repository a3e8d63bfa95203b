// Includes PARLEY_KERNEL, the name of a header, once per instruction set: each time in another
// namespace and with vectors of another width. PARLEY_BEST is the first copy that this machine has.
//
// A pragma and not target_clones, which would cut our vectors to the oldest machine's before it clones.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define PARLEY_X86_LEVELS
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")
#define PARLEY_ISA x86_64_v4
#define PARLEY_WIDTH 16
#include PARLEY_KERNEL
#undef PARLEY_ISA
#undef PARLEY_WIDTH
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#define PARLEY_ISA x86_64_v3
#define PARLEY_WIDTH 8
#include PARLEY_KERNEL
#undef PARLEY_ISA
#undef PARLEY_WIDTH
#pragma GCC pop_options
#endif
#define PARLEY_ISA baseline
#define PARLEY_WIDTH 4
#include PARLEY_KERNEL
#undef PARLEY_ISA
#undef PARLEY_WIDTH
#undef PARLEY_KERNEL

#ifdef PARLEY_X86_LEVELS
#define PARLEY_BEST(function)                                           \
  (__builtin_cpu_supports("x86-64-v4")   ? x86_64_v4::function          \
   : __builtin_cpu_supports("x86-64-v3") ? x86_64_v3::function          \
                                         : baseline::function)
#else
#define PARLEY_BEST(function) baseline::function
#endif
