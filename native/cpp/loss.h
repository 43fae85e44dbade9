// The mean cross-entropy of a batch, and its gradients at the logits.
#pragma once

#include <cmath>

#include "maps.h"

namespace pomona {

inline double cross_entropy(Maps& logits, const int64_t* targets, ptrdiff_t batch) {
  const ptrdiff_t classes = logits.shape.channels;
  double sum = 0;
  for (ptrdiff_t n = 0; n < batch; ++n) {
    const float* z = logits.values(n);
    float* dz = logits.gradients(n);
    float most = z[0];
    for (ptrdiff_t k = 1; k < classes; ++k) most = z[k] > most || z[k] != z[k] ? z[k] : most;
    float total = 0;
    for (ptrdiff_t k = 0; k < classes; ++k) total += dz[k] = std::exp(z[k] - most);
    sum += std::log(total) - (z[targets[n]] - most);
    for (ptrdiff_t k = 0; k < classes; ++k)
      dz[k] = (dz[k] / total - (k == targets[n] ? 1.0f : 0.0f)) / static_cast<float>(batch);
  }
  return sum / static_cast<double>(batch);
}

}  // namespace pomona
