// What layers hand to each other: values of a batch of images, and the gradients at them, in one geometry.
#pragma once

#include "vector.h"

namespace pomona {

constexpr ptrdiff_t ROOM = 16;  // numbers behind the last: a vector, of any kind

struct Shape {
  ptrdiff_t height, width, channels;
  ptrdiff_t size() const { return height * width * channels; }
};

// Images (batch, height, width, channels) inside a frame of zeros, as wide as the next layer's padding asks. Behind the
// last image there is ROOM, since whole vectors are read.
class Maps {
 public:
  Maps(Shape shape, ptrdiff_t frame_y, ptrdiff_t frame_x)
      : shape(shape),
        row((shape.width + 2 * frame_x) * shape.channels),
        image((shape.height + 2 * frame_y) * row),
        inset(frame_y * row + frame_x * shape.channels) {}

  // Make room for a batch; what is new is zero, and the frame stays it.
  void reserve(ptrdiff_t batch, bool gradients) {
    const size_t size = static_cast<size_t>(batch * image + ROOM);
    if (values_.size() < size) values_.resize(size);
    if (gradients && gradients_.size() < size) gradients_.resize(size);
  }

  // The frame's first number of an image, and the first inside the frame.
  float* framed(ptrdiff_t n) { return values_.data() + n * image; }
  float* framed_gradient(ptrdiff_t n) { return gradients_.data() + n * image; }
  float* values(ptrdiff_t n) { return framed(n) + inset; }
  float* gradients(ptrdiff_t n) { return framed_gradient(n) + inset; }

  const Shape shape;
  const ptrdiff_t row, image, inset;  // numbers from one row, and one image, to the next; from the frame to the inside

 private:
  Numbers<float> values_, gradients_;
};

}  // namespace pomona
