// Products of pairs on a processor with matrix tiles (AMX): 16 rows of 16 sums each, for 16 pairs at a time.
#pragma once

#include "product.h"

namespace pomona {

#if defined(__AMX_BF16__)
constexpr bool MATRIX_TILES = true;
constexpr ptrdiff_t SIDE = 16;    // rows of a tile, pairs or sums in one of its rows
constexpr ptrdiff_t ABREAST = 4;  // tiles of sums beside each other

// Tiles 0 to 3 are sums; 4 and 5 the factors, for SIDE common indices; 6 and 7 the same for what is left of a run.
inline void shape_tiles(ptrdiff_t rows, ptrdiff_t left_over) {
  struct alignas(64) {
    uint8_t palette = 1, start = 0, none[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  } shapes;
  const auto set = [&](int tile, ptrdiff_t height, ptrdiff_t width) {
    shapes.rows[tile] = static_cast<uint8_t>(height);
    shapes.bytes[tile] = static_cast<uint16_t>(4 * width);
  };
  for (int tile = 0; tile < ABREAST; ++tile) set(tile, rows, SIDE);
  set(4, rows, SIDE);
  set(5, SIDE, SIDE);
  if (left_over) {
    set(6, rows, left_over);
    set(7, left_over, SIDE);
  }
  _tile_loadconfig(&shapes);
}

// A tile of sums += left * right; N is its number.
#define POMONA_MULTIPLY(N, A, B)                                            \
  if (N < count) {                                                          \
    _tile_loadd(B, b + N * SIDE, right.step * sizeof(Pair));                \
    _tile_dpbf16ps(N, A, B);                                                \
  }

// c (rows up to SIDE, up to ABREAST tiles) = the product.
inline void tiled(Left<Pair> left, Common common, Right<Pair> right, float* c, ptrdiff_t c_row, ptrdiff_t count) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int r = 0; r < common.runs; ++r) {
    const Pair* a = left.at + r * left.run;
    const Pair* b = right.at + r * right.run;
    int l = 0;
    for (; l + SIDE <= common.length; l += SIDE, a += SIDE, b += SIDE * right.step) {
      _tile_loadd(4, a, left.row * sizeof(Pair));
      POMONA_MULTIPLY(0, 4, 5)
      POMONA_MULTIPLY(1, 4, 5)
      POMONA_MULTIPLY(2, 4, 5)
      POMONA_MULTIPLY(3, 4, 5)
    }
    if (l < common.length) {
      _tile_loadd(6, a, left.row * sizeof(Pair));
      POMONA_MULTIPLY(0, 6, 7)
      POMONA_MULTIPLY(1, 6, 7)
      POMONA_MULTIPLY(2, 6, 7)
      POMONA_MULTIPLY(3, 6, 7)
    }
  }
  if (0 < count) _tile_stored(0, c, c_row * sizeof(float));
  if (1 < count) _tile_stored(1, c + SIDE, c_row * sizeof(float));
  if (2 < count) _tile_stored(2, c + 2 * SIDE, c_row * sizeof(float));
  if (3 < count) _tile_stored(3, c + 3 * SIDE, c_row * sizeof(float));
}

#undef POMONA_MULTIPLY

// Of pairs that stand beside each other in `left`; nothing is added to.
template <>
inline void product<Pair>(ptrdiff_t rows, ptrdiff_t columns, Left<Pair> left, Common common, Right<Pair> right, float* c,
                          ptrdiff_t c_row, bool) {
  ptrdiff_t shaped = 0;
  for (ptrdiff_t i = 0; i < rows; i += SIDE) {
    const ptrdiff_t height = std::min(SIDE, rows - i);
    if (height != shaped) shape_tiles(shaped = height, common.length % SIDE);
    for (ptrdiff_t j = 0; j < columns; j += ABREAST * SIDE)
      tiled({left.at + i * left.row, left.row, 1, left.run}, common, {right.at + j, right.step, right.run},
            c + i * c_row + j, c_row, std::min(ABREAST, (columns - j) / SIDE));
  }
  _tile_release();
}
#else
constexpr bool MATRIX_TILES = false;
#endif

}  // namespace pomona
