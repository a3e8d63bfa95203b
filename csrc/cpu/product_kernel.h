// Pieces [begin, end) of a product, for all rows.
//
// Each output is summed over the inputs in order, in a lane of its own: so its bits do not depend on how
// many rows there are, on which of them it belongs to, or on threads. float_tile and int8_tile sum kGroup
// inputs at a time and add these up; dot_tile has one sum from the first pair of inputs to the last.
#pragma once

#include "vectors.h"

namespace parley::PARLEY_ISA {

// Registers hold kTileSums vectors of 16 sums besides a weight and an input.
#if PARLEY_WIDTH == 16
constexpr int kTileSums = 12;
#elif PARLEY_WIDTH == 8
constexpr int kTileSums = 6;
#else
constexpr int kTileSums = 3;
#endif

PARLEY_INLINE Floats silu_of(const Floats& x) {
  Floats magnitude;
  for (int i = 0; i < kParts; ++i) {
    magnitude.parts[i] = x.parts[i] < 0 ? x.parts[i] : -x.parts[i];
  }
  const Floats small = exp_of(magnitude, 0.0f);  // e^-|x|
  Floats result;
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

#define PARLEY_CALLED static __attribute__((noinline))  // compiled once for each shape, not for each use

// Sums of kRows rows by kPanels panels.
template <int kRows, int kPanels>
struct Tile {
  Floats sums[kRows][kPanels];
};

template <int kRows, int kPanels>
PARLEY_INLINE void write_tile(
    const Product& p, int64_t first_row, int64_t first_panel, const Tile<kRows, kPanels>& tile) {
  for (int row = 0; row < kRows; ++row) {
    for (int panel = 0; panel < kPanels; ++panel) {
      write_out(p, first_row + row, (first_panel + panel) * kPanel, tile.sums[row][panel]);
    }
  }
}

PARLEY_INLINE void write_gated(
    const Product& p, int64_t row, int64_t pair, const Floats& gate, const Floats& up) {
  Floats result = silu_of(gate);
  for (int i = 0; i < kParts; ++i) result.parts[i] *= up.parts[i];
  store(p.out + row * p.out_stride + pair * kPanel, result);
}

// 16 outputs of one input; of a pair of bfloat16 one half is moved up and the other masked.
PARLEY_INLINE Floats load_input(const float* pair, int which) { return load(pair + which * kPanel); }

PARLEY_INLINE Floats load_input(const BFloat16* pair, int which) {
  Floats result;
  for (int i = 0; i < kParts; ++i) {
    WordPart words;
    std::memcpy(&words, pair + 2 * PARLEY_WIDTH * i, sizeof(words));
    words = which == 0 ? words << 16 : words & 0xffff0000u;
    std::memcpy(&result.parts[i], &words, sizeof(words));
  }
  return result;
}

// kRows rows by kPanels panels, which are read once. W: float or BFloat16; the rows are float.
template <typename W, int kRows, int kPanels>
PARLEY_CALLED Tile<kRows, kPanels> float_tile(
    const Product& p, int64_t first_row, int64_t first_panel) {
  const int64_t num_inputs = p.weight.num_inputs;
  const float* const rows = static_cast<const float*>(p.rows.values) + first_row * num_inputs;
  const W* const panels = static_cast<const W*>(p.weight.panels) + first_panel * num_inputs * kPanel;
  Tile<kRows, kPanels> totals;
  for (int64_t begin = 0; begin == 0 || begin < num_inputs; begin += kGroup) {
    const int64_t end = std::min(begin + kGroup, num_inputs);
    Floats sums[kRows][kPanels];
    for (auto& row : sums) {
      for (Floats& sum : row) sum = splat(0.0f);
    }
    int64_t input = begin;
    for (; input + 2 <= end; input += 2) {
      for (int which = 0; which < 2; ++which) {
        for (int panel = 0; panel < kPanels; ++panel) {
          const Floats weight = load_input(panels + (panel * num_inputs + input) * kPanel, which);
          for (int row = 0; row < kRows; ++row) {
            add_scaled(sums[row][panel], rows[(input + which) * kRows + row], weight);
          }
        }
      }
    }
    if constexpr (std::is_same_v<W, float>) {  // pairs have no odd end
      for (; input < end; ++input) {
        for (int panel = 0; panel < kPanels; ++panel) {
          const Floats weight = load(panels + (panel * num_inputs + input) * kPanel);
          for (int row = 0; row < kRows; ++row) {
            add_scaled(sums[row][panel], rows[input * kRows + row], weight);
          }
        }
      }
    }
    for (int row = 0; row < kRows; ++row) {
      for (int panel = 0; panel < kPanels; ++panel) {
        if (begin == 0) {
          totals.sums[row][panel] = sums[row][panel];
        } else {
          add(totals.sums[row][panel], sums[row][panel]);
        }
      }
    }
  }
  return totals;
}

// Dot products are written in assembler: from intrinsics, gcc 12 makes two copies of each sum in every
// round, and reads the inputs of a row by an instruction of their own.
typedef int32_t Word __attribute__((may_alias));  // some inputs of a row

#if defined(PARLEY_DOT_BFLOAT16)

// As float_tile, with rows in bfloat16 too: one instruction multiplies pairs and adds both to the sum.
template <int kRows, int kPanels>
PARLEY_CALLED Tile<kRows, kPanels> dot_tile(
    const Product& p, int64_t first_row, int64_t first_panel) {
  const int64_t num_inputs = p.weight.num_inputs;
  const BFloat16* const rows = static_cast<const BFloat16*>(p.rows.values) + first_row * num_inputs;
  const BFloat16* const panels =
      static_cast<const BFloat16*>(p.weight.panels) + first_panel * num_inputs * kPanel;
  __m512 sums[kRows][kPanels];
  for (auto& row : sums) {
    for (__m512& sum : row) sum = _mm512_setzero_ps();
  }
  for (int64_t input = 0; input < num_inputs; input += 2) {
    for (int panel = 0; panel < kPanels; ++panel) {
      const __m512i weights = _mm512_loadu_si512(panels + (panel * num_inputs + input) * kPanel);
      for (int row = 0; row < kRows; ++row) {
        const auto* const pair = reinterpret_cast<const Word*>(rows + input * kRows + 2 * row);
        __m512 sum = sums[row][panel];
        asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(weights), "m"(*pair));
        sums[row][panel] = sum;
      }
    }
  }
  Tile<kRows, kPanels> totals;
  for (int row = 0; row < kRows; ++row) {
    for (int panel = 0; panel < kPanels; ++panel) {
      std::memcpy(&totals.sums[row][panel], &sums[row][panel], sizeof(__m512));
    }
  }
  return totals;
}

#endif

// ---- int8: exact sums of 128 inputs, then their scales ------------------------------------------------

#if defined(PARLEY_X86) && PARLEY_WIDTH >= 8 && !defined(PARLEY_DOT_INT8)

using Quantized = int16_t;  // what a row holds: products of pairs grow in 32 bits without saturation

struct GroupSums {
  __m256i parts[2];  // 8 outputs each
};

PARLEY_INLINE void start_sums(GroupSums& sums) {
  for (__m256i& part : sums.parts) part = _mm256_setzero_si256();
}

// The products of kRows rows with four inputs of 16 outputs.
template <int kRows, int kPanels>
PARLEY_INLINE void add_products(
    GroupSums (&sums)[kRows][kPanels], int panel, const uint8_t* weights, const Quantized* inputs) {
  const __m256i even = _mm256_set1_epi32(0x00ff00ff);
  for (int part = 0; part < 2; ++part) {
    const __m256i four =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + 32 * part));  // of 8 outputs
    for (int pair = 0; pair < 2; ++pair) {  // bytes 0 and 2, then bytes 1 and 3
      const __m256i two = pair == 0 ? _mm256_and_si256(four, even) : _mm256_srli_epi16(four, 8);
      for (int row = 0; row < kRows; ++row) {
        int32_t both;
        std::memcpy(&both, inputs + 4 * row + 2 * pair, sizeof(both));
        const __m256i products = _mm256_madd_epi16(two, _mm256_set1_epi32(both));
        sums[row][panel].parts[part] = _mm256_add_epi32(sums[row][panel].parts[part], products);
      }
    }
  }
}

PARLEY_INLINE Floats total_of(const GroupSums& sums, int32_t offset) {
  float totals[kPanel];
  for (int i = 0; i < 2; ++i) {
    const __m256i sum = _mm256_add_epi32(sums.parts[i], _mm256_set1_epi32(offset));
    _mm256_storeu_ps(totals + 8 * i, _mm256_cvtepi32_ps(sum));
  }
  return load(totals);
}

// Where one of four inputs lies: bytes 0 and 2 are multiplied together.
constexpr int64_t place_of(int64_t input) { return input == 1 ? 2 : input == 2 ? 1 : input; }

constexpr int kInt8TileSums = 6;

#elif defined(PARLEY_DOT_INT8)

using Quantized = int8_t;

struct GroupSums {
  __m512i sums;
};

PARLEY_INLINE void start_sums(GroupSums& sums) { sums.sums = _mm512_setzero_si512(); }

template <int kRows, int kPanels>
PARLEY_INLINE void add_products(
    GroupSums (&sums)[kRows][kPanels], int panel, const uint8_t* weights, const Quantized* inputs) {
  const __m512i four = _mm512_loadu_si512(weights);  // of 16 outputs
  for (int row = 0; row < kRows; ++row) {
    const auto* const all = reinterpret_cast<const Word*>(inputs + 4 * row);
    __m512i sum = sums[row][panel].sums;
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(four), "m"(*all));
    sums[row][panel].sums = sum;
  }
}

PARLEY_INLINE Floats total_of(const GroupSums& sums, int32_t offset) {
  const __m512 total = _mm512_cvtepi32_ps(_mm512_add_epi32(sums.sums, _mm512_set1_epi32(offset)));
  Floats result;
  std::memcpy(&result.parts[0], &total, sizeof(total));
  return result;
}

constexpr int64_t place_of(int64_t input) { return input; }

constexpr int kInt8TileSums = 12;

#else

using Quantized = int16_t;

struct GroupSums {
  int32_t sums[kPanel];
};

PARLEY_INLINE void start_sums(GroupSums& sums) {
  for (int32_t& sum : sums.sums) sum = 0;
}

template <int kRows, int kPanels>
PARLEY_INLINE void add_products(
    GroupSums (&sums)[kRows][kPanels], int panel, const uint8_t* weights, const Quantized* inputs) {
  for (int row = 0; row < kRows; ++row) {
    for (int output = 0; output < kPanel; ++output) {
      for (int i = 0; i < 4; ++i) {
        sums[row][panel].sums[output] += weights[4 * output + i] * inputs[4 * row + i];
      }
    }
  }
}

PARLEY_INLINE Floats total_of(const GroupSums& sums, int32_t offset) {
  float totals[kPanel];
  for (int output = 0; output < kPanel; ++output) {
    totals[output] = static_cast<float>(sums.sums[output] + offset);
  }
  return load(totals);
}

constexpr int64_t place_of(int64_t input) { return input; }

constexpr int kInt8TileSums = 4;

#endif

template <int kRows, int kPanels>
PARLEY_CALLED Tile<kRows, kPanels> int8_tile(
    const Product& p, int64_t first_row, int64_t first_panel) {
  const int64_t num_inputs = p.weight.num_inputs, num_groups = p.weight.num_groups();
  const auto* const rows = static_cast<const Quantized*>(p.rows.values) + first_row * num_inputs;
  const float* const row_scales = p.rows.scales + first_row * num_groups;
  const int32_t* const offsets = p.rows.offsets + first_row * num_groups;
  const uint8_t* const panels =
      static_cast<const uint8_t*>(p.weight.panels) + first_panel * num_inputs * kPanel;
  const float* const scales = p.weight.scales + first_panel * num_groups * kPanel;
  Tile<kRows, kPanels> totals;
  for (auto& row : totals.sums) {
    for (Floats& total : row) total = splat(0.0f);
  }
  for (int64_t group = 0; group < num_groups; ++group) {
    const int64_t begin = group * kGroup, end = std::min(begin + kGroup, num_inputs);
    GroupSums sums[kRows][kPanels];
    for (auto& row : sums) {
      for (GroupSums& sum : row) start_sums(sum);
    }
    for (int64_t input = begin; input < end; input += 4) {
      for (int panel = 0; panel < kPanels; ++panel) {
        const uint8_t* const weights = panels + (panel * num_inputs + input) * kPanel;
        add_products<kRows, kPanels>(sums, panel, weights, rows + input * kRows);
      }
    }
    for (int panel = 0; panel < kPanels; ++panel) {
      const Floats scale = load(scales + (panel * num_groups + group) * kPanel);
      for (int row = 0; row < kRows; ++row) {
        const int64_t place = row * num_groups + group;
        Floats total = total_of(sums[row][panel], offsets[place]);
        for (int i = 0; i < kParts; ++i) total.parts[i] *= scale.parts[i];
        add_scaled(totals.sums[row][panel], row_scales[place], total);
      }
    }
  }
  return totals;
}

// ---- which tiles --------------------------------------------------------------------------------------

template <Format kFormat, int kRows, int kPanels>
PARLEY_INLINE Tile<kRows, kPanels> compute_tile(const Product& p, int64_t row, int64_t panel) {
  if constexpr (kFormat == Format::kFloat32) {
    return float_tile<float, kRows, kPanels>(p, row, panel);
  } else if constexpr (kFormat == Format::kBFloat16) {
#if defined(PARLEY_DOT_BFLOAT16)
    return dot_tile<kRows, kPanels>(p, row, panel);
#else
    return float_tile<BFloat16, kRows, kPanels>(p, row, panel);
#endif
  } else {
    return int8_tile<kRows, kPanels>(p, row, panel);
  }
}

// kRows rows of a piece, that is of one panel or of a pair.
template <Format kFormat, int kRows>
PARLEY_INLINE void compute_piece(const Product& p, int64_t row, int64_t piece) {
  if (p.epilogue == Epilogue::kSiluMultiply) {
    const auto gate = compute_tile<kFormat, kRows, 1>(p, row, 2 * piece);
    const auto up = compute_tile<kFormat, kRows, 1>(p, row, 2 * piece + 1);
    for (int i = 0; i < kRows; ++i) write_gated(p, row + i, piece, gate.sums[i][0], up.sums[i][0]);
  } else {
    write_tile(p, row, piece, compute_tile<kFormat, kRows, 1>(p, row, piece));
  }
}

template <Format kFormat, int kRows>
PARLEY_INLINE void compute_rest(const Product& p, int64_t row, int64_t num_rows, int64_t piece) {
  if constexpr (kRows > 0) {
    if (num_rows == kRows) {
      compute_piece<kFormat, kRows>(p, row, piece);
    } else {
      compute_rest<kFormat, kRows - 1>(p, row, num_rows, piece);
    }
  }
}

template <Format kFormat>
constexpr int kTileRows = kFormat == Format::kInt8 ? kInt8TileSums : kTileSums;

// Few rows take some pieces at once, so that enough sums grow side by side to hide the latency of each. It
// is an even number of panels, for pieces may be pairs; or one.
template <Format kFormat, int kRows>
constexpr int kPiecesOf = std::min(kTileRows<kFormat> / kRows / 2 * 2, 4);

// Returns the first piece that is left over.
template <Format kFormat, int kRows>
PARLEY_INLINE int64_t compute_few(const Product& p, int64_t begin, int64_t end) {
  constexpr int kPieces = kPiecesOf<kFormat, kRows>;
  int64_t piece = begin;
  if (p.epilogue == Epilogue::kSiluMultiply) {  // a pair counts as two
    for (; piece + kPieces / 2 <= end; piece += kPieces / 2) {
      const auto tile = compute_tile<kFormat, kRows, kPieces>(p, 0, 2 * piece);
      for (int row = 0; row < kRows; ++row) {
        for (int i = 0; i < kPieces; i += 2) {
          write_gated(p, row, piece + i / 2, tile.sums[row][i], tile.sums[row][i + 1]);
        }
      }
    }
  } else {
    for (; piece + kPieces <= end; piece += kPieces) {
      write_tile(p, 0, piece, compute_tile<kFormat, kRows, kPieces>(p, 0, piece));
    }
  }
  return piece;
}

// Likewise, for whatever number of rows up to kRows there is; `begin` if there are more.
template <Format kFormat, int kRows>
PARLEY_INLINE int64_t compute_side_by_side(const Product& p, int64_t begin, int64_t end) {
  if constexpr (kRows == 0) {
    return begin;
  } else {
    if (p.num_rows == kRows) return compute_few<kFormat, kRows>(p, begin, end);
    return compute_side_by_side<kFormat, kRows - 1>(p, begin, end);
  }
}

// All rows of a piece while its weights are in the cache.
template <Format kFormat>
void compute_pieces(const Product& p, int64_t begin, int64_t end) {
  constexpr int kHeight = kTileRows<kFormat>;
  int64_t piece = compute_side_by_side<kFormat, kHeight / 2>(p, begin, end);
  for (; piece < end; ++piece) {
    int64_t row = 0;
    for (; row + kHeight <= p.num_rows; row += kHeight) compute_piece<kFormat, kHeight>(p, row, piece);
    compute_rest<kFormat, kHeight - 1>(p, row, p.num_rows - row, piece);
  }
}

int64_t tile_rows(Format format) {
  return format == Format::kInt8 ? kTileRows<Format::kInt8> : kTileRows<Format::kFloat32>;
}

void multiply(const Product& p, int64_t begin, int64_t end) {
  switch (p.weight.format) {
    case Format::kFloat32: return compute_pieces<Format::kFloat32>(p, begin, end);
    case Format::kBFloat16: return compute_pieces<Format::kBFloat16>(p, begin, end);
    case Format::kInt8: return compute_pieces<Format::kInt8>(p, begin, end);
  }
}

}  // namespace parley::PARLEY_ISA
