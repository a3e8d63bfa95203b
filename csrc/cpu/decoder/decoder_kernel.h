// What a decoder layer does to one row besides its products.
#pragma once

#include "common/vectors.h"
#include "product/product_kernel.h"

namespace parley::PARLEY_ISA {

// out = x / sqrt(mean(x²) + epsilon) * weight. Any of them may be the same memory.
void normalize(const float* x, const float* weight, int64_t size, float epsilon, float* out) {
  Floats squares = splat(0.0f);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Floats part = load(x + i);
    for (int j = 0; j < kParts; ++j) squares.parts[j] += part.parts[j] * part.parts[j];
  }
  float sum = sum_of(squares);
  for (; i < size; ++i) sum += x[i] * x[i];
  const float factor = 1.0f / std::sqrt(sum / static_cast<float>(size) + epsilon);
  for (i = 0; i < size; ++i) out[i] = x[i] * factor * weight[i];
}

// Rotate a head: dimension i with i + half, by the angle whose cosine and sine are given.
void rotate(float* head, const float* cosines, const float* sines, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float low = head[i], high = head[half + i];
    head[i] = low * cosines[i] - high * sines[i];
    head[half + i] = high * cosines[i] + low * sines[i];
  }
}

template <typename T>
PARLEY_INLINE void store_token(
    const float* key, const float* value, int64_t dim, T* keys, T* values) {
  for (int64_t i = 0; i < dim; ++i) from_float(key[i], keys + i * kBlockSize);
  for (int64_t i = 0; i < dim; ++i) from_float(value[i], values + i);
}

// One token's key and value of one head to its place in a block: keys [dim][token], values [dim].
void store_float(const float* key, const float* value, int64_t dim, void* keys, void* values) {
  store_token(key, value, dim, static_cast<float*>(keys), static_cast<float*>(values));
}

void store_bfloat16(const float* key, const float* value, int64_t dim, void* keys, void* values) {
  store_token(key, value, dim, static_cast<BFloat16*>(keys), static_cast<BFloat16*>(values));
}

// How numbers become whole ones up to 127: x ≈ round(x * factor) * scale.
struct Rounding {
  float factor;  // 0: all become 0
  float scale;   // NaN where some number is none, or infinite
};

PARLEY_INLINE Rounding rounding_of(const float* x, int64_t size) {
  Floats most = splat(0.0f), nothing = splat(0.0f);  // the latter is NaN where some number is none, or infinite
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Floats part = load(x + i);
    keep_larger(most, magnitude_of(part));
    add_product(nothing, part, splat(0.0f));
  }
  float largest = max_of(most), sum = sum_of(nothing);
  for (; i < size; ++i) {
    largest = std::max(largest, std::fabs(x[i]));
    sum += x[i] * 0.0f;
  }
  const bool is_finite = sum == 0.0f && largest >= 1e-30f;
  return {is_finite ? 127.0f / largest : 0.0f, largest / 127.0f + sum};
}

// Added to a small number, its low bits are the nearest whole number.
constexpr float kShift = 12582912.0f;
constexpr int32_t kShifted = 0x4b400000;  // the bits of 0 + kShift

// Whole numbers up to 127 for `size` of x, kGroup at most. Returns their sum.
template <typename T>
PARLEY_INLINE int32_t round_to(const float* x, int64_t size, const Rounding& rounding, T* numbers) {
#if defined(PARLEY_X86) && PARLEY_WIDTH == 16
  if constexpr (sizeof(T) == 1) {
    if (size % kLanes == 0 && rounding.factor > 0) {
      __m512i sums = _mm512_setzero_si512();
      for (int64_t i = 0; i < size; i += kLanes) {
        const __m512 shifted = _mm512_fmadd_ps(
            _mm512_loadu_ps(x + i), _mm512_set1_ps(rounding.factor), _mm512_set1_ps(kShift));
        const __m512i whole = _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(kShifted));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(numbers + i), _mm512_cvtepi32_epi8(whole));
        sums = _mm512_add_epi32(sums, whole);
      }
      return _mm512_reduce_add_epi32(sums);
    }
  }
#endif
  float shifted[kGroup];
  int32_t bits[kGroup], sum = 0;
  for (int64_t i = 0; i < size; ++i) {
    const float scaled = rounding.factor > 0 ? x[i] * rounding.factor : 0.0f;
    shifted[i] = scaled + kShift;
  }
  std::memcpy(bits, shifted, size * sizeof(float));
  for (int64_t i = 0; i < size; ++i) {
    const int32_t number = bits[i] - kShifted;
    numbers[i] = static_cast<T>(number);
    sum += number;
  }
  return sum;
}

void store_int8(
    const float* key, const float* value, int64_t dim, void* keys, void* values, float* key_scale,
    float* value_scale) {
  const Rounding of_key = rounding_of(key, dim), of_value = rounding_of(value, dim);
  for (int64_t begin = 0; begin < dim; begin += kGroup) {
    const int64_t size = std::min(kGroup, dim - begin);
    int8_t numbers[kGroup];
    round_to(key + begin, size, of_key, numbers);
    for (int64_t i = 0; i < size; ++i) {
      static_cast<int8_t*>(keys)[(begin + i) * kBlockSize] = numbers[i];
    }
    round_to(value + begin, size, of_value, static_cast<int8_t*>(values) + begin);
  }
  *key_scale = of_key.scale;
  *value_scale = of_value.scale;
}

// Bytes of one input of a row, as the products of this weight read it.
int64_t prepared_size(Format format) {
  if (has_whole_numbers(format)) return sizeof(Quantized);
#if defined(PARLEY_DOT_BFLOAT16)
  if (format == Format::kBFloat16) return sizeof(BFloat16);
#endif
  return sizeof(float);
}

// A group of inputs of a tile's rows as whole numbers, four of a row together. All that are multiplied with one
// scale of the weight are summed.
PARLEY_INLINE void prepare_numbers(const TilePart& part, int64_t size, const Weight& weight, void* to) {
  struct Four { Quantized numbers[4]; };
  using Word = std::conditional_t<sizeof(Four) == 4, uint32_t, uint64_t>;
  Word fours[kTallest][kGroup / 4];
  const int64_t part_size = weight.part;
  for (int64_t row = 0; row < part.num_rows; ++row) {
    const float* const x = part.rows + row * part.stride + part.group * kGroup;
    Quantized numbers[kGroup];
    const Rounding rounding = rounding_of(x, size);
    part.scales[part.group * part.num_rows + row] = rounding.scale;
    int64_t place = part.group * (kGroup / part_size) * part.num_rows + row;
    for (int64_t i = 0; i < size; i += part_size, place += part.num_rows) {
      const int32_t sum = round_to(x + i, std::min(part_size, size - i), rounding, numbers + i);
      part.offsets[place] = -weight.zero() * sum;
      part.sums[place] = static_cast<float>(sum);
    }
    if constexpr (place_of(1) != 1) {
      for (int64_t i = 0; i < size; i += 4) std::swap(numbers[i + 1], numbers[i + 2]);
    }
    std::memcpy(fours[row], numbers, size * sizeof(Quantized));
  }
  interleave(fours[0], kGroup / 4, size / 4, part.num_rows, static_cast<Word*>(to));
}

#if defined(PARLEY_DOT_BFLOAT16)

// A group of inputs of a tile's rows in bfloat16, two of a row together.
PARLEY_INLINE void prepare_pairs(const TilePart& part, int64_t size, void* to) {
  Pair pairs[kTallest][kGroup / 2];
  for (int64_t row = 0; row < part.num_rows; ++row) {
    to_pairs(part.rows + row * part.stride + part.group * kGroup, size, 1.0f, pairs[row]);
  }
  interleave(pairs[0], kGroup / 2, size / 2, part.num_rows, static_cast<Pair*>(to));
}

#endif

// Bring a group of inputs of a tile's rows into the format and order that products of this weight read.
void prepare(const Weight& weight, const TilePart& part) {
  const int64_t begin = part.group * kGroup, height = part.num_rows;
  const int64_t size = std::min(kGroup, weight.num_inputs - begin);
  void* const to = static_cast<std::byte*>(part.values) + begin * height * prepared_size(weight.format);
  if (has_whole_numbers(weight.format)) return prepare_numbers(part, size, weight, to);
#if defined(PARLEY_DOT_BFLOAT16)
  if (weight.format == Format::kBFloat16) return prepare_pairs(part, size, to);
#endif
  for (int64_t row = 0; row < height; ++row) {
    const float* const x = part.rows + row * part.stride + begin;
    for (int64_t i = 0; i < size; ++i) static_cast<float*>(to)[i * height + row] = x[i];
  }
}

// The number of an input, of int4 or of a weight in parts.
PARLEY_INLINE int number_at(const Weight& weight, int64_t panel, int64_t lane, int64_t input) {
  const Format format = weight.format;
  const int64_t together = format == Format::kParts6 ? 16 : format == Format::kParts8 ? 4 : 8, i = input % together;
  const uint8_t* const bytes = static_cast<const uint8_t*>(weight.panels) +
                               kPanel * bytes_of(format, panel * weight.num_inputs + input - i) + lane * 4 + i % 4;
  if (format == Format::kParts8) return *bytes;
  const int low = bytes[i / 8 * kLineBytes] >> (i % 8 < 4 ? 0 : 4) & 15;
  return together == 8 ? low : (bytes[2 * kLineBytes] >> i / 4 * 2 & 3) << 4 | low;
}

// One row of a packed weight: its embedding, where the output layer is tied to it.
void unpack_output(const Weight& weight, int64_t output, float* out) {
  const int64_t panel = output / kPanel, lane = output % kPanel, num_inputs = weight.num_inputs;
  const int64_t begin = panel * num_inputs * kPanel;
  for (int64_t i = 0; i < num_inputs; ++i) {
    switch (weight.format) {
      case Format::kFloat32:
        out[i] = static_cast<const float*>(weight.panels)[begin + i * kPanel + lane];
        break;
      case Format::kBFloat16:
        out[i] = to_float(static_cast<const BFloat16*>(
            weight.panels)[begin + i / 2 * 2 * kPanel + lane * 2 + i % 2]);
        break;
      case Format::kInt8: {
        const auto* panels = static_cast<const uint8_t*>(weight.panels);
        const float* scales =
            static_cast<const float*>(weight.scales) + panel * weight.num_groups() * kPanel;
        out[i] = static_cast<float>(panels[begin + i / 4 * 4 * kPanel + lane * 4 + i % 4] - 128) *
                 scales[i / kGroup * kPanel + lane];
        break;
      }
      case Format::kInt4: {
        const GroupScales& of_group =
            static_cast<const GroupScales*>(weight.scales)[panel * weight.num_groups() + i / kGroup];
        const int64_t part = i % kGroup / kSmallestPart;
        const uint32_t pair = of_group.pairs[lane] >> shift_of_pair(part) & 15;
        const int number = (number_at(weight, panel, lane, i) - kZeros[pair]) * kSteps[pair];
        out[i] = static_cast<float>(number) * to_float(of_group.scales[lane]);
        break;
      }
      case Format::kParts8:
      case Format::kParts6:
      case Format::kParts4: {
        const Half* const scale = static_cast<const Half*>(weight.scales) +
                                  (panel * weight.num_parts() + i / weight.part) * weight.part_halves() + lane;
        const int number = number_at(weight, panel, lane, i) - weight.zero();
        const float least = weight.has_least ? to_float(scale[kPanel]) : 0.0f;
        out[i] = static_cast<float>(number) * to_float(*scale) + least;
        break;
      }
    }
  }
}

}  // namespace parley::PARLEY_ISA
