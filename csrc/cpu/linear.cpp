// linear: rows times a weight matrix that was packed once, with the same bits for any number of rows.
//
// Weights lie as [panel][input][16 outputs]: one vector of outputs grows with each input, and nothing is
// summed across lanes. At up to some twenty rows, where answers are generated, this is also about twice as
// fast as a general matrix product, which packs its weights anew each time.
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <vector>

#include "common.h"
#include "kernels.h"

namespace parley {
namespace {

constexpr int64_t kWorkPerTask = 1 << 18;  // multiplications; for less, a thread is not worth its start

}  // namespace

void linear_cpu(
    const Tensor& rows, const Tensor& panels, std::optional<Tensor> bias, const Tensor& out) {
  STD_TORCH_CHECK(
      rows.dim() == 2 && out.dim() == 2 && panels.dim() == 3, "rows and out have 2 dimensions, panels 3");
  for (const Tensor* tensor : {&rows, &panels, &out}) {
    STD_TORCH_CHECK(tensor->scalar_type() == ScalarType::Float, "linear is for float32");
  }
  STD_TORCH_CHECK(
      out.size(0) == rows.size(0) && panels.size(1) == rows.size(1) && panels.size(2) == kPanel &&
          panels.size(0) == (out.size(1) + kPanel - 1) / kPanel,
      "rows, panels and out differ in sizes");
  STD_TORCH_CHECK(
      panels.is_contiguous() && (rows.stride(1) == 1 || rows.size(1) == 1) &&
          (out.stride(1) == 1 || out.size(1) == 1),
      "panels and the last dimensions must be contiguous");
  STD_TORCH_CHECK(
      !bias || (bias->scalar_type() == ScalarType::Float && bias->is_contiguous() &&
                bias->numel() == out.size(1)),
      "bias is one float32 per output");
  Product p{};
  p.weight.format = Format::kFloat32;
  p.weight.panels = panels.const_data_ptr();
  p.weight.bias = bias ? static_cast<const float*>(bias->const_data_ptr()) : nullptr;
  p.weight.num_inputs = rows.size(1), p.weight.num_outputs = out.size(1);
  p.num_rows = rows.size(0);
  p.out = static_cast<float*>(out.mutable_data_ptr());
  p.out_stride = out.stride(0);
  const Kernels& k = kernels();
  const auto* const from = static_cast<const float*>(rows.const_data_ptr());
  p.rows.values = from;
  if (p.num_rows > 1) {  // one lies as it must
    static thread_local std::vector<float> kept;  // the memory, from call to call
    kept.resize(p.num_rows * p.weight.num_inputs);
    float* const values = kept.data();
    const Tiles tiles(p.num_rows, k.tallest_tile());
    const int64_t groups = p.weight.num_groups(), work_per_part = k.tallest_tile() * kGroup;
    torch::stable::parallel_for(
        0, tiles.count * groups, kWorkPerTask / work_per_part, [&](int64_t begin, int64_t end) {
          for (int64_t part = begin; part < end; ++part) {
            const int64_t tile = part / groups, row = tiles.begin(tile);
            k.prepare(p.weight, {
                .rows = from + row * rows.stride(0), .stride = rows.stride(0),
                .num_rows = tiles.begin(tile + 1) - row, .group = part % groups,
                .values = values + row * p.weight.num_inputs, .scales = nullptr, .offsets = nullptr});
          }
        });
    p.rows.values = values;
  }
  const int64_t work_per_panel = p.num_rows * p.weight.num_inputs * kPanel + 1;
  torch::stable::parallel_for(
      0, p.num_pieces(), kWorkPerTask / work_per_panel + 1,
      [&](int64_t begin, int64_t end) { k.multiply(p, begin, end); });
}

}  // namespace parley
