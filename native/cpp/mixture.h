// Mixtures of rows, and the products of gradients at mixtures with the rows that were mixed.
//
// All is read once, a tile of columns at a time, for all clients of a call: what a client makes of a tile does not
// depend on who else is in the call.
#pragma once

#include "product.h"
#include "update.h"

namespace pomona {

// N rows of d numbers for each client, in which client i's own row is another one: cores[i] in the place of own[i].
struct Bank {
  ptrdiff_t clients, rows, d;
  const float* const* copies;  // where the rows begin: (rows,) if `shared`, else (clients, rows)
  bool shared;
  float* cores;                // (clients, d)
  const int64_t* own;

  const float* const* of(ptrdiff_t i) const { return copies + (shared ? 0 : i * rows); }
  float weight(const float* weights, ptrdiff_t i) const { return weights[i * rows + own[i]]; }
};

// Columns at a time. Rows lie megabytes apart, and the processor looks ahead along few of them: so few rows are read
// together, far enough to be worth it, and stay in the first cache for all clients of the call.
constexpr ptrdiff_t MIXED = 1024, MULTIPLIED = 2048;

// made (columns,) = or += the sum of N rows with weights, from column `at` on.
template <int N>
inline void add_rows(const float* weights, const float* const* rows, ptrdiff_t at, ptrdiff_t columns,
                     float* __restrict made, bool first) {
  const float* from[N];
  for (int j = 0; j < N; ++j) from[j] = rows[j] + at;
  for (ptrdiff_t c = 0; c < columns; ++c) {
    float sum = first ? 0.0f : made[c];
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) sum += weights[j] * from[j][c];
    made[c] = sum;
  }
}

// As `add_rows`, of n rows known at run time, at most N.
template <int N>
inline void add_rows_of(ptrdiff_t n, const float* weights, const float* const* rows, ptrdiff_t at, ptrdiff_t columns,
                        float* made, bool first) {
  if constexpr (N > 1)
    if (n < N) return add_rows_of<N - 1>(n, weights, rows, at, columns, made, first);
  add_rows<N>(weights, rows, at, columns, made, first);
}

// mixed (clients, d) = weights (clients, rows) times the rows.
inline void mix(const Bank& bank, const float* weights, float* mixed) {
  Numbers<float> others(weights, weights + bank.clients * bank.rows);
  for (ptrdiff_t i = 0; i < bank.clients; ++i) others[i * bank.rows + bank.own[i]] = 0;
  for (ptrdiff_t at = 0; at < bank.d; at += MIXED) {
    const ptrdiff_t wide = std::min(MIXED, bank.d - at);
    for (ptrdiff_t j = 0; j < bank.rows; j += 4)
      for (ptrdiff_t i = 0; i < bank.clients; ++i)
        add_rows_of<4>(bank.rows - j, others.data() + i * bank.rows + j, bank.of(i) + j, at, wide,
                       mixed + i * bank.d + at, j == 0);
    for (ptrdiff_t i = 0; i < bank.clients; ++i) {
      const float weight = bank.weight(weights, i);
      const float* __restrict core = bank.cores + i * bank.d + at;
      float* __restrict to = mixed + i * bank.d + at;
      for (ptrdiff_t c = 0; c < wide; ++c) to[c] += weight * core[c];
    }
  }
}

// slopes (clients, rows) = the products of gradients (clients, d) with the rows. `after(at, wide)` is called when all
// products of a tile's columns have been taken, while they lie in the cache.
template <class After>
inline void slopes_of(const Bank& bank, const float* gradients, float* slopes, After after) {
  Numbers<double> sums(static_cast<size_t>(bank.clients * bank.rows), 0.0);
  std::vector<double> own(static_cast<size_t>(bank.clients), 0.0);
  const ptrdiff_t high = bank.shared ? HIGH : 1;
  for (ptrdiff_t at = 0; at < bank.d; at += MULTIPLIED) {
    const ptrdiff_t wide = std::min(MULTIPLIED, bank.d - at);
    for (ptrdiff_t j = 0; j < bank.rows; j += WIDE)
      for (ptrdiff_t i = 0; i < bank.clients; i += high) {
        const ptrdiff_t m = std::min(high, bank.clients - i), n = std::min<ptrdiff_t>(WIDE, bank.rows - j);
        const float* others[WIDE];
        float made[HIGH * WIDE];
        for (ptrdiff_t k = 0; k < n; ++k) others[k] = bank.of(i)[j + k] + at;
        dots_of(m, n, gradients + i * bank.d + at, bank.d, others, wide, made, WIDE);
        for (ptrdiff_t k = 0; k < m * n; ++k) sums[(i + k / n) * bank.rows + j + k % n] += made[k / n * WIDE + k % n];
      }
    for (ptrdiff_t i = 0; i < bank.clients; ++i) {
      const float* core = bank.cores + i * bank.d + at;
      float made;
      dots<1, 1>(gradients + i * bank.d + at, bank.d, &core, wide, &made, 1);
      own[i] += made;
    }
    after(at, wide);
  }
  for (ptrdiff_t i = 0; i < bank.clients; ++i) sums[i * bank.rows + bank.own[i]] = own[i];
  for (size_t k = 0; k < sums.size(); ++k) slopes[k] = static_cast<float>(sums[k]);
}

// As `slopes_of`; and each client's own row takes the step of plain SGD with its weight times its gradient.
inline void move(const Bank& bank, const float* gradients, const float* weights, const Update& step, float* slopes) {
  Numbers<float> scaled;
  slopes_of(bank, gradients, slopes, [&](ptrdiff_t at, ptrdiff_t wide) {
    scaled.resize(static_cast<size_t>(wide));
    for (ptrdiff_t i = 0; i < bank.clients; ++i) {
      const float* g = gradients + i * bank.d + at;
      const float weight = bank.weight(weights, i);
      for (ptrdiff_t c = 0; c < wide; ++c) scaled[static_cast<size_t>(c)] = weight * g[c];
      Update each = step;
      each.row = bank.cores + i * bank.d;
      if (step.target) each.target = step.target + i * bank.d;
      each.apply(at, scaled.data(), wide);
    }
  });
}

}  // namespace pomona
