// Pooling as a layer of its own: the largest or the mean number of each window. Windows may overlap, and reach over the
// image's edge.
#pragma once

#include "maps.h"
#include "update.h"

namespace pomona {

class Pooling {
 public:
  // `mean`: of the numbers inside the image, or with `counted` of those of the padding too, which are 0.
  Pooling(Shape from, Shape to, Pair2 window, Pair2 hop, Pair2 padding, bool mean, bool counted)
      : from_(from), to_(to), window_(window), hop_(hop), padding_(padding), mean_(mean), counted_(counted) {}

  void forward(const Pass& pass, const Ends& ends) {
    if (!mean_) places_.resize(static_cast<size_t>(pass.batch * to_.height * to_.width * whole(to_.channels)));
    each(pass.batch, [&](ptrdiff_t n, ptrdiff_t at, Span y, Span x, ptrdiff_t place) {
      const float* from = ends.input.values(n);
      float* to = ends.output.values(n) + at / to_.width * ends.output.row + at % to_.width * to_.channels;
      for (ptrdiff_t c = 0; c < to_.channels; c += LANES)
        store(to + c, mean_ ? mean(from + c, ends.input.row, y, x) : largest(from + c, ends.input.row, y, x, place + c),
              to_.channels - c);
    });
  }

  void backward(const Update&, const Pass& pass, const Ends& ends) {
    if (!ends.wanted) return;
    ends.input.clear(pass.batch);
    each(pass.batch, [&](ptrdiff_t n, ptrdiff_t at, Span y, Span x, ptrdiff_t place) {
      float* dx = ends.input.gradients(n);
      const float* dy = ends.output.gradients(n) + at / to_.width * ends.output.row + at % to_.width * to_.channels;
      if (!mean_) {
        for (ptrdiff_t c = 0; c < to_.channels; ++c) dx[places_[place + c] + c] += dy[c];
        return;
      }
      const float share = 1.0f / count(y, x);
      for (ptrdiff_t i = y.begin; i < y.end; ++i)
        for (ptrdiff_t j = x.begin; j < x.end; ++j) {
          float* __restrict to = dx + i * ends.input.row + j * from_.channels;
          for (ptrdiff_t c = 0; c < to_.channels; ++c) to[c] += share * dy[c];
        }
    });
  }

 private:
  struct Span {
    ptrdiff_t begin, end;
  };

  // each(image, place in it, rows and columns of the window inside the image, where its places stand)
  template <class Each>
  void each(ptrdiff_t batch, Each each) const {
    for (ptrdiff_t n = 0; n < batch; ++n)
      for (ptrdiff_t y = 0; y < to_.height; ++y)
        for (ptrdiff_t x = 0; x < to_.width; ++x) {
          const ptrdiff_t at = y * to_.width + x;
          each(n, at, inside(y * hop_.y - padding_.y, window_.y, from_.height),
               inside(x * hop_.x - padding_.x, window_.x, from_.width),
               (n * to_.height * to_.width + at) * whole(to_.channels));
        }
  }

  static Span inside(ptrdiff_t begin, ptrdiff_t length, ptrdiff_t side) {
    return {std::max<ptrdiff_t>(begin, 0), std::min(begin + length, side)};
  }

  float count(Span y, Span x) const {
    return static_cast<float>(counted_ ? window_.y * window_.x : (y.end - y.begin) * (x.end - x.begin));
  }

  Vector mean(const float* from, ptrdiff_t row, Span y, Span x) const {
    Vector sum{};
    for (ptrdiff_t i = y.begin; i < y.end; ++i)
      for (ptrdiff_t j = x.begin; j < x.end; ++j) sum += load(from + i * row + j * from_.channels);
    return sum / count(y, x);
  }

  // As in PyTorch the first of equals counts, and what is no number is largest.
  Vector largest(const float* from, ptrdiff_t row, Span y, Span x, ptrdiff_t place) {
    const auto offset = [&](ptrdiff_t i, ptrdiff_t j) { return i * row + j * from_.channels; };
    Vector best = load(from + offset(y.begin, x.begin));
    Integers won = Integers{} + static_cast<int32_t>(offset(y.begin, x.begin));
    for (ptrdiff_t i = y.begin; i < y.end; ++i)
      for (ptrdiff_t j = x.begin; j < x.end; ++j) {
        const Vector here = load(from + offset(i, j));
        const Integers better = (here > best) | (here != here);
        best = better ? here : best;
        won = better ? Integers{} + static_cast<int32_t>(offset(i, j)) : won;
      }
    *reinterpret_cast<LooseIntegers*>(places_.data() + place) = won;
    return best;
  }

  const Shape from_, to_;
  const Pair2 window_, hop_, padding_;
  const bool mean_, counted_;
  Numbers<int32_t> places_;  // where in an image the largest number of each window stands
};

}  // namespace pomona
