// A convolution without pooling, as products of patches with the weights; perhaps with ReLU behind it.
//
// For gradients that are not zero, as they come from a normalisation or a sum, and for weights too large to be read
// again for each row of an image. Some samples' patches are copied out at a time.
#pragma once

#include "affine.h"
#include "convolution.h"

namespace pomona {

class Patches {
 public:
  Patches(Shape from, ptrdiff_t outputs, Geometry geometry, bool rectified, ptrdiff_t weight, ptrdiff_t bias)
      : from_(from),
        geometry_(geometry),
        rectified_(rectified),
        made_(geometry.made(from, outputs)),
        places_(made_.height * made_.width),
        run_(geometry.kernel.x * from.channels),
        affine_(geometry.kernel.y * run_, outputs, weight, bias) {}

  Shape to() const { return made_; }

  void forward(const Pass& pass, const Ends& ends) {
    const ptrdiff_t chunk = at_once();
    for (ptrdiff_t n = 0; n < pass.batch; n += chunk) {
      const ptrdiff_t samples = std::min(chunk, pass.batch - n);
      unfold(ends.input, n, samples);
      affine_.forward(pass.row, samples * places_);
      for (ptrdiff_t k = 0; k < samples; ++k)
        for (ptrdiff_t y = 0; y < made_.height; ++y) {
          float* to = ends.output.values(n + k) + y * ends.output.row;
          const ptrdiff_t from = k * places_ + y * made_.width;
          for (ptrdiff_t o = 0; o < made_.channels; ++o) {
            const float* sums = affine_.results(o) + from;
            const float bias = affine_.bias(pass.row, o);
            for (ptrdiff_t x = 0; x < made_.width; ++x) {
              const float sum = sums[x] + bias;
              to[x * made_.channels + o] = rectified_ && sum < 0 ? 0.0f : sum;
            }
          }
        }
    }
  }

  void backward(const Update& update, const Pass& pass, const Ends& ends) {
    const ptrdiff_t chunk = at_once();
    if (ends.wanted) ends.input.clear(pass.batch);
    for (ptrdiff_t n = 0; n < pass.batch; n += chunk) {
      const ptrdiff_t samples = std::min(chunk, pass.batch - n);
      if (pass.batch > chunk) {  // else they stand there from the forward pass
        unfold(ends.input, n, samples);
        affine_.resize(samples * places_);
      }
      slopes(ends.output, n, samples);
      affine_.backward(update, samples * places_, ends.wanted, n == 0, n + samples == pass.batch);
      if (ends.wanted) fold(ends.input, n, samples);
    }
  }

 private:
  // Samples whose patches are about as many numbers as the weights, so that neither is read much more often.
  ptrdiff_t at_once() const {
    const ptrdiff_t numbers = std::max<ptrdiff_t>(1 << 17, affine_.inputs * affine_.outputs / 2);
    return std::max<ptrdiff_t>(1, numbers / (places_ * affine_.inputs));
  }

  template <class Each>
  void each_patch(ptrdiff_t row, ptrdiff_t samples, Each each) const {
    const auto& g = geometry_;
    for (ptrdiff_t k = 0; k < samples; ++k)
      for (ptrdiff_t y = 0; y < made_.height; ++y)
        for (ptrdiff_t x = 0; x < made_.width; ++x)
          each(k, (k * made_.height + y) * made_.width + x, y * g.stride.y * row + x * g.stride.x * from_.channels);
  }

  void unfold(Maps& input, ptrdiff_t n, ptrdiff_t samples) {
    affine_.reserve(samples * places_);
    each_patch(input.row, samples, [&](ptrdiff_t k, ptrdiff_t patch, ptrdiff_t at) {
      const float* from = input.framed(n + k, geometry_.padding) + at;
      float* to = affine_.flat(patch);
      for (ptrdiff_t r = 0; r < geometry_.kernel.y; ++r, from += input.row, to += run_)
        std::memcpy(to, from, static_cast<size_t>(run_) * sizeof(float));
    });
  }

  // The input's gradients += the patches' ones.
  void fold(Maps& input, ptrdiff_t n, ptrdiff_t samples) const {
    each_patch(input.row, samples, [&](ptrdiff_t k, ptrdiff_t patch, ptrdiff_t at) {
      float* to = input.framed_gradients(n + k, geometry_.padding) + at;
      const float* from = affine_.change(patch);
      for (ptrdiff_t r = 0; r < geometry_.kernel.y; ++r, from += run_, to += input.row)
        for (ptrdiff_t i = 0; i < run_; ++i) to[i] += from[i];
    });
  }

  void slopes(Maps& output, ptrdiff_t n, ptrdiff_t samples) {
    for (ptrdiff_t k = 0; k < samples; ++k)
      for (ptrdiff_t y = 0; y < made_.height; ++y) {
        const float* dy = output.gradients(n + k) + y * output.row;
        const float* values = output.values(n + k) + y * output.row;
        for (ptrdiff_t o = 0; o < made_.channels; ++o) {
          float* to = affine_.results(o) + k * places_ + y * made_.width;
          for (ptrdiff_t x = 0, at = o; x < made_.width; ++x, at += made_.channels)
            to[x] = rectified_ && !(values[at] > 0) ? 0.0f : dy[at];
        }
      }
  }

  const Shape from_;
  const Geometry geometry_;
  const bool rectified_;
  const Shape made_;
  const ptrdiff_t places_, run_;
  Affine affine_;
};

}  // namespace pomona
