// Layers that take each number alone: activations, sums of two maps, dropout.
#pragma once

#include "functions.h"
#include "maps.h"
#include "update.h"

namespace pomona {

// each(n, y, length) for all rows of all images.
template <class Each>
inline void each_row(Shape shape, ptrdiff_t batch, Each each) {
  for (ptrdiff_t n = 0; n < batch; ++n)
    for (ptrdiff_t y = 0; y < shape.height; ++y) each(n, y, shape.width * shape.channels);
}

template <class Function>
class Activation {
 public:
  explicit Activation(Shape shape) : shape_(shape) {}

  void forward(const Pass& pass, const Ends& ends) {
    each_row(shape_, pass.batch, [&](ptrdiff_t n, ptrdiff_t y, ptrdiff_t length) {
      const float* x = ends.input.values(n) + y * ends.input.row;
      float* to = ends.output.values(n) + y * ends.output.row;
      for (ptrdiff_t i = 0; i < length; i += LANES) store(to + i, Function::value(load(x + i)), length - i);
    });
  }

  void backward(const Update&, const Pass& pass, const Ends& ends) {
    if (!ends.wanted) return;
    ends.input.clear(pass.batch);
    each_row(shape_, pass.batch, [&](ptrdiff_t n, ptrdiff_t y, ptrdiff_t length) {
      const float* x = ends.input.values(n) + y * ends.input.row;
      const float* dy = ends.output.gradients(n) + y * ends.output.row;
      float* dx = ends.input.gradients(n) + y * ends.input.row;
      for (ptrdiff_t i = 0; i < length; i += LANES)
        store(dx + i, load(dx + i) + load(dy + i) * Function::slope(load(x + i)), length - i);
    });
  }

 private:
  const Shape shape_;
};

// The sum of two maps, perhaps with ReLU behind it.
class Sum {
 public:
  Sum(Shape shape, bool rectified) : shape_(shape), rectified_(rectified) {}

  void forward(const Pass& pass, const Ends& ends) {
    each_row(shape_, pass.batch, [&](ptrdiff_t n, ptrdiff_t y, ptrdiff_t length) {
      const float* a = ends.input.values(n) + y * ends.input.row;
      const float* b = ends.beside.values(n) + y * ends.beside.row;
      float* __restrict to = ends.output.values(n) + y * ends.output.row;
      for (ptrdiff_t i = 0; i < length; ++i) to[i] = rectified_ && a[i] + b[i] < 0 ? 0.0f : a[i] + b[i];
    });
  }

  void backward(const Update&, const Pass& pass, const Ends& ends) {
    if (ends.wanted) hand(ends.input, ends.output, pass.batch);
    if (ends.wanted_beside) hand(ends.beside, ends.output, pass.batch);
  }

 private:
  void hand(Maps& to, Maps& output, ptrdiff_t batch) const {
    to.clear(batch);
    each_row(shape_, batch, [&](ptrdiff_t n, ptrdiff_t y, ptrdiff_t length) {
      const float* dy = output.gradients(n) + y * output.row;
      const float* values = output.values(n) + y * output.row;
      float* __restrict dx = to.gradients(n) + y * to.row;
      for (ptrdiff_t i = 0; i < length; ++i) dx[i] += !rectified_ || values[i] > 0 ? dy[i] : 0.0f;
    });
  }

  const Shape shape_;
  const bool rectified_;
};

// Dropout: a call's masks hold the factors, 0 or 1 / (1 - p), which the caller draws. Without them nothing is dropped.
class Dropout {
 public:
  // `before`: numbers of a sample in the masks of earlier layers.
  Dropout(Shape shape, ptrdiff_t before) : shape_(shape), before_(before) {}

  void forward(const Pass& pass, const Ends& ends) {
    each_row(shape_, pass.batch, [&](ptrdiff_t n, ptrdiff_t y, ptrdiff_t length) {
      const float* x = ends.input.values(n) + y * ends.input.row;
      const float* factors = mask(pass, n, y);
      float* __restrict to = ends.output.values(n) + y * ends.output.row;
      for (ptrdiff_t i = 0; i < length; ++i) to[i] = factors ? x[i] * factors[i] : x[i];
    });
  }

  void backward(const Update&, const Pass& pass, const Ends& ends) {
    if (!ends.wanted) return;
    ends.input.clear(pass.batch);
    each_row(shape_, pass.batch, [&](ptrdiff_t n, ptrdiff_t y, ptrdiff_t length) {
      const float* dy = ends.output.gradients(n) + y * ends.output.row;
      const float* factors = mask(pass, n, y);
      float* __restrict dx = ends.input.gradients(n) + y * ends.input.row;
      for (ptrdiff_t i = 0; i < length; ++i) dx[i] += factors ? dy[i] * factors[i] : dy[i];
    });
  }

 private:
  const float* mask(const Pass& pass, ptrdiff_t n, ptrdiff_t y) const {
    if (!pass.masks) return nullptr;
    return pass.masks + before_ * pass.batch + n * shape_.size() + y * shape_.width * shape_.channels;
  }

  const Shape shape_;
  const ptrdiff_t before_;
};

}  // namespace pomona
