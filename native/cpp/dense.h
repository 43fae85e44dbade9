// The backward pass of a convolution whose gradients are seldom zero, as products: those of an image's patches with the
// gradients, and of the gradients with the weights.
#pragma once

#include "maps.h"
#include "product.h"

namespace pomona {

struct Geometry {
  Pair2 kernel, stride, padding, window, hop;  // the last two: pooling's size and stride, 1 for none

  // What the convolution makes, before pooling.
  Shape made(Shape from, ptrdiff_t outputs) const {
    return {(from.height + 2 * padding.y - kernel.y) / stride.y + 1,
            (from.width + 2 * padding.x - kernel.x) / stride.x + 1, outputs};
  }
};

class Dense {
 public:
  Dense(Shape from, Shape made, Geometry geometry) : from_(from), made_(made), geometry_(geometry) {}

  // sums (kernel's height, outputs, run in whole vectors) += those of an image: `slopes` (places, outputs in whole
  // vectors) are its gradients.
  void weigh(Maps& input, ptrdiff_t n, const float* slopes, float* sums) const {
    const auto& g = geometry_;
    const ptrdiff_t wide = whole(g.kernel.x * from_.channels), lanes = whole(made_.channels);
    const Common places{static_cast<int>(made_.height), static_cast<int>(made_.width)};
    for (ptrdiff_t r = 0; r < g.kernel.y; ++r)
      product<float>(made_.channels, wide, {slopes, 1, lanes, made_.width * lanes}, places,
                     {input.framed(n, g.padding) + r * input.row, g.stride.x * from_.channels, g.stride.y * input.row},
                     sums + r * made_.channels * wide, wide, true);
  }

  // Weights (outputs, taps, channels) as `pull` takes them: of each tap (outputs, channels in whole vectors).
  void turn(const float* W) {
    const ptrdiff_t taps = geometry_.kernel.y * geometry_.kernel.x, lanes = whole(from_.channels);
    turned_.assign(static_cast<size_t>(taps * made_.channels * lanes), 0.0f);
    for (ptrdiff_t o = 0; o < made_.channels; ++o)
      for (ptrdiff_t t = 0; t < taps; ++t, W += from_.channels)
        std::copy_n(W, from_.channels, turned_.data() + (t * made_.channels + o) * lanes);
  }

  // The gradients at an image += those through each tap. Lanes behind the last channel reach into the next place, and
  // add zero to it: rows are stored in order, so that what a later row adds there stays.
  void pull(Maps& input, ptrdiff_t n, const float* slopes) const {
    const auto& g = geometry_;
    const ptrdiff_t lanes = whole(made_.channels), wide = whole(from_.channels);
    for (ptrdiff_t t = 0; t < g.kernel.y * g.kernel.x; ++t) {
      float* dx = input.framed_gradients(n, g.padding) + t / g.kernel.x * input.row + t % g.kernel.x * from_.channels;
      for (ptrdiff_t y = 0; y < made_.height; ++y)
        product<float>(made_.width, wide, {slopes + y * made_.width * lanes, lanes, 1},
                       {1, static_cast<int>(made_.channels)}, {turned_.data() + t * made_.channels * wide, wide},
                       dx + y * g.stride.y * input.row, g.stride.x * from_.channels, true);
    }
  }

 private:
  const Shape from_, made_;
  const Geometry geometry_;
  Numbers<float> turned_;
};

}  // namespace pomona
