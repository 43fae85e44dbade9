// The mean of a text's word vectors; tokens arrive as whole numbers in floats.
#pragma once

#include <vector>

#include "maps.h"
#include "update.h"

namespace pomona {

class Embedding {
 public:
  // `weight`: where the vectors (vocabulary, width) begin in a row. The vector of the token `padding` counts, but is
  // not learned; -1 for none.
  Embedding(ptrdiff_t tokens, ptrdiff_t vocabulary, ptrdiff_t width, ptrdiff_t padding, ptrdiff_t weight)
      : tokens_(tokens), vocabulary_(vocabulary), width_(width), padding_(padding), weight_(weight) {}

  void forward(const Pass& pass, const Ends& ends) {
    const float* W = pass.row + weight_;
    for (ptrdiff_t n = 0; n < pass.batch; ++n) {
      const float* text = ends.input.values(n);
      float* __restrict to = ends.output.values(n);
      std::fill_n(to, width_, 0.0f);
      for (ptrdiff_t t = 0; t < tokens_; ++t) {
        const float* vector = W + static_cast<ptrdiff_t>(text[t]) * width_;
        for (ptrdiff_t i = 0; i < width_; ++i) to[i] += vector[i];
      }
      for (ptrdiff_t i = 0; i < width_; ++i) to[i] /= static_cast<float>(tokens_);
    }
  }

  // A batch has few of all words: the gradients of these alone are summed, each in a slot of its own.
  void backward(const Update& update, const Pass& pass, const Ends& ends) {
    slots_.resize(static_cast<size_t>(vocabulary_), -1);
    for (ptrdiff_t n = 0; n < pass.batch; ++n) {
      const float* text = ends.input.values(n);
      float* dy = ends.output.gradients(n);
      for (ptrdiff_t i = 0; i < width_; ++i) dy[i] /= static_cast<float>(tokens_);
      for (ptrdiff_t t = 0; t < tokens_; ++t) {
        const auto token = static_cast<ptrdiff_t>(text[t]);
        if (token != padding_) add(token, dy);
      }
    }
    if (update.lets_rest()) {
      for (const ptrdiff_t token : seen_) apply(update, token);
    } else {
      for (ptrdiff_t token = 0; token < vocabulary_; ++token) apply(update, token);
    }
    for (const ptrdiff_t token : seen_) slots_[token] = -1;
    seen_.clear();
  }

 private:
  void add(ptrdiff_t token, const float* dy) {
    if (slots_[token] < 0) {
      slots_[token] = static_cast<int32_t>(seen_.size());
      seen_.push_back(token);
      sums_.resize(std::max(sums_.size(), seen_.size() * static_cast<size_t>(width_)));
      std::fill_n(sums_.data() + slots_[token] * width_, width_, 0.0f);
    }
    float* __restrict sum = sums_.data() + slots_[token] * width_;
    for (ptrdiff_t i = 0; i < width_; ++i) sum[i] += dy[i];
  }

  void apply(const Update& update, ptrdiff_t token) {
    zero_.assign(static_cast<size_t>(width_), 0.0f);  // used up by each
    update.apply(weight_ + token * width_, slots_[token] < 0 ? zero_.data() : sums_.data() + slots_[token] * width_, width_);
  }

  const ptrdiff_t tokens_, vocabulary_, width_, padding_, weight_;
  std::vector<int32_t> slots_;  // of each word among those seen, -1 for none
  std::vector<ptrdiff_t> seen_;
  Numbers<float> sums_, zero_;
};

}  // namespace pomona
