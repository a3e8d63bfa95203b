// Low-rank weights that a step adds to the products of some of its rows.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/product.h"

namespace parley {

// The modules of a layer, in the order in which an adapter's weights lie.
enum Module { kQuery, kKey, kValue, kAttentionOut, kGate, kUp, kDown, kNumModules };

struct ModuleSize {
  int64_t num_inputs, num_outputs;
};

using ModuleSizes = std::array<ModuleSize, kNumModules>;

inline int64_t round_up_to_panels(int64_t count) { return (count + kPanel - 1) / kPanel * kPanel; }

// Of each module two packed weights in float32, one after the other: from its inputs to the rank, and from
// there to its outputs.
struct Adapter {
  const float* weights;  // of the first layer
  const int64_t* targets;  // [layers]: bits, by module
  int64_t rank;

  static int64_t module_size(const ModuleSize& size, int64_t rank) {
    return round_up_to_panels(rank) * size.num_inputs + round_up_to_panels(size.num_outputs) * rank;
  }

  static int64_t layer_size(const ModuleSizes& sizes, int64_t rank) {
    int64_t total = 0;
    for (const ModuleSize& size : sizes) total += module_size(size, rank);
    return total;
  }

  bool has(int64_t layer, int module) const { return targets[layer] >> module & 1; }

  Weight down(const ModuleSizes& sizes, int64_t layer, int module) const {
    const float* at = weights + layer * layer_size(sizes, rank);
    for (int before = 0; before < module; ++before) at += module_size(sizes[before], rank);
    return {Format::kFloat32, at, nullptr, nullptr, sizes[module].num_inputs, rank};
  }

  Weight up(const ModuleSizes& sizes, int64_t layer, int module) const {
    const Weight first = down(sizes, layer, module);
    const float* const at =
        static_cast<const float*>(first.panels) + round_up_to_panels(rank) * first.num_inputs;
    return {Format::kFloat32, at, nullptr, nullptr, rank, sizes[module].num_outputs};
  }
};

// Rows with the same adapter: [begin, end) of `Step::adapted`.
struct AdaptedRows {
  const Adapter* adapter;
  int64_t begin, end;
};

// Where a module's inputs and outputs lie. Panels of outputs are `panel_stride` apart.
struct Place {
  int module;
  const float* in;
  int64_t in_stride;
  float* out;
  int64_t out_stride;
  int64_t panel_stride = kPanel;
};

}  // namespace parley
