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

  // Whether all of so many numbers are asked for.
  bool takes(ptrdiff_t at, ptrdiff_t count) const { return !steps || (at >= begin && at + count <= end); }

  // Whether a number whose gradient is zero stays as it is.
  bool lets_rest() const { return steps && !target && decay == 0 && !centre && !constant; }

  // The gradients of the numbers from `at` on.
  void apply(ptrdiff_t at, const float* gradient, ptrdiff_t count) const {
    const ptrdiff_t first = steps ? std::max(at, begin) : at, last = steps ? std::min(at + count, end) : at + count;
    for (ptrdiff_t i = first; i < last; i += LANES) apply(i, load(row + i, last - i), load(gradient + (i - at), last - i), last - i);
  }

  // Those of a vector w, or of its first `count`, which are all asked for.
  [[gnu::always_inline]] void apply(ptrdiff_t at, Vector w, Vector g, ptrdiff_t count) const {
    if (!steps) return store(target + at, g, count);
    if (centre) g += pull * (w - load(centre + at, count));
    if (constant) g += load(constant + at, count);
    g += decay * w;
    if (target) {
      g += momentum * load(target + (at - begin), count);
      store(target + (at - begin), g, count);
    }
    store(row + at, w - lr * g, count);
  }
};

}  // namespace pomona
