// The products of one group of inputs: what is added to the totals of a tile, kRows rows by kPanels panels.
//
// All sums of a tile stay in registers; a weight and an input are loaded once for all that they meet. Each
// output is summed over the inputs in order, in a lane of its own: so its bits do not depend on how many
// rows there are, on which of them it belongs to, on panels or on threads.
#pragma once

#include "common/vectors.h"

namespace parley::PARLEY_ISA {

// What is prefetched of the next panels: the processor would wait at each page, where the memory's own
// look-ahead ends. Each round fetches so many bytes of each panel: a line, or less where tiles that take turns with the
// same weights also share the prefetching.
struct Fetch {
  const std::byte* first;
  int64_t panel_bytes, step;
};

constexpr int64_t kLineBytes = 64;  // one round reads so much of each panel

// Inputs that are added by one call. Those of int8 have a scale, and of float rows a sum, for themselves; dot
// products of bfloat16 go on with the totals, so that a call may be longer.
#if defined(PARLEY_DOT_BFLOAT16)
template <Format kFormat>
constexpr int64_t kInputs = kFormat == Format::kBFloat16 ? 2 * kGroup : kGroup;
#else
template <Format kFormat>
constexpr int64_t kInputs = kGroup;
#endif

// Some groups, one after another. `totals` of a panel and a row: 16 outputs. They lie as [kRows][kPanels].
using AddGroups = void (*)(
    const Product& p, int64_t first_row, int64_t first_panel, int64_t group, int64_t end, Floats* totals,
    const Fetch& fetch);

// Where the group lies in the rows of a tile and in its first panel.
template <typename R, typename W, int kRows, int64_t kSize = kGroup>
struct Inputs {
  PARLEY_MEMBER Inputs(const Product& p, int64_t row, int64_t panel, int64_t group)
      : panel_size(p.weight.num_inputs * kPanel),
        count(std::min(kSize, p.weight.num_inputs - group * kSize)),
        rows(static_cast<const R*>(p.rows.values) + row * p.weight.num_inputs + group * kSize * kRows),
        weights(static_cast<const W*>(p.weight.panels) + panel * panel_size + group * kSize * kPanel) {}

  int64_t panel_size, count;
  const R* rows;     // [input / n][row][n]
  const W* weights;  // [input / n][16][n], of the first panel
};

// From how many rows on. A processor fetches ahead by itself, and fewer wait for the memory anyway; but where much is
// done for each line, as to unpack it, that is not far enough.
template <Format kFormat>
constexpr int kFetchingRows = kFormat == Format::kFloat32 || kFormat == Format::kBFloat16 ? 4
                              : kFormat == Format::kInt8 || kFormat == Format::kParts8    ? 2
                                                                                          : 1;

// The lines to fetch, round by round.
template <bool kFetches, int kPanels>
struct Fetching {
  PARLEY_MEMBER explicit Fetching(const Fetch& fetch)
      : line(fetch.first), panel_bytes(fetch.panel_bytes), step(fetch.step) {}

  PARLEY_MEMBER void next() {
    if constexpr (kFetches) {
      unrolled<kPanels>([&](auto panel) PARLEY_LAMBDA {
        __builtin_prefetch(line + panel * panel_bytes, 0, 2);
      });
      line += step;
    }
  }

  const std::byte* line;
  int64_t panel_bytes, step;
};

// 16 outputs of one input; of a pair of bfloat16 one half is moved up and the other masked.
PARLEY_INLINE Floats load_input(const float* input, int) { return load(input); }

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

// sums[i] += *value * factors[i]. With AVX-512 an instruction that multiplies can read a number itself: for
// two vectors that is an instruction less and a load more. Both are scarce at times (docs/performance.md), so
// that every other row of a tall tile is read so, and not all.
template <bool kReads, int kCount>
PARLEY_INLINE void add_multiples(
    Floats (&sums)[kCount], const float* value, const Floats (&factors)[kCount]) {
#if defined(PARLEY_X86) && PARLEY_WIDTH == 16
  if constexpr (kReads) {
    for (int i = 0; i < kCount; ++i) {
      asm("vfmadd231ps %2%{1to16%}, %1, %0"
          : "+v"(sums[i].parts[0])
          : "v"(factors[i].parts[0]), "m"(*value));
    }
    return;
  }
#endif
  const Floats loaded = splat(*value);
  for (int i = 0; i < kCount; ++i) add_product(sums[i], loaded, factors[i]);
}

// Float rows. W: float or BFloat16. The group has sums of its own, which then join the totals.
template <typename W, int kRows, int kPanels>
PARLEY_INLINE void add_float_group(
    const Product& p, int64_t first_row, int64_t first_panel, int64_t group, Floats* totals, auto& fetching) {
  constexpr int kStep = std::is_same_v<W, float> ? 1 : 2;  // inputs that lie together
  const Inputs<float, W, kRows> inputs(p, first_row, first_panel, group);
  Floats sums[kRows][kPanels];
  unrolled<kRows, kPanels>([&](auto row, auto panel) PARLEY_LAMBDA { sums[row][panel] = splat(0.0f); });
  for (int64_t input = 0; input < inputs.count; input += kStep) {
    const W* const from = inputs.weights + input * kPanel;
    fetching.next();
    unrolled<kStep>([&](auto which) PARLEY_LAMBDA {
      Floats weights[kPanels];
      unrolled<kPanels>([&](auto panel) PARLEY_LAMBDA {
        weights[panel] = load_input(from + panel * inputs.panel_size, which);
      });
      unrolled<kRows>([&](auto row) PARLEY_LAMBDA {
        const float* const value = inputs.rows + (input + which) * kRows + row;
        add_multiples<(kRows > 8 && row % 2 == 1)>(sums[row], value, weights);
      });
    });
  }
  unrolled<kRows, kPanels>([&](auto row, auto panel) PARLEY_LAMBDA {
    add(totals[row * kPanels + panel], sums[row][panel]);
  });
}

// Dot products are written in assembler: from intrinsics, gcc 12 makes two copies of each sum.
typedef int32_t Word __attribute__((may_alias));  // some inputs of a row

#if defined(PARLEY_DOT_BFLOAT16)

// Rows in bfloat16 too: one instruction multiplies pairs and adds both to the total.
template <int kRows, int kPanels>
PARLEY_INLINE void add_dot_group(
    const Product& p, int64_t first_row, int64_t first_panel, int64_t group, Floats* totals, auto& fetching) {
  const Inputs<BFloat16, BFloat16, kRows, kInputs<Format::kBFloat16>> inputs(
      p, first_row, first_panel, group);
  FloatPart sums[kRows][kPanels];
  unrolled<kRows, kPanels>([&](auto row, auto panel) PARLEY_LAMBDA {
    sums[row][panel] = totals[row * kPanels + panel].parts[0];
  });
  for (int64_t input = 0; input < inputs.count; input += 2) {
    const BFloat16* const from = inputs.weights + input * kPanel;
    fetching.next();
    __m512i weights[kPanels];
    unrolled<kPanels>([&](auto panel) PARLEY_LAMBDA {
      weights[panel] = _mm512_loadu_si512(from + panel * inputs.panel_size);
    });
    unrolled<kRows>([&](auto row) PARLEY_LAMBDA {
      const auto* const pair = reinterpret_cast<const Word*>(inputs.rows + input * kRows + 2 * row);
      const __m512i value = _mm512_set1_epi32(*pair);
      unrolled<kPanels>([&](auto panel) PARLEY_LAMBDA {
        asm("vdpbf16ps %2, %1, %0" : "+v"(sums[row][panel]) : "v"(weights[panel]), "v"(value));
      });
    });
  }
  unrolled<kRows, kPanels>([&](auto row, auto panel) PARLEY_LAMBDA {
    totals[row * kPanels + panel].parts[0] = sums[row][panel];
  });
}

#endif

// ---- whole numbers: exact sums of inputs that share a scale, then their scales -----------------------
//
// `fours` gives the weights of four inputs of a panel as bytes, whatever they are kept as: BytesOf of int8
// and parts8, NibblesOf of parts4, SixBitsOf of parts6, SteppedOf of int4.
//
// Of int4, `Steps` has what a part of each output is multiplied with, and what is added to make 128 its zero. Codes are
// multiplied in pairs: the products have eight bits, so that nothing is carried from one to the other. `PairsOf` a half
// of a group's eight parts is what `Steps` are looked up with.

constexpr std::array<uint8_t, 16> kBases = [] {
  std::array<uint8_t, 16> bases{};
  for (int i = 0; i < 16; ++i) bases[i] = static_cast<uint8_t>(128 - kZeros[i] * kSteps[i]);
  return bases;
}();

#if defined(PARLEY_X86) && PARLEY_WIDTH >= 8 && !defined(PARLEY_DOT_INT8)

using Quantized = int16_t;  // what a row holds: products of pairs grow in 32 bits without saturation

struct GroupSums {
  __m256i parts[2];  // 8 outputs each
};

PARLEY_INLINE GroupSums sums_from(int32_t offset) {
  return {{_mm256_set1_epi32(offset), _mm256_set1_epi32(offset)}};
}

struct BytesOf {
  PARLEY_MEMBER __m256i operator()(int64_t panel, int64_t part) const {  // of 8 outputs
    const auto* const from = reinterpret_cast<const __m256i*>(weights + panel * panel_bytes + 32 * part);
    return _mm256_loadu_si256(from);
  }

  const uint8_t* weights;
  int64_t panel_bytes;
};

template <bool kHigh>
struct NibblesOf {
  PARLEY_MEMBER __m256i operator()(int64_t panel, int64_t part) const {
    const __m256i both = bytes(panel, part), low = _mm256_set1_epi8(15);
    return _mm256_and_si256(kHigh ? _mm256_srli_epi16(both, 4) : both, low);
  }

  BytesOf bytes;
};

template <int kFour>
struct SixBitsOf {
  PARLEY_MEMBER __m256i operator()(int64_t panel, int64_t part) const {
    const __m256i two = _mm256_set1_epi8(0x30);
    __m256i high = bits(panel, part);
    if constexpr (kFour < 2) high = _mm256_slli_epi16(high, 4 - 2 * kFour);
    if constexpr (kFour > 2) high = _mm256_srli_epi16(high, 2);
    return _mm256_or_si256(nibbles(panel, part), _mm256_and_si256(high, two));
  }

  NibblesOf<kFour % 2 == 1> nibbles;
  BytesOf bits;
};

struct PairsOf {
  PARLEY_MEMBER PairsOf(const GroupScales& scales, int half) {
    unrolled<2>([&](auto i) PARLEY_LAMBDA {
      const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales.pairs) + i);
      places[i] = _mm256_and_si256(_mm256_srli_epi16(both, 4 * half), _mm256_set1_epi8(15));
    });
  }

  __m256i places[2];
};

struct Steps {
  PARLEY_MEMBER Steps() = default;

  PARLEY_MEMBER Steps(const PairsOf& pairs, int part) {
    const __m128i byte = _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
    const __m256i bytes = _mm256_broadcastsi128_si256(_mm_add_epi8(byte, _mm_set1_epi8(static_cast<char>(part))));
    unrolled<2>([&](auto i) PARLEY_LAMBDA {
      const __m256i places = _mm256_shuffle_epi8(pairs.places[i], bytes);
      steps[i] = _mm256_and_si256(look_up(kSteps, places), _mm256_set1_epi16(255));
      bases[i] = look_up(kBases, places);
    });
  }

  PARLEY_MEMBER static __m256i look_up(const std::array<uint8_t, 16>& table, __m256i places) {
    const __m128i entries = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table.data()));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(entries), places);
  }

  __m256i steps[2], bases[2];  // of 8 outputs each
};

template <bool kHigh>
struct SteppedOf {
  PARLEY_MEMBER __m256i operator()(int64_t panel, int64_t part) const {
    const __m256i product = _mm256_mullo_epi16(nibbles(panel, part), steps[panel].steps[part]);
    return _mm256_add_epi8(product, steps[panel].bases[part]);
  }

  NibblesOf<kHigh> nibbles;
  const Steps* steps;  // of each panel
};

template <typename Fours>
PARLEY_INLINE void store_fours(const Fours& fours, uint8_t* to) {
  for (int i = 0; i < 2; ++i) _mm256_storeu_si256(reinterpret_cast<__m256i*>(to) + i, fours(0, i));
}

// The products of kRows rows with four inputs of kPanels panels.
template <int kRows, int kPanels, typename Fours>
PARLEY_INLINE void add_products(
    GroupSums (&sums)[kRows][kPanels], const Fours& fours, const Quantized* inputs) {
  const __m256i even = _mm256_set1_epi32(0x00ff00ff);
  unrolled<kPanels, 2>([&](auto panel, auto pair) PARLEY_LAMBDA {  // bytes 0 and 2, then 1 and 3
    __m256i two[2];
    unrolled<2>([&](auto part) PARLEY_LAMBDA {
      const __m256i four = fours(panel, part);
      two[part] = pair == 0 ? _mm256_and_si256(four, even) : _mm256_srli_epi16(four, 8);
    });
    unrolled<kRows>([&](auto row) PARLEY_LAMBDA {
      const auto* const both = reinterpret_cast<const Word*>(inputs + 4 * row + 2 * pair);
      const __m256i value = _mm256_set1_epi32(*both);
      unrolled<2>([&](auto part) PARLEY_LAMBDA {
        __m256i& sum = sums[row][panel].parts[part];
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(two[part], value));
      });
    });
  });
}

PARLEY_INLINE Floats to_floats(const GroupSums& sums) {
  float totals[kPanel];
  for (int i = 0; i < 2; ++i) _mm256_storeu_ps(totals + 8 * i, _mm256_cvtepi32_ps(sums.parts[i]));
  return load(totals);
}

// Where one of four inputs lies: bytes 0 and 2 are multiplied together.
constexpr int64_t place_of(int64_t input) { return input == 1 ? 2 : input == 2 ? 1 : input; }

#elif defined(PARLEY_DOT_INT8)

using Quantized = int8_t;

struct GroupSums {
  __m512i sums;
};

PARLEY_INLINE GroupSums sums_from(int32_t offset) { return {_mm512_set1_epi32(offset)}; }

struct BytesOf {
  PARLEY_MEMBER __m512i operator()(int64_t panel) const {  // of 16 outputs
    return _mm512_loadu_si512(weights + panel * panel_bytes);
  }

  const uint8_t* weights;
  int64_t panel_bytes;
};

template <bool kHigh>
struct NibblesOf {
  PARLEY_MEMBER __m512i operator()(int64_t panel) const {
    const __m512i both = bytes(panel), low = _mm512_set1_epi8(15);
    return _mm512_and_si512(kHigh ? _mm512_srli_epi16(both, 4) : both, low);
  }

  BytesOf bytes;
};

template <int kFour>
struct SixBitsOf {
  PARLEY_MEMBER __m512i operator()(int64_t panel) const {
    const __m512i two = _mm512_set1_epi8(0x30);
    __m512i high = bits(panel);
    if constexpr (kFour < 2) high = _mm512_slli_epi16(high, 4 - 2 * kFour);
    if constexpr (kFour > 2) high = _mm512_srli_epi16(high, 2);
    return _mm512_or_si512(nibbles(panel), _mm512_and_si512(high, two));
  }

  NibblesOf<kFour % 2 == 1> nibbles;
  BytesOf bits;
};

struct PairsOf {
  PARLEY_MEMBER PairsOf(const GroupScales& scales, int half)
      : places(_mm512_and_si512(
            _mm512_srli_epi16(_mm512_loadu_si512(scales.pairs), 4 * half), _mm512_set1_epi8(15))) {}

  __m512i places;
};

struct Steps {
  PARLEY_MEMBER Steps() = default;

  PARLEY_MEMBER Steps(const PairsOf& pairs, int part) {
    const __m128i byte = _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
    const __m512i bytes = _mm512_broadcast_i32x4(_mm_add_epi8(byte, _mm_set1_epi8(static_cast<char>(part))));
    const __m512i places = _mm512_shuffle_epi8(pairs.places, bytes);
    steps = _mm512_maskz_shuffle_epi8(0x5555555555555555, entries_of(kSteps), places);
    bases = _mm512_shuffle_epi8(entries_of(kBases), places);
  }

  PARLEY_MEMBER static __m512i entries_of(const std::array<uint8_t, 16>& table) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table.data())));
  }

  __m512i steps, bases;
};

template <bool kHigh>
struct SteppedOf {
  PARLEY_MEMBER __m512i operator()(int64_t panel) const {
    return _mm512_add_epi8(_mm512_mullo_epi16(nibbles(panel), steps[panel].steps), steps[panel].bases);
  }

  NibblesOf<kHigh> nibbles;
  const Steps* steps;  // of each panel
};

template <typename Fours>
PARLEY_INLINE void store_fours(const Fours& fours, uint8_t* to) {
  _mm512_storeu_si512(to, fours(0));
}

template <int kRows, int kPanels, typename Fours>
PARLEY_INLINE void add_products(
    GroupSums (&sums)[kRows][kPanels], const Fours& fours, const Quantized* inputs) {
  __m512i weights[kPanels];
  unrolled<kPanels>([&](auto panel) PARLEY_LAMBDA { weights[panel] = fours(panel); });
  unrolled<kRows>([&](auto row) PARLEY_LAMBDA {
    const __m512i value = _mm512_set1_epi32(*reinterpret_cast<const Word*>(inputs + 4 * row));
    unrolled<kPanels>([&](auto panel) PARLEY_LAMBDA {
      asm("vpdpbusd %2, %1, %0" : "+v"(sums[row][panel].sums) : "v"(weights[panel]), "v"(value));
    });
  });
}

PARLEY_INLINE Floats to_floats(const GroupSums& sums) {
  const __m512 floats = _mm512_cvtepi32_ps(sums.sums);
  Floats result;
  std::memcpy(&result.parts[0], &floats, sizeof(floats));
  return result;
}

constexpr int64_t place_of(int64_t input) { return input; }

#else

using Quantized = int16_t;

struct GroupSums {
  int32_t sums[kPanel];
};

PARLEY_INLINE GroupSums sums_from(int32_t offset) {
  GroupSums result;
  for (int32_t& sum : result.sums) sum = offset;
  return result;
}

struct BytesOf {
  PARLEY_MEMBER int32_t operator()(int64_t panel, int64_t place) const {  // output * 4 + input
    return weights[panel * panel_bytes + place];
  }

  const uint8_t* weights;
  int64_t panel_bytes;
};

template <bool kHigh>
struct NibblesOf {
  PARLEY_MEMBER int32_t operator()(int64_t panel, int64_t place) const {
    return kHigh ? bytes(panel, place) >> 4 : bytes(panel, place) & 15;
  }

  BytesOf bytes;
};

template <int kFour>
struct SixBitsOf {
  PARLEY_MEMBER int32_t operator()(int64_t panel, int64_t place) const {
    return (bits(panel, place) >> 2 * kFour & 3) << 4 | nibbles(panel, place);
  }

  NibblesOf<kFour % 2 == 1> nibbles;
  BytesOf bits;
};

struct PairsOf {
  const GroupScales& scales;
  int half;
};

struct Steps {
  PARLEY_MEMBER Steps() = default;

  PARLEY_MEMBER Steps(const PairsOf& pairs, int part) {
    for (int output = 0; output < kPanel; ++output) {
      const uint32_t pair = pairs.scales.pairs[output] >> shift_of_pair(4 * pairs.half + part) & 15;
      steps[output] = kSteps[pair];
      bases[output] = kBases[pair];
    }
  }

  uint8_t steps[kPanel], bases[kPanel];
};

template <bool kHigh>
struct SteppedOf {
  PARLEY_MEMBER int32_t operator()(int64_t panel, int64_t place) const {
    return nibbles(panel, place) * steps[panel].steps[place / 4] + steps[panel].bases[place / 4];
  }

  NibblesOf<kHigh> nibbles;
  const Steps* steps;  // of each panel
};

template <typename Fours>
PARLEY_INLINE void store_fours(const Fours& fours, uint8_t* to) {
  for (int64_t place = 0; place < 4 * kPanel; ++place) to[place] = static_cast<uint8_t>(fours(0, place));
}

template <int kRows, int kPanels, typename Fours>
PARLEY_INLINE void add_products(
    GroupSums (&sums)[kRows][kPanels], const Fours& fours, const Quantized* inputs) {
  for (int panel = 0; panel < kPanels; ++panel) {
    for (int row = 0; row < kRows; ++row) {
      for (int output = 0; output < kPanel; ++output) {
        for (int i = 0; i < 4; ++i) {
          sums[row][panel].sums[output] += fours(panel, 4 * output + i) * inputs[4 * row + i];
        }
      }
    }
  }
}

PARLEY_INLINE Floats to_floats(const GroupSums& sums) {
  float totals[kPanel];
  for (int output = 0; output < kPanel; ++output) {
    totals[output] = static_cast<float>(sums.sums[output]);
  }
  return load(totals);
}

constexpr int64_t place_of(int64_t input) { return input; }

#endif

template <int kRows, int kPanels>
PARLEY_INLINE void add_int8_group(
    const Product& p, int64_t first_row, int64_t first_panel, int64_t group, Floats* totals, auto& fetching) {
  const Inputs<Quantized, uint8_t, kRows> inputs(p, first_row, first_panel, group);
  const int64_t num_groups = p.weight.num_groups(), first = first_row * num_groups + group * kRows;
  const float* const scales =
      static_cast<const float*>(p.weight.scales) + (first_panel * num_groups + group) * kPanel;
  GroupSums sums[kRows][kPanels];
  unrolled<kRows, kPanels>([&](auto row, auto panel) PARLEY_LAMBDA {
    sums[row][panel] = sums_from(p.rows.offsets[first + row]);
  });
  for (int64_t input = 0; input < inputs.count; input += 4) {
    const BytesOf fours{inputs.weights + input * kPanel, inputs.panel_size};
    fetching.next();
    add_products<kRows, kPanels>(sums, fours, inputs.rows + input * kRows);
  }
  unrolled<kPanels>([&](auto panel) PARLEY_LAMBDA {
    const Floats scale = load(scales + panel * num_groups * kPanel);
    unrolled<kRows>([&](auto row) PARLEY_LAMBDA {
      const Floats scaled = product(to_floats(sums[row][panel]), scale);
      add_scaled(totals[row * kPanels + panel], p.rows.scales[first + row], scaled);
    });
  });
}

// As of int8, but that each part of the weights has its steps.
template <int kRows, int kPanels>
PARLEY_INLINE void add_int4_group(
    const Product& p, int64_t first_row, int64_t first_panel, int64_t group, Floats* totals, auto& fetching) {
  const int64_t num_inputs = p.weight.num_inputs, begin = group * kGroup, panel_bytes = kPanel * num_inputs / 2;
  const int64_t num_groups = p.weight.num_groups(), first = first_row * num_groups + group * kRows;
  const auto* rows = static_cast<const Quantized*>(p.rows.values) + first_row * num_inputs + begin * kRows;
  const auto* weights =
      static_cast<const uint8_t*>(p.weight.panels) + first_panel * panel_bytes + kPanel * begin / 2;
  const GroupScales* const scales =
      static_cast<const GroupScales*>(p.weight.scales) + first_panel * num_groups + group;
  GroupSums sums[kRows][kPanels];
  unrolled<kRows, kPanels>([&](auto row, auto panel) PARLEY_LAMBDA {
    sums[row][panel] = sums_from(p.rows.offsets[first + row]);
  });
  int64_t left = std::min(kGroup, num_inputs - begin);
  for (int half = 0; half < 2; ++half) {
    unrolled<4>([&](auto part) PARLEY_LAMBDA {
      if (left <= 0) return;
      Steps steps[kPanels];
      unrolled<kPanels>([&](auto panel) PARLEY_LAMBDA {
        steps[panel] = Steps(PairsOf{scales[panel * num_groups], half}, part);
      });
      const auto add_line = [&] PARLEY_LAMBDA {
        const BytesOf bytes{weights, panel_bytes};
        fetching.next();
        add_products<kRows, kPanels>(sums, SteppedOf<false>{{bytes}, steps}, rows);
        add_products<kRows, kPanels>(sums, SteppedOf<true>{{bytes}, steps}, rows + 4 * kRows);
        weights += kLineBytes;
        rows += 8 * kRows;
      };
      add_line();
      if (left > 8) add_line();
      left -= kSmallestPart;
    });
  }
  unrolled<kPanels>([&](auto panel) PARLEY_LAMBDA {
    const Floats scale = load(scales[panel * num_groups].scales);
    unrolled<kRows>([&](auto row) PARLEY_LAMBDA {
      const Floats scaled = product(to_floats(sums[row][panel]), scale);
      add_scaled(totals[row * kPanels + panel], p.rows.scales[first + row], scaled);
    });
  });
}

// A panel of int4 as one of int8, which gives the same sums.
PARLEY_INLINE void unpack_int4(const Weight& weight, int64_t panel, uint8_t* to, float* scales) {
  const int64_t num_groups = weight.num_groups();
  const auto* codes = static_cast<const uint8_t*>(weight.panels) + panel * kPanel * weight.num_inputs / 2;
  const GroupScales* const of_panel = static_cast<const GroupScales*>(weight.scales) + panel * num_groups;
  for (int64_t group = 0; group < num_groups; ++group) {
    store(scales + group * kPanel, load(of_panel[group].scales));
    int64_t left = std::min(kGroup, weight.num_inputs - group * kGroup);
    for (int half = 0; half < 2; ++half) {
      const PairsOf pairs{of_panel[group], half};
      unrolled<4>([&](auto part) PARLEY_LAMBDA {
        const Steps steps(pairs, part);
        for (int64_t end = left - kSmallestPart; left > std::max<int64_t>(0, end); left -= 8) {
          const BytesOf bytes{codes, 0};
          store_fours(SteppedOf<false>{{bytes}, &steps}, to);
          store_fours(SteppedOf<true>{{bytes}, &steps}, to + kLineBytes);
          codes += kLineBytes;
          to += 2 * kLineBytes;
        }
      });
    }
  }
}

// A line of each panel, or three of parts6: the inputs that lie together there.
template <Format kFormat, int kRows, int kPanels>
PARLEY_INLINE void add_line(
    GroupSums (&sums)[kRows][kPanels], const BytesOf& bytes, const Quantized* rows, auto& fetching) {
  fetching.next();
  if constexpr (kFormat == Format::kParts8) {
    add_products<kRows, kPanels>(sums, bytes, rows);
  } else if constexpr (kFormat == Format::kParts4) {
    add_products<kRows, kPanels>(sums, NibblesOf<false>{bytes}, rows);
    add_products<kRows, kPanels>(sums, NibblesOf<true>{bytes}, rows + 4 * kRows);
  } else {
    const BytesOf second{bytes.weights + kLineBytes, bytes.panel_bytes};
    const BytesOf bits{bytes.weights + 2 * kLineBytes, bytes.panel_bytes};
    add_products<kRows, kPanels>(sums, SixBitsOf<0>{{bytes}, bits}, rows);
    add_products<kRows, kPanels>(sums, SixBitsOf<1>{{bytes}, bits}, rows + 4 * kRows);
    fetching.next();
    add_products<kRows, kPanels>(sums, SixBitsOf<2>{{second}, bits}, rows + 8 * kRows);
    add_products<kRows, kPanels>(sums, SixBitsOf<3>{{second}, bits}, rows + 12 * kRows);
    fetching.next();
  }
}

// What the weights of a part have at least is multiplied with the sum of the inputs.
template <Format kFormat, int kRows, int kPanels>
PARLEY_INLINE void add_parts_group(
    const Product& p, int64_t first_row, int64_t first_panel, int64_t group, Floats* totals, auto& fetching) {
  constexpr int64_t kTogether = kFormat == Format::kParts4 ? 8 : kFormat == Format::kParts6 ? 16 : 4;
  constexpr int64_t kWhole = 2 * kSmallestPart;
  const int64_t num_inputs = p.weight.num_inputs, part_size = p.weight.part, begin = group * kGroup;
  const int64_t num_parts = p.weight.num_parts(), halves = p.weight.part_halves();
  const int64_t panel_bytes = kPanel * bytes_of(kFormat, num_inputs), first_part = group * (kGroup / part_size);
  const int64_t scales_size = num_parts * halves;  // of a panel
  const Quantized* rows = static_cast<const Quantized*>(p.rows.values) + first_row * num_inputs + begin * kRows;
  const auto* weights = static_cast<const uint8_t*>(p.weight.panels) + first_panel * panel_bytes +
                        kPanel * bytes_of(kFormat, begin);
  const Half* scales =
      static_cast<const Half*>(p.weight.scales) + first_panel * scales_size + first_part * halves;
  const float* row_sums = p.rows.sums + first_row * num_parts + first_part * kRows;
  const int32_t* offsets = p.rows.offsets + first_row * num_parts + first_part * kRows;
  Floats of_group[kRows][kPanels];
  unrolled<kRows, kPanels>([&](auto row, auto panel) PARLEY_LAMBDA { of_group[row][panel] = splat(0.0f); });
  for (int64_t left = std::min(kGroup, num_inputs - begin); left > 0; left -= part_size) {
    GroupSums sums[kRows][kPanels];
    unrolled<kRows, kPanels>([&](auto row, auto panel) PARLEY_LAMBDA {
      sums[row][panel] = sums_from(offsets[row]);
    });
    const auto add_lines = [&](auto count) PARLEY_LAMBDA {
      unrolled<count>([&](auto line) PARLEY_LAMBDA {
        const BytesOf bytes{weights + kPanel * bytes_of(kFormat, line * kTogether), panel_bytes};
        add_line<kFormat, kRows, kPanels>(sums, bytes, rows + line * kTogether * kRows, fetching);
      });
      weights += kPanel * bytes_of(kFormat, count * kTogether);
      rows += count * kTogether * kRows;
    };
    const int64_t size = std::min(part_size, left);
    if (size == kWhole) {
      add_lines(std::integral_constant<int, kWhole / kTogether>{});
    } else {
      for (int64_t input = 0; input < size; input += kTogether) add_lines(std::integral_constant<int, 1>{});
    }
    unrolled<kPanels>([&](auto panel) PARLEY_LAMBDA {
      const Half* const of_part = scales + panel * scales_size;
      const Floats scale = load(of_part);
      unrolled<kRows>([&](auto row) PARLEY_LAMBDA {
        add_product(of_group[row][panel], to_floats(sums[row][panel]), scale);
      });
      if (!p.weight.has_least) return;
      const Floats least = load(of_part + kPanel);
      unrolled<kRows>([&](auto row) PARLEY_LAMBDA {
        add_scaled(of_group[row][panel], row_sums[row], least);
      });
    });
    scales += halves;
    offsets += kRows;
    row_sums += kRows;
  }
  const float* const row_scales = p.rows.scales + first_row * p.weight.num_groups() + group * kRows;
  unrolled<kRows, kPanels>([&](auto row, auto panel) PARLEY_LAMBDA {
    add_scaled(totals[row * kPanels + panel], row_scales[row], of_group[row][panel]);
  });
}

template <Format kFormat, int kRows, int kPanels>
void add_groups(
    const Product& p, int64_t first_row, int64_t first_panel, int64_t group, int64_t end, Floats* totals,
    const Fetch& fetch) {
  Fetching<(kRows >= kFetchingRows<kFormat>), kPanels> fetching(fetch);
  for (; group < end; ++group) {
    if constexpr (kFormat == Format::kFloat32) {
      add_float_group<float, kRows, kPanels>(p, first_row, first_panel, group, totals, fetching);
    } else if constexpr (kFormat == Format::kInt8) {
      add_int8_group<kRows, kPanels>(p, first_row, first_panel, group, totals, fetching);
    } else if constexpr (kFormat == Format::kInt4) {
      add_int4_group<kRows, kPanels>(p, first_row, first_panel, group, totals, fetching);
    } else if constexpr (has_parts(kFormat)) {
      add_parts_group<kFormat, kRows, kPanels>(p, first_row, first_panel, group, totals, fetching);
    } else {
#if defined(PARLEY_DOT_BFLOAT16)
      add_dot_group<kRows, kPanels>(p, first_row, first_panel, group, totals, fetching);
#else
      add_float_group<BFloat16, kRows, kPanels>(p, first_row, first_panel, group, totals, fetching);
#endif
    }
  }
}

}  // namespace parley::PARLEY_ISA
