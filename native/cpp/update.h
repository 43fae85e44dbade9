// Where gradients go: into a row of their own, or at once into the step of plain SGD.
#pragma once

#include <algorithm>

#include "vector.h"

namespace pomona {

// Parameters stand in `row`. Without `steps`, gradients are written to `target`. With it the numbers of the row from
// `begin` to before `end` take
//   g <- g + pull (w - centre) + constant + decay w;  v <- momentum v + g;  w <- w - lr v.
// `target` holds v of these, or is null without momentum; `centre` and `constant` are null where there are none.
struct Update {
  float* row;
  float* target;
  bool steps = false;
  float lr = 0, momentum = 0, decay = 0, pull = 0;
  const float *centre = nullptr, *constant = nullptr;
  ptrdiff_t begin = 0, end = PTRDIFF_MAX;

  // Whether any of so many numbers is asked for.
  bool wants(ptrdiff_t at, ptrdiff_t count) const { return at < end && at + count > begin; }

  // Whether a number whose gradient is zero stays as it is.
  bool lets_rest() const { return steps && !target && decay == 0 && !centre && !constant; }

  // The gradients of the numbers from `at` on, which are used up.
  void apply(ptrdiff_t at, float* __restrict gradient, ptrdiff_t count) const {
    if (!steps) {
      std::memcpy(target + at, gradient, static_cast<size_t>(count) * sizeof(float));
      return;
    }
    if (!wants(at, count)) return;
    const ptrdiff_t first = std::max(at, begin);
    gradient += first - at;
    count = std::min(at + count, end) - first;
    float* __restrict w = row + first;
    if (centre)
      for (ptrdiff_t i = 0; i < count; ++i) gradient[i] += pull * (w[i] - centre[first + i]);
    if (constant)
      for (ptrdiff_t i = 0; i < count; ++i) gradient[i] += constant[first + i];
    if (target) {
      float* __restrict v = target + (first - begin);
      for (ptrdiff_t i = 0; i < count; ++i) {
        v[i] = momentum * v[i] + (gradient[i] + decay * w[i]);
        w[i] -= lr * v[i];
      }
    } else {
      for (ptrdiff_t i = 0; i < count; ++i) w[i] -= lr * (gradient[i] + decay * w[i]);
    }
  }
};

}  // namespace pomona
