// A convolution in steps of 1 with a kernel of 3 x 3 or 5 x 5, with fewer products: a tile of 6 x 6 places gives 4 x 4
// or 2 x 2 sums of 36 products for each pair of channels, in place of 144 or 100.
//
// Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (CVPR 2016): sums = A [(G w G^T) * (B d B^T)] A^T
// for weights w and a tile d. The points 0, 1, -1, 1/2, -2 and infinity round least (Barabasz et al., TOMS 46, 2020):
// a sum's error is about three times that of products added in order, a network's hardly changes.
#pragma once

#include "dense.h"

namespace pomona {

constexpr int TILE = 6;

struct Matrix {
  float at[TILE][TILE] = {};
};

constexpr float POINTS[TILE - 1] = {0, 1, -1, 0.5f, -2};  // and infinity, the last row or column

// B: in row i the coefficients of the polynomial that is zero at all points but the i-th.
constexpr Matrix OF_INPUTS{{{1, -1.5f, -2, 1.5f, 1, 0},
                            {0, -1, 0.5f, 2.5f, 1, 0},
                            {0, 1, -2.5f, 0.5f, 1, 0},
                            {0, -2, -1, 2, 1, 0},
                            {0, 0.5f, -1, -0.5f, 1, 0},
                            {0, 1, -1.5f, -2, 1.5f, 1}}};

// G: the powers of each point, over the value there of its row of B.
constexpr Matrix of_weights(int kernel) {
  Matrix m;
  for (int i = 0; i < TILE - 1; ++i) {
    double value = 1;
    for (int j = 0; j < TILE - 1; ++j) value /= j == i ? 1.0 : POINTS[i] - POINTS[j];
    for (int k = 0; k < kernel; ++k, value *= POINTS[i]) m.at[i][k] = static_cast<float>(value);
  }
  m.at[TILE - 1][kernel - 1] = 1;
  return m;
}

// A: the powers of each point, by the place of a sum.
constexpr Matrix of_sums(int side) {
  Matrix m;
  for (int j = 0; j < TILE - 1; ++j) {
    float power = 1;
    for (int i = 0; i < side; ++i, power *= POINTS[j]) m.at[i][j] = power;
  }
  m.at[side - 1][TILE - 1] = 1;
  return m;
}

// to (ROWS) = M from (COLUMNS), without the products with zero.
template <Matrix M, int ROWS, int COLUMNS>
[[gnu::always_inline]] inline void times(const Vector (&from)[COLUMNS], Vector (&to)[ROWS]) {
#pragma GCC unroll 6
  for (int i = 0; i < ROWS; ++i) {
    to[i] = Vector{};
#pragma GCC unroll 6
    for (int j = 0; j < COLUMNS; ++j)
      if (M.at[i][j] != 0) to[i] += M.at[i][j] * from[j];
  }
}

// x (ROWS, ROWS) = M x M^T, of x (COLUMNS, COLUMNS).
template <Matrix M, int ROWS, int COLUMNS>
[[gnu::always_inline]] inline void transform(Vector (&x)[TILE][TILE]) {
  Vector from[COLUMNS], to[ROWS];
#pragma GCC unroll 6
  for (int j = 0; j < COLUMNS; ++j) {
    for (int i = 0; i < COLUMNS; ++i) from[i] = x[i][j];
    times<M>(from, to);
    for (int i = 0; i < ROWS; ++i) x[i][j] = to[i];
  }
#pragma GCC unroll 6
  for (int i = 0; i < ROWS; ++i) {
    for (int j = 0; j < COLUMNS; ++j) from[j] = x[i][j];
    times<M>(from, to);
    for (int j = 0; j < ROWS; ++j) x[i][j] = to[j];
  }
}

class Winograd {
 public:
  Winograd(Shape from, Shape made, Geometry geometry)
      : kernel_(geometry.kernel.y),
        channels_(from.channels),
        made_(made),
        side_(TILE + 1 - kernel_),
        across_(ceil_div(made.width, side_)),
        tiles_(across_ * ceil_div(made.height, side_)),
        at_once_(std::min<ptrdiff_t>(2 * TALLEST, tiles_)),
        wide_(whole(from.channels)),
        lanes_(whole(made.channels)) {}

  // Whether it is faster: of fewer tiles, reading the transformed weights takes longer than all products.
  static bool fits(Shape from, Shape made, const Geometry& g) {
    const ptrdiff_t kernel = g.kernel.y, least = 2 * (TILE + 1 - kernel);
    return g.kernel.x == kernel && (kernel == 3 || kernel == 5) && g.stride.y == 1 && g.stride.x == 1 &&
           from.channels >= 16 && made.channels >= 16 && made.height >= least && made.width >= least;
  }

  // Takes weights (taps, channels, outputs in whole vectors).
  void turn(const float* weights) {
    weights_.resize(static_cast<size_t>(TILE * TILE * weights_step()));
    kernel_ == 3 ? turn<3>(weights) : turn<5>(weights);
  }

  // sums (places, outputs in whole vectors) = those of a framed image.
  void multiply(const float* image, ptrdiff_t row, float* sums) {
    inputs_.resize(static_cast<size_t>(TILE * TILE * inputs_step()));
    products_.resize(static_cast<size_t>(TILE * TILE * products_step()));
    for (ptrdiff_t first = 0; first < tiles_; first += at_once_) {
      const ptrdiff_t count = std::min(at_once_, tiles_ - first);
      for (ptrdiff_t t = 0; t < count; ++t) take(image, row, first + t, inputs_.data() + t * wide_);
      for (ptrdiff_t k = 0; k < TILE * TILE; ++k)
        product<float>(count, lanes_, {inputs_.data() + k * inputs_step(), wide_, 1}, {1, static_cast<int>(channels_)},
                       {weights_.data() + k * weights_step(), lanes_}, products_.data() + k * products_step(), lanes_,
                       false);
      for (ptrdiff_t t = 0; t < count; ++t)
        kernel_ == 3 ? give<3>(products_.data() + t * lanes_, first + t, sums)
                     : give<5>(products_.data() + t * lanes_, first + t, sums);
    }
  }

 private:
  // From one of the 36 blocks to the next: no power of two, so that they share no places in a cache.
  ptrdiff_t weights_step() const { return channels_ * lanes_ + LANES; }
  ptrdiff_t inputs_step() const { return at_once_ * wide_ + LANES; }
  ptrdiff_t products_step() const { return at_once_ * lanes_ + LANES; }

  template <int KERNEL>
  void turn(const float* from) {
    for (ptrdiff_t at = 0; at < channels_ * lanes_; at += LANES) {
      Vector x[TILE][TILE];
#pragma GCC unroll 25
      for (int k = 0; k < KERNEL * KERNEL; ++k) x[k / KERNEL][k % KERNEL] = load(from + k * channels_ * lanes_ + at);
      transform<of_weights(KERNEL), TILE, KERNEL>(x);
#pragma GCC unroll 36
      for (int k = 0; k < TILE * TILE; ++k) store(weights_.data() + k * weights_step() + at, x[k / TILE][k % TILE]);
    }
  }

  // A tile of the image; what lies outside of it is zero. Lanes behind the last channel are never used.
  void take(const float* image, ptrdiff_t row, ptrdiff_t tile, float* to) const {
    const ptrdiff_t y = tile / across_ * side_, x = tile % across_ * side_;
    const ptrdiff_t height = made_.height + kernel_ - 1 - y, width = made_.width + kernel_ - 1 - x;
    const float* from = image + y * row + x * channels_;
    for (ptrdiff_t c = 0; c < channels_; c += LANES) {
      Vector d[TILE][TILE];
#pragma GCC unroll 6
      for (int i = 0; i < TILE; ++i)
#pragma GCC unroll 6
        for (int j = 0; j < TILE; ++j)
          d[i][j] = i < height && j < width ? load(from + i * row + j * channels_ + c) : Vector{};
      transform<OF_INPUTS, TILE, TILE>(d);
#pragma GCC unroll 36
      for (int k = 0; k < TILE * TILE; ++k) store(to + k * inputs_step() + c, d[k / TILE][k % TILE]);
    }
  }

  template <int KERNEL>
  void give(const float* from, ptrdiff_t tile, float* sums) const {
    constexpr int SIDE = TILE + 1 - KERNEL;
    const ptrdiff_t y = tile / across_ * SIDE, x = tile % across_ * SIDE;
    for (ptrdiff_t o = 0; o < lanes_; o += LANES) {
      Vector s[TILE][TILE];
#pragma GCC unroll 36
      for (int k = 0; k < TILE * TILE; ++k) s[k / TILE][k % TILE] = load(from + k * products_step() + o);
      transform<of_sums(SIDE), SIDE, TILE>(s);
#pragma GCC unroll 4
      for (int i = 0; i < SIDE; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < SIDE; ++j)
          if (y + i < made_.height && x + j < made_.width)
            store(sums + ((y + i) * made_.width + x + j) * lanes_ + o, s[i][j]);
    }
  }

  const ptrdiff_t kernel_, channels_;
  const Shape made_;
  const ptrdiff_t side_, across_, tiles_, at_once_;  // a tile's sums in a row; tiles in a row, in all and at a time
  const ptrdiff_t wide_, lanes_;           // channels and outputs, in whole vectors
  Numbers<float> weights_, inputs_, products_;
};

}  // namespace pomona
