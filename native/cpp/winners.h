// The weights' gradient of a convolution with short runs, from the gradients at the places that won in their windows.
//
// Lanes are output channels. What a tap multiplies is one of few neighbours in the image, by the place that won in the
// lane's window: a permutation of the image's rows gives it for all lanes, so zeros at the other places cost nothing.
#pragma once

#include "dense.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace pomona {

typedef uint8_t Bytes __attribute__((vector_size(LANES)));  // a place in a window for each lane

// For each lane one number of two vectors, by its index in both.
inline Vector chosen(Vector low, Vector high, Integers which) {
#if defined(__AVX512F__)
  return (Vector)_mm512_permutex2var_ps((__m512)low, (__m512i)which, (__m512)high);
#elif defined(__AVX2__)
  const __m256 a = _mm256_permutevar8x32_ps((__m256)low, (__m256i)which);
  const __m256 b = _mm256_permutevar8x32_ps((__m256)high, (__m256i)which);
  return (Vector)_mm256_blendv_ps(a, b, (__m256)(which << 28));
#else
  for (int i = 0; i < LANES; ++i) which[i] = static_cast<int32_t>(bits_of((which[i] & LANES ? high : low)[which[i] % LANES]));
  return (Vector)which;
#endif
}

struct Winners {
  const Geometry g;
  const Shape to;             // after pooling
  const ptrdiff_t run, across;  // numbers under a row of the kernel, and from one place to the next

  static constexpr int TAPS = 5, ROWS = LANES == 16 ? 3 : 2;  // of the kernel, whose sums are in registers

  // Whether a row of the image under a window fits into a vector.
  bool fit() const {
    return run < LANES && g.window.y <= 2 && 2 * g.window.x <= LANES && (g.window.x - 1) * across + TAPS <= LANES;
  }

  // sums (taps, outputs in whole vectors) += those of an image: `slopes` (places after pooling, outputs in whole
  // vectors) are its gradients, `won` the places in their windows.
  void weigh(const float* image, ptrdiff_t row, const float* slopes, const uint8_t* won, float* sums) const {
    const ptrdiff_t lanes = whole(to.channels);
    for (ptrdiff_t o = 0; o < lanes; o += LANES)
      for (ptrdiff_t r = 0; r < g.kernel.y; r += ROWS)
        for (ptrdiff_t i = 0; i < run; i += TAPS)
          weigh_rows<ROWS>(g.kernel.y - r, std::min<ptrdiff_t>(TAPS, run - i), image + r * row + i, row, slopes + o,
                           won + o, sums + (r * run + i) * lanes + o);
  }

  template <int R>
  void weigh_rows(ptrdiff_t rows, ptrdiff_t taps, const float* image, ptrdiff_t row, const float* slopes,
                  const uint8_t* won, float* sums) const {
    if constexpr (R > 1)
      if (rows < R) return weigh_rows<R - 1>(rows, taps, image, row, slopes, won, sums);
    const ptrdiff_t lanes = whole(to.channels), below = (g.window.y - 1) * g.stride.y * row;
    Vector starts{}, kept[R][TAPS]{};
    for (ptrdiff_t w = 0; w < g.window.y * g.window.x; ++w)  // of the places in a window, in its two rows
      starts[w] = float_of(static_cast<uint32_t>(w / g.window.x * LANES + w % g.window.x * across));
    for (ptrdiff_t y = 0; y < to.height; ++y)
      for (ptrdiff_t x = 0; x < to.width; ++x, slopes += lanes, won += lanes) {
        const float* patch = image + y * g.hop.y * g.stride.y * row + x * g.hop.x * across;
        Bytes places;
        std::memcpy(&places, won, sizeof places);
        const Integers which = (Integers)chosen(starts, starts, __builtin_convertvector(places, Integers));
#pragma GCC unroll 3
        for (int r = 0; r < R; ++r) {
          const Vector low = load(patch + r * row), high = load(patch + r * row + below);
#pragma GCC unroll 5
          for (int i = 0; i < TAPS; ++i) kept[r][i] += load(slopes) * chosen(low, high, which + i);
        }
      }
    for (int r = 0; r < R; ++r)
      for (int i = 0; i < taps; ++i) {
        float* at = sums + (r * run + i) * lanes;
        store(at, load(at) + kept[r][i]);
      }
  }
};

}  // namespace pomona
