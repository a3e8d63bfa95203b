// Vectors of 16 floats and bfloat16, in plain C++ with the compiler's vector types.
//
// Each level_*.cpp asks the compiler for an instruction set and includes this in a namespace of its own. A
// vector is made of PARLEY_WIDTH-float parts, the widest that the set has: wider ones compile, but to rubble.
#pragma once

namespace parley::PARLEY_ISA {

#define PARLEY_INLINE static inline __attribute__((always_inline))
#define PARLEY_MEMBER inline __attribute__((always_inline))

constexpr int kLanes = 16;
constexpr int kParts = kLanes / PARLEY_WIDTH;

typedef float FloatPart __attribute__((vector_size(4 * PARLEY_WIDTH)));
typedef int32_t IntPart __attribute__((vector_size(4 * PARLEY_WIDTH)));
typedef uint32_t WordPart __attribute__((vector_size(4 * PARLEY_WIDTH)));
typedef uint16_t HalfPart __attribute__((vector_size(2 * PARLEY_WIDTH)));
typedef int8_t BytePart __attribute__((vector_size(PARLEY_WIDTH)));

struct Floats {
  FloatPart parts[kParts];
};

// f(0), f(1), … as constants, so that what they index can stay in registers: of a loop the compiler sees
// that too late.
#define PARLEY_LAMBDA __attribute__((always_inline))

template <int kCount, typename F>
PARLEY_INLINE void unrolled(F f) {
  [&]<int... i>(std::integer_sequence<int, i...>) PARLEY_LAMBDA {
    (f(std::integral_constant<int, i>{}), ...);
  }(std::make_integer_sequence<int, kCount>{});
}

template <int kOuter, int kInner, typename F>
PARLEY_INLINE void unrolled(F f) {
  unrolled<kOuter>([&](auto outer) PARLEY_LAMBDA {
    unrolled<kInner>([&](auto inner) PARLEY_LAMBDA { f(outer, inner); });
  });
}

PARLEY_INLINE float to_float(float x) { return x; }

PARLEY_INLINE float to_float(BFloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

PARLEY_INLINE float to_float(int8_t x) { return x; }

PARLEY_INLINE void from_float(float x, float* to) { *to = x; }

PARLEY_INLINE void from_float(float x, BFloat16* to) {  // rounds to nearest even
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  to->bits = static_cast<uint16_t>(x != x ? 0x7fc0u : rounded);
}

PARLEY_INLINE FloatPart load_part(const float* from) {  // aligned as a float is, no more
  FloatPart result;
  std::memcpy(&result, from, sizeof(result));
  return result;
}

PARLEY_INLINE float to_float(Half x) {  // finite
  const uint32_t shifted = (x.bits & 0x7fffu) << 13, sign = (x.bits & 0x8000u) << 16;
  float magnitude;
  std::memcpy(&magnitude, &shifted, sizeof(magnitude));
  magnitude *= 0x1p112f;  // exponents begin elsewhere
  uint32_t bits;
  std::memcpy(&bits, &magnitude, sizeof(bits));
  bits |= sign;
  std::memcpy(&magnitude, &bits, sizeof(bits));
  return magnitude;
}

PARLEY_INLINE FloatPart load_part(const Half* from) {
#if defined(PARLEY_X86) && PARLEY_WIDTH == 16
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(PARLEY_X86) && PARLEY_WIDTH == 8
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  FloatPart result;
  for (int i = 0; i < PARLEY_WIDTH; ++i) result[i] = to_float(from[i]);
  return result;
#endif
}

// Without this intrinsic the compiler makes many instructions of a conversion to wider numbers.
PARLEY_INLINE FloatPart load_part(const BFloat16* from) {
#if defined(PARLEY_X86) && PARLEY_WIDTH == 16
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
#elif defined(PARLEY_X86) && PARLEY_WIDTH == 8
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
#else
  HalfPart halves;
  std::memcpy(&halves, from, sizeof(halves));
  const WordPart words = __builtin_convertvector(halves, WordPart) << 16;
  FloatPart result;
  std::memcpy(&result, &words, sizeof(result));
  return result;
#endif
}

PARLEY_INLINE FloatPart load_part(const int8_t* from) {
#if defined(PARLEY_X86) && PARLEY_WIDTH == 16
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
#elif defined(PARLEY_X86) && PARLEY_WIDTH == 8
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
#else
  BytePart bytes;
  std::memcpy(&bytes, from, sizeof(bytes));
  return __builtin_convertvector(__builtin_convertvector(bytes, IntPart), FloatPart);
#endif
}

template <typename T>
PARLEY_INLINE Floats load(const T* from) {
  Floats result;
  for (int i = 0; i < kParts; ++i) result.parts[i] = load_part(from + i * PARLEY_WIDTH);
  return result;
}

PARLEY_INLINE void store(float* to, const Floats& x) { std::memcpy(to, &x, sizeof(x)); }

PARLEY_INLINE Floats splat(float x) {
  Floats result;
  for (int i = 0; i < kParts; ++i) result.parts[i] = x - FloatPart{};  // `+` would have to turn -0 into 0
  return result;
}

PARLEY_INLINE Floats product(const Floats& a, const Floats& b) {
  Floats result;
  for (int i = 0; i < kParts; ++i) result.parts[i] = a.parts[i] * b.parts[i];
  return result;
}

// sums += factor * x
PARLEY_INLINE void add_scaled(Floats& sums, float factor, const Floats& x) {
  for (int i = 0; i < kParts; ++i) sums.parts[i] += factor * x.parts[i];
}

// sums += a * b
PARLEY_INLINE void add_product(Floats& sums, const Floats& a, const Floats& b) {
  for (int i = 0; i < kParts; ++i) sums.parts[i] += a.parts[i] * b.parts[i];
}

PARLEY_INLINE void add(Floats& sums, const Floats& x) {
  for (int i = 0; i < kParts; ++i) sums.parts[i] += x.parts[i];
}

PARLEY_INLINE void keep_larger(Floats& best, const Floats& x) {
  for (int i = 0; i < kParts; ++i) {
    best.parts[i] = x.parts[i] > best.parts[i] ? x.parts[i] : best.parts[i];
  }
}

PARLEY_INLINE Floats magnitude_of(const Floats& x) {
  Floats result;
  for (int i = 0; i < kParts; ++i) {
    WordPart words;
    std::memcpy(&words, &x.parts[i], sizeof(words));
    words &= 0x7fffffffu;
    std::memcpy(&result.parts[i], &words, sizeof(words));
  }
  return result;
}

// All lanes as one number: halves are combined with each other until one lane is left.
template <typename Combine>
PARLEY_INLINE float fold(const Floats& x, Combine combine) {
  typedef float Eight __attribute__((vector_size(32)));
  typedef float Four __attribute__((vector_size(16)));
  Eight eights[2];
  std::memcpy(eights, &x, sizeof(eights));
  const Eight eight = combine(eights[0], eights[1]);
  Four fours[2];
  std::memcpy(fours, &eight, sizeof(fours));
  const Four four = combine(fours[0], fours[1]);
  return combine(combine(four[0], four[2]), combine(four[1], four[3]));
}

PARLEY_INLINE float sum_of(const Floats& x) {
  return fold(x, [](auto a, auto b) PARLEY_LAMBDA { return a + b; });
}

PARLEY_INLINE float max_of(const Floats& x) {
  return fold(x, [](auto a, auto b) PARLEY_LAMBDA { return b > a ? b : a; });
}

// e^(x - shift) for x <= shift, within 2 units in the last place. NaN stays NaN; below e^-87 is 0.
PARLEY_INLINE Floats exp_of(const Floats& input, float shift) {
  Floats result;
  for (int i = 0; i < kParts; ++i) {
    const FloatPart x = input.parts[i] - shift;
    const FloatPart smallest = FloatPart{} - 87.0f;
    const FloatPart clamped = x < smallest ? smallest : x;
    const FloatPart rounded = clamped * 1.44269504f + 12582912.0f;  // its low bits: a whole number
    const FloatPart power = rounded - 12582912.0f;
    const FloatPart r = (clamped - power * 0.693359375f) - power * -2.12194440e-4f;
    FloatPart y = FloatPart{} + 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    WordPart exponent;
    std::memcpy(&exponent, &rounded, sizeof(exponent));
    exponent = (exponent << 23) + (127u << 23);
    FloatPart scale;
    std::memcpy(&scale, &exponent, sizeof(scale));
    result.parts[i] = x < smallest ? FloatPart{} : y * scale;
  }
  return result;
}

// What an instruction reads at once of a row lies together, and the same of other rows beside it: from
// [row][part], `stride` from row to row, to [part][height].
template <typename T>
PARLEY_INLINE void interleave(const T* rows, int64_t stride, int64_t num_parts, int64_t height, T* to) {
  int64_t row = 0;
#if defined(PARLEY_X86) && PARLEY_WIDTH == 16
  if constexpr (sizeof(T) == 4) {  // four rows by four parts: a store for four of them
    for (; row + 4 <= height; row += 4) {
      int64_t part = 0;
      for (; part + 4 <= num_parts; part += 4) {
        __m128i of_row[4];
        unrolled<4>([&](auto i) PARLEY_LAMBDA {
          of_row[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + (row + i) * stride + part));
        });
        const __m128i low01 = _mm_unpacklo_epi32(of_row[0], of_row[1]);
        const __m128i low23 = _mm_unpacklo_epi32(of_row[2], of_row[3]);
        const __m128i high01 = _mm_unpackhi_epi32(of_row[0], of_row[1]);
        const __m128i high23 = _mm_unpackhi_epi32(of_row[2], of_row[3]);
        const __m128i of_part[4] = {
            _mm_unpacklo_epi64(low01, low23), _mm_unpackhi_epi64(low01, low23),
            _mm_unpacklo_epi64(high01, high23), _mm_unpackhi_epi64(high01, high23)};
        unrolled<4>([&](auto i) PARLEY_LAMBDA {
          _mm_storeu_si128(reinterpret_cast<__m128i*>(to + (part + i) * height + row), of_part[i]);
        });
      }
      for (; part < num_parts; ++part) {
        for (int i = 0; i < 4; ++i) to[part * height + row + i] = rows[(row + i) * stride + part];
      }
    }
  }
#endif
  for (; row < height; ++row) {
    for (int64_t part = 0; part < num_parts; ++part) to[part * height + row] = rows[row * stride + part];
  }
}

#if defined(PARLEY_DOT_BFLOAT16)

typedef uint32_t Pair __attribute__((may_alias));  // two numbers in bfloat16, as instructions multiply them

// Numbers times a factor, in pairs; of an odd count the last one is with 0.
template <typename T>
PARLEY_INLINE void to_pairs(const T* from, int64_t count, float factor, Pair* to) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const __m256bh halves = _mm512_cvtneps_pbh(product(load(from + i), splat(factor)).parts[0]);
    std::memcpy(to + i / 2, &halves, sizeof(halves));
  }
  for (; i < count; i += 2) {
    BFloat16 two[2];
    from_float(to_float(from[i]) * factor, &two[0]);
    from_float(i + 1 < count ? to_float(from[i + 1]) * factor : 0.0f, &two[1]);
    std::memcpy(to + i / 2, two, sizeof(two));
  }
}

#endif

}  // namespace parley::PARLEY_ISA
