// Mixtures of rows, and the products of gradients at mixtures with the rows that were mixed.
//
// All is read once, a tile of columns at a time, for all clients of a call: what a client makes of a tile does not
// depend on who else is in the call.
#pragma once

#include "product.h"
#include "update.h"

namespace pomona {

// N rows of d numbers, in which client i's own row is another one: cores[i] in the place of copies[own[i]].
struct Bank {
  ptrdiff_t clients, rows, d;
  const float* copies;  // (rows, d), a row `apart` from the next: 0 where all are one
  ptrdiff_t apart;
  float* cores;         // (clients, d)
  const int64_t* own;

  // Columns of a tile, whole vectors, so many that it lies in the second cache. The number of clients must not count:
  // sums are rounded once a tile.
  ptrdiff_t tile() const { return std::max<ptrdiff_t>(64, (1 << 14) / rows / 64 * 64); }
};

// mixed (clients, d) = weights (clients, rows) times the rows.
inline void mix(const Bank& bank, const float* weights, float* mixed) {
  Numbers<float> others(weights, weights + bank.clients * bank.rows);
  for (ptrdiff_t i = 0; i < bank.clients; ++i) others[i * bank.rows + bank.own[i]] = 0;
  const Left<float> left{others.data(), bank.rows, 1};
  const Common common{1, static_cast<int>(bank.rows)};
  for (ptrdiff_t at = 0; at < bank.d; at += bank.tile()) {
    const ptrdiff_t wide = std::min(bank.tile(), bank.d - at), sure = wide / LANES * LANES;
    product<float>(bank.clients, sure, left, common, bank.copies + at, bank.apart, mixed + at, bank.d, false);
    for (ptrdiff_t i = 0; i < bank.clients; ++i) {
      const float weight = weights[i * bank.rows + bank.own[i]];
      const float* __restrict core = bank.cores + i * bank.d + at;
      float* __restrict to = mixed + i * bank.d + at;
      for (ptrdiff_t c = sure; c < wide; ++c) {
        to[c] = 0;
        for (ptrdiff_t j = 0; j < bank.rows; ++j) to[c] += others[i * bank.rows + j] * bank.copies[j * bank.apart + at + c];
      }
      for (ptrdiff_t c = 0; c < wide; ++c) to[c] += weight * core[c];
    }
  }
}

// sums (M, row) += the products of M rows with N others, over some columns; both begin where these do.
template <int M, int N>
inline void products(const float* left, ptrdiff_t d, const float* right, ptrdiff_t apart, ptrdiff_t columns,
                     double* sums, ptrdiff_t row) {
  Vector kept[M][N]{};
  const ptrdiff_t sure = columns / LANES * LANES;
  for (ptrdiff_t c = 0; c < sure; c += LANES) {
    Vector b[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) b[j] = load(right + j * apart + c);
#pragma GCC unroll 4
    for (int i = 0; i < M; ++i) {
      const Vector a = load(left + i * d + c);
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) kept[i][j] += a * b[j];
    }
  }
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < N; ++j) {
      double sum = 0;
      for (int lane = 0; lane < LANES; ++lane) sum += kept[i][j][lane];
      for (ptrdiff_t c = sure; c < columns; ++c) sum += left[i * d + c] * right[j * apart + c];
      sums[i * row + j] += sum;
    }
}

// As `products`, for numbers of rows known at run time, 1 to 3 and any.
inline void products_of(ptrdiff_t m, ptrdiff_t n, const float* left, ptrdiff_t d, const float* right, ptrdiff_t apart,
                        ptrdiff_t columns, double* sums, ptrdiff_t row) {
  for (; n > 0; n -= 3, right += 3 * apart, sums += 3) {
    const auto some = [&]<int M>() {
      if (n >= 3) products<M, 3>(left, d, right, apart, columns, sums, row);
      if (n == 2) products<M, 2>(left, d, right, apart, columns, sums, row);
      if (n == 1) products<M, 1>(left, d, right, apart, columns, sums, row);
    };
    if (m == 3) some.operator()<3>();
    if (m == 2) some.operator()<2>();
    if (m == 1) some.operator()<1>();
  }
}

// slopes (clients, rows) = the products of gradients (clients, d) with the rows; then each client's own row takes the
// step of plain SGD with its weight times its gradient.
inline void move(const Bank& bank, const float* gradients, const float* weights, const Update& step, float* slopes) {
  Numbers<double> sums(static_cast<size_t>(bank.clients * bank.rows), 0.0);
  std::vector<double> own(static_cast<size_t>(bank.clients), 0.0);
  Numbers<float> scaled(static_cast<size_t>(bank.tile()));
  for (ptrdiff_t at = 0; at < bank.d; at += bank.tile()) {
    const ptrdiff_t wide = std::min(bank.tile(), bank.d - at);
    for (ptrdiff_t i = 0; i < bank.clients; i += 3)
      products_of(std::min<ptrdiff_t>(3, bank.clients - i), bank.rows, gradients + i * bank.d + at, bank.d,
                  bank.copies + at, bank.apart, wide, sums.data() + i * bank.rows, bank.rows);
    for (ptrdiff_t i = 0; i < bank.clients; ++i) {
      const float* g = gradients + i * bank.d + at;
      products<1, 1>(g, bank.d, bank.cores + i * bank.d + at, bank.d, wide, &own[i], 1);
      const float weight = weights[i * bank.rows + bank.own[i]];
      for (ptrdiff_t c = 0; c < wide; ++c) scaled[c] = weight * g[c];
      Update each = step;
      each.row = bank.cores + i * bank.d;
      if (step.target) each.target = step.target + i * bank.d;
      each.apply(at, scaled.data(), wide);
    }
  }
  for (ptrdiff_t i = 0; i < bank.clients; ++i) sums[i * bank.rows + bank.own[i]] = own[i];
  for (size_t k = 0; k < sums.size(); ++k) slopes[k] = static_cast<float>(sums[k]);
}

}  // namespace pomona
