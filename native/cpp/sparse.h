// The backward pass of a convolution with pooling, from the gradients that are not zero: of a window one place has one,
// and ReLU leaves about half of those. Each is taken alone: it adds a patch of the image to the weights' gradient, and
// a patch of weights to the image's.
#pragma once

#include "dense.h"

namespace pomona {

// Gradients that are not zero, and where what they are multiplied with begins: patches of images, or of weights.
struct Slopes {
  struct Slope {
    int32_t from;
    float value;
  };

  Numbers<Slope> all;  // lists, each with room for `most`
  Numbers<ptrdiff_t> counts;
  ptrdiff_t most = 0;

  void empty(ptrdiff_t lists, ptrdiff_t most_of_each) {
    most = most_of_each;
    all.resize(static_cast<size_t>(lists * most));
    counts.assign(static_cast<size_t>(lists), 0);
  }

  // Written in any case, kept if it is not zero: a branch would be guessed wrong often.
  void put(ptrdiff_t list, int32_t from, float value) {
    all[list * most + counts[list]] = {from, value};
    counts[list] += (bits_of(value) << 1) != 0;
  }

  // sums += each value times the vectors of `rows` where it says, for some lists. Each list's sums begin `across`
  // numbers behind the last one's; of those that both have, all but the first SHIFT vectors stay in registers.
  template <int N, int SHIFT>
  void add(ptrdiff_t list, ptrdiff_t end, const float* rows, float* sums, ptrdiff_t across) const {
    Vector kept[N];
#pragma GCC unroll 16
    for (int j = 0; j < N; ++j) kept[j] = load(sums + j * LANES);
    for (;;) {
      const Slope* slopes = all.data() + list * most;
      for (ptrdiff_t e = 0; e < counts[list]; ++e) {
        const float* row = rows + slopes[e].from;
#pragma GCC unroll 16
        for (int j = 0; j < N; ++j) kept[j] += slopes[e].value * load(row + j * LANES);
      }
#pragma GCC unroll 16
      for (int j = 0; j < SHIFT; ++j) store(sums + j * LANES, kept[j]);
      if (++list == end) break;
      sums += across;
#pragma GCC unroll 16
      for (int j = 0; j < N; ++j) kept[j] = j < N - SHIFT ? kept[(j + SHIFT) % N] : load(sums + j * LANES);
    }
#pragma GCC unroll 16
    for (int j = SHIFT; j < N; ++j) store(sums + j * LANES, kept[j]);
  }

  // As `add`, for a number of vectors known at run time, 1 to N.
  template <int N>
  void add_to(ptrdiff_t vectors, ptrdiff_t list, ptrdiff_t end, const float* rows, float* sums, ptrdiff_t across) const {
    if constexpr (N > 1)
      if (vectors < N) return add_to<N - 1>(vectors, list, end, rows, sums, across);
    if (across == LANES) return add<N, 1>(list, end, rows, sums, across);
    if (across == 2 * LANES) return add<N, std::min(2, N)>(list, end, rows, sums, across);
    if (across == 4 * LANES) return add<N, std::min(4, N)>(list, end, rows, sums, across);
    add<N, N>(list, end, rows, sums, across);
  }
};

class Sparse {
 public:
  Sparse(Shape from, Shape made, Shape to, Geometry geometry)
      : made_(made),
        to_(to),
        g_(geometry),
        run_(geometry.kernel.x * from.channels),
        across_(geometry.stride.x * from.channels),
        pieces_(ceil_div(whole(run_), LONGEST * LANES)),
        block_(whole(ceil_div(made.channels, ceil_div(made.channels * whole(run_) / pieces_, CACHED)))) {}

  // Images whose slopes are collected together: their rows under one row of the kernel fit into a first cache.
  ptrdiff_t at_once(ptrdiff_t row) const { return std::max<ptrdiff_t>(1, CACHED / (made_.height * g_.stride.y * row)); }

  // The weights (outputs, runs, run) as (runs, outputs, run), each run in whole vectors with zeros behind.
  void turn(const float* W) {
    weights_.assign(static_cast<size_t>(g_.kernel.y * made_.channels * whole(run_)), 0.0f);
    for (ptrdiff_t o = 0; o < made_.channels; ++o)
      for (ptrdiff_t r = 0; r < g_.kernel.y; ++r, W += run_)
        std::copy_n(W, run_, weights_.data() + (r * made_.channels + o) * whole(run_));
  }

  // Forget what was collected, and make room for some images.
  void begin(ptrdiff_t images) { of_outputs_.empty(made_.channels, images * to_.height * to_.width); }

  // The slopes of an image, of `values` (places after pooling, outputs in whole vectors) that `won` in their windows:
  // for each output with its patch, the image being at `start`; and, where `pulls`, for each block of outputs and
  // place of the convolution with its weights.
  void collect(ptrdiff_t row, ptrdiff_t start, const float* values, const uint8_t* won, bool pulls) {
    const ptrdiff_t down = g_.stride.y * row, lanes = whole(made_.channels), places = made_.height * made_.width;
    const ptrdiff_t outputs = made_.channels, wide = whole(run_);
    if (pulls)  // of each output, from all windows that a place lies in
      of_places_.empty(ceil_div(outputs, block_) * places,
                       block_ * ceil_div(g_.window.y, g_.hop.y) * ceil_div(g_.window.x, g_.hop.x));
    int32_t patch[256], place[256];  // by the place in a window
    for (ptrdiff_t w = 0; w < g_.window.y * g_.window.x; ++w) {
      patch[w] = static_cast<int32_t>(w / g_.window.x * down + w % g_.window.x * across_);
      place[w] = static_cast<int32_t>(w / g_.window.x * made_.width + w % g_.window.x);
    }
    for (ptrdiff_t y = 0; y < to_.height; ++y)
      for (ptrdiff_t x = 0; x < to_.width; ++x, values += lanes, won += lanes) {
        const auto first = static_cast<int32_t>(start + y * g_.hop.y * down + x * g_.hop.x * across_);
        for (ptrdiff_t o = 0; o < outputs; ++o) of_outputs_.put(o, first + patch[won[o]], values[o]);
        ptrdiff_t list = y * g_.hop.y * made_.width + x * g_.hop.x;
        for (ptrdiff_t begin = 0; pulls && begin < outputs; begin += block_, list += places)
          for (ptrdiff_t o = begin; o < std::min(begin + block_, outputs); ++o)
            of_places_.put(list + place[won[o]], static_cast<int32_t>(o * wide), values[o]);
      }
  }

  // sums (runs, outputs, run in whole vectors) += patches of the images from `image` on, times their slopes.
  void weigh(const float* image, ptrdiff_t row, float* sums) const {
    each_piece([&](ptrdiff_t r, ptrdiff_t at, ptrdiff_t vectors) {
      of_outputs_.add_to<LONGEST>(vectors, 0, made_.channels, image + r * row + at,
                                  sums + r * made_.channels * whole(run_) + at, whole(run_));
    });
  }

  // The gradients at the last image collected += patches of weights, times the slopes at their outputs.
  void pull(float* changes, ptrdiff_t row) const {
    const auto lists = static_cast<ptrdiff_t>(of_places_.counts.size());
    each_piece([&](ptrdiff_t r, ptrdiff_t at, ptrdiff_t vectors) {
      for (ptrdiff_t list = 0; list < lists; list += made_.width)
        of_places_.add_to<LONGEST>(vectors, list, list + made_.width,
                                   weights_.data() + r * made_.channels * whole(run_) + at,
                                   changes + (list / made_.width % made_.height * g_.stride.y + r) * row + at, across_);
    });
  }

 private:
  static constexpr ptrdiff_t CACHED = 6400;  // numbers that are read again and again: 25 KiB of a first cache
  static constexpr int LONGEST = 12;         // vectors of sums at a time

  // each(row of the kernel, where a piece of its run begins, vectors)
  template <class Each>
  void each_piece(Each each) const {
    const ptrdiff_t vectors = whole(run_) / LANES;
    for (ptrdiff_t r = 0; r < g_.kernel.y; ++r)
      for (ptrdiff_t piece = 0; piece < pieces_; ++piece) {
        const ptrdiff_t from = vectors * piece / pieces_;
        each(r, from * LANES, vectors * (piece + 1) / pieces_ - from);
      }
  }

  const Shape made_, to_;
  const Geometry g_;
  const ptrdiff_t run_, across_, pieces_;
  const ptrdiff_t block_;  // outputs whose weights under a piece of a run are in a first cache
  Numbers<float> weights_;
  Slopes of_outputs_, of_places_;
};

}  // namespace pomona
