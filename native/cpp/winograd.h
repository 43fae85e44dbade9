// A convolution in steps of 1 with a kernel of 3 x 3 or 5 x 5, with fewer products: a tile of 6 x 6 or 8 x 8 places gives
// 4 x 4 sums of 36 or 64 products for each pair of channels, in place of 144 or 400.
//
// Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (CVPR 2016): sums = A [(G w G^T) * (B d B^T)] A^T
// for weights w and a tile d. The points 0, 1, -1, 1/2, -2, with 8 x 8 places -1/2 and 2, and infinity round least
// (Barabasz et al., TOMS 46, 2020): a sum's error is about three and five times that of products added in order, that of
// the cnn's gradients twice PyTorch's.
#pragma once

#include "dense.h"

namespace pomona {

constexpr int SUMS = 4;    // of a tile, in a row
constexpr int WIDEST = 8;  // places of a tile in a row, at most: kernel + SUMS - 1
constexpr float POINTS[WIDEST - 1] = {0, 1, -1, 0.5f, -2, -0.5f, 2};  // and infinity, the last row or column

struct Matrix {
  float at[WIDEST][WIDEST] = {};
};

// B: in row i the coefficients of the polynomial that is zero at all points but the i-th.
constexpr Matrix of_inputs(int tile) {
  Matrix m;
  for (int i = 0; i < tile; ++i) {
    m.at[i][0] = 1;
    for (int j = 0, degree = 0; j < tile - 1; ++j) {
      if (j == i) continue;
      ++degree;
      for (int k = degree; k > 0; --k) m.at[i][k] = m.at[i][k - 1] - POINTS[j] * m.at[i][k];
      m.at[i][0] *= -POINTS[j];
    }
  }
  return m;
}

// G: the powers of each point, over the value there of its row of B.
constexpr Matrix of_weights(int kernel) {
  Matrix m;
  const int last = kernel + SUMS - 2;
  for (int i = 0; i < last; ++i) {
    double value = 1;
    for (int j = 0; j < last; ++j) value /= j == i ? 1.0 : POINTS[i] - POINTS[j];
    for (int k = 0; k < kernel; ++k, value *= POINTS[i]) m.at[i][k] = static_cast<float>(value);
  }
  m.at[last][kernel - 1] = 1;
  return m;
}

// A: the powers of each point, by the place of a sum.
constexpr Matrix of_sums(int tile) {
  Matrix m;
  for (int j = 0; j < tile - 1; ++j) {
    float power = 1;
    for (int i = 0; i < SUMS; ++i, power *= POINTS[j]) m.at[i][j] = power;
  }
  m.at[SUMS - 1][tile - 1] = 1;
  return m;
}

// to (ROWS) = M from (COLUMNS), without the products with zero.
template <Matrix M, int ROWS, int COLUMNS>
[[gnu::always_inline]] inline void times(const Vector (&from)[COLUMNS], Vector (&to)[ROWS]) {
#pragma GCC unroll 8
  for (int i = 0; i < ROWS; ++i) {
    to[i] = Vector{};
#pragma GCC unroll 8
    for (int j = 0; j < COLUMNS; ++j)
      if (M.at[i][j] != 0) to[i] += M.at[i][j] * from[j];
  }
}

// give(i, j, value) for x (ROWS, ROWS) = M x M^T, of take(i, j) of x (COLUMNS, COLUMNS).
template <Matrix M, int ROWS, int COLUMNS, class Take, class Give>
[[gnu::always_inline]] inline void transform(Take take, Give give) {
  Vector half[ROWS][COLUMNS], from[COLUMNS], to[ROWS];
#pragma GCC unroll 8
  for (int j = 0; j < COLUMNS; ++j) {
#pragma GCC unroll 8
    for (int i = 0; i < COLUMNS; ++i) from[i] = take(i, j);
    times<M>(from, to);
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; ++i) half[i][j] = to[i];
  }
#pragma GCC unroll 8
  for (int i = 0; i < ROWS; ++i) {
    times<M>(half[i], to);
#pragma GCC unroll 8
    for (int j = 0; j < ROWS; ++j) give(i, j, to[j]);
  }
}

class Winograd {
 public:
  Winograd(Shape from, Shape made, Geometry geometry)
      : kernel_(geometry.kernel.y),
        places_((kernel_ + SUMS - 1) * (kernel_ + SUMS - 1)),
        channels_(from.channels),
        made_(made),
        across_(ceil_div(made.width, SUMS)),
        tiles_(across_ * ceil_div(made.height, SUMS)),
        wide_(whole(from.channels)),
        lanes_(whole(made.channels)) {}

  // Whether it is faster: much of a small image's tiles would lie outside of it.
  static bool fits(Shape from, Shape made, const Geometry& g) {
    const ptrdiff_t kernel = g.kernel.y, least = 2 * SUMS;
    return g.kernel.x == kernel && (kernel == 3 || kernel == 5) && g.stride.y == 1 && g.stride.x == 1 &&
           from.channels >= 16 && made.channels >= 16 && made.height >= least && made.width >= least;
  }

  // Images for which the transformed weights are read once.
  ptrdiff_t images() const { return std::max<ptrdiff_t>(1, AT_ONCE / tiles_); }

  // Takes weights (taps, channels, outputs in whole vectors).
  void turn(const float* weights) {
    weights_.resize(static_cast<size_t>(places_ * weights_step()));
    kernel_ == 3 ? turn<3>(weights) : turn<5>(weights);
  }

  // sums (images, places, outputs in whole vectors) = those of framed images, so many numbers apart.
  void multiply(const float* first, ptrdiff_t images, ptrdiff_t apart, ptrdiff_t row, float* sums) {
    inputs_.resize(static_cast<size_t>(places_ * inputs_step()));
    products_.resize(static_cast<size_t>(places_ * products_step()));
    const ptrdiff_t tiles = images * tiles_, parts = ceil_div(tiles, AT_ONCE);
    for (ptrdiff_t part = 0; part < parts; ++part) {  // of nearly the same size
      const ptrdiff_t begin = tiles * part / parts, count = tiles * (part + 1) / parts - begin;
      for (ptrdiff_t t = 0; t < count; ++t) {
        const float* image = first + (begin + t) / tiles_ * apart;
        float* to = inputs_.data() + t * wide_;
        kernel_ == 3 ? take<3>(image, row, (begin + t) % tiles_, to) : take<5>(image, row, (begin + t) % tiles_, to);
      }
      for (ptrdiff_t k = 0; k < places_; ++k)
        product<float>(count, lanes_, {inputs_.data() + k * inputs_step(), wide_, 1}, {1, static_cast<int>(channels_)},
                       {weights_.data() + k * weights_step(), lanes_}, products_.data() + k * products_step(), lanes_,
                       false);
      for (ptrdiff_t t = 0; t < count; ++t) {
        const float* from = products_.data() + t * lanes_;
        float* to = sums + (begin + t) / tiles_ * made_.height * made_.width * lanes_;
        kernel_ == 3 ? give<3>(from, (begin + t) % tiles_, to) : give<5>(from, (begin + t) % tiles_, to);
      }
    }
  }

 private:
  static constexpr ptrdiff_t AT_ONCE = 2 * TALLEST;  // tiles

  // From one place's block to the next: no power of two, so that they share no places in a cache.
  ptrdiff_t weights_step() const { return channels_ * lanes_ + LANES; }
  ptrdiff_t inputs_step() const { return AT_ONCE * wide_ + LANES; }
  ptrdiff_t products_step() const { return AT_ONCE * lanes_ + LANES; }

  template <int KERNEL>
  void turn(const float* from) {
    constexpr int TILE = KERNEL + SUMS - 1;
    for (ptrdiff_t at = 0; at < channels_ * lanes_; at += LANES)
      transform<of_weights(KERNEL), TILE, KERNEL>(
          [&](int i, int j) { return load(from + (i * KERNEL + j) * channels_ * lanes_ + at); },
          [&](int i, int j, Vector x) { store(weights_.data() + (i * TILE + j) * weights_step() + at, x); });
  }

  // A tile of the image; what lies outside of it is zero. Lanes behind the last channel are never used.
  template <int KERNEL>
  void take(const float* image, ptrdiff_t row, ptrdiff_t tile, float* to) const {
    constexpr int TILE = KERNEL + SUMS - 1;
    const ptrdiff_t y = tile / across_ * SUMS, x = tile % across_ * SUMS;
    const ptrdiff_t height = made_.height + KERNEL - 1 - y, width = made_.width + KERNEL - 1 - x;
    const float* from = image + y * row + x * channels_;
    for (ptrdiff_t c = 0; c < channels_; c += LANES)
      transform<of_inputs(TILE), TILE, TILE>(
          [&](int i, int j) { return i < height && j < width ? load(from + i * row + j * channels_ + c) : Vector{}; },
          [&](int i, int j, Vector d) { store(to + (i * TILE + j) * inputs_step() + c, d); });
  }

  template <int KERNEL>
  void give(const float* from, ptrdiff_t tile, float* sums) const {
    constexpr int TILE = KERNEL + SUMS - 1;
    const ptrdiff_t y = tile / across_ * SUMS, x = tile % across_ * SUMS;
    for (ptrdiff_t o = 0; o < lanes_; o += LANES)
      transform<of_sums(TILE), SUMS, TILE>(
          [&](int i, int j) { return load(from + (i * TILE + j) * products_step() + o); },
          [&](int i, int j, Vector s) {
            if (y + i < made_.height && x + j < made_.width)
              store(sums + ((y + i) * made_.width + x + j) * lanes_ + o, s);
          });
  }

  const ptrdiff_t kernel_, places_;  // places in a tile
  const ptrdiff_t channels_;
  const Shape made_;
  const ptrdiff_t across_, tiles_;  // tiles in a row, and in an image
  const ptrdiff_t wide_, lanes_;    // channels and outputs, in whole vectors
  Numbers<float> weights_, inputs_, products_;
};

}  // namespace pomona
