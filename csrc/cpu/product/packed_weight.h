// A packed weight's tensors, checked: [panels][inputs / n][16][n], for one layer or one after another for
// several. Of int4 and parts4, eight inputs lie in an int32, [panels][inputs / 8][16][1], and of parts6 sixteen in
// three of them: [panels][inputs / 16][3][16]. Scales of int4 are int32, too: [panels][groups][24], as `GroupScales`.
#pragma once

#include <algorithm>

#include "common/arguments.h"
#include "kernels/product.h"

namespace parley {

inline int64_t inputs_together(Format format) {  // n
  switch (format) {
    case Format::kFloat32: return 1;
    case Format::kBFloat16: return 2;
    case Format::kInt4:
    case Format::kParts4: return 8;
    case Format::kParts6: return 16;
    default: return 4;
  }
}

inline Format read_format(const Tensor& panels, const std::optional<Tensor>& scales) {
  const ScalarType type = panels.scalar_type();
  STD_TORCH_CHECK(
      type == ScalarType::Float || type == ScalarType::BFloat16 || type == ScalarType::Byte ||
          type == ScalarType::Int,
      "weights are float32, bfloat16, uint8 or int32");
  const bool is_whole = type == ScalarType::Byte || type == ScalarType::Int;
  STD_TORCH_CHECK(is_whole == scales.has_value(), "weights of whole numbers have scales, others have none");
  if (!is_whole) return type == ScalarType::Float ? Format::kFloat32 : Format::kBFloat16;
  if (type == ScalarType::Byte) return scales->scalar_type() == ScalarType::Half ? Format::kParts8 : Format::kInt8;
  if (panels.size(panels.dim() - 1) != 1) return Format::kParts6;
  return scales->scalar_type() == ScalarType::Int ? Format::kInt4 : Format::kParts4;
}

// `dims` of them are those of scales without least numbers.
inline void read_scales(Weight& weight, const Tensor& scales, int64_t num_panels, int64_t dims) {
  ScalarType type = weight.format == Format::kInt4 ? ScalarType::Int : ScalarType::Float;
  int64_t element = sizeof(float);  // and of an int32
  if (has_parts(weight.format)) {
    type = ScalarType::Half;
    element = sizeof(Half);
    weight.has_least = scales.dim() > dims;
    const int64_t num_parts = scales.numel() / std::max<int64_t>(1, num_panels * weight.part_halves());
    weight.part = 2 * kSmallestPart;
    if (weight.num_parts() != num_parts) weight.part = kSmallestPart;
  }
  STD_TORCH_CHECK(
      scales.scalar_type() == type && scales.is_contiguous() &&
          scales.numel() * element == num_panels * weight.scales_bytes(),
      "scales are one float32 for each 128 inputs of an output, or 24 int32 for those of 16, or one or two float16 for "
      "each 16 or 32");
  weight.scales = scales.const_data_ptr();
}

// `num_layers` of them, whose `first` this is. Throws where sizes, types or scales contradict each other.
inline Weight read_weight(
    const Tensor& panels, const std::optional<Tensor>& scales, int64_t num_layers, int64_t num_outputs) {
  Weight weight{};
  const int64_t dims = panels.dim();
  STD_TORCH_CHECK(dims >= 4, "panels are [layers][panels][inputs / n][16][n]");
  weight.format = read_format(panels, scales);
  weight.part = kGroup;
  const int64_t n = inputs_together(weight.format);
  const int64_t lines = n == 16 ? 3 : kPanel, elements = n == 16 ? kPanel : n == 8 ? 1 : n;
  STD_TORCH_CHECK(
      panels.is_contiguous() && panels.size(dims - 2) == lines && panels.size(dims - 1) == elements &&
          panels.size(dims - 4) == (num_outputs + kPanel - 1) / kPanel,
      "panels are [layers][panels][inputs / ", n, "][", lines, "][", elements, "]");
  weight.panels = panels.const_data_ptr();
  weight.num_inputs = panels.size(dims - 3) * n;
  weight.num_outputs = num_outputs;
  if (scales) read_scales(weight, *scales, num_layers * panels.size(dims - 4), dims - 1);
  return weight;
}

}  // namespace parley
