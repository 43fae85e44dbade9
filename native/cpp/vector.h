// One vector of floats, as wide as the processor that this file is compiled for has them.
//
// GCC's and Clang's vector types stand for AVX2, AVX-512 and NEON alike; bf16's product and permutations need intrinsics.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>
#include <vector>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace pomona {

#if defined(__AVX512F__)
constexpr int LANES = 16;
constexpr int TALLEST = 14;  // rows of a tile: 14 x 2 sums, and two vectors to multiply, in 32 registers
constexpr int HIGH = 5, WIDE = 5;  // products of rows: 5 x 5 sums, five vectors to multiply and one
#elif defined(__AVX__)
constexpr int LANES = 8;
constexpr int TALLEST = 6;  // 6 x 2 sums in 16 registers
constexpr int HIGH = 3, WIDE = 4;
#else
constexpr int LANES = 4;
constexpr int TALLEST = 12;  // NEON: 12 x 2 sums in 32 registers
constexpr int HIGH = 5, WIDE = 5;
#endif

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int32_t Integers __attribute__((vector_size(4 * LANES)));
typedef float Loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t LooseIntegers __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#if defined(__AVX512BF16__)
typedef uint32_t Pair;  // two neighbouring bf16 numbers, as one multiplication takes them; the first in the lower half
constexpr ptrdiff_t PAIRED = 2;
#else
typedef float Pair;  // without such a multiplication, a number rounded to bf16
constexpr ptrdiff_t PAIRED = 1;
#endif

inline Vector load(const float* at) { return *reinterpret_cast<const Loose*>(at); }
inline void store(float* at, Vector x) { *reinterpret_cast<Loose*>(at) = x; }

// Some of a vector's first numbers.
#if defined(__AVX512F__)
inline Vector load(const float* at, ptrdiff_t count) {
  if (count >= LANES) return load(at);
  return (Vector)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), at);
}
inline void store(float* at, Vector x, ptrdiff_t count) {
  if (count >= LANES) return store(at, x);
  _mm512_mask_storeu_ps(at, static_cast<__mmask16>((1u << count) - 1), (__m512)x);
}
#elif defined(__AVX2__)
inline __m256i first(ptrdiff_t count) {
  return (__m256i)(Integers{0, 1, 2, 3, 4, 5, 6, 7} < static_cast<int32_t>(std::min<ptrdiff_t>(count, LANES)));
}
inline Vector load(const float* at, ptrdiff_t count) {
  return count >= LANES ? load(at) : (Vector)_mm256_maskload_ps(at, first(count));
}
inline void store(float* at, Vector x, ptrdiff_t count) {
  if (count >= LANES) return store(at, x);
  _mm256_maskstore_ps(at, first(count), (__m256)x);
}
#else
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
#endif

// A number of elements, rounded up to whole vectors.
constexpr ptrdiff_t whole(ptrdiff_t count) { return (count + LANES - 1) / LANES * LANES; }
constexpr ptrdiff_t ceil_div(ptrdiff_t a, ptrdiff_t b) { return (a + b - 1) / b; }

// Halves of blocks of 2 * half lanes, added: of a in each block's first half, of b in its second.
template <int half, int... lane>
inline Vector halved(Vector a, Vector b, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(a, b, ((lane & half ? LANES : 0) + (lane & ~half))...) +
         __builtin_shufflevector(a, b, ((lane & half ? LANES : 0) + (lane | half))...);
}

// In the first lanes the sums of so many vectors, which are used up; none depends on the others. Always inline, so that
// the vectors need not go through memory.
template <int count, int half = LANES / 2>
[[gnu::always_inline]] inline Vector totals(Vector* x) {
#pragma GCC unroll 16
  for (int i = 0; i < half; ++i)
    if (i < count)
      x[i] = halved<half>(x[i], i + half < count ? x[i + half] : Vector{}, std::make_integer_sequence<int, LANES>{});
  if constexpr (half > 1) return totals<std::min(count, half), half / 2>(x);
  return x[0];
}

// to (count in whole vectors) = the sums of any number of vectors.
template <int count>
[[gnu::always_inline]] inline void totals(Vector* x, float* to) {
  store(to, totals<std::min(count, LANES)>(x));
  if constexpr (count > LANES) totals<count - LANES>(x + LANES, to + LANES);
}

// Lanes in whose number the bit `half` is set in a against those in which it is not in b.
template <int half, int... lane>
inline void exchange(Vector& a, Vector& b, std::integer_sequence<int, lane...>) {
  const Vector low = __builtin_shufflevector(a, b, (lane & half ? LANES + (lane & ~half) : lane)...);
  b = __builtin_shufflevector(a, b, (lane & half ? LANES + lane : lane | half)...);
  a = low;
}

// Rows of a square become its columns.
template <int half = LANES / 2>
[[gnu::always_inline]] inline void transpose(Vector (&rows)[LANES]) {
#pragma GCC unroll 16
  for (int i = 0; i < LANES; ++i)
    if (!(i & half)) exchange<half>(rows[i], rows[i | half], std::make_integer_sequence<int, LANES>{});
  if constexpr (half > 1) transpose<half / 2>(rows);
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

// sum + left * right, where left holds a number for all lanes.
inline Vector multiplied(Vector left, Vector right, Vector sum) { return sum + left * right; }
inline Vector multiplied(float left, const float* right, Vector sum) { return sum + left * load(right); }

#if defined(__AVX512BF16__)
inline Integers load(const Pair* at) { return *reinterpret_cast<const LooseIntegers*>(at); }
inline Vector multiplied(Integers left, Integers right, Vector sum) {
  return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)left, (__m512bh)right);
}
inline Vector multiplied(Pair left, const Pair* right, Vector sum) {
  return multiplied(Integers{} + static_cast<int32_t>(left), load(right), sum);
}
#else
// The nearest bf16 numbers, ties to even; what is no number stays none.
inline Vector rounded(Vector x) {
  const Integers bits = (Integers)x, nearest = bits + 0x7fff + (bits >> 16 & 1);
  return (Vector)((x == x ? nearest : bits | 0x400000) & static_cast<int32_t>(0xffff0000));
}
#endif

// Numbers as pairs, in whole vectors with zeros behind.
inline const Pair* paired(const float* from, ptrdiff_t count, Pair* to) {
  for (ptrdiff_t i = 0; i < count; i += PAIRED * LANES) {
#if defined(__AVX512BF16__)
    const Vector low = load(from + i, count - i), high = load(from + i + LANES, std::max<ptrdiff_t>(0, count - i - LANES));
    _mm512_storeu_si512(to + i / 2, (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low));
#else
    store(to + i, rounded(load(from + i, count - i)));
#endif
  }
  return to;
}

}  // namespace pomona
