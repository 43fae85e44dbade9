// A convolution, perhaps with max-pooling and ReLU behind it.
//
// Forward, the images are the left factor of a product with the turned weights.
#pragma once

#include <optional>

#include "sparse.h"
#include "tiles.h"
#include "update.h"
#include "winners.h"
#include "winograd.h"

namespace pomona {

class Convolution {
 public:
  // `weight`, `bias`: where W (outputs, kernel's height, width, channels) and b (outputs) begin in a row; -1 for none.
  // `dense`: gradients at the outputs are seldom zero.
  Convolution(Shape from, ptrdiff_t outputs, Geometry geometry, bool rectified, bool dense, ptrdiff_t weight,
              ptrdiff_t bias)
      : from_(from),
        geometry_(geometry),
        rectified_(rectified),
        weight_(weight),
        bias_(bias),
        made_(geometry.made(from, outputs)),
        lane_outputs_(whole(outputs)),
        runs_(geometry.kernel.y),
        run_(geometry.kernel.x * from.channels),
        taps_(runs_ * run_),
        pairs_fit_(from.channels % 2 == 0),
        sparse_(from, made_, to(), geometry),
        winners_{geometry, to(), run_, geometry.stride.x * from.channels} {
    if (dense) dense_.emplace(from, made_, geometry);
    if (Winograd::fits(from, made_, geometry)) winograd_.emplace(from, made_, geometry);
  }

  Shape to() const {
    return {(made_.height - geometry_.window.y) / geometry_.hop.y + 1,
            (made_.width - geometry_.window.x) / geometry_.hop.x + 1, made_.channels};
  }

  void forward(const Pass& pass, const Ends& ends) {
    // Channels that do not divide into pairs are few; of pairs, only matrix tiles are faster than Winograd's algorithm.
    if (pass.pairs && pairs_fit_ && (MATRIX_TILES || !winograd_))
      forward<Pair, PAIRED>(pass, ends, false, turned_pairs_, [&](const float* from, ptrdiff_t count) {
        pairs_.resize(static_cast<size_t>(whole(ceil_div(count, PAIRED))));
        return paired(from, count, pairs_.data());
      });
    else
      forward<float, 1>(pass, ends, winograd_.has_value(), turned_, [](const float* from, ptrdiff_t) { return from; });
  }

  void backward(const Update& update, const Pass& pass, const Ends& ends) {
    auto& [input, beside, output, wanted, wanted_beside] = ends;
    const Pair2 padding = geometry_.padding;
    const ptrdiff_t batch = pass.batch, wide = whole(run_), windows = output.shape.height * output.shape.width;
    const bool learns = update.wants(weight_, made_.channels * taps_), chosen = learns && !dense_ && winners_.fit();
    const bool gathers = learns && !dense_ && !chosen;
    gradient_.assign(static_cast<size_t>(made_.channels * runs_ * wide), 0.0f);
    bias_gradient_.assign(static_cast<size_t>(lane_outputs_), 0.0f);
    if (chosen) turned_.assign(static_cast<size_t>(taps_ * lane_outputs_), 0.0f);
    if (wanted) {
      dense_ ? dense_->turn(update.row + weight_) : sparse_.turn(update.row + weight_);
      input.clear(batch);
    }
    const ptrdiff_t chunk = sparse_.at_once(input.row);
    for (ptrdiff_t n = 0; n < batch; n += chunk) {
      sparse_.begin(chunk);
      for (ptrdiff_t k = n; k < std::min(n + chunk, batch); ++k) {
        passed(output, k);
        const float* slopes = passed_.data();
        const uint8_t* won = places_.data() + k * windows * lane_outputs_;
        if (chosen) winners_.weigh(input.framed(k, padding), input.row, slopes, won, turned_.data());
        if (learns && dense_) dense_->weigh(input, k, slopes, gradient_.data());
        if (wanted && dense_) dense_->pull(input, k, slopes);
        if (!dense_ && (wanted || gathers)) sparse_.collect(input.row, (k - n) * input.image, slopes, won, wanted);
        if (!dense_ && wanted) sparse_.pull(input.framed_gradients(k, padding), input.row);
      }
      if (gathers) sparse_.weigh(input.framed(n, padding), input.row, gradient_.data());
    }
    if (chosen) turn_back();
    for (ptrdiff_t o = 0; o < made_.channels; ++o)
      for (ptrdiff_t r = 0; r < runs_; ++r)
        update.apply(weight_ + (o * runs_ + r) * run_, gradient_.data() + (r * made_.channels + o) * wide, run_);
    if (bias_ >= 0) update.apply(bias_, bias_gradient_.data(), made_.channels);
  }

 private:
  // `factor(from, count)`: numbers as products take them, `per` in one T. `tiles`: of floats, by Winograd's algorithm.
  template <typename T, ptrdiff_t per, class Factor>
  void forward(const Pass& pass, const Ends& ends, bool tiles, Numbers<T>& turned, Factor factor) {
    Maps &input = ends.input, &output = ends.output;
    const Shape to = output.shape;
    const auto& g = geometry_;
    const ptrdiff_t sums_row = made_.width * lane_outputs_;
    turn(factor(pass.row + weight_, made_.channels * taps_), taps_ / per, turned);
    if constexpr (std::is_same_v<T, float>)
      if (tiles) winograd_->turn(turned.data());
    const ptrdiff_t group = tiles ? winograd_->images() : 1;
    kept_ = tiles ? group * made_.height : g.window.y;  // rows take turns, in a first cache
    sums_.resize(static_cast<size_t>(kept_ * sums_row));
    places_.resize(static_cast<size_t>(pass.batch * to.height * to.width * lane_outputs_));
    const Common common{static_cast<int>(runs_), static_cast<int>(run_ / per)};
    const auto pool = g.window.y == 2 && g.window.x == 2 ? &Convolution::pool<2> : &Convolution::pool<0>;
    for (ptrdiff_t n = 0; n < pass.batch; ++n) {
      // The patches of a row are the left factor: they overlap in the framed image, where nothing is copied.
      const T* image = factor(input.framed(n, g.padding), input.behind(g.padding));
      const ptrdiff_t first = n % group * made_.height;  // row of sums of the image
      if constexpr (std::is_same_v<T, float>)
        if (tiles && first == 0)
          winograd_->multiply(image, std::min(group, pass.batch - n), input.image, input.row, sums_.data());
      ptrdiff_t ready = tiles ? made_.height : 0;
      for (ptrdiff_t y = 0; y < to.height; ++y) {
        for (; ready < y * g.hop.y + g.window.y; ++ready)
          product<T>(made_.width, lane_outputs_,
                     {image + ready * g.stride.y * input.row / per, g.stride.x * from_.channels / per, 1, input.row / per},
                     common, {turned.data(), lane_outputs_, common.length * lane_outputs_},
                     sums_.data() + ready % kept_ * sums_row, lane_outputs_, false);
        for (ptrdiff_t x = 0; x < to.width; ++x)
          (this->*pool)(pass.row, (first + y * g.hop.y) % kept_, x, output.values(n) + y * output.row + x * to.channels,
               places_.data() + ((n * to.height + y) * to.width + x) * lane_outputs_);
      }
    }
  }

  // The weights (outputs, taps), numbers or pairs, as (taps, outputs) in whole vectors with zeros behind.
  template <typename T>
  void turn(const T* weights, ptrdiff_t taps, Numbers<T>& turned) const {
    turned.resize(static_cast<size_t>(taps * lane_outputs_));
    const auto* W = reinterpret_cast<const float*>(weights);
    auto* to = reinterpret_cast<float*>(turned.data());
    for (ptrdiff_t o = 0; o < lane_outputs_; o += LANES)
      for (ptrdiff_t k = 0; k < taps; k += LANES) {
        Vector square[LANES];
#pragma GCC unroll 16
        for (ptrdiff_t i = 0; i < LANES; ++i)
          square[i] = o + i < made_.channels ? load(W + (o + i) * taps + k, taps - k) : Vector{};
        transpose(square);
#pragma GCC unroll 16
        for (ptrdiff_t i = 0; i < LANES; ++i)
          if (k + i < taps) store(to + (k + i) * lane_outputs_ + o, square[i]);
      }
  }

  // The largest number of a window, its place in the window, then bias and ReLU. As in PyTorch the first of equals
  // counts, and what is no number is largest. Adding a bias never changes which is largest. `first`: of its rows.
  template <int SIDE>
  void pool(const float* row, ptrdiff_t first, ptrdiff_t x, float* result, uint8_t* places) const {
    const auto& g = geometry_;
    const float* columns = sums_.data() + x * g.hop.x * lane_outputs_;
    for (ptrdiff_t o = 0; o < made_.channels; o += LANES) {
      Vector best = load(columns + first * made_.width * lane_outputs_ + o);
      Integers place{};
#pragma GCC unroll 2
      for (ptrdiff_t wy = 0; wy < (SIDE ? SIDE : g.window.y); ++wy)
#pragma GCC unroll 2
        for (ptrdiff_t wx = 0; wx < (SIDE ? SIDE : g.window.x); ++wx) {
          const ptrdiff_t turn = first + wy < kept_ ? first + wy : first + wy - kept_;
          const Vector here = load(columns + (turn * made_.width + wx) * lane_outputs_ + o);
          const Integers better = (here > best) | (here != here);
          best = better ? here : best;
          place = better ? Integers{} + static_cast<int32_t>(wy * (SIDE ? SIDE : g.window.x) + wx) : place;
        }
      if (bias_ >= 0) best += load(row + bias_ + o, made_.channels - o);
      if (rectified_) best = best < 0 ? Vector{} : best;
      store(result + o, best, made_.channels - o);
      const Bytes small = __builtin_convertvector(place, Bytes);
      std::memcpy(places + o, &small, sizeof small);
    }
  }

  // What ReLU lets through of an image's gradients (places, outputs), in whole vectors; the bias's gradient += it.
  void passed(Maps& output, ptrdiff_t n) {
    const Shape to = output.shape;
    passed_.resize(static_cast<size_t>(to.height * to.width * lane_outputs_));
    for (ptrdiff_t y = 0; y < to.height; ++y)
      for (ptrdiff_t x = 0; x < to.width; ++x) {
        const float* dy = output.gradients(n) + y * output.row + x * to.channels;
        const float* values = output.values(n) + y * output.row + x * to.channels;
        float* kept = passed_.data() + (y * to.width + x) * lane_outputs_;
        // In whole vectors: lanes behind the last channel hold what comes next in memory, and are never used.
        for (ptrdiff_t o = 0; o < lane_outputs_; o += LANES) {
          const Vector value = !rectified_ ? load(dy + o) : load(values + o) > 0 ? load(dy + o) : Vector{};
          store(kept + o, value);
          store(bias_gradient_.data() + o, load(bias_gradient_.data() + o) + value);
        }
      }
  }

  // The weights' gradient from (taps, outputs), as winners give it, to (runs, outputs, run), each run in whole vectors.
  void turn_back() {
    for (ptrdiff_t t = 0; t < taps_; ++t)
      for (ptrdiff_t o = 0; o < made_.channels; ++o)
        gradient_[(t / run_ * made_.channels + o) * whole(run_) + t % run_] = turned_[t * lane_outputs_ + o];
  }

  const Shape from_;
  const Geometry geometry_;
  const bool rectified_;
  const ptrdiff_t weight_, bias_;
  const Shape made_;  // by the convolution, before pooling
  const ptrdiff_t lane_outputs_;
  const ptrdiff_t runs_, run_, taps_;  // in a row of the image, the numbers under a row of the kernel stand together
  const bool pairs_fit_;
  std::optional<Dense> dense_;
  std::optional<Winograd> winograd_;
  ptrdiff_t kept_ = 0;  // rows of sums
  Sparse sparse_;
  const Winners winners_;
  Numbers<float> turned_, sums_, gradient_, bias_gradient_, passed_;
  Numbers<Pair> turned_pairs_, pairs_;
  Numbers<uint8_t> places_;
};

}  // namespace pomona
