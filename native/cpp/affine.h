// Rows times a matrix, y = x W^T + b: what linear layers and convolutions of many channels have in common.
//
// W is the left factor as it stands in the row of parameters; the rows are turned. So W, which is the larger of the
// two in deep layers, is read once forward, and once backward, where it takes its step while it lies in the cache.
#pragma once

#include "product.h"
#include "update.h"

namespace pomona {

class Affine {
 public:
  // `weight`, `bias`: where W (outputs, inputs) and b (outputs) begin in a row; bias -1 for none.
  Affine(ptrdiff_t inputs, ptrdiff_t outputs, ptrdiff_t weight, ptrdiff_t bias)
      : inputs(inputs),
        outputs(outputs),
        stride_(whole(inputs) + LANES),  // no power of two, so that a column's numbers share no place in a cache
        weight_(weight),
        bias_(bias) {}

  const ptrdiff_t inputs, outputs;

  // Row `n` of as many as `reserve` made room for.
  void reserve(ptrdiff_t rows) { flat_.resize(static_cast<size_t>(rows * stride_ + LANES)); }
  float* flat(ptrdiff_t n) { return flat_.data() + n * stride_; }
  const float* change(ptrdiff_t n) const { return changes_.data() + n * stride_; }
  float bias(const float* row, ptrdiff_t o) const { return bias_ < 0 ? 0.0f : row[bias_ + o]; }

  // Output `o` of all rows, without its bias; before `backward` the gradients at them.
  float* results(ptrdiff_t o) { return results_.data() + o * wide_; }

  void resize(ptrdiff_t rows) {
    wide_ = whole(rows);
    results_.resize(static_cast<size_t>(outputs * wide_));
  }

  void forward(const float* row, ptrdiff_t rows) {
    resize(rows);
    turn(rows);
    const Common common{1, static_cast<int>(inputs)};
    const ptrdiff_t block = rows_at_once(rows);
    for (ptrdiff_t first = 0; first < outputs; first += block)
      for (ptrdiff_t n = 0; n < wide_; n += PANEL)
        // Few rows at a time: of a width that is a power of two they would all meet in one place of a cache.
        for (ptrdiff_t o = first; o < std::min(first + block, outputs); o += FEW)
          product<float>(std::min({FEW, outputs - o, first + block - o}), std::min(PANEL, wide_ - n),
                         {row + weight_ + o * inputs, inputs, 1}, common,
                         {turned_.data() + n * inputs, std::min(PANEL, wide_ - n)}, results_.data() + o * wide_ + n, wide_, false);
  }

  // From the gradients in `results` to those at W and b, and in `change` at the rows where they are `wanted`. Rows may
  // come in several parts, of which only the `last` hands the sum of gradients on.
  void backward(const Update& update, ptrdiff_t rows, bool wanted, bool first = true, bool last = true) {
    if (bias_ >= 0) add_biases(update, rows, first, last);
    const bool learns = update.wants(weight_, outputs * inputs), whole_batch = first && last;
    if (wanted) changes_.assign(static_cast<size_t>(rows * stride_), 0.0f);
    const ptrdiff_t block = rows_at_once(rows);
    if (learns) sums_.resize(static_cast<size_t>((whole_batch ? block : outputs) * stride_));
    for (ptrdiff_t o = 0; o < outputs; o += block) {
      const ptrdiff_t some = std::min(block, outputs - o);
      if (wanted) pull(update.row + weight_ + o * inputs, results(o), some, rows);
      if (!learns) continue;
      float* sums = sums_.data() + (whole_batch ? 0 : o) * stride_;
      weigh(results(o), some, rows, sums, !first);
      if (!last) continue;
      for (ptrdiff_t i = 0; i < some; ++i) update.apply(weight_ + (o + i) * inputs, sums + i * stride_, inputs);
    }
  }

 private:
  static constexpr ptrdiff_t FEW = std::min(7, TALLEST);
  static constexpr ptrdiff_t PANEL = 2 * LANES;  // columns of a tile
  static constexpr ptrdiff_t MANY = 64;          // rows

  // Outputs that are worked on while their weights lie in a cache. Of many rows the rest is read once for each of these
  // blocks, and costs more than they do.
  static ptrdiff_t rows_at_once(ptrdiff_t rows) { return (rows < MANY ? 2 : 8) * TALLEST; }

  // The rows turned, in panels (inputs, PANEL), of which the last may be narrower; lanes behind the last row are zero.
  void turn(ptrdiff_t rows) {
    turned_.resize(static_cast<size_t>(inputs * wide_));
    for (ptrdiff_t panel = 0; panel < wide_; panel += PANEL) {
      const ptrdiff_t width = std::min(PANEL, wide_ - panel), some = std::min(width, rows - panel);
      float* turned = turned_.data() + panel * inputs;
      for (ptrdiff_t begin = 0; begin < inputs; begin += LANES) {  // in blocks, so that no cache line is fetched twice
        const ptrdiff_t end = std::min(begin + LANES, inputs);
        for (ptrdiff_t n = 0; n < some; ++n)
          for (ptrdiff_t i = begin; i < end; ++i) turned[i * width + n] = flat(panel + n)[i];
        for (ptrdiff_t n = some; n < width; ++n)
          for (ptrdiff_t i = begin; i < end; ++i) turned[i * width + n] = 0;
      }
    }
  }

  void add_biases(const Update& update, ptrdiff_t rows, bool first, bool last) {
    if (first) biases_.assign(static_cast<size_t>(outputs), 0.0f);
    for (ptrdiff_t o = 0; o < outputs; ++o) {
      float sum = 0;
      for (ptrdiff_t n = 0; n < rows; ++n) sum += results(o)[n];
      biases_[static_cast<size_t>(o)] += sum;
    }
    if (last) update.apply(bias_, biases_.data(), outputs);
  }

  // sums (some, inputs) = or += slopes (some, rows) times the rows.
  void weigh(const float* slopes, ptrdiff_t some, ptrdiff_t rows, float* sums, bool add) {
    const Left<float> left{slopes, wide_, 1};
    const Common common{1, static_cast<int>(rows)};
    if (rows < MANY) return product<float>(some, whole(inputs), left, common, {flat_.data(), stride_}, sums, stride_, add);
    for (ptrdiff_t j = 0; j < inputs; j += PANEL) {
      const ptrdiff_t columns = std::min(PANEL, inputs - j);
      product<float>(some, whole(columns), left, common, {strip(flat_.data() + j, stride_, rows, columns), PANEL},
                     sums + j, stride_, add);
    }
  }

  // changes (rows, inputs) += slopes (some, rows)^T W (some, inputs), of some rows of W.
  void pull(const float* W, const float* slopes, ptrdiff_t some, ptrdiff_t rows) {
    const Left<float> left{slopes, 1, wide_};
    const Common common{1, static_cast<int>(some)};
    const ptrdiff_t sure = rows < MANY ? inputs / LANES * LANES : 0;
    if (sure) product<float>(rows, sure, left, common, {W, inputs}, changes_.data(), stride_, true);
    for (ptrdiff_t j = sure; j < inputs; j += PANEL) {  // a whole vector could read past the last row of W
      const ptrdiff_t columns = std::min(PANEL, inputs - j);
      product<float>(rows, whole(columns), left, common, {strip(W + j, inputs, some, columns), PANEL},
                     changes_.data() + j, stride_, true);
    }
  }

  // A few columns of some rows, copied close together, with zeros behind: where they stand each row begins in another
  // page of memory, which costs more than the copy if it is read by many tiles.
  const float* strip(const float* from, ptrdiff_t apart, ptrdiff_t rows, ptrdiff_t columns) {
    strip_.resize(static_cast<size_t>(rows * PANEL));
    for (ptrdiff_t i = 0; i < rows; ++i)
      for (ptrdiff_t j = 0; j < PANEL; j += LANES)
        store(strip_.data() + i * PANEL + j, load(from + i * apart + j, std::max<ptrdiff_t>(0, columns - j)));
    return strip_.data();
  }

  const ptrdiff_t stride_, weight_, bias_;
  ptrdiff_t wide_ = 0;
  Numbers<float> flat_, turned_, results_, biases_, changes_, sums_, strip_;
};

}  // namespace pomona
