// All kernels in the instruction set PARLEY_ISA, whose vectors hold PARLEY_WIDTH floats. Each level_*.cpp
// asks the compiler for its set and includes this, after whatever other sets' machines must not see
// compiled for it: the standard library.
#pragma once

#include "attention/attention_kernel.h"
#include "decoder/decoder_kernel.h"
#include "decoder/low_rank_kernel.h"
#include "product/product_kernel.h"
#include "sampling/sampling_kernel.h"

namespace parley::PARLEY_ISA {

#define PARLEY_NAME_OF(name) #name
#define PARLEY_NAME(name) PARLEY_NAME_OF(name)

extern const Kernels kKernels;
const Kernels kKernels = {
    .level = PARLEY_NAME(PARLEY_ISA),
    .multiply = multiply,
    .attend_float = attend<float, float>,
    .attend_bfloat16 = attend<BFloat16, BFloat16>,
    .attend_float_over_bfloat16 = attend<float, BFloat16>,
    .attend_float_over_int8 = attend<float, int8_t>,
    .normalize = normalize,
    .rotate = rotate,
    .store_float = store_float,
    .store_bfloat16 = store_bfloat16,
    .store_int8 = store_int8,
    .gate = gate,
    .multiply_low_rank = multiply_low_rank,
    .tallest_tile = tallest_tile,
    .prepared_size = prepared_size,
    .prepare = prepare,
    .unpack_output = unpack_output,
    .choose = choose,
};

}  // namespace parley::PARLEY_ISA
