// One vector of floats, as wide as the processor that this file is compiled for has them.
//
// GCC's and Clang's vector types stand for AVX2, AVX-512 and NEON alike; bf16's product and permutations need intrinsics.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace pomona {

#if defined(__AVX512F__)
constexpr int LANES = 16;
constexpr int TALLEST = 14;  // rows of a tile: 14 x 2 sums, and two vectors to multiply, in 32 registers
constexpr int HIGH = 4, WIDE = 6;  // products of rows: 4 x 6 sums, six vectors to multiply and one
#elif defined(__AVX__)
constexpr int LANES = 8;
constexpr int TALLEST = 6;  // 6 x 2 sums in 16 registers
constexpr int HIGH = 3, WIDE = 3;
#else
constexpr int LANES = 4;
constexpr int TALLEST = 12;  // NEON: 12 x 2 sums in 32 registers
constexpr int HIGH = 4, WIDE = 6;
#endif

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int32_t Integers __attribute__((vector_size(4 * LANES)));
typedef float Loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t LooseIntegers __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

inline Vector load(const float* at) { return *reinterpret_cast<const Loose*>(at); }
inline void store(float* at, Vector x) { *reinterpret_cast<Loose*>(at) = x; }

// Some of a vector's first numbers.
inline Vector load(const float* at, ptrdiff_t count) {
  if (count >= LANES) return load(at);
  Vector x{};
  for (ptrdiff_t i = 0; i < count; ++i) x[i] = at[i];
  return x;
}

inline void store(float* at, Vector x, ptrdiff_t count) {
  if (count >= LANES) return store(at, x);
  for (ptrdiff_t i = 0; i < count; ++i) at[i] = x[i];
}

// A number of elements, rounded up to whole vectors.
constexpr ptrdiff_t whole(ptrdiff_t count) { return (count + LANES - 1) / LANES * LANES; }
constexpr ptrdiff_t ceil_div(ptrdiff_t a, ptrdiff_t b) { return (a + b - 1) / b; }

// The sum of a vector's numbers, in pairs; without the loops, for which 16 lanes would go through memory.
inline float total(Vector x) {
#pragma GCC unroll 8
  for (int half = LANES / 2; half > 0; half /= 2)
#pragma GCC unroll 8
    for (int lane = 0; lane < half; ++lane) x[lane] += x[lane + half];
  return x[0];
}

// Memory that begins with a cache line: a vector that lies in two of them takes twice as long.
template <typename T>
struct Aligned {
  using value_type = T;
  static constexpr std::align_val_t LINE{64};
  Aligned() = default;
  template <typename U>
  Aligned(const Aligned<U>&) {}
  T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), LINE)); }
  void deallocate(T* at, size_t) { ::operator delete(at, LINE); }
  bool operator==(const Aligned&) const { return true; }
};

template <typename T>
using Numbers = std::vector<T, Aligned<T>>;

// Two neighbouring bf16 numbers, as one multiplication takes them; the first in the lower half.
typedef uint32_t Pair;

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

// The nearest bf16 number, ties to even; what is no number stays none.
inline uint16_t rounded(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return static_cast<uint16_t>(x == x ? nearest : bits >> 16 | 0x40);
}

inline Pair pair(float low, float high) { return rounded(low) | static_cast<Pair>(rounded(high)) << 16; }

// sum + left * right, where left holds a number for all lanes, or one pair, and right one number, or one pair, a lane.
inline Vector multiplied(float left, const float* right, Vector sum) { return sum + left * load(right); }

inline Vector multiplied(Pair left, const Pair* right, Vector sum) {
#if defined(__AVX512BF16__)
  const __m512i both = _mm512_loadu_si512(right);
  return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(static_cast<int>(left)), (__m512bh)both);
#else  // the same product in float: bf16 numbers are the upper halves of floats
  const Integers both = *reinterpret_cast<const LooseIntegers*>(right);
  sum += float_of(left << 16) * (Vector)(both << 16);
  return sum + float_of(left & 0xffff0000u) * (Vector)(both & static_cast<int32_t>(0xffff0000));
#endif
}

}  // namespace pomona
