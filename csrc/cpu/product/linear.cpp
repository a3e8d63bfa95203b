// linear: rows times a weight that was packed once, with the same bits for any number of rows.
//
// At up to some twenty rows, where answers are generated, this is also about twice as fast as a general
// matrix product, which packs its weights anew each time.
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "common/arguments.h"
#include "kernels/kernels.h"
#include "product/packed_weight.h"

namespace parley {
namespace {

constexpr int64_t kWorkPerTask = 1 << 18;  // multiplications; for less, a thread is not worth its start

// Rows as a product reads them; the memory is kept from call to call.
struct PreparedRows {
  std::vector<std::byte> values;
  std::vector<float> scales;
  std::vector<int32_t> offsets;
  std::vector<float> sums;

  Rows prepare(const Weight& weight, const float* rows, int64_t count, int64_t stride) {
    const Kernels& k = kernels();
    const int64_t element = k.prepared_size(weight.format), groups = weight.num_groups();
    if (count <= 1 && element == sizeof(float)) return {rows, nullptr, nullptr, nullptr};  // one lies as it must
    values.resize(count * weight.num_inputs * element);
    scales.resize(count * groups);
    offsets.resize(count * weight.num_parts());
    sums.resize(count * weight.num_parts());
    const int64_t tallest = k.tallest_tile(weight.format);
    const Tiles tiles(count, tallest);
    std::byte* const to = values.data();
    float* const row_scales = scales.data();
    int32_t* const row_offsets = offsets.data();
    float* const row_sums = sums.data();
    const int64_t parts_per_task = std::max<int64_t>(1, kWorkPerTask / (tallest * kGroup));
    torch::stable::parallel_for(
        0, tiles.count * groups, parts_per_task, [&](int64_t begin, int64_t end) {
          for (int64_t part = begin; part < end; ++part) {
            const int64_t tile = part / groups, row = tiles.begin(tile);
            k.prepare(weight, {
                .rows = rows + row * stride, .stride = stride,
                .num_rows = tiles.begin(tile + 1) - row, .group = part % groups,
                .values = to + row * weight.num_inputs * element,
                .scales = row_scales + row * groups, .offsets = row_offsets + row * weight.num_parts(),
                .sums = row_sums + row * weight.num_parts()});
          }
        });
    return {to, row_scales, row_offsets, row_sums};
  }
};

}  // namespace

void linear_cpu(
    const Tensor& rows, const Tensor& panels, std::optional<Tensor> scales, std::optional<Tensor> bias,
    const Tensor& out) {
  STD_TORCH_CHECK(rows.dim() == 2 && out.dim() == 2 && panels.dim() == 4, "rows and out have 2 dimensions");
  STD_TORCH_CHECK(
      rows.scalar_type() == ScalarType::Float && out.scalar_type() == ScalarType::Float,
      "rows and out are float32");
  Product p{};
  p.weight = read_weight(panels, scales, 1, out.size(1));
  STD_TORCH_CHECK(
      out.size(0) == rows.size(0) && p.weight.num_inputs == rows.size(1),
      "rows, panels and out differ in sizes");
  STD_TORCH_CHECK(
      (rows.stride(1) == 1 || rows.size(1) == 1) && (out.stride(1) == 1 || out.size(1) == 1),
      "the last dimensions must be contiguous");
  STD_TORCH_CHECK(
      !bias || (bias->scalar_type() == ScalarType::Float && bias->is_contiguous() &&
                bias->numel() == out.size(1)),
      "bias is one float32 per output");
  p.weight.bias = bias ? static_cast<const float*>(bias->const_data_ptr()) : nullptr;
  p.num_rows = rows.size(0);
  p.out = static_cast<float*>(out.mutable_data_ptr());
  p.out_stride = out.stride(0);
  const Kernels& k = kernels();
  static thread_local PreparedRows prepared;
  p.rows = prepared.prepare(
      p.weight, static_cast<const float*>(rows.const_data_ptr()), p.num_rows, rows.stride(0));
  const int64_t work_per_panel = p.num_rows * p.weight.num_inputs * kPanel + 1;
  torch::stable::parallel_for(
      0, p.num_pieces(), kWorkPerTask / work_per_panel + 1,
      [&](int64_t begin, int64_t end) { k.multiply(p, begin, end); });
}

}  // namespace parley
