// A convolution, perhaps with max-pooling and ReLU behind it.
//
// Forward, the images are the left factor of a product with the turned weights. Backward, most gradients are zero: of
// a window that is pooled one place has one, and ReLU leaves about half of those. So each that is not zero is taken
// alone: it adds a patch of the image to the weights' gradient, and a patch of weights to the image's.
#pragma once

#include <optional>

#include "dense.h"
#include "tiles.h"
#include "update.h"

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
        banded_(run_ < LANES && !dense && geometry.window.y * geometry.window.x * taps_ <= MOST_TAPS),
        pairs_fit_(from.channels % 2 == 0) {
    if (dense) dense_.emplace(from, made_, geometry);
  }

  Shape to() const {
    return {(made_.height - geometry_.window.y) / geometry_.hop.y + 1,
            (made_.width - geometry_.window.x) / geometry_.hop.x + 1, made_.channels};
  }

  void forward(const Pass& pass, const Ends& ends) {
    if (pass.pairs && pairs_fit_)  // if channels do not divide into pairs, they are few
      forward<Pair>(pass.row, ends.input, ends.output, pass.batch);
    else
      forward<float>(pass.row, ends.input, ends.output, pass.batch);
  }

  void backward(const Update& update, const Pass& pass, const Ends& ends) {
    auto& [input, beside, output, wanted, wanted_beside] = ends;
    const ptrdiff_t batch = pass.batch, wide = whole(run_);
    gradient_.assign(static_cast<size_t>(made_.channels * runs_ * wide), 0.0f);
    bias_gradient_.assign(static_cast<size_t>(lane_outputs_), 0.0f);
    if (banded_) turned_.assign(static_cast<size_t>(taps_ * lane_outputs_), 0.0f);
    if (wanted) {
      dense_ ? dense_->turn(update.row + weight_) : spread(update.row + weight_);
      input.clear(batch);
    }
    const bool learns = update.wants(weight_, made_.channels * taps_), gathers = learns && !dense_ && !banded_;
    const ptrdiff_t chunk = std::max<ptrdiff_t>(1, CACHED / input.image);
    for (ptrdiff_t n = 0; n < batch; n += chunk) {
      counts_.assign(static_cast<size_t>(made_.channels), 0);
      for (ptrdiff_t k = n; k < std::min(n + chunk, batch); ++k) {
        passed(output, k);
        if (learns && banded_) weigh_bands(input, k, output.shape);
        if (learns && dense_) dense_->weigh(input, k, passed_.data(), gradient_.data());
        if (wanted && dense_) dense_->pull(input, k, passed_.data());
        if (!dense_ && (wanted || gathers)) collect(input, output.shape, k, (k - n) * input.image, chunk, wanted);
        if (!dense_ && wanted) pull(input, k);
      }
      if (gathers) weigh(input, n, chunk * output.shape.height * output.shape.width);
    }
    if (banded_) turn_back();
    for (ptrdiff_t o = 0; o < made_.channels * runs_; ++o)
      update.apply(weight_ + o * run_, gradient_.data() + o * wide, run_);
    if (bias_ >= 0) update.apply(bias_, bias_gradient_.data(), made_.channels);
  }

 private:
  // A gradient that is not zero, and where what it is multiplied with begins: a patch of the image, or of weights.
  struct Slope {
    int32_t from;
    float value;
  };

  typedef uint8_t Bytes __attribute__((vector_size(LANES)));  // a place in a window for each lane

  static constexpr ptrdiff_t CACHED = 8192;  // numbers of images that are handled together: 32 KiB, a first cache
  static constexpr ptrdiff_t MOST_TAPS = 240;  // of all places of a window: of more, too much of a band is zero
  static constexpr int LONGEST = 12;         // vectors of sums at a time

  template <typename T>
  static constexpr ptrdiff_t PER = sizeof(T) / (std::is_same_v<T, float> ? 4 : 2);  // numbers in one T

  template <typename T>
  void forward(const float* row, Maps& input, Maps& output, ptrdiff_t batch) {
    const Shape to = output.shape;
    const auto& g = geometry_;
    const Numbers<T>& weights = turned<T>(row + weight_);
    sums_.resize(static_cast<size_t>(made_.height * made_.width * lane_outputs_));
    places_.resize(static_cast<size_t>(batch * to.height * to.width * lane_outputs_));
    const Common common{static_cast<int>(runs_), static_cast<int>(run_ / PER<T>)};
    for (ptrdiff_t n = 0; n < batch; ++n) {
      // The patches of a row are the left factor: they overlap in the framed image, where nothing is copied.
      const T* image = factor<T>(input, n);
      ptrdiff_t ready = 0;
      for (ptrdiff_t y = 0; y < to.height; ++y) {
        for (; ready < y * g.hop.y + g.window.y; ++ready)
          product<T>(made_.width, lane_outputs_,
                     {image + ready * g.stride.y * input.row / PER<T>, g.stride.x * from_.channels / PER<T>, 1,
                      input.row / PER<T>},
                     common,
                     {weights.data(), lane_outputs_, common.length * lane_outputs_}, sums_.data() + ready * made_.width * lane_outputs_,
                     lane_outputs_, false);
        for (ptrdiff_t x = 0; x < to.width; ++x)
          pool(row, y, x, output.values(n) + y * output.row + x * to.channels,
               places_.data() + ((n * to.height + y) * to.width + x) * lane_outputs_);
      }
    }
  }

  // The turned weights (taps, outputs) in whole vectors; for pairs, two taps beside each other.
  template <typename T>
  const Numbers<T>& turned(const float* W) {
    if constexpr (std::is_same_v<T, float>) {
      turned_.assign(static_cast<size_t>(taps_ * lane_outputs_), 0);
      for (ptrdiff_t k = 0; k < taps_; ++k)
        for (ptrdiff_t o = 0; o < made_.channels; ++o) turned_[k * lane_outputs_ + o] = W[o * taps_ + k];
      return turned_;
    } else {
      turned_pairs_.assign(static_cast<size_t>(taps_ / 2 * lane_outputs_), 0);
      for (ptrdiff_t k = 0; k < taps_ / 2; ++k)
        for (ptrdiff_t o = 0; o < made_.channels; ++o)
          turned_pairs_[k * lane_outputs_ + o] = pair(W[o * taps_ + 2 * k], W[o * taps_ + 2 * k + 1]);
      return turned_pairs_;
    }
  }

  // A framed image, as numbers or as pairs.
  template <typename T>
  const T* factor(Maps& input, ptrdiff_t n) {
    const float* at = input.framed(n, geometry_.padding);
    if constexpr (std::is_same_v<T, float>) {
      return at;
    } else {
      pairs_.resize(static_cast<size_t>(input.image / 2));
      for (ptrdiff_t i = 0; i < input.behind(geometry_.padding) / 2; ++i) pairs_[i] = pair(at[2 * i], at[2 * i + 1]);
      return pairs_.data();
    }
  }

  // The largest number of a window, its place in the window, then bias and ReLU. As in PyTorch the first of equals
  // counts, and what is no number is largest. Adding a bias never changes which is largest.
  void pool(const float* row, ptrdiff_t y, ptrdiff_t x, float* result, uint8_t* places) const {
    const auto& g = geometry_;
    const float* first = sums_.data() + (y * g.hop.y * made_.width + x * g.hop.x) * lane_outputs_;
    for (ptrdiff_t o = 0; o < made_.channels; o += LANES) {
      Vector best = load(first + o);
      Integers place{};
      for (ptrdiff_t wy = 0; wy < g.window.y; ++wy)
        for (ptrdiff_t wx = 0; wx < g.window.x; ++wx) {
          const Vector here = load(first + (wy * made_.width + wx) * lane_outputs_ + o);
          const Integers better = (here > best) | (here != here);
          best = better ? here : best;
          place = better ? Integers{} + static_cast<int32_t>(wy * g.window.x + wx) : place;
        }
      if (bias_ >= 0) best += load(row + bias_ + o, made_.channels - o);
      if (rectified_) best = best < 0 ? Vector{} : best;
      store(result + o, best, made_.channels - o);
      const Bytes small = __builtin_convertvector(place, Bytes);
      std::memcpy(places + o, &small, sizeof small);
    }
  }

  // The gradients of an image that are not zero: for each output channel those of a chunk of images, with where their
  // patch begins from the chunk's first on; and, where `pulls`, for each place of the convolution those of its
  // channels, with where their weights begin.
  void collect(Maps& input, Shape to, ptrdiff_t n, ptrdiff_t begin, ptrdiff_t chunk, bool pulls) {
    const auto& g = geometry_;
    const ptrdiff_t most = chunk * to.height * to.width, places = made_.height * made_.width;
    const ptrdiff_t across = g.stride.x * from_.channels, down = g.stride.y * input.row;  // from patch to patch
    slopes_.resize(static_cast<size_t>(made_.channels * most));
    // The most gradients that meet at one place of the convolution: of each channel, from all windows that it lies in.
    const ptrdiff_t meet = made_.channels * ceil_div(g.window.y, g.hop.y) * ceil_div(g.window.x, g.hop.x);
    if (pulls) {
      pulls_.resize(static_cast<size_t>(places * meet));
      pull_counts_.assign(static_cast<size_t>(places), 0);
    }
    int32_t patch[256], place[256];  // by the place in a window
    for (ptrdiff_t w = 0; w < g.window.y * g.window.x; ++w) {
      patch[w] = static_cast<int32_t>(w / g.window.x * down + w % g.window.x * across);
      place[w] = static_cast<int32_t>(w / g.window.x * made_.width + w % g.window.x);
    }
    for (ptrdiff_t o = 0; o < made_.channels; ++o) {
      Slope* slopes = slopes_.data() + o * most;
      ptrdiff_t count = counts_[o];
      const auto weights = static_cast<int32_t>(o * runs_ * whole(run_));
      for (ptrdiff_t y = 0; y < to.height; ++y) {
        const float* dy = passed_.data() + y * to.width * lane_outputs_ + o;
        const uint8_t* won = places_.data() + (n * to.height + y) * to.width * lane_outputs_ + o;
        for (ptrdiff_t x = 0; x < to.width; ++x) {
          const float value = dy[x * lane_outputs_];
          const uint8_t w = won[x * lane_outputs_];
          // Written in any case, kept if it is not zero: a branch would be guessed wrong half the time.
          const bool kept = bits_of(value) << 1;
          slopes[count] = {static_cast<int32_t>(begin + y * g.hop.y * down + x * g.hop.x * across) + patch[w], value};
          count += kept;
          if (pulls) {
            const ptrdiff_t at = y * g.hop.y * made_.width + x * g.hop.x + place[w];
            pulls_[at * meet + pull_counts_[at]] = {weights, value};
            pull_counts_[at] += kept;
          }
        }
      }
      counts_[o] = count;
    }
    meet_ = meet;
  }

  // The weights' gradient (taps, outputs) of short runs += an image's. The gradients of a row of windows are spread over
  // the places that won; the rest of this band is zero, but all products are of whole vectors of channels.
  void weigh_bands(Maps& input, ptrdiff_t n, Shape to) {
    const auto& g = geometry_;
    const ptrdiff_t lanes = lane_outputs_, wide = made_.width * lanes;
    const Common places{static_cast<int>(g.window.y), static_cast<int>(made_.width)};
    for (ptrdiff_t y = 0; y < to.height; ++y) {
      const float* image = input.framed(n, g.padding) + y * g.hop.y * g.stride.y * input.row;
      const ptrdiff_t at = y * to.width * lanes;
      fill_band(passed_.data() + at, places_.data() + n * to.height * to.width * lanes + at, to.width);
      for (ptrdiff_t r = 0; r < runs_; ++r)
        product<float>(run_, lanes, {image + r * input.row, 1, g.stride.x * from_.channels, g.stride.y * input.row},
                       places, {band_.data(), lanes, wide}, turned_.data() + r * run_ * lanes, lanes, true);
    }
  }

  // Gradients of a row of windows, each at the place that won in its window.
  void fill_band(const float* values, const uint8_t* won, ptrdiff_t windows) {
    const auto& g = geometry_;
    const ptrdiff_t wide = made_.width * lane_outputs_;
    band_.assign(static_cast<size_t>(g.window.y * wide), 0.0f);
    for (ptrdiff_t x = 0; x < windows; ++x)
      for (ptrdiff_t o = 0; o < lane_outputs_; o += LANES, values += LANES, won += LANES) {
        Bytes small;
        std::memcpy(&small, won, sizeof small);
        const Vector value = load(values);
        const Integers place = __builtin_convertvector(small, Integers);
        for (ptrdiff_t wy = 0; wy < g.window.y; ++wy)
          for (ptrdiff_t wx = 0; wx < g.window.x; ++wx) {
            float* at = band_.data() + wy * wide + (x * g.hop.x + wx) * lane_outputs_ + o;
            const Integers here = place == static_cast<int32_t>(wy * g.window.x + wx);
            store(at, load(at) + (here ? value : Vector{}));  // windows may overlap
          }
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

  // The weights' gradient += patches, times the gradients whose they are.
  void weigh(Maps& input, ptrdiff_t n, ptrdiff_t most) {
    const ptrdiff_t wide = whole(run_), vectors = wide / LANES, pieces = ceil_div(vectors, LONGEST);
    for (ptrdiff_t o = 0; o < made_.channels; ++o)
      for (ptrdiff_t r = 0; r < runs_; ++r)
        for (ptrdiff_t piece = 0; piece < pieces; ++piece) {
          const ptrdiff_t from = vectors * piece / pieces, to = vectors * (piece + 1) / pieces;
          gathered<LONGEST>(static_cast<int>(to - from), slopes_.data() + o * most, counts_[o],
                            input.framed(n, geometry_.padding) + r * input.row + from * LANES,
                            gradient_.data() + (o * runs_ + r) * wide + from * LANES);
        }
  }

  // The image's gradient += patches of weights, times the gradients at their outputs.
  void pull(Maps& input, ptrdiff_t n) {
    const ptrdiff_t wide = whole(run_), vectors = wide / LANES, pieces = ceil_div(vectors, LONGEST / 2);
    for (ptrdiff_t r = 0; r < runs_; ++r)
      for (ptrdiff_t piece = 0; piece < pieces; ++piece) {
        const ptrdiff_t from = vectors * piece / pieces, to = vectors * (piece + 1) / pieces;
        const float* weights = spread_.data() + r * wide + from * LANES;
        float* image = input.framed_gradients(n, geometry_.padding) + r * input.row + from * LANES;
        // Down the columns: neighbours in a row overlap, and what was just written is slow to read in other pieces.
        for (ptrdiff_t x = 0; x < made_.width; ++x)
          for (ptrdiff_t y = 0; y < made_.height; ++y) {
            const ptrdiff_t at = y * made_.width + x;
            if (!pull_counts_[at]) continue;
            gathered<LONGEST / 2>(static_cast<int>(to - from), pulls_.data() + at * meet_, pull_counts_[at], weights,
                                  image + y * geometry_.stride.y * input.row + x * geometry_.stride.x * from_.channels);
          }
      }
  }

  // sums += each slope's value times the vectors where it says.
  template <int N>
  static void gathered(int vectors, const Slope* slopes, ptrdiff_t count, const float* rows, float* sums) {
    if constexpr (N > 1)
      if (vectors < N) return gathered<N - 1>(vectors, slopes, count, rows, sums);
    Vector kept[N];
#pragma GCC unroll 16
    for (int j = 0; j < N; ++j) kept[j] = load(sums + j * LANES);
    for (ptrdiff_t e = 0; e < count; ++e) {
      const float* row = rows + slopes[e].from;
#pragma GCC unroll 16
      for (int j = 0; j < N; ++j) kept[j] += slopes[e].value * load(row + j * LANES);
    }
#pragma GCC unroll 16
    for (int j = 0; j < N; ++j) store(sums + j * LANES, kept[j]);
  }

  // The weights' gradient from (taps, outputs), as bands give it, to (outputs, runs, run), each run in whole vectors.
  void turn_back() {
    for (ptrdiff_t o = 0; o < made_.channels; ++o)
      for (ptrdiff_t t = 0; t < taps_; ++t)
        gradient_[(o * runs_ + t / run_) * whole(run_) + t % run_] = turned_[t * lane_outputs_ + o];
  }

  // The weights (outputs, runs, run), each run in whole vectors with zeros behind.
  void spread(const float* W) {
    spread_.assign(static_cast<size_t>(made_.channels * runs_ * whole(run_)), 0.0f);
    for (ptrdiff_t k = 0; k < made_.channels * runs_; ++k)
      std::memcpy(spread_.data() + k * whole(run_), W + k * run_, static_cast<size_t>(run_) * sizeof(float));
  }

  const Shape from_;
  const Geometry geometry_;
  const bool rectified_;
  const ptrdiff_t weight_, bias_;
  const Shape made_;  // by the convolution, before pooling
  const ptrdiff_t lane_outputs_;
  const ptrdiff_t runs_, run_, taps_;  // in a row of the image, the numbers under a row of the kernel stand together
  const bool banded_;                  // the weights' gradient is taken by bands, since runs are short and windows small
  const bool pairs_fit_;
  std::optional<Dense> dense_;
  ptrdiff_t meet_ = 0;
  Numbers<float> turned_, sums_, gradient_, bias_gradient_, spread_, passed_, band_;
  Numbers<Pair> turned_pairs_, pairs_;
  Numbers<uint8_t> places_;
  Numbers<Slope> slopes_, pulls_;
  Numbers<ptrdiff_t> counts_, pull_counts_;
};

}  // namespace pomona
