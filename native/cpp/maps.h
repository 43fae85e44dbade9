// What layers hand to each other: values of a batch of images, and the gradients at them, in one geometry.
#pragma once

#include <algorithm>

#include "vector.h"

namespace pomona {

constexpr ptrdiff_t ROOM = 16;  // numbers behind the last: a vector, of any kind

struct Pair2 {
  ptrdiff_t y, x;
};

struct Shape {
  ptrdiff_t height, width, channels;
  ptrdiff_t size() const { return height * width * channels; }
};

// Images (batch, height, width, channels) inside a frame of zeros, as wide as the padding of those that read them asks.
// Behind the last image there is ROOM, since whole vectors are read.
class Maps {
 public:
  Maps(Shape shape, Pair2 frame)
      : shape(shape),
        row((shape.width + 2 * frame.x) * shape.channels),
        image((shape.height + 2 * frame.y) * row),
        inset_(frame.y * row + frame.x * shape.channels) {}

  // Make room for a batch; what is new is zero, and the frame stays it.
  void reserve(ptrdiff_t batch, bool gradients) {
    const size_t size = static_cast<size_t>(batch * image + ROOM);
    if (values_.size() < size) values_.resize(size);
    if (gradients && gradients_.size() < size) gradients_.resize(size);
    cleared_ = false;
  }

  // Gradients are sums over all layers that read the values. Whoever adds to them calls this before; in a backward
  // pass the first call sets them to zero.
  void clear(ptrdiff_t batch) {
    if (!cleared_) std::fill(gradients_.data(), gradients_.data() + batch * image, 0.0f);
    cleared_ = true;
  }

  // An image's first number, and that of the image with a part of its frame.
  float* values(ptrdiff_t n) { return values_.data() + n * image + inset_; }
  float* gradients(ptrdiff_t n) { return gradients_.data() + n * image + inset_; }
  float* framed(ptrdiff_t n, Pair2 padding) { return values(n) - outside(padding); }
  float* framed_gradients(ptrdiff_t n, Pair2 padding) { return gradients(n) - outside(padding); }
  ptrdiff_t behind(Pair2 padding) const { return image - inset_ + outside(padding); }  // from `framed` to the image's end

  const Shape shape;
  const ptrdiff_t row, image;  // numbers from one row, and one image, to the next

 private:
  ptrdiff_t outside(Pair2 padding) const { return padding.y * row + padding.x * shape.channels; }

  const ptrdiff_t inset_;  // from the frame to the inside
  Numbers<float> values_, gradients_;
  bool cleared_ = false;
};

// What a layer reads and makes. `beside` is the second input of a sum, else the first one again. `wanted`: gradients at
// the input are asked for.
struct Ends {
  Maps &input, &beside, &output;
  bool wanted = false, wanted_beside = false;
};

// What all layers of a call are told.
struct Pass {
  float* row;
  ptrdiff_t batch;
  bool pairs = false;     // linear layers and convolutions, but for Winograd's, multiply numbers rounded to bf16
  bool training = false;  // batches are normalised by their own statistics, not by those in the row
  bool stores = false;    // the row has room for statistics, which take in those of the batch
  float share = -1;       // of the batch in what is stored; below 0: the layer's own
  const float* masks = nullptr;  // dropout's factors, a block (batch, numbers) for each such layer; null for none
};

}  // namespace pomona
