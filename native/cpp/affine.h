// Rows times a matrix, y = x W^T + b: what linear layers and convolutions of many channels have in common.
//
// W, the larger of the two in deep layers, is read as it stands in the row of parameters: once forward, along the
// inputs, and for few rows once backward, where it takes its step while it lies in registers.
#pragma once

#include "product.h"
#include "update.h"

namespace pomona {

class Affine {
 public:
  // `weight`, `bias`: where W (outputs, inputs) and b (outputs) begin in a row; bias -1 for none. `rectified`: ReLU
  // follows.
  Affine(ptrdiff_t inputs, ptrdiff_t outputs, bool rectified, ptrdiff_t weight, ptrdiff_t bias)
      : inputs(inputs),
        outputs(outputs),
        rectified_(rectified),
        stride_(whole(inputs) + LANES),  // no power of two, so that a column's numbers share no place in a cache
        slope_stride_(whole(outputs) + LANES),
        weight_(weight),
        bias_(bias) {}

  const ptrdiff_t inputs, outputs;

  // Row `n` of as many as `reserve` made room for, and after `learn` the gradients at it.
  void reserve(ptrdiff_t rows) {
    flat_.resize(static_cast<size_t>(rows * stride_ + LANES));
    slopes_.resize(static_cast<size_t>(rows * slope_stride_));
    results_.resize(static_cast<size_t>(rows * outputs));
  }
  float* flat(ptrdiff_t n) { return flat_.data() + n * stride_; }
  const float* change(ptrdiff_t n) const { return changes_.data() + n * stride_; }

  // The rows' outputs, as `finish` takes them; `pairs`: of numbers rounded to bf16.
  void forward(const float* row, ptrdiff_t rows, bool pairs) {
    const float* W = row + weight_;
    if (!pairs) return multiply<float>(flat(0), rows, inputs, [&](ptrdiff_t o, ptrdiff_t) { return W + o * inputs; });
    paired_.resize(static_cast<size_t>((rows + WIDE) * stride_));
    for (ptrdiff_t n = 0; n < rows; ++n) paired(flat(n), inputs, paired_.data() + n * stride_);
    multiply<Pair>(paired_.data(), rows, whole(ceil_div(inputs, PAIRED)), [&](ptrdiff_t o, ptrdiff_t i) {
      return paired(W + o * inputs, inputs, paired_.data() + (rows + i) * stride_);
    });
  }

  // to (outputs,) = those of row `n`, with biases and behind ReLU.
  void finish(const float* row, ptrdiff_t n, float* __restrict to) const {
    for (ptrdiff_t o = 0; o < outputs; ++o) {
      const float sum = results_[n * outputs + o] + (bias_ < 0 ? 0.0f : row[bias_ + o]);
      to[o] = rectified_ && sum < 0 ? 0.0f : sum;
    }
  }

  // Takes the gradients at the outputs of row `n`, whose values decide what ReLU lets through.
  void receive(ptrdiff_t n, const float* values, const float* gradients) {
    float* __restrict slopes = slopes_.data() + n * slope_stride_;
    for (ptrdiff_t o = 0; o < outputs; ++o) slopes[o] = rectified_ && !(values[o] > 0) ? 0.0f : gradients[o];
  }

  // From the gradients received to those at W and b, and in `change` at the rows where they are `wanted`. Rows may come
  // in several parts, of which only the `last` hands the sum of gradients on.
  void learn(const Update& update, ptrdiff_t rows, bool wanted, bool first, bool last) {
    if (bias_ >= 0) add_biases(update, rows, first, last);
    if (wanted) changes_.assign(static_cast<size_t>(rows * stride_), 0.0f);
    const bool learns = update.wants(weight_, outputs * inputs);
    const bool direct = learns && first && last && update.takes(weight_, outputs * inputs);  // a step of W at once
    if (rows >= MANY || !direct) {
      const float* W = update.row + weight_;
      if (wanted) multiply_panels(rows, {slopes_.data(), slope_stride_, 1}, outputs, W, inputs, changes_.data(), false);
      if (learns) weigh(update, rows, first, last);
      return;
    }
    narrow_.resize(static_cast<size_t>(rows * ABREAST));
    constexpr ptrdiff_t COLUMNS = 512;  // stay in a cache for all outputs
    for (ptrdiff_t j = 0; j < inputs; j += COLUMNS)
      for (ptrdiff_t o = 0; o < outputs; o += ABREAST) {
        const ptrdiff_t end = std::min(j + COLUMNS, inputs);
        wanted ? strip_of<true>(update, o, rows, j, end) : strip_of<false>(update, o, rows, j, end);
      }
  }

 private:
  static constexpr ptrdiff_t ABREAST = std::min(8, TALLEST);  // outputs of a strip
  static constexpr ptrdiff_t CACHED = 1 << 17;                // numbers of rows that are used again and again
  static constexpr ptrdiff_t MANY = 32;                       // rows for which sums are better kept in registers

  // results (rows, outputs) = the rows, as T, times W, of whose outputs weights(o, i) are the i-th of some.
  template <typename T, class Weights>
  void multiply(const T* flat, ptrdiff_t rows, ptrdiff_t length, Weights weights) {
    const ptrdiff_t most = std::max<ptrdiff_t>(2 * HIGH, CACHED / inputs);
    for (ptrdiff_t first = 0; first < rows; first += most)
      for (ptrdiff_t o = 0; o < outputs; o += WIDE) {
        const ptrdiff_t some = std::min<ptrdiff_t>(WIDE, outputs - o), count = std::min(most, rows - first);
        const T* others[WIDE];
        for (ptrdiff_t i = 0; i < some; ++i) others[i] = weights(o + i, i);
        const ptrdiff_t pieces = ceil_div(count, HIGH);
        for (ptrdiff_t piece = 0; piece < pieces; ++piece) {  // of nearly the same height
          const ptrdiff_t n = first + count * piece / pieces, height = first + count * (piece + 1) / pieces - n;
          dots_of(height, some, flat + n * stride_, stride_, others, length, results_.data() + n * outputs + o, outputs);
        }
      }
  }

  void add_biases(const Update& update, ptrdiff_t rows, bool first, bool last) {
    if (first) biases_.assign(static_cast<size_t>(outputs), 0.0f);
    for (ptrdiff_t n = 0; n < rows; ++n)
      for (ptrdiff_t o = 0; o < outputs; ++o) biases_[static_cast<size_t>(o)] += slopes_[n * slope_stride_ + o];
    if (last) update.apply(bias_, biases_.data(), outputs);
  }

  // sums (outputs, inputs) = or += slopes (rows, outputs), turned, times the rows; a step of W by those of all parts.
  void weigh(const Update& update, ptrdiff_t rows, bool first, bool last) {
    sums_.resize(static_cast<size_t>(outputs * stride_));
    multiply_panels(outputs, {slopes_.data(), 1, slope_stride_}, rows, flat(0), stride_, sums_.data(), !first);
    for (ptrdiff_t o = 0; o < outputs && last; ++o)
      update.apply(weight_ + o * inputs, sums_.data() + o * stride_, inputs);
  }

  // c (rows, inputs) = or += left (rows, common) right (common, inputs), whose rows begin so far `apart`. A few columns
  // of `right` at a time are copied close together: where they stand, each row is in another page of memory.
  void multiply_panels(ptrdiff_t rows, Left<float> left, ptrdiff_t common, const float* right, ptrdiff_t apart, float* c,
                       bool add) {
    constexpr ptrdiff_t PANEL = 2 * LANES;
    panel_.resize(static_cast<size_t>(common * PANEL));
    for (ptrdiff_t j = 0; j < inputs; j += PANEL) {
      const ptrdiff_t columns = std::min(PANEL, inputs - j);
      for (ptrdiff_t l = 0; l < common; ++l)
        for (ptrdiff_t i = 0; i < columns; i += LANES)
          store(panel_.data() + l * PANEL + i, load(right + l * apart + j + i, columns - i));
      product<float>(rows, whole(columns), left, {1, static_cast<int>(common)}, {panel_.data(), PANEL}, c + j, stride_, add);
    }
  }

  // For the columns from `begin` to before `end` and M outputs from `o` on: changes (rows, columns) += slopes (rows, M)
  // W (M, columns), and a step of W by the slopes times the rows. W is read once for both.
  template <bool PULLS, int M>
  void strip(Update update, ptrdiff_t o, ptrdiff_t rows, ptrdiff_t begin, ptrdiff_t end) {
    // Copies, as the update is: what vectors are stored to could be the members.
    const ptrdiff_t inputs = this->inputs, stride = stride_, weight = weight_ + o * inputs;
    const float* x_rows = flat(0);
    float *changes = changes_.data(), *slopes = narrow_.data();  // close together, not each row's in another page of memory
    for (ptrdiff_t n = 0; n < rows; ++n) std::copy_n(slopes_.data() + n * slope_stride_ + o, M, slopes + n * M);
    for (ptrdiff_t j = begin; j < end; j += LANES) {
      const ptrdiff_t rest = end - j;
      Vector weights[M], sums[M];
#pragma GCC unroll 16
      for (int k = 0; k < M; ++k) {
        if (PULLS) weights[k] = load(update.row + weight + k * inputs + j, rest);
        sums[k] = Vector{};
      }
      for (ptrdiff_t n = 0; n < rows; ++n) {
        const Vector x = load(x_rows + n * stride + j);
        Vector change = PULLS ? load(changes + n * stride + j) : Vector{};
#pragma GCC unroll 16
        for (int k = 0; k < M; ++k) {
          const float slope = slopes[n * M + k];
          sums[k] += slope * x;
          if (PULLS) change += slope * weights[k];
        }
        if (PULLS) store(changes + n * stride + j, change);
      }
#pragma GCC unroll 16
      for (int k = 0; k < M; ++k) {
        const ptrdiff_t at = weight + k * inputs + j;
        update.apply(at, PULLS ? weights[k] : load(update.row + at, rest), sums[k], rest);
      }
    }
  }

  // As `strip`, for a number of outputs known at run time, 1 to ABREAST.
  template <bool PULLS, int M = ABREAST>
  void strip_of(const Update& update, ptrdiff_t o, ptrdiff_t rows, ptrdiff_t begin, ptrdiff_t end) {
    if constexpr (M > 1)
      if (outputs - o < M) return strip_of<PULLS, M - 1>(update, o, rows, begin, end);
    strip<PULLS, M>(update, o, rows, begin, end);
  }

  const bool rectified_;
  const ptrdiff_t stride_, slope_stride_, weight_, bias_;
  Numbers<float> flat_, slopes_, results_, biases_, changes_, sums_, narrow_, panel_;
  Numbers<Pair> paired_;
};

}  // namespace pomona
