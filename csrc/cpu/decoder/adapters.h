// Low-rank weights that a step adds to the products of some of its rows.
#pragma once

#include <array>
#include <cstddef>
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

// One of the two matrices of a module.
struct Matrix {
  const void* panels;
  int64_t num_inputs, num_outputs;
};

// Of each module two matrices, one after the other: from its inputs to the rank, and from there to its outputs.
struct Adapter {
  Format format;           // float32 or bfloat16
  const std::byte* weights;  // of the first layer
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

  Matrix down(const ModuleSizes& sizes, int64_t layer, int module) const {
    return {weights + bytes_of(format, place(sizes, layer, module)), sizes[module].num_inputs, rank};
  }

  Matrix up(const ModuleSizes& sizes, int64_t layer, int module) const {
    const int64_t first = place(sizes, layer, module) + round_up_to_panels(rank) * sizes[module].num_inputs;
    return {weights + bytes_of(format, first), rank, sizes[module].num_outputs};
  }

 private:
  int64_t place(const ModuleSizes& sizes, int64_t layer, int module) const {
    int64_t at = layer * layer_size(sizes, rank);
    for (int before = 0; before < module; ++before) at += module_size(sizes[before], rank);
    return at;
  }
};

constexpr int64_t kRowsAtOnce = 8;

// Rows with the same adapter, kRowsAtOnce at most: [begin, end) of `Step::adapted`.
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
