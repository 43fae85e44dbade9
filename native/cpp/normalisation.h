// Normalisation, (x - mean) / sqrt(variance + eps) times a weight plus a bias for each channel, perhaps with ReLU behind.
//
// Of a batch: mean and variance of a channel over all images and places; in evaluation those that stand in the row. Of
// groups: of some neighbouring channels of one image.
#pragma once

#include <cmath>
#include <vector>

#include "maps.h"
#include "update.h"

namespace pomona {

// `mean`, `variance`: where a channel's statistics begin in the row, if `groups` is 0, which is a batch's normalisation.
struct Normal {
  ptrdiff_t groups;
  float eps, share;
  bool rectified;
  ptrdiff_t weight, bias, mean, variance;
};

class Normalisation {
 public:
  Normalisation(Shape shape, Normal settings)
      : shape_(shape), settings_(settings), channels_(shape.channels), lanes_(whole(shape.channels)) {}

  void forward(const Pass& pass, const Ends& ends) {
    mean_.resize(static_cast<size_t>(of_batch() ? lanes_ : lanes_ * pass.batch));
    inverse_.resize(mean_.size());
    each_span(pass, [&](ptrdiff_t begin, ptrdiff_t end, ptrdiff_t at) {
      if (of_batch() && !pass.training)
        recall(pass.row);
      else
        measure(pass, ends.input, begin, end, at);
      normalise(pass, ends, begin, end, at);
    });
  }

  void backward(const Update& update, const Pass& pass, const Ends& ends) {
    weights_.assign(static_cast<size_t>(channels_), 0.0f);
    biases_.assign(static_cast<size_t>(channels_), 0.0f);
    if (ends.wanted) ends.input.clear(pass.batch);
    each_span(pass, [&](ptrdiff_t begin, ptrdiff_t end, ptrdiff_t at) {
      along(ends, begin, end, at);
      for (ptrdiff_t c = 0; c < channels_; ++c) {
        biases_[c] += static_cast<float>(sums_[c]);
        weights_[c] += static_cast<float>(products_[c]);
      }
      if (ends.wanted) pull(pass, ends, begin, end, at);
    });
    if (settings_.weight >= 0) update.apply(settings_.weight, weights_.data(), channels_);
    if (settings_.bias >= 0) update.apply(settings_.bias, biases_.data(), channels_);
  }

 private:
  bool of_batch() const { return settings_.groups == 0; }
  ptrdiff_t together() const { return of_batch() ? 1 : channels_ / settings_.groups; }  // channels of one mean
  double numbers(ptrdiff_t images) const {
    return static_cast<double>(images * shape_.height * shape_.width * together());
  }

  // each(first image, behind the last, where their means stand), for the images that are normalised together.
  template <class Each>
  void each_span(const Pass& pass, Each each) {
    if (of_batch()) return each(0, pass.batch, 0);
    for (ptrdiff_t n = 0; n < pass.batch; ++n) each(n, n + 1, n * lanes_);
  }

  // Where a row of an image stands in what the layer reads and makes.
  struct Rows {
    const float *x, *values, *dy;
    float *to, *dx;
  };

  static Rows rows(const Ends& ends, ptrdiff_t n, ptrdiff_t y) {
    const ptrdiff_t in = y * ends.input.row, out = y * ends.output.row;
    return {ends.input.values(n) + in, ends.output.values(n) + out, ends.output.gradients(n) + out,
            ends.output.values(n) + out, ends.input.gradients(n) + in};
  }

  // sums_, products_ (channels) = what `add(n, y)(at, c, sum, product)` adds for all places, a vector of channels from c
  // on at a time, which stands at `at` of its row. In float along a row of an image only: more would not be exact enough.
  template <class Add>
  void summed(ptrdiff_t begin, ptrdiff_t end, Add add) {
    sums_.assign(static_cast<size_t>(lanes_), 0.0);
    products_.assign(static_cast<size_t>(lanes_), 0.0);
    const ptrdiff_t length = shape_.width * channels_;
    for (ptrdiff_t n = begin; n < end; ++n)
      for (ptrdiff_t y = 0; y < shape_.height; ++y) {
        const auto of_row = add(n, y);
        for (ptrdiff_t c = 0; c < channels_; c += LANES) {
          Vector sum{}, product{};
          for (ptrdiff_t at = c; at < length; at += channels_) of_row(at, c, sum, product);
          for (int i = 0; i < LANES; ++i) sums_[c + i] += sum[i], products_[c + i] += product[i];
        }
      }
  }

  // of_row(at, c) for all vectors of channels of all places.
  template <class Each>
  void each_vector(ptrdiff_t begin, ptrdiff_t end, Each each) const {
    const ptrdiff_t length = shape_.width * channels_;
    for (ptrdiff_t n = begin; n < end; ++n)
      for (ptrdiff_t y = 0; y < shape_.height; ++y) {
        const auto of_row = each(n, y);
        for (ptrdiff_t place = 0; place < length; place += channels_)
          for (ptrdiff_t c = 0; c < channels_; c += LANES) of_row(place + c, c);
      }
  }

  // Replace the sums of a group's channels by the sum of all.
  void gather(std::vector<double>& sums) const {
    for (ptrdiff_t c = 0; c < channels_; c += together()) {
      double sum = 0;
      for (ptrdiff_t k = c; k < c + together(); ++k) sum += sums[k];
      std::fill(sums.begin() + c, sums.begin() + c + together(), sum);
    }
  }

  void measure(const Pass& pass, Maps& input, ptrdiff_t begin, ptrdiff_t end, ptrdiff_t at) {
    const double count = numbers(end - begin);
    float *mean = mean_.data() + at, *inverse = inverse_.data() + at;
    summed(begin, end, [&](ptrdiff_t n, ptrdiff_t y) {
      return [x = input.values(n) + y * input.row](ptrdiff_t at, ptrdiff_t, Vector& sum, Vector&) { sum += load(x + at); };
    });
    gather(sums_);
    for (ptrdiff_t c = 0; c < channels_; ++c) mean[c] = static_cast<float>(sums_[c] / count);
    summed(begin, end, [&](ptrdiff_t n, ptrdiff_t y) {
      return [x = input.values(n) + y * input.row, mean](ptrdiff_t at, ptrdiff_t c, Vector&, Vector& product) {
        const Vector apart = load(x + at) - load(mean + c);
        product += apart * apart;
      };
    });
    gather(products_);
    for (ptrdiff_t c = 0; c < channels_; ++c)
      inverse[c] = static_cast<float>(1 / std::sqrt(products_[c] / count + settings_.eps));
    if (of_batch() && pass.stores) remember(pass, count);
  }

  // As PyTorch: the statistics in the row move towards the batch's, whose variance is the unbiased one.
  void remember(const Pass& pass, double count) {
    const double share = pass.share < 0 ? settings_.share : pass.share;
    float *mean = pass.row + settings_.mean, *variance = pass.row + settings_.variance;
    for (ptrdiff_t c = 0; c < channels_; ++c) {
      mean[c] = static_cast<float>((1 - share) * mean[c] + share * mean_[c]);
      variance[c] = static_cast<float>((1 - share) * variance[c] + share * products_[c] / (count - 1));
    }
  }

  void recall(const float* row) {
    for (ptrdiff_t c = 0; c < channels_; ++c) {
      mean_[c] = row[settings_.mean + c];
      inverse_[c] = 1 / std::sqrt(row[settings_.variance + c] + settings_.eps);
    }
  }

  float weight(const Pass& pass, ptrdiff_t c) const {
    return settings_.weight < 0 ? 1.0f : pass.row[settings_.weight + c];
  }

  void normalise(const Pass& pass, const Ends& ends, ptrdiff_t begin, ptrdiff_t end, ptrdiff_t at) {
    factor_.resize(static_cast<size_t>(lanes_));
    offset_.assign(static_cast<size_t>(lanes_), 0.0f);
    for (ptrdiff_t c = 0; c < channels_; ++c) factor_[c] = inverse_[at + c] * weight(pass, c);
    if (settings_.bias >= 0) std::copy_n(pass.row + settings_.bias, channels_, offset_.data());
    const float *mean = mean_.data() + at, *factor = factor_.data(), *offset = offset_.data();
    each_vector(begin, end, [&](ptrdiff_t n, ptrdiff_t y) {
      return [=, this, row = rows(ends, n, y)](ptrdiff_t at, ptrdiff_t c) {
        const Vector value = (load(row.x + at) - load(mean + c)) * load(factor + c) + load(offset + c);
        store(row.to + at, settings_.rectified ? (value < 0 ? Vector{} : value) : value, channels_ - c);
      };
    });
  }

  // What ReLU lets through of the gradients at some outputs.
  Vector passed(const Rows& row, ptrdiff_t at) const {
    const Vector dy = load(row.dy + at);
    return settings_.rectified ? (load(row.values + at) > 0 ? dy : Vector{}) : dy;
  }

  // The sums of the gradients at the outputs, and of their products with the normalised numbers.
  void along(const Ends& ends, ptrdiff_t begin, ptrdiff_t end, ptrdiff_t at) {
    const float *mean = mean_.data() + at, *inverse = inverse_.data() + at;
    summed(begin, end, [&](ptrdiff_t n, ptrdiff_t y) {
      return [=, this, row = rows(ends, n, y)](ptrdiff_t at, ptrdiff_t c, Vector& sum, Vector& product) {
        const Vector dy = passed(row, at);
        sum += dy;
        product += dy * (load(row.x + at) - load(mean + c));
      };
    });
    for (ptrdiff_t c = 0; c < channels_; ++c) products_[c] *= inverse[c];
  }

  // dx = inverse (w dy - mean of w dy - normalised x times the mean of w dy normalised x), means over what x's mean is
  // of: a factor of dy, a slope along x, and an offset.
  void pull(const Pass& pass, const Ends& ends, ptrdiff_t begin, ptrdiff_t end, ptrdiff_t at) {
    for (ptrdiff_t c = 0; c < channels_; ++c) sums_[c] *= weight(pass, c), products_[c] *= weight(pass, c);
    gather(sums_);
    gather(products_);
    const double count = numbers(end - begin);
    for (Numbers<float>* part : {&factor_, &slope_, &offset_}) part->resize(static_cast<size_t>(lanes_));
    for (ptrdiff_t c = 0; c < channels_; ++c) {
      const double inverse = inverse_[at + c];
      factor_[c] = static_cast<float>(inverse * weight(pass, c));
      slope_[c] = static_cast<float>(-inverse * inverse * products_[c] / count);
      offset_[c] = static_cast<float>(-inverse * sums_[c] / count);
    }
    const float *mean = mean_.data() + at, *factor = factor_.data(), *slope = slope_.data(), *offset = offset_.data();
    each_vector(begin, end, [&](ptrdiff_t n, ptrdiff_t y) {
      return [=, this, row = rows(ends, n, y)](ptrdiff_t at, ptrdiff_t c) {
        const Vector along_x = load(slope + c) * (load(row.x + at) - load(mean + c)) + load(offset + c);
        store(row.dx + at, load(row.dx + at) + load(factor + c) * passed(row, at) + along_x, channels_ - c);
      };
    });
  }

  const Shape shape_;
  const Normal settings_;
  const ptrdiff_t channels_, lanes_;
  Numbers<float> mean_, inverse_, weights_, biases_, factor_, offset_, slope_;  // of whole vectors where they are read so
  std::vector<double> sums_, products_;
};

}  // namespace pomona
