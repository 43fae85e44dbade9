// Layers that multiply rows with a matrix, perhaps with ReLU behind: linear layers, and convolutions without pooling, as
// products of patches with the weights.
//
// Patches are for gradients that are not zero, as they come from a normalisation or a sum, and for weights too large to
// be read again for each row of an image. Some samples' patches are copied out at a time.
#pragma once

#include "affine.h"
#include "dense.h"

namespace pomona {

// Each sample is one row, in PyTorch's order of channels, height and width. The map may have a frame.
struct Flattened {
  Shape from;

  ptrdiff_t length() const { return from.size(); }
  Shape made(ptrdiff_t outputs) const { return {1, 1, outputs}; }
  ptrdiff_t at_once(ptrdiff_t) const { return PTRDIFF_MAX; }

  void copy(Maps& input, ptrdiff_t n, ptrdiff_t, ptrdiff_t, float* to) const {
    const float* x = input.values(n);
    each(input.row, [&](ptrdiff_t in_row, ptrdiff_t in_map) { to[in_row] = x[in_map]; });
  }

  void add(Maps& input, ptrdiff_t n, ptrdiff_t, ptrdiff_t, const float* change) const {
    float* dx = input.gradients(n);
    each(input.row, [&](ptrdiff_t in_row, ptrdiff_t in_map) { dx[in_map] += change[in_row]; });
  }

 private:
  template <class Each>
  void each(ptrdiff_t row, Each each) const {
    const ptrdiff_t channels = from.channels, width = from.width;
    for (ptrdiff_t c = 0, at = 0; c < channels; ++c)
      for (ptrdiff_t y = 0; y < from.height; ++y)
        for (ptrdiff_t x = 0; x < width; ++x) each(at++, y * row + x * channels + c);
  }
};

// Each place of what a convolution makes is the row of its patch.
struct Unfolded {
  Shape from;
  Geometry geometry;

  ptrdiff_t run() const { return geometry.kernel.x * from.channels; }
  ptrdiff_t length() const { return geometry.kernel.y * run(); }
  Shape made(ptrdiff_t outputs) const { return geometry.made(from, outputs); }

  // Samples whose patches are about as many numbers as the weights, so that neither is read much more often.
  ptrdiff_t at_once(ptrdiff_t outputs) const {
    const ptrdiff_t numbers = std::max<ptrdiff_t>(1 << 17, length() * outputs / 2);
    return std::max<ptrdiff_t>(1, numbers / (made(1).size() * length()));
  }

  void copy(Maps& input, ptrdiff_t n, ptrdiff_t y, ptrdiff_t x, float* to) const {
    const float* patch = input.framed(n, geometry.padding) + begin(input.row, y, x);
    for (ptrdiff_t r = 0; r < geometry.kernel.y; ++r) std::copy_n(patch + r * input.row, run(), to + r * run());
  }

  void add(Maps& input, ptrdiff_t n, ptrdiff_t y, ptrdiff_t x, const float* change) const {
    float* patch = input.framed_gradients(n, geometry.padding) + begin(input.row, y, x);
    for (ptrdiff_t r = 0; r < geometry.kernel.y; ++r)
      for (ptrdiff_t i = 0; i < run(); ++i) patch[r * input.row + i] += change[r * run() + i];
  }

 private:
  ptrdiff_t begin(ptrdiff_t row, ptrdiff_t y, ptrdiff_t x) const {
    return y * geometry.stride.y * row + x * geometry.stride.x * from.channels;
  }
};

template <class Source>
class RowLayer {
 public:
  RowLayer(Source source, ptrdiff_t outputs, bool rectified, ptrdiff_t weight, ptrdiff_t bias)
      : source_(source), made_(source.made(outputs)), affine_(source.length(), outputs, rectified, weight, bias) {}

  Shape to() const { return made_; }

  void forward(const Pass& pass, const Ends& ends) {
    each_part(pass.batch, [&](ptrdiff_t n, ptrdiff_t samples) {
      copy(ends.input, n, samples);
      affine_.forward(pass.row, samples * places(), pass.pairs);
      each_row(samples, [&](ptrdiff_t i, ptrdiff_t k, ptrdiff_t y, ptrdiff_t x) {
        affine_.finish(pass.row, i, ends.output.values(n + k) + y * ends.output.row + x * made_.channels);
      });
    });
  }

  void backward(const Update& update, const Pass& pass, const Ends& ends) {
    if (ends.wanted) ends.input.clear(pass.batch);
    each_part(pass.batch, [&](ptrdiff_t n, ptrdiff_t samples) {
      if (samples < pass.batch) copy(ends.input, n, samples);  // else they stand there from the forward pass
      each_row(samples, [&](ptrdiff_t i, ptrdiff_t k, ptrdiff_t y, ptrdiff_t x) {
        const ptrdiff_t at = y * ends.output.row + x * made_.channels;
        affine_.receive(i, ends.output.values(n + k) + at, ends.output.gradients(n + k) + at);
      });
      affine_.learn(update, samples * places(), ends.wanted, n == 0, n + samples == pass.batch);
      if (!ends.wanted) return;
      each_row(samples, [&](ptrdiff_t i, ptrdiff_t k, ptrdiff_t y, ptrdiff_t x) {
        source_.add(ends.input, n + k, y, x, affine_.change(i));
      });
    });
  }

 private:
  ptrdiff_t places() const { return made_.height * made_.width; }

  // each(first, number of them), of samples whose rows are taken together
  template <class Each>
  void each_part(ptrdiff_t batch, Each each) const {
    const ptrdiff_t most = std::min(source_.at_once(made_.channels), batch);
    for (ptrdiff_t n = 0; n < batch; n += most) each(n, std::min(most, batch - n));
  }

  // each(row, sample, y, x)
  template <class Each>
  void each_row(ptrdiff_t samples, Each each) const {
    for (ptrdiff_t k = 0, i = 0; k < samples; ++k)
      for (ptrdiff_t y = 0; y < made_.height; ++y)
        for (ptrdiff_t x = 0; x < made_.width; ++x) each(i++, k, y, x);
  }

  void copy(Maps& input, ptrdiff_t n, ptrdiff_t samples) {
    affine_.reserve(samples * places());
    each_row(samples, [&](ptrdiff_t i, ptrdiff_t k, ptrdiff_t y, ptrdiff_t x) {
      source_.copy(input, n + k, y, x, affine_.flat(i));
    });
  }

  const Source source_;
  const Shape made_;
  Affine affine_;
};

using Linear = RowLayer<Flattened>;
using Patches = RowLayer<Unfolded>;

}  // namespace pomona
