// Rows times a matrix, y = x W^T + b: what linear layers and convolutions of many channels have in common.
//
// W, the larger of the two in deep layers, is read as it stands in the row of parameters: once forward, along the
// inputs, and once backward, where it takes its step while it lies in registers.
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
        slope_stride_(whole(outputs) + LANES),
        weight_(weight),
        bias_(bias) {}

  const ptrdiff_t inputs, outputs;

  // Row `n` of as many as `reserve` made room for, and the gradients at its outputs.
  void reserve(ptrdiff_t rows) {
    flat_.resize(static_cast<size_t>(rows * stride_ + LANES));
    slopes_.resize(static_cast<size_t>(rows * slope_stride_));
  }
  float* flat(ptrdiff_t n) { return flat_.data() + n * stride_; }
  float* slopes(ptrdiff_t n) { return slopes_.data() + n * slope_stride_; }
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
    multiply<float, true>(row + weight_, flat(0), rows, results(0), wide_);
  }

  // As rows (outputs), so far apart; `pairs`: of numbers rounded to bf16.
  void forward(const float* row, ptrdiff_t rows, bool pairs, float* made, ptrdiff_t made_row) {
    if (!pairs) return multiply<float, false>(row + weight_, flat(0), rows, made, made_row);
    paired_.resize(static_cast<size_t>(rows * stride_));
    for (ptrdiff_t n = 0; n < rows; ++n) paired(flat(n), inputs, paired_.data() + n * stride_);
    multiply<Pair, false>(row + weight_, paired_.data(), rows, made, made_row);
  }

  // As `learn`, from the gradients in `results`.
  void backward(const Update& update, ptrdiff_t rows, bool wanted, bool first, bool last) {
    for (ptrdiff_t n = 0; n < rows; ++n)
      for (ptrdiff_t o = 0; o < outputs; ++o) slopes(n)[o] = results(o)[n];
    learn(update, rows, wanted, first, last);
  }

  // From the gradients in `slopes` to those at W and b, and in `change` at the rows where they are `wanted`. Rows may
  // come in several parts, of which only the `last` hands the sum of gradients on.
  void learn(const Update& update, ptrdiff_t rows, bool wanted, bool first = true, bool last = true) {
    if (bias_ >= 0) add_biases(update, rows, first, last);
    narrow_.resize(static_cast<size_t>(rows * ABREAST));
    if (wanted) changes_.assign(static_cast<size_t>(rows * stride_), 0.0f);
    const bool learns = update.wants(weight_, outputs * inputs);
    const bool direct = last && update.takes(weight_, outputs * inputs);  // no sums, but a step of W at once
    if (learns && !(first && direct)) sums_.resize(static_cast<size_t>(outputs * stride_));
    // So many columns that they stay in a cache, for all outputs.
    const ptrdiff_t most = std::clamp<ptrdiff_t>(CACHED / 4 / std::max<ptrdiff_t>(rows, 1), LANES, 512) / LANES * LANES;
    for (ptrdiff_t j = 0; j < inputs; j += most)
      for (ptrdiff_t o = 0; o < outputs; o += ABREAST) {
        const ptrdiff_t some = std::min(ABREAST, outputs - o), columns = std::min(most, inputs - j);
        const ptrdiff_t at = weight_ + o * inputs + j, sum = o * stride_ + j;
        const Strip strip{update, at, rows, columns, j, o, first ? nullptr : sums_.data() + sum,
                          direct ? nullptr : sums_.data() + sum};
        if (wanted && learns) strip_of<true, true>(some, strip);
        if (wanted && !learns) strip_of<true, false>(some, strip);
        if (!wanted && learns) strip_of<false, true>(some, strip);
        if (!learns || !last || direct) continue;
        for (ptrdiff_t i = 0; i < some; ++i) update.apply(at + i * inputs, sums_.data() + sum + i * stride_, columns);
      }
  }

 private:
  static constexpr ptrdiff_t ABREAST = std::min(8, TALLEST);  // outputs of a strip
  static constexpr ptrdiff_t CACHED = 1 << 17;                // numbers of rows that are used again and again

  // made (rows, outputs), or (outputs, rows) if `turned` = the rows times W, as T.
  template <typename T, bool turned>
  void multiply(const float* W, const T* flat, ptrdiff_t rows, float* made, ptrdiff_t made_row) {
    constexpr bool pairs = std::is_same_v<T, Pair>;
    const ptrdiff_t most = std::max<ptrdiff_t>(2 * EDGE, CACHED / inputs);
    const ptrdiff_t length = pairs ? whole(ceil_div(inputs, 2)) : inputs;
    if (pairs) factor_.resize(static_cast<size_t>(EDGE * stride_));
    for (ptrdiff_t first = 0; first < rows; first += most)
      for (ptrdiff_t o = 0; o < outputs; o += EDGE) {
        const ptrdiff_t some = std::min<ptrdiff_t>(EDGE, outputs - o), count = std::min(most, rows - first);
        const T *weights[EDGE], *others[EDGE];
        for (ptrdiff_t i = 0; i < some; ++i)
          if constexpr (pairs)
            weights[i] = paired(W + (o + i) * inputs, inputs, factor_.data() + i * stride_);
          else
            weights[i] = W + (o + i) * inputs;
        const ptrdiff_t pieces = ceil_div(count, EDGE);
        for (ptrdiff_t piece = 0; piece < pieces; ++piece) {  // of nearly the same height
          const ptrdiff_t n = first + count * piece / pieces, height = first + count * (piece + 1) / pieces - n;
          for (ptrdiff_t i = 0; i < height && turned; ++i) others[i] = flat + (n + i) * stride_;
          if constexpr (turned)
            dots_of(some, height, weights[0], inputs, others, length, made + o * made_row + n, made_row);
          else
            dots_of(height, some, flat + n * stride_, stride_, weights, length, made + n * made_row + o, made_row);
        }
      }
  }

  void add_biases(const Update& update, ptrdiff_t rows, bool first, bool last) {
    if (first) biases_.assign(static_cast<size_t>(outputs), 0.0f);
    for (ptrdiff_t n = 0; n < rows; ++n)
      for (ptrdiff_t o = 0; o < outputs; ++o) biases_[static_cast<size_t>(o)] += slopes(n)[o];
    if (last) update.apply(bias_, biases_.data(), outputs);
  }

  // Some columns of a few outputs' weights, which begin at number `at`, for all rows. Sums of gradients go on from
  // `before`, null for zero, and to `after`, null for a step of W at once.
  struct Strip {
    const Update& update;
    ptrdiff_t at, rows, columns, column, output;
    const float* before;
    float* after;
  };

  // changes (rows, columns) += slopes (rows, M) W (M, columns), and sums (M, columns) of the slopes times the rows: W is
  // read once for both.
  template <bool PULLS, bool LEARNS, int M>
  void strip(Strip s) {  // a copy, as of the other members: what vectors are stored to could be them
    const Update update = s.update;
    const ptrdiff_t inputs = this->inputs, stride = stride_;
    const float* rows = flat(0) + s.column;
    float* slopes = narrow_.data();  // close together, not each row's in another page of memory
    for (ptrdiff_t n = 0; n < s.rows; ++n) std::copy_n(this->slopes(n) + s.output, M, slopes + n * M);
    float* changes = changes_.data() + s.column;
    for (ptrdiff_t j = 0; j < s.columns; j += LANES) {
      const ptrdiff_t rest = s.columns - j;
      Vector weights[M], sums[M];
#pragma GCC unroll 16
      for (int k = 0; k < M; ++k) {
        if (PULLS) weights[k] = load(update.row + s.at + k * inputs + j, rest);
        sums[k] = LEARNS && s.before ? load(s.before + k * stride + j) : Vector{};
      }
      for (ptrdiff_t n = 0; n < s.rows; ++n) {
        const Vector x = load(rows + n * stride + j);
        Vector change = PULLS ? load(changes + n * stride + j) : Vector{};
#pragma GCC unroll 16
        for (int k = 0; k < M; ++k) {
          const float slope = slopes[n * M + k];
          if (LEARNS) sums[k] += slope * x;
          if (PULLS) change += slope * weights[k];
        }
        if (PULLS) store(changes + n * stride + j, change);
      }
#pragma GCC unroll 16
      for (int k = 0; k < M && LEARNS; ++k) {
        const ptrdiff_t at = s.at + k * inputs + j;
        if (s.after)
          store(s.after + k * stride + j, sums[k]);
        else
          update.apply(at, PULLS ? weights[k] : load(update.row + at, rest), sums[k], rest);
      }
    }
  }

  // As `strip`, for a number of outputs known at run time, 1 to ABREAST.
  template <bool PULLS, bool LEARNS, int M = ABREAST>
  void strip_of(ptrdiff_t some, const Strip& s) {
    if constexpr (M > 1)
      if (some < M) return strip_of<PULLS, LEARNS, M - 1>(some, s);
    strip<PULLS, LEARNS, M>(s);
  }

  const ptrdiff_t stride_, slope_stride_, weight_, bias_;
  ptrdiff_t wide_ = 0;
  Numbers<float> flat_, slopes_, results_, biases_, changes_, sums_, narrow_;
  Numbers<Pair> paired_, factor_;
};

}  // namespace pomona
