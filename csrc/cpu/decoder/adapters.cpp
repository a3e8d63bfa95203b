// Adapters in a step. Each row is computed by itself, as a product of one row, whose sums have one order:
// its bits depend neither on the other rows nor on their adapters. Some rows with the same adapter take turns
// with a part of its weights, which stays in the cache meanwhile.
#include <algorithm>

#include "decoder/step.h"

namespace parley {
namespace {

constexpr int64_t kPanelsAtOnce = 8;  // of a row's outputs, that a thread takes

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
    const Weight weight = adapter->down(module_sizes, layer, place.module);
    for (int64_t i = begin; i < end; ++i) {
      const float* const in = place.in + adapted[i] * place.in_stride;
      float* const out = low + (i * count + piece % count) * low_stride;
      const Product p{weight, {in, nullptr, nullptr}, 1, Epilogue::kStore, out, low_stride};
      k.multiply(p, 0, p.num_pieces());
    }
  });
  int64_t widest = 0;
  for (const Place& place : places) widest = std::max(widest, module_sizes[place.module].num_outputs);
  const int64_t chunks = (widest + kPanelsAtOnce * kPanel - 1) / (kPanelsAtOnce * kPanel);
  team.share(thread, num_blocks * count * chunks, 1, [&](int64_t piece, int64_t) {
    const int64_t part = piece / chunks;
    const auto [adapter, begin, end] = blocks[part / count];
    const Place& place = places.begin()[part % count];
    if (!adapter->has(layer, place.module)) return;
    const Weight weight = adapter->up(module_sizes, layer, place.module);
    const int64_t num_panels = round_up_to_panels(weight.num_outputs) / kPanel;
    const int64_t first = piece % chunks * kPanelsAtOnce, last = std::min(first + kPanelsAtOnce, num_panels);
    const bool is_dense = place.panel_stride == kPanel;
    for (int64_t i = begin; i < end; ++i) {
      float* const out = place.out + adapted[i] * place.out_stride;
      const float* const in = low + (i * count + part % count) * low_stride;
      Product p{weight, {in, nullptr, nullptr}, 1, Epilogue::kAdd, out, place.out_stride};
      for (int64_t panel = first; panel < last; panel += is_dense ? kPanelsAtOnce : 1) {
        p.out = out + panel * (place.panel_stride - kPanel);
        k.multiply(p, panel, is_dense ? last : panel + 1);
      }
    }
  });
}

}  // namespace parley
