// Pieces [begin, end) of a product, for all rows.
#pragma once

#include "common/vectors.h"
#include "product/group_kernel.h"

namespace parley::PARLEY_ISA {

PARLEY_INLINE Floats silu_of(const Floats& x) {
  Floats result = magnitude_of(x);
  for (FloatPart& part : result.parts) part = -part;
  const Floats small = exp_of(result, 0.0f);  // e^-|x|
  for (int i = 0; i < kParts; ++i) {
    const FloatPart numerator = x.parts[i] < 0 ? small.parts[i] : FloatPart{} + 1.0f;
    result.parts[i] = x.parts[i] * (numerator / (small.parts[i] + 1.0f));
  }
  return result;
}

PARLEY_INLINE void write_out(const Product& p, int64_t row, int64_t output, const Floats& sums) {
  const int64_t num_outputs = std::min(kPanel, p.weight.num_outputs - output);
  float* const to = p.out + row * p.out_stride + output;
  if (num_outputs == kPanel) {
    Floats result = sums;
    if (p.weight.bias) add(result, load(p.weight.bias + output));
    if (p.epilogue == Epilogue::kAdd) add(result, load(to));
    store(to, result);
    return;
  }
  float result[kPanel];
  store(result, sums);
  if (p.weight.bias) {
    for (int64_t i = 0; i < num_outputs; ++i) result[i] += p.weight.bias[output + i];
  }
  if (p.epilogue == Epilogue::kAdd) {
    for (int64_t i = 0; i < num_outputs; ++i) to[i] += result[i];
  } else {
    for (int64_t i = 0; i < num_outputs; ++i) to[i] = result[i];
  }
}

PARLEY_INLINE void write_gated(
    const Product& p, int64_t row, int64_t pair, const Floats& gate, const Floats& up) {
  store(p.out + row * p.out_stride + pair * kPanel, product(silu_of(gate), up));
}

// silu(gate) * up of one row whose gates and ups lie in panels in turn: what the epilogue of a product does.
void gate(const float* pairs, int64_t num_panels, float* out) {
  for (int64_t panel = 0; panel < num_panels; ++panel) {
    const float* const pair = pairs + 2 * panel * kPanel;
    store(out + panel * kPanel, product(silu_of(load(pair)), load(pair + kPanel)));
  }
}

// A tile's totals, [width / step][height][step].
PARLEY_INLINE void write_tile(
    const Product& p, int64_t first_row, int64_t height, int64_t first_panel, int64_t width, int64_t step,
    const Floats* totals) {
  const auto of = [&](int64_t row, int64_t panel) PARLEY_LAMBDA -> const Floats& {
    return totals[(panel & -step) * height + row * step + (panel & (step - 1))];  // a power of two
  };
  for (int64_t row = 0; row < height; ++row) {
    if (p.epilogue == Epilogue::kSiluMultiply) {
      for (int64_t i = 0; i < width; i += 2) {
        write_gated(p, first_row + row, (first_panel + i) / 2, of(row, i), of(row, i + 1));
      }
    } else {
      for (int64_t i = 0; i < width; ++i) {
        write_out(p, first_row + row, (first_panel + i) * kPanel, of(row, i));
      }
    }
  }
}

// ---- which tiles --------------------------------------------------------------------------------------

// Registers hold so many vectors of 16 sums besides weights and an input. Of int8 without dot products a
// vector takes two registers of half the width.
#if PARLEY_WIDTH == 16
constexpr int kMostFloatSums = 24, kTallest = 12;
#elif PARLEY_WIDTH == 8
constexpr int kMostFloatSums = 6, kTallest = 6;
#else
constexpr int kMostFloatSums = 3, kTallest = 3;
#endif

#if PARLEY_WIDTH == 16 && !defined(PARLEY_DOT_INT8)
constexpr int kMostInt8Sums = kMostFloatSums / 2;
#else
constexpr int kMostInt8Sums = kMostFloatSums;
#endif

// In parts, sums of whole numbers and what they are added to grow side by side.
constexpr int kMostPartSums = kMostInt8Sums / 2;

template <Format kFormat>
constexpr int kMostSums = has_parts(kFormat)           ? kMostPartSums
                          : has_whole_numbers(kFormat) ? kMostInt8Sums
                                                       : kMostFloatSums;

constexpr int kManyTiles = 3;  // for which weights of int4 are unpacked once; of fewer, each unpacks as it multiplies
constexpr int kBundle = 4;  // tiles that take turns with some groups of weights, which stay in the cache meanwhile

// Groups that a tile adds at once. What a call costs is shared by them, and the weights of all of them stay in the
// cache for the next tile.
template <Format kFormat>
constexpr int64_t kGroups = has_whole_numbers(kFormat) ? 4 : 1;

// Panels at once: the more sums grow side by side, the better is the latency of each hidden.
template <Format kFormat>
constexpr int width_of(int64_t height) {
  if (kFormat == Format::kInt4 && height > kMostSums<kFormat> / 6) return height * 2 <= kMostSums<kFormat> ? 2 : 1;
  return height * 4 <= kMostSums<kFormat> ? 4 : height * 2 <= kMostSums<kFormat> ? 2 : 1;
}

template <Format kFormat, int kRows, int kPanels>
constexpr AddGroups groups_adder() {
  if constexpr (kRows * kPanels > kMostSums<kFormat>) {
    return nullptr;
  } else {
    return add_groups<kFormat, kRows, kPanels>;
  }
}

// In parts two panels meet an input, where there are registers for that: else each product would load its own.
constexpr int kTallestInParts = PARLEY_WIDTH == 16 ? kMostPartSums / 2 : std::max(1, kMostPartSums);

template <Format kFormat>
constexpr int kTallestOf = has_parts(kFormat) ? kTallestInParts : kTallest;

// By height, from 1 on.
template <Format kFormat, int kPanels>
constexpr std::array<AddGroups, kTallest> kAdders = []<int... i>(std::integer_sequence<int, i...>) {
  return std::array<AddGroups, kTallest>{groups_adder<kFormat, i + 1, kPanels>()...};
}(std::make_integer_sequence<int, kTallest>{});

template <Format kFormat>
PARLEY_INLINE AddGroups adder_of(int64_t height, int64_t width) {
  return (width == 4   ? kAdders<kFormat, 4>
          : width == 2 ? kAdders<kFormat, 2>
                       : kAdders<kFormat, 1>)[height - 1];
}

// Fetch what rows [first, last) will be written to, in `turns`: a line at a time costs nothing, and all at once
// would be waited for.
PARLEY_INLINE void fetch_outputs(
    const Product& p, int64_t first, int64_t last, int64_t panel, int64_t width, int64_t turn,
    int64_t turns) {
  const int shift = p.epilogue == Epilogue::kSiluMultiply ? 1 : 0;  // two panels to a line
  for (int64_t row = first + turn; row < last; row += turns) {
    const float* const to = p.out + row * p.out_stride + (panel >> shift) * kPanel;
    for (int64_t line = 0; line < width >> shift; ++line) __builtin_prefetch(to + line * kPanel, 1);
  }
}

// Fetch the scales of some groups of `width` panels.
PARLEY_INLINE void fetch_scales(
    const Weight& weight, int64_t panel, int64_t width, int64_t group, int64_t end) {
  const int64_t group_bytes = kGroup / weight.part * weight.part_bytes(), panel_bytes = weight.scales_bytes();
  const auto* const scales = static_cast<const std::byte*>(weight.scales) + panel * panel_bytes;
  for (int64_t i = 0; i < width; ++i) {
    for (int64_t at = group * group_bytes; at < end * group_bytes; at += kLineBytes) {
      __builtin_prefetch(scales + i * panel_bytes + at, 0, 2);
    }
  }
}

// Panels that will be multiplied next, as they lie in memory: where they begin, and the bytes of a group of one.
struct Next {
  const std::byte* first;
  int64_t panel_bytes, group_bytes;
};

template <Format kFormat>
PARLEY_INLINE Next next_panels(const Weight& weight, int64_t panel) {
  const int64_t panel_bytes = kPanel * bytes_of(kFormat, weight.num_inputs);
  const auto* const panels = static_cast<const std::byte*>(weight.panels);
  return {panels + panel * panel_bytes, panel_bytes, kPanel * bytes_of(kFormat, kInputs<kFormat>)};
}

// Some tiles' rows of `width` panels.
template <Format kFormat>
void compute_bundle(
    const Product& p, const Tiles& tiles, int64_t first, int64_t last, int64_t panel, int64_t width, const Next& next) {
  Floats totals[kBundle * std::max(kMostFloatSums, 2 * kTallest)];
  int64_t begins[kBundle + 1];  // divisions are slow
  for (int64_t tile = first; tile <= last; ++tile) begins[tile - first] = tiles.begin(tile);
  const int64_t first_row = begins[0], num_rows = begins[last - first] - first_row;
  std::fill(totals, totals + num_rows * width, splat(0.0f));
  const int64_t num_groups = (p.weight.num_inputs + kInputs<kFormat> - 1) / kInputs<kFormat>;
  const int64_t turns = (num_groups + kGroups<kFormat> - 1) / kGroups<kFormat>;
  const int shift = last - first >= 4 ? 2 : last - first >= 2 ? 1 : 0;
  const int64_t line = kLineBytes * next.group_bytes / (kPanel * bytes_of(kFormat, kInputs<kFormat>));
  for (int64_t turn = 0; turn < turns; ++turn) {
    const int64_t group = turn * kGroups<kFormat>, end = std::min(group + kGroups<kFormat>, num_groups);
    const int64_t fetched = (end - group) * next.group_bytes >> shift;  // by each tile, of each panel
    if constexpr (has_whole_numbers(kFormat)) fetch_scales(p.weight, panel + width, width, group, end);
    for (int64_t tile = 0; tile < last - first; ++tile) {
      const int64_t row = begins[tile], height = begins[tile + 1] - row;
      fetch_outputs(p, row, row + height, panel, width, turn, turns);
      const int64_t step = std::min<int64_t>(width, width_of<kFormat>(height));
      const AddGroups add_groups = adder_of<kFormat>(height, step);
      const std::byte* const of_tile =
          next.first + group * next.group_bytes + (tile & ((1 << shift) - 1)) * fetched;
      for (int64_t i = 0; i < width; i += step) {
        add_groups(
            p, row, panel + i, group, end, totals + (row - first_row) * width + i * height,
            {of_tile + i * next.panel_bytes, next.panel_bytes, line >> shift});
      }
    }
  }
  for (int64_t tile = 0; tile < last - first; ++tile) {
    const int64_t row = begins[tile], height = begins[tile + 1] - row;
    const int64_t step = std::min<int64_t>(width, width_of<kFormat>(height));
    write_tile(p, row, height, panel, width, step, totals + (row - first_row) * width);
  }
}

// Some panels of int4 as int8, unpacked once for all rows.
void compute_unpacked(const Product& p, const Tiles& tiles, int64_t panel, int64_t width) {
  const int64_t num_inputs = p.weight.num_inputs, num_groups = p.weight.num_groups(), output = panel * kPanel;
  static thread_local std::vector<uint8_t> bytes;
  static thread_local std::vector<float> scales;
  bytes.resize(width * num_inputs * kPanel);
  scales.resize(width * num_groups * kPanel);
  for (int64_t i = 0; i < width; ++i) {
    unpack_int4(
        p.weight, panel + i, bytes.data() + i * num_inputs * kPanel, scales.data() + i * num_groups * kPanel);
  }
  Product unpacked = p;
  unpacked.weight.format = Format::kInt8;
  unpacked.weight.panels = bytes.data();
  unpacked.weight.scales = scales.data();
  unpacked.weight.num_outputs -= output;
  if (p.weight.bias) unpacked.weight.bias += output;
  unpacked.out += p.epilogue == Epilogue::kSiluMultiply ? output / 2 : output;
  fetch_scales(p.weight, panel + width, width, 0, num_groups);
  const Next next = next_panels<Format::kInt4>(p.weight, panel + width);
  for (int64_t tile = 0; tile < tiles.count; tile += kBundle) {
    compute_bundle<Format::kInt8>(unpacked, tiles, tile, std::min(tile + kBundle, tiles.count), 0, width, next);
  }
}

template <Format kFormat>
void compute_pieces(const Product& p, int64_t begin, int64_t end) {
  const Tiles tiles(p.num_rows, kTallestOf<kFormat>);
  const int64_t panels = p.epilogue == Epilogue::kSiluMultiply ? 2 : 1;  // of a piece
  const int64_t widest = std::max<int64_t>(panels, width_of<kFormat>(tiles.begin(1)));
  for (int64_t panel = begin * panels; panel < end * panels;) {
    int64_t width = widest;
    while (panel + width > end * panels) width /= 2;
    if (kFormat == Format::kInt4 && tiles.count >= kManyTiles) {
      compute_unpacked(p, tiles, panel, width);
    } else {
      const Next next = next_panels<kFormat>(p.weight, panel + width);
      for (int64_t tile = 0; tile < tiles.count; tile += kBundle) {
        compute_bundle<kFormat>(p, tiles, tile, std::min(tile + kBundle, tiles.count), panel, width, next);
      }
    }
    panel += width;
  }
}

int64_t tallest_tile(Format format) { return has_parts(format) ? kTallestInParts : kTallest; }

void multiply(const Product& p, int64_t begin, int64_t end) {
  if (p.num_rows == 0) return;
  switch (p.weight.format) {
    case Format::kFloat32: return compute_pieces<Format::kFloat32>(p, begin, end);
    case Format::kBFloat16: return compute_pieces<Format::kBFloat16>(p, begin, end);
    case Format::kInt8: return compute_pieces<Format::kInt8>(p, begin, end);
    case Format::kInt4: return compute_pieces<Format::kInt4>(p, begin, end);
    case Format::kParts8: return compute_pieces<Format::kParts8>(p, begin, end);
    case Format::kParts6: return compute_pieces<Format::kParts6>(p, begin, end);
    case Format::kParts4: return compute_pieces<Format::kParts4>(p, begin, end);
  }
}

}  // namespace parley::PARLEY_ISA
