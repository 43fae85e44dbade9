// Where gradients go: into a row of their own, or at once into the step of plain SGD.
#pragma once

#include "vector.h"

namespace pomona {

// Parameters stand in `row`. Without `steps`, gradients are written to `target`. With it the row takes
// g <- g + decay w;  v <- momentum v + g;  w <- w - lr v, and `target` holds v, or is null without momentum.
struct Update {
  float* row;
  float* target;
  bool steps;
  float lr, momentum, decay;

  void apply(ptrdiff_t at, const float* gradient, ptrdiff_t count) const {
    if (!steps) {
      std::memcpy(target + at, gradient, static_cast<size_t>(count) * sizeof(float));
    } else if (target) {
      float* __restrict w = row + at;
      float* __restrict v = target + at;
      for (ptrdiff_t i = 0; i < count; ++i) {
        v[i] = momentum * v[i] + (gradient[i] + decay * w[i]);
        w[i] -= lr * v[i];
      }
    } else {
      float* __restrict w = row + at;
      for (ptrdiff_t i = 0; i < count; ++i) w[i] -= lr * (gradient[i] + decay * w[i]);
    }
  }
};

}  // namespace pomona
