// Adapters in a step. Each row is computed by itself, as a product of one row, whose sums have one order:
// its bits depend neither on the other rows nor on their adapters.
#include <algorithm>

#include "decoder/step.h"

namespace parley {
namespace {

constexpr int64_t kPanelsAtOnce = 8;  // of a row's outputs, that a thread takes

}  // namespace

bool Step::adapts(int64_t layer, int first, int last) const {
  return std::any_of(adapted.begin(), adapted.end(), [&](const AdaptedRow& each) {
    return each.adapter->targets[layer] >> first & ((1 << (last - first + 1)) - 1);
  });
}

// Add to what the places' modules have said what the rows' adapters say. The modules follow each other.
void Step::adapt(Team& team, int thread, int64_t layer, std::initializer_list<Place> places) {
  const auto count = static_cast<int64_t>(places.size()), num_adapted = std::ssize(adapted);
  if (!adapts(layer, places.begin()->module, (places.end() - 1)->module)) return;
  team.share(thread, num_adapted * count, 1, [&](int64_t part, int64_t) {
    const auto [row, adapter] = adapted[part / count];
    const Place& place = places.begin()[part % count];
    if (!adapter->has(layer, place.module)) return;
    const Product p{
        adapter->down(module_sizes, layer, place.module),
        {place.in + row * place.in_stride, nullptr, nullptr}, 1, Epilogue::kStore, low + part * low_stride,
        low_stride};
    k.multiply(p, 0, p.num_pieces());
  });
  int64_t widest = 0;
  for (const Place& place : places) widest = std::max(widest, module_sizes[place.module].num_outputs);
  const int64_t chunks = (widest + kPanelsAtOnce * kPanel - 1) / (kPanelsAtOnce * kPanel);
  team.share(thread, num_adapted * count * chunks, 1, [&](int64_t piece, int64_t) {
    const int64_t part = piece / chunks;
    const auto [row, adapter] = adapted[part / count];
    const Place& place = places.begin()[part % count];
    if (!adapter->has(layer, place.module)) return;
    Product p{
        adapter->up(module_sizes, layer, place.module), {low + part * low_stride, nullptr, nullptr}, 1,
        Epilogue::kAdd, place.out + row * place.out_stride, place.out_stride};
    const int64_t begin = piece % chunks * kPanelsAtOnce;
    const int64_t end = std::min(begin + kPanelsAtOnce, p.num_pieces());
    if (place.panel_stride == kPanel) {
      if (begin < end) k.multiply(p, begin, end);
      return;
    }
    float* const out = p.out;
    for (int64_t panel = begin; panel < end; ++panel) {
      p.out = out + panel * (place.panel_stride - kPanel);
      k.multiply(p, panel, panel + 1);
    }
  });
}

}  // namespace parley
