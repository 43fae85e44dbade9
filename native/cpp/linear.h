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
    const Common common{1, static_cast<int>(inputs_)};
    const ptrdiff_t block = rows_at_once(batch);
    for (ptrdiff_t first = 0; first < outputs_; first += block)
      for (ptrdiff_t n = 0; n < wide; n += PANEL)
        // Few rows at a time: of a width that is a power of two they would all meet in one place of a cache.
        for (ptrdiff_t o = first; o < std::min(first + block, outputs_); o += FEW)
          product<float>(std::min({FEW, outputs_ - o, first + block - o}), std::min(PANEL, wide - n),
                         {row + weight_ + o * inputs_, inputs_, 1}, common, turned_.data() + n * inputs_,
                         std::min(PANEL, wide - n), results_.data() + o * wide + n, wide, false);
    for (ptrdiff_t first = 0; first < batch; first += PANEL)
      for (ptrdiff_t o = 0; o < outputs_; ++o) {
        const float bias = bias_ < 0 ? 0.0f : row[bias_ + o];
        for (ptrdiff_t n = first; n < std::min(first + PANEL, batch); ++n) {
          const float sum = results_[o * wide + n] + bias;
          output.values(n)[o] = rectified_ && sum < 0 ? 0.0f : sum;
        }
      }
  }

  // From the gradients at `output` to those at W and b, and at `input` where they are `wanted`.
  void backward(const Update& update, Maps& input, Maps& output, ptrdiff_t batch, bool wanted) {
    const ptrdiff_t wide = whole(batch);
    float* slopes = results_.data();  // (outputs, batch); what it held is in `output`
    for (ptrdiff_t first = 0; first < batch; first += PANEL)
      for (ptrdiff_t o = 0; o < outputs_; ++o)
        for (ptrdiff_t n = first; n < std::min(first + PANEL, batch); ++n)
          slopes[o * wide + n] = rectified_ && !(output.values(n)[o] > 0) ? 0.0f : output.gradients(n)[o];
    if (bias_ >= 0) {
      sums_.resize(static_cast<size_t>(outputs_));
      for (ptrdiff_t o = 0; o < outputs_; ++o) {
        float sum = 0;
        for (ptrdiff_t n = 0; n < batch; ++n) sum += slopes[o * wide + n];
        sums_[o] = sum;
      }
    }
    const bool learns = update.wants(weight_, outputs_ * inputs_);
    if (wanted) changes_.assign(static_cast<size_t>(batch * stride_), 0.0f);
    const ptrdiff_t block = rows_at_once(batch);
    block_.resize(static_cast<size_t>(block * stride_));
    for (ptrdiff_t o = 0; o < outputs_; o += block) {  // W is read for dx and changed while it is in the cache
      const ptrdiff_t rows = std::min(block, outputs_ - o);
      if (wanted) pull(update.row + weight_ + o * inputs_, slopes + o * wide, rows, wide, batch);
      if (!learns) continue;
      product<float>(rows, whole(inputs_), {slopes + o * wide, wide, 1}, {1, static_cast<int>(batch)}, flat_.data(),
                     stride_, block_.data(), stride_, false);
      for (ptrdiff_t i = 0; i < rows; ++i)
        update.apply(weight_ + (o + i) * inputs_, block_.data() + i * stride_, inputs_);
    }
    if (bias_ >= 0) update.apply(bias_, sums_.data(), outputs_);
    if (wanted) unflatten(input, batch);
  }

 private:
  static constexpr ptrdiff_t FEW = std::min(7, TALLEST);
  static constexpr ptrdiff_t PANEL = 2 * LANES;  // columns of a tile

  // Outputs that are worked on while their weights lie in a cache. In a large batch the rest is read once for each of
  // these blocks, and costs more than they do.
  static ptrdiff_t rows_at_once(ptrdiff_t batch) { return (batch < 64 ? 2 : 8) * TALLEST; }

  // The batch as rows (batch, inputs) in PyTorch's order of channels, height and width; and those turned, in panels
  // (inputs, PANEL), of which the last may be narrower.
  void flatten(Maps& input, ptrdiff_t batch) {
    const ptrdiff_t wide = whole(batch), places = from_.height * from_.width;
    flat_.resize(static_cast<size_t>(batch * stride_ + ROOM));
    turned_.resize(static_cast<size_t>(inputs_ * wide));
    for (ptrdiff_t n = 0; n < wide; ++n) {
      const ptrdiff_t panel = n / PANEL * PANEL, width = std::min(PANEL, wide - panel);
      float* turned = turned_.data() + panel * inputs_ + (n - panel);
      if (n >= batch) {  // lanes behind the batch may hold what an earlier one left
        for (ptrdiff_t i = 0; i < inputs_; ++i) turned[i * width] = 0;
        continue;
      }
      const float* x = input.values(n);
      float* flat = flat_.data() + n * stride_;
      for (ptrdiff_t c = 0; c < from_.channels; ++c)
        for (ptrdiff_t p = 0; p < places; ++p) {
          const float value = x[p * from_.channels + c];
          flat[c * places + p] = value;
          turned[(c * places + p) * width] = value;
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
