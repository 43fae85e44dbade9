// A linear layer, perhaps with ReLU behind it.
#pragma once

#include "affine.h"
#include "maps.h"

namespace pomona {

class Linear {
 public:
  Linear(Shape from, ptrdiff_t outputs, bool rectified, ptrdiff_t weight, ptrdiff_t bias)
      : from_(from), rectified_(rectified), affine_(from.size(), outputs, weight, bias) {}

  void forward(const Pass& pass, const Ends& ends) {
    affine_.reserve(pass.batch);
    for (ptrdiff_t n = 0; n < pass.batch; ++n) flatten(ends.input, n);
    affine_.forward(pass.row, pass.batch, pass.pairs, ends.output.values(0), ends.output.image);
    for (ptrdiff_t n = 0; n < pass.batch; ++n) {
      float* made = ends.output.values(n);
      for (ptrdiff_t o = 0; o < affine_.outputs; ++o) {
        const float sum = made[o] + affine_.bias(pass.row, o);
        made[o] = rectified_ && sum < 0 ? 0.0f : sum;
      }
    }
  }

  void backward(const Update& update, const Pass& pass, const Ends& ends) {
    for (ptrdiff_t n = 0; n < pass.batch; ++n) {
      const float *dy = ends.output.gradients(n), *made = ends.output.values(n);
      float* __restrict slopes = affine_.slopes(n);
      for (ptrdiff_t o = 0; o < affine_.outputs; ++o) slopes[o] = rectified_ && !(made[o] > 0) ? 0.0f : dy[o];
    }
    affine_.learn(update, pass.batch, ends.wanted);
    if (!ends.wanted) return;
    ends.input.clear(pass.batch);
    for (ptrdiff_t n = 0; n < pass.batch; ++n) unflatten(ends.input, n);
  }

 private:
  // A sample as a row, in PyTorch's order of channels, height and width. The map may have a frame.
  void flatten(Maps& input, ptrdiff_t n) {
    const ptrdiff_t places = from_.height * from_.width;
    float* flat = affine_.flat(n);
    for (ptrdiff_t y = 0; y < from_.height; ++y) {
      const float* x = input.values(n) + y * input.row;
      for (ptrdiff_t c = 0; c < from_.channels; ++c)
        for (ptrdiff_t p = 0; p < from_.width; ++p) flat[c * places + y * from_.width + p] = x[p * from_.channels + c];
    }
  }

  void unflatten(Maps& input, ptrdiff_t n) {
    const ptrdiff_t places = from_.height * from_.width;
    const float* change = affine_.change(n);
    for (ptrdiff_t y = 0; y < from_.height; ++y) {
      float* dx = input.gradients(n) + y * input.row;
      for (ptrdiff_t p = 0; p < from_.width; ++p)
        for (ptrdiff_t c = 0; c < from_.channels; ++c) dx[p * from_.channels + c] += change[c * places + y * from_.width + p];
    }
  }

  const Shape from_;
  const bool rectified_;
  Affine affine_;
};

}  // namespace pomona
