// A packed weight's tensors, checked: [panels][inputs / n][16][n], for one layer or one after another for
// several. Of int4, two inputs lie in a byte: [panels][inputs / 8][16][4].
#pragma once

#include <algorithm>

#include "common/arguments.h"
#include "kernels/product.h"

namespace parley {

inline int64_t inputs_together(Format format) {  // n
  return format == Format::kFloat32 ? 1 : format == Format::kBFloat16 ? 2 : format == Format::kInt8 ? 4 : 8;
}

// `num_layers` of them, whose `first` this is. Throws where sizes, types or scales contradict each other.
inline Weight read_weight(
    const Tensor& panels, const std::optional<Tensor>& scales, int64_t num_layers, int64_t num_outputs) {
  const ScalarType type = panels.scalar_type();
  STD_TORCH_CHECK(
      type == ScalarType::Float || type == ScalarType::BFloat16 || type == ScalarType::Byte,
      "weights are float32, bfloat16 or uint8");
  STD_TORCH_CHECK((type == ScalarType::Byte) == scales.has_value(), "int8 and int4 weights have scales");
  const bool has_halves = scales && scales->scalar_type() == ScalarType::Half;
  Weight weight{};
  weight.format = type == ScalarType::Float      ? Format::kFloat32
                  : type == ScalarType::BFloat16 ? Format::kBFloat16
                  : has_halves                   ? Format::kInt4
                                                 : Format::kInt8;
  const int64_t n = inputs_together(weight.format), dims = panels.dim();
  STD_TORCH_CHECK(
      dims >= 4 && panels.is_contiguous() && panels.size(dims - 2) == kPanel &&
          panels.size(dims - 1) == std::min<int64_t>(n, 4) &&
          panels.size(dims - 4) == (num_outputs + kPanel - 1) / kPanel,
      "panels are [layers][panels][inputs / ", n, "][16][", std::min<int64_t>(n, 4), "]");
  weight.panels = panels.const_data_ptr();
  weight.num_inputs = panels.size(dims - 3) * n;
  weight.num_outputs = num_outputs;
  if (scales) {
    const int64_t element = has_halves ? sizeof(Half) : sizeof(float);
    STD_TORCH_CHECK(
        (has_halves || scales->scalar_type() == ScalarType::Float) && scales->is_contiguous() &&
            scales->numel() * element == num_layers * panels.size(dims - 4) * weight.scales_bytes(),
        "scales are one float32 for each 128 inputs of an output, or two float16 for each 32");
    weight.scales = scales->const_data_ptr();
  }
  return weight;
}

}  // namespace parley
