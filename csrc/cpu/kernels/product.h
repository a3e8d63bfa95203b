// What a product of rows with a packed weight is: shared by those who ask for one and by
// product_kernel.h, which computes it.
//
// A weight lies in panels of 16 outputs, so that one vector of outputs grows with each input and nothing
// is summed across lanes:
//   float32   [panel][input][16]
//   bfloat16  [panel][input / 2][16][2]   pairs of inputs, as dot-product instructions want them
//   int8      [panel][input / 4][16][4]   unsigned, 128 is zero; a scale for 128 inputs of each output
//   int4      [panel][input / 8][16][4]   bytes: of eight inputs the first four in the low halves, the others in the
//                                         high ones; a scale and a least number for 32 inputs of each output
#pragma once

#include <cstdint>

namespace parley {

constexpr int64_t kPanel = 16;   // outputs that grow side by side in one vector
constexpr int64_t kGroup = 128;  // int8: inputs with one scale; float: summed before they join the total
constexpr int64_t kPart = 32;    // int4: inputs with one scale

enum class Format { kFloat32, kBFloat16, kInt8, kInt4 };

constexpr bool has_whole_numbers(Format format) {
  return format == Format::kInt8 || format == Format::kInt4;
}

// Of so many inputs of an output; int4: of whole bytes.
constexpr int64_t bytes_of(Format format, int64_t num_inputs) {
  return format == Format::kFloat32    ? 4 * num_inputs
         : format == Format::kBFloat16 ? 2 * num_inputs
         : format == Format::kInt8     ? num_inputs
                                       : num_inputs / 2;
}

struct Half {  // IEEE 754, in 16 bits
  uint16_t bits;
};

// int4: what the numbers 0 to 15 of 32 inputs stand for, number * scale + least, for each output of a panel.
struct Scale4 {
  Half scale[kPanel], least[kPanel];
};

struct Weight {
  Format format;
  const void* panels;
  const void* scales;   // int8: float [panel][group][16]; int4: Scale4 [panel][part]
  const float* bias;    // [num_outputs], may be null
  int64_t num_inputs;   // with padding
  int64_t num_outputs;

  int64_t num_groups() const { return (num_inputs + kGroup - 1) / kGroup; }

  // Of scales and of offsets: whole numbers of a row whose sum is known.
  int64_t num_parts() const { return (num_inputs + part_size() - 1) / part_size(); }

  int64_t part_size() const { return format == Format::kInt4 ? kPart : kGroup; }

  int64_t scales_bytes() const {  // of a panel
    return num_parts() * (format == Format::kInt4 ? sizeof(Scale4) : kPanel * sizeof(float));
  }
};

// Rows in the format that the product of this weight reads on this machine. They lie in tiles of as many
// rows as are multiplied at once: [tile][input / n][row][n], where n inputs of a row are multiplied by one
// instruction. So a tile is read from end to end, through one pointer.
struct Rows {
  const void* values;
  const float* scales;       // int8, int4: [row][group]
  const int32_t* offsets;    // int8: [row][group], what a sum begins with, because weights have one too;
                             // int4: [row][part], the sum of the row's numbers, for what weights have at least
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
  float* scales;      // of its first row
  int32_t* offsets;
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
