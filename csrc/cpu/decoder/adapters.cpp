// Adapters in a step. Of each row the sums have one order, so that its bits depend neither on the other rows
// nor on their adapters. Some rows with the same adapter are computed together, which reads its weights once.
#include <algorithm>

#include "decoder/step.h"

namespace parley {
namespace {

constexpr int64_t kPanelsAtOnce = 16;  // of a row's outputs, that a thread takes

}  // namespace

bool Step::adapts(int64_t layer, int first, int last) const {
  return std::any_of(blocks.begin(), blocks.end(), [&](const AdaptedRows& block) {
    return block.adapter->targets[layer] >> first & ((1 << (last - first + 1)) - 1);
  });
}

// Add to what the places' modules have said what the rows' adapters say. The modules follow each other.
void Step::adapt(Team& team, int thread, int64_t layer, std::initializer_list<Place> places) {
  const auto count = static_cast<int64_t>(places.size()), num_blocks = std::ssize(blocks);
  if (!adapts(layer, places.begin()->module, (places.end() - 1)->module)) return;
  team.share(thread, num_blocks * count, 1, [&](int64_t piece, int64_t) {
    const auto [adapter, begin, end] = blocks[piece / count];
    const Place& place = places.begin()[piece % count];
    if (!adapter->has(layer, place.module)) return;
    const Matrix matrix = adapter->down(module_sizes, layer, place.module);
    const float* rows[kRowsAtOnce];
    float* outs[kRowsAtOnce];
    for (int64_t i = begin; i < end; ++i) {
      rows[i - begin] = place.in + adapted[i] * place.in_stride;
      outs[i - begin] = low + (i * count + piece % count) * low_stride;
    }
    const int64_t num_outputs = round_up_to_panels(matrix.num_outputs);  // zeros beyond the rank
    k.multiply_low_rank(
        {adapter->format, matrix.panels, matrix.num_inputs, num_outputs, rows, outs, end - begin, kPanel, false},
        0, num_outputs / kPanel);
  });
  int64_t widest = 0;
  for (const Place& place : places) widest = std::max(widest, module_sizes[place.module].num_outputs);
  const int64_t chunks = (widest + kPanelsAtOnce * kPanel - 1) / (kPanelsAtOnce * kPanel);
  team.share(thread, num_blocks * count * chunks, 1, [&](int64_t piece, int64_t) {
    const int64_t part = piece / chunks;
    const auto [adapter, begin, end] = blocks[part / count];
    const Place& place = places.begin()[part % count];
    if (!adapter->has(layer, place.module)) return;
    const Matrix matrix = adapter->up(module_sizes, layer, place.module);
    const float* rows[kRowsAtOnce];
    float* outs[kRowsAtOnce];
    for (int64_t i = begin; i < end; ++i) {
      rows[i - begin] = low + (i * count + part % count) * low_stride;
      outs[i - begin] = place.out + adapted[i] * place.out_stride;
    }
    const int64_t num_panels = round_up_to_panels(matrix.num_outputs) / kPanel;
    const int64_t first = piece % chunks * kPanelsAtOnce, last = std::min(first + kPanelsAtOnce, num_panels);
    k.multiply_low_rank(
        {adapter->format, matrix.panels, matrix.num_inputs, matrix.num_outputs, rows, outs, end - begin,
         place.panel_stride, true},
        first, last);
  });
}

}  // namespace parley
