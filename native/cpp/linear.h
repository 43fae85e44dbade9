// A linear layer, y = x W^T + b, perhaps with ReLU behind it.
#pragma once

#include "maps.h"
#include "product.h"
#include "update.h"

namespace pomona {

class Linear {
 public:
  // `weight`, `bias`: where W (outputs, inputs) and b (outputs) begin in a row; bias -1 for none.
  Linear(Shape from, ptrdiff_t outputs, bool rectified, ptrdiff_t weight, ptrdiff_t bias)
      : from_(from),
        inputs_(from.size()),
        outputs_(outputs),
        stride_(whole(inputs_) + LANES),  // no power of two, so that a column's numbers share no place in a cache
        rectified_(rectified),
        weight_(weight),
        bias_(bias) {}

  void forward(const float* row, Maps& input, Maps& output, ptrdiff_t batch) {
    flatten(input, batch);
    const ptrdiff_t wide = whole(batch);
    results_.resize(static_cast<size_t>(outputs_ * wide));
    const Left<float> weights{row + weight_, inputs_, 1};
    // Few rows at a time: of a width that is a power of two they would all meet in one place of a cache.
    for (ptrdiff_t o = 0; o < outputs_; o += FEW)
      product<float>(std::min(FEW, outputs_ - o), wide, {weights.at + o * inputs_, inputs_, 1},
                     {1, static_cast<int>(inputs_)}, turned_.data(), wide, results_.data() + o * wide, wide, false);
    for (ptrdiff_t n = 0; n < batch; ++n) {
      float* y = output.values(n);
      for (ptrdiff_t o = 0; o < outputs_; ++o) {
        const float sum = results_[o * wide + n] + (bias_ < 0 ? 0.0f : row[bias_ + o]);
        y[o] = rectified_ && sum < 0 ? 0.0f : sum;
      }
    }
  }

  // From the gradients at `output` to those at W and b, and at `input` where they are `wanted`.
  void backward(const Update& update, Maps& input, Maps& output, ptrdiff_t batch, bool wanted) {
    const ptrdiff_t wide = whole(batch);
    float* slopes = results_.data();  // (outputs, batch); what it held is in `output`
    for (ptrdiff_t n = 0; n < batch; ++n) {
      const float *dy = output.gradients(n), *y = output.values(n);
      for (ptrdiff_t o = 0; o < outputs_; ++o) slopes[o * wide + n] = rectified_ && !(y[o] > 0) ? 0.0f : dy[o];
    }
    if (bias_ >= 0) {
      sums_.resize(static_cast<size_t>(outputs_));
      for (ptrdiff_t o = 0; o < outputs_; ++o) {
        float sum = 0;
        for (ptrdiff_t n = 0; n < batch; ++n) sum += slopes[o * wide + n];
        sums_[o] = sum;
      }
    }
    if (wanted) changes_.assign(static_cast<size_t>(batch * stride_), 0.0f);
    const ptrdiff_t block = 2 * TALLEST;
    block_.resize(static_cast<size_t>(block * stride_));
    for (ptrdiff_t o = 0; o < outputs_; o += block) {  // W is read for dx and changed while it is in the cache
      const ptrdiff_t rows = std::min(block, outputs_ - o);
      if (wanted) pull(update.row + weight_ + o * inputs_, slopes + o * wide, rows, wide, batch);
      product<float>(rows, whole(inputs_), {slopes + o * wide, wide, 1}, {1, static_cast<int>(batch)}, flat_.data(),
                     stride_, block_.data(), stride_, false);
      for (ptrdiff_t i = 0; i < rows; ++i)
        update.apply(weight_ + (o + i) * inputs_, block_.data() + i * stride_, inputs_);
    }
    if (bias_ >= 0) update.apply(bias_, sums_.data(), outputs_);
    if (wanted) unflatten(input, batch);
  }

 private:
  static constexpr ptrdiff_t FEW = 7;

  // The batch as rows (batch, inputs) in PyTorch's order of channels, height and width; and those turned.
  void flatten(Maps& input, ptrdiff_t batch) {
    const ptrdiff_t wide = whole(batch), places = from_.height * from_.width;
    flat_.resize(static_cast<size_t>(batch * stride_ + ROOM));
    turned_.resize(static_cast<size_t>(inputs_ * wide));
    for (ptrdiff_t n = 0; n < wide; ++n) {
      if (n >= batch) {  // lanes behind the batch may hold what an earlier one left
        for (ptrdiff_t i = 0; i < inputs_; ++i) turned_[i * wide + n] = 0;
        continue;
      }
      const float* x = input.values(n);
      float* flat = flat_.data() + n * stride_;
      for (ptrdiff_t c = 0; c < from_.channels; ++c)
        for (ptrdiff_t p = 0; p < places; ++p) {
          const float value = x[p * from_.channels + c];
          flat[c * places + p] = value;
          turned_[(c * places + p) * wide + n] = value;
        }
    }
  }

  void unflatten(Maps& input, ptrdiff_t batch) {
    const ptrdiff_t places = from_.height * from_.width;
    for (ptrdiff_t n = 0; n < batch; ++n) {
      const float* change = changes_.data() + n * stride_;
      for (ptrdiff_t p = 0; p < places; ++p) {
        float* dx = input.gradients(n) + p * from_.channels;
        for (ptrdiff_t c = 0; c < from_.channels; ++c) dx[c] = change[c * places + p];
      }
    }
  }

  // changes (batch, inputs) += slopes (rows, batch)^T W (rows, inputs), of some rows of W.
  void pull(const float* W, const float* slopes, ptrdiff_t rows, ptrdiff_t wide, ptrdiff_t batch) {
    const Left<float> left{slopes, 1, wide};
    const ptrdiff_t sure = inputs_ / LANES * LANES;
    product<float>(batch, sure, left, {1, static_cast<int>(rows)}, W, inputs_, changes_.data(), stride_, true);
    if (sure == inputs_) return;
    rest_.assign(static_cast<size_t>(rows * LANES), 0.0f);  // the last columns: a whole vector would read past the row
    for (ptrdiff_t i = 0; i < rows; ++i)
      for (ptrdiff_t j = sure; j < inputs_; ++j) rest_[i * LANES + j - sure] = W[i * inputs_ + j];
    product<float>(batch, LANES, left, {1, static_cast<int>(rows)}, rest_.data(), LANES, changes_.data() + sure,
                   stride_, true);
  }

  const Shape from_;
  const ptrdiff_t inputs_, outputs_, stride_;
  const bool rectified_;
  const ptrdiff_t weight_, bias_;
  Numbers<float> flat_, turned_, results_, sums_, changes_, block_, rest_;
};

}  // namespace pomona
