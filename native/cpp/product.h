// Sums of products, the inner loop of everything: a tile of sums stays in registers while the common index runs.
#pragma once

#include <type_traits>

#include "vector.h"

namespace pomona {

// Where the left factor's number (i, r, l) lies: at[i * row + r * run + l * step]. The common index is (r, l), with r
// below `runs` and l below `length`: one run for a matrix, a run for each row of a kernel for a convolution.
template <typename T>
struct Left {
  const T* at;
  ptrdiff_t row, step;
  ptrdiff_t run = 0;
};

struct Common {
  int runs, length;
};

// The right factor has a row of numbers for each common index.
template <typename T>
struct Right {
  const T* at;
  ptrdiff_t step, run = 0;
};

// c (M, N vectors) = or += the product of a tile.
template <int M, int N, typename T>
inline void tile(Left<T> left, Common common, Right<T> right, float* c, ptrdiff_t c_row, bool add) {
  Vector sums[M][N];
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) sums[i][j] = add ? load(c + i * c_row + j * LANES) : Vector{};
  for (int r = 0; r < common.runs; ++r) {
    const T* a = left.at + r * left.run;
    const T* b = right.at + r * right.run;
    for (int l = 0; l < common.length; ++l) {
#pragma GCC unroll 16
      for (int i = 0; i < M; ++i)
#pragma GCC unroll 2
        for (int j = 0; j < N; ++j) sums[i][j] = multiplied(a[i * left.row], b + j * LANES, sums[i][j]);
      a += left.step;
      b += right.step;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) store(c + i * c_row + j * LANES, sums[i][j]);
}

// As `tile`, for a number of rows known at run time, 1 to TALLEST.
template <int N, typename T, int M = TALLEST>
inline void tile_of(int rows, Left<T> left, Common common, Right<T> right, float* c, ptrdiff_t c_row, bool add) {
  if constexpr (M > 1)
    if (rows < M) return tile_of<N, T, M - 1>(rows, left, common, right, c, c_row, add);
  tile<M, N, T>(left, common, right, c, c_row, add);
}

// c (rows, columns) = or += left (rows, common) right (common, columns); columns are whole vectors, of which `right`
// and `c` have room for all.
template <typename T>
void product(ptrdiff_t rows, ptrdiff_t columns, Left<T> left, Common common, Right<T> right, float* c, ptrdiff_t c_row,
             bool add) {
  const ptrdiff_t pieces = ceil_div(rows, TALLEST);
  for (ptrdiff_t j = 0; j < columns; j += 2 * LANES) {
    for (ptrdiff_t piece = 0; piece < pieces; ++piece) {  // of nearly the same height
      const ptrdiff_t i = rows * piece / pieces;
      const int height = static_cast<int>(rows * (piece + 1) / pieces - i);
      const Left<T> here{left.at + i * left.row, left.row, left.step, left.run};
      const Right<T> there{right.at + j, right.step, right.run};
      float* at = c + i * c_row + j;
      if (columns - j > LANES)
        tile_of<2>(height, here, common, there, at, c_row, add);
      else
        tile_of<1>(height, here, common, there, at, c_row, add);
    }
  }
}

// made (M, N) = the products of M rows, so far apart, with N others, of so many numbers or pairs; those of pairs are whole
// vectors.
template <int M, int N, typename T>
inline void dots(const T* left, ptrdiff_t left_row, const T* const* right, ptrdiff_t length, float* made,
                 ptrdiff_t made_row) {
  const T* others[N];
  for (int n = 0; n < N; ++n) others[n] = right[n];
  Vector sums[M * N];
#pragma GCC unroll 32
  for (Vector& sum : sums) sum = Vector{};
  ptrdiff_t l = 0;
  const auto add = [&](auto get) {
    decltype(load(left)) a[M];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) a[m] = get(left + m * left_row + l);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      const auto b = get(others[n] + l);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) sums[m * N + n] = multiplied(a[m], b, sums[m * N + n]);
    }
  };
  for (; l + LANES <= length; l += LANES) add([](const T* at) { return load(at); });
  if constexpr (std::is_same_v<T, float>)
    if (l < length) add([&](const T* at) { return load(at, length - l); });
  float flat[whole(M * N)];
  totals<M * N>(sums, flat);
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) std::memcpy(made + m * made_row, flat + m * N, N * sizeof(float));
}

// As `dots`, of m and n rows known at run time, at most M and N.
template <int M = HIGH, int N = WIDE, typename T>
inline void dots_of(ptrdiff_t m, ptrdiff_t n, const T* left, ptrdiff_t left_row, const T* const* right, ptrdiff_t length,
                    float* made, ptrdiff_t made_row) {
  if constexpr (M > 1)
    if (m < M) return dots_of<M - 1, N>(m, n, left, left_row, right, length, made, made_row);
  if constexpr (N > 1)
    if (n < N) return dots_of<M, N - 1>(m, n, left, left_row, right, length, made, made_row);
  dots<M, N>(left, left_row, right, length, made, made_row);
}

}  // namespace pomona
