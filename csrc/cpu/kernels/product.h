// What a product of rows with a packed weight is: shared by those who ask for one and by
// product_kernel.h, which computes it.
//
// A weight lies in panels of 16 outputs, so that one vector of outputs grows with each input and nothing
// is summed across lanes:
//   float32   [panel][input][16]
//   bfloat16  [panel][input / 2][16][2]   pairs of inputs, as dot-product instructions want them
//   int8      [panel][input / 4][16][4]   unsigned, 128 is zero; a scale for 128 inputs of each output
//   int4      [panel][input / 8][16][4]   bytes: of eight inputs the first four in the low halves, the others in the
//                                         high ones; a scale for 128 inputs of each output, and for each 16 of these
//                                         a step and a zero: (code - zero) * step is what int8 would have
//   parts8    [panel][input / 4][16][4]   unsigned, 128 is zero; a scale for a part of the inputs, 16 or 32 of
//                                         them, of each output
//   parts4    [panel][input / 8][16][4]   8 is zero; bytes as of int4, scales as of parts8
//   parts6    [panel][input / 16][3][16][4]  32 is zero; of sixteen inputs the low four bits as of parts4, then their
//                                         high two: byte i has those of inputs i, i + 4, i + 8, i + 12, low first
// In parts, weights may have a least number for each part besides: then the number 0 stands for that.
#pragma once

#include <array>
#include <cstdint>

namespace parley {

constexpr int64_t kPanel = 16;   // outputs that grow side by side in one vector
constexpr int64_t kGroup = 128;  // int8: inputs with one scale; float: summed before they join the total
constexpr int64_t kSmallestPart = 16;  // of a group

// Of int4: what 16 inputs may have. Products of both lie within 120, so that all fits into a byte.
constexpr std::array<uint8_t, 16> kSteps = {3, 5, 7, 9, 10, 11, 12, 14, 3, 5, 7, 9, 10, 11, 12, 14};
constexpr std::array<uint8_t, 16> kZeros = {6, 6, 6, 7, 5, 7, 5, 7, 9, 9, 9, 8, 10, 8, 10, 8};

enum class Format { kFloat32, kBFloat16, kInt8, kInt4, kParts8, kParts6, kParts4 };

constexpr bool has_parts(Format format) {
  return format == Format::kParts8 || format == Format::kParts6 || format == Format::kParts4;
}

constexpr bool has_whole_numbers(Format format) {
  return format == Format::kInt8 || format == Format::kInt4 || has_parts(format);
}

// Of so many inputs of an output, which lie in whole lines.
constexpr int64_t bytes_of(Format format, int64_t num_inputs) {
  return format == Format::kFloat32    ? 4 * num_inputs
         : format == Format::kBFloat16 ? 2 * num_inputs
         : format == Format::kParts6   ? num_inputs / 4 * 3
         : format == Format::kInt4 || format == Format::kParts4 ? num_inputs / 2
                                                                : num_inputs;
}

struct Half {  // IEEE 754, in 16 bits
  uint16_t bits;
};

// Of int4, for 128 inputs of a panel.
struct GroupScales {
  uint32_t pairs[kPanel];  // of step and zero: eight numbers of four bits for each output, which lie as eight codes do
  Half scales[kPanel];
};

constexpr int64_t shift_of_pair(int64_t part) { return part % 4 * 8 + part / 4 * 4; }  // of 16 inputs

struct Weight {
  Format format;
  const void* panels;
  // int8: float [panel][group][16]; int4: GroupScales [panel][group]; in parts: Half [panel][part][16], or [2][16] with
  // the least numbers
  const void* scales;
  const float* bias;    // [num_outputs], may be null
  int64_t num_inputs;   // with padding
  int64_t num_outputs;
  int64_t part;         // inputs with one scale: int8 and int4 a group, in parts 16 or 32
  bool has_least;

  int64_t num_groups() const { return (num_inputs + kGroup - 1) / kGroup; }

  int64_t num_parts() const { return (num_inputs + part - 1) / part; }

  int64_t part_halves() const { return (has_least ? 2 : 1) * kPanel; }  // of a panel

  int64_t part_bytes() const {
    if (format == Format::kInt4) return sizeof(GroupScales);
    return has_parts(format) ? part_halves() * sizeof(Half) : kPanel * sizeof(float);
  }

  int64_t scales_bytes() const { return num_parts() * part_bytes(); }

  int32_t zero() const {  // the number that stands for it
    return has_least ? 0 : format == Format::kParts4 ? 8 : format == Format::kParts6 ? 32 : 128;
  }
};

// Rows in the format that the product of this weight reads on this machine. They lie in tiles of as many
// rows as are multiplied at once: [tile][input / n][row][n], where n inputs of a row are multiplied by one
// instruction. So a tile is read from end to end, through one pointer.
struct Rows {
  const void* values;
  const float* scales;     // of whole numbers: [tile][group][row]
  const int32_t* offsets;  // of whole numbers: [tile][part][row], what a sum begins with, as weights have a zero too
  const float* sums;       // in parts: [tile][part][row], of the row's numbers, for what weights have at least
};

// As few tiles as may be, their heights differing by one row at most.
struct Tiles {
  Tiles(int64_t num_rows, int64_t tallest)
      : num_rows(num_rows), count((num_rows + tallest - 1) / tallest) {}

  int64_t begin(int64_t tile) const { return num_rows * tile / count; }  // its first row

  int64_t num_rows, count;
};

// Where a group of inputs of one tile comes from and goes to.
struct TilePart {
  const float* rows;  // the first one
  int64_t stride;     // from row to row
  int64_t num_rows;
  int64_t group;      // of 128 inputs
  void* values;       // of the tile
  float* scales;      // likewise, as offsets and sums
  int32_t* offsets;
  float* sums;
};

enum class Epilogue {
  kStore,
  kAdd,           // to what is there
  kSiluMultiply,  // of panels 2i (gate) and 2i + 1 (up) one panel: silu(gate) * up
};

struct Product {
  Weight weight;
  Rows rows;
  int64_t num_rows;
  Epilogue epilogue;
  float* out;
  int64_t out_stride;

  // Pieces that may be computed one by one: panels, or pairs of them.
  int64_t num_pieces() const {
    const int64_t panels = (weight.num_outputs + kPanel - 1) / kPanel;
    return epilogue == Epilogue::kSiluMultiply ? panels / 2 : panels;
  }
};

}  // namespace parley
