// A chain of layers: convolutions first, then linear layers, the last of which gives the logits.
#pragma once

#include <optional>
#include <variant>

#include "convolution.h"
#include "linear.h"
#include "loss.h"

namespace pomona {

// Where a batch comes from: samples of bytes or floats, chosen by index, as (x - shift) / scale.
struct Samples {
  const void* at;
  bool bytes;
  const int64_t* index;
  const float *shift, *scale;  // one a channel
};

class Network {
 public:
  explicit Network(Shape input) : input_(input), reached_(input) {}

  Shape input() const { return input_; }
  Shape reached() const { return reached_; }
  size_t layers() const { return layers_.size(); }

  void add(Shape to, Pair2 frame, std::variant<Convolution, Linear> layer) {
    maps_.emplace_back(reached_, frame.y, frame.x);
    layers_.push_back(std::move(layer));
    reached_ = to;
    logits_.reset();  // a call may have made it for what was the last layer
  }

  // The logits of a batch, in `logits`. `pairs`: convolutions multiply numbers rounded to bf16.
  Maps& forward(const float* row, const Samples& samples, ptrdiff_t batch, bool pairs, bool gradients) {
    if (!logits_) logits_.emplace(reached_, 0, 0);
    for (size_t k = 0; k <= layers_.size(); ++k) maps(k).reserve(batch, gradients);
    take(samples, batch);
    for (size_t k = 0; k < layers_.size(); ++k) {
      if (auto* convolution = std::get_if<Convolution>(&layers_[k])) {
        convolution->forward(row, maps(k), maps(k + 1), batch, pairs);
      } else {
        std::get<Linear>(layers_[k]).forward(row, maps(k), maps(k + 1), batch);
      }
    }
    return *logits_;
  }

  // The mean cross-entropy of a batch; its gradients go to `update`, those of the first `skipped` layers nowhere.
  double learn(const Update& update, const Samples& samples, const int64_t* targets, ptrdiff_t batch, bool pairs,
               size_t skipped) {
    Maps& logits = forward(update.row, samples, batch, pairs, true);
    const double loss = cross_entropy(logits, targets, batch);
    for (size_t k = layers_.size(); k-- > skipped;)
      std::visit([&](auto& layer) { layer.backward(update, maps(k), maps(k + 1), batch, k > skipped); }, layers_[k]);
    return loss;
  }

 private:
  Maps& maps(size_t k) { return k < layers_.size() ? maps_[k] : *logits_; }

  void take(const Samples& samples, ptrdiff_t batch) {
    const ptrdiff_t size = input_.size(), width = input_.width * input_.channels;
    for (ptrdiff_t n = 0; n < batch; ++n)
      for (ptrdiff_t y = 0; y < input_.height; ++y) {
        float* to = maps(0).values(n) + y * maps(0).row;
        const ptrdiff_t from = samples.index[n] * size + y * width;
        if (samples.bytes)
          normalise(static_cast<const uint8_t*>(samples.at) + from, samples, to);
        else
          normalise(static_cast<const float*>(samples.at) + from, samples, to);
      }
  }

  template <typename T>
  void normalise(const T* from, const Samples& samples, float* to) const {
    if (input_.channels == 1) {
      const float shift = samples.shift[0], scale = samples.scale[0];
      for (ptrdiff_t x = 0; x < input_.width; ++x) to[x] = (static_cast<float>(from[x]) - shift) / scale;
    } else {
      for (ptrdiff_t x = 0; x < input_.width; ++x)
        for (ptrdiff_t c = 0; c < input_.channels; ++c, ++from)
          *to++ = (static_cast<float>(*from) - samples.shift[c]) / samples.scale[c];
    }
  }

  const Shape input_;
  Shape reached_;
  std::vector<Maps> maps_;  // what each layer gets
  std::vector<std::variant<Convolution, Linear>> layers_;
  std::optional<Maps> logits_;
};

}  // namespace pomona
