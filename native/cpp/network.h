// A network: a list of layers, each of which reads what the input or an earlier layer made; the last gives the logits.
#pragma once

#include <variant>

#include "convolution.h"
#include "elementwise.h"
#include "embedding.h"
#include "linear.h"
#include "loss.h"
#include "normalisation.h"
#include "pooling.h"

namespace pomona {

// Where a batch comes from: samples chosen by index, as (x - shift) / scale.
struct Samples {
  std::variant<const uint8_t*, const float*, const int32_t*, const int64_t*> at;
  const int64_t* index;
  const float *shift, *scale;  // one a channel
};

using Layer = std::variant<Convolution, Patches, Linear, Pooling, Normalisation, Sum, Dropout, Embedding,
                           Activation<Rectifier>, Activation<Rectifier6>, Activation<Tanh>, Activation<Sigmoid>,
                           Activation<Silu>, Activation<Gelu>>;

class Network {
 public:
  explicit Network(Shape input) : values_{{input}} {}

  Shape input() const { return shape(0); }
  Shape reached() const { return values_.back().shape; }
  size_t layers() const { return layers_.size(); }

  // What layer k makes has number k + 1; 0 is the input.
  Shape shape(size_t value) const { return values_[value].shape; }

  // A value's shape with its frame.
  Shape framed(size_t value) const {
    const auto& [shape, frame, read] = values_[value];
    return {shape.height + 2 * frame.y, shape.width + 2 * frame.x, shape.channels};
  }

  // Whether each value but the last is read by a layer.
  bool joined() const {
    return std::all_of(values_.begin(), values_.end() - 1, [](const Value& value) { return value.read; });
  }

  // `padding`: of the input, as the layer reads it.
  void add(Shape to, size_t input, size_t beside, Pair2 padding, Layer layer) {
    for (const size_t value : {input, beside}) values_[value].read = true;
    Pair2& frame = values_[input].frame;
    frame = {std::max(frame.y, padding.y), std::max(frame.x, padding.x)};
    layers_.push_back({std::move(layer), input, beside});
    values_.push_back({to});
    maps_.clear();  // a call may have made them for what was there
  }

  // The logits of a batch.
  Maps& forward(const Pass& pass, const Samples& samples, bool gradients) {
    if (maps_.empty())
      for (const Value& value : values_) maps_.emplace_back(value.shape, value.frame);
    for (Maps& maps : maps_) maps.reserve(pass.batch, gradients);
    take(samples, pass.batch);
    for (size_t k = 0; k < layers_.size(); ++k)
      std::visit([&](auto& layer) { layer.forward(pass, ends(k, k)); }, layers_[k].layer);
    return maps_.back();
  }

  // The mean cross-entropy of a batch; its gradients go to `update`, those of the first `skipped` layers nowhere.
  double learn(const Update& update, const Pass& pass, const Samples& samples, const int64_t* targets, size_t skipped) {
    const double loss = cross_entropy(forward(pass, samples, true), targets, pass.batch);
    for (size_t k = layers_.size(); k-- > skipped;)
      std::visit([&](auto& layer) { layer.backward(update, pass, ends(k, skipped)); }, layers_[k].layer);
    return loss;
  }

 private:
  struct Value {
    Shape shape;
    Pair2 frame{0, 0};
    bool read = false;
  };

  struct Placed {
    Layer layer;
    size_t input, beside;
  };

  // Gradients are asked for at what a layer made that is not skipped.
  Ends ends(size_t k, size_t skipped) {
    const auto [input, beside] = std::pair{layers_[k].input, layers_[k].beside};
    return {maps_[input], maps_[beside], maps_[k + 1], input > skipped, beside > skipped};
  }

  void take(const Samples& samples, ptrdiff_t batch) {
    const Shape image = input();
    const auto from = [&](const auto* all) {
      for (ptrdiff_t n = 0; n < batch; ++n)
        for (ptrdiff_t y = 0; y < image.height; ++y)
          normalise(all + samples.index[n] * image.size() + y * image.width * image.channels, samples,
                    maps_[0].values(n) + y * maps_[0].row);
    };
    std::visit(from, samples.at);
  }

  template <typename T>
  void normalise(const T* from, const Samples& samples, float* to) const {
    const Shape image = input();
    if (image.channels == 1) {
      const float shift = samples.shift[0], scale = samples.scale[0];
      for (ptrdiff_t x = 0; x < image.width; ++x) to[x] = (static_cast<float>(from[x]) - shift) / scale;
    } else {
      for (ptrdiff_t x = 0; x < image.width; ++x)
        for (ptrdiff_t c = 0; c < image.channels; ++c, ++from)
          *to++ = (static_cast<float>(*from) - samples.shift[c]) / samples.scale[c];
    }
  }

  std::vector<Value> values_;
  std::vector<Placed> layers_;
  std::vector<Maps> maps_;
};

}  // namespace pomona
