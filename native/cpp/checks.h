// What the checks of arguments have in common: kinds of arrays, bounds of sizes, memory that must not be shared.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "maps.h"

namespace nb = nanobind;

namespace pomona {

using Sizes = std::pair<ptrdiff_t, ptrdiff_t>;
using Counts = std::vector<ptrdiff_t>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Integers64 = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IntegerTable = nb::ndarray<const int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatTable = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;          // as `joined`
using Spaced = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;  // as `joined`, which may be one row
using Array = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

constexpr const char* TOO_MANY = "a layer would get more than 2^27 numbers; take fewer samples at a time";
constexpr ptrdiff_t MOST = ptrdiff_t{1} << 27;  // numbers of one map, one layer or one batch: 512 MiB

[[noreturn]] inline void refuse(const std::string& why) { throw nb::value_error(why.c_str()); }

inline void require(bool fits, const std::string& why) {
  if (!fits) refuse(why);
}

inline Pair2 between(Sizes sizes, ptrdiff_t least, ptrdiff_t most, const char* name) {
  const auto [y, x] = sizes;
  require(least <= y && y <= most && least <= x && x <= most,
          std::string(name) + " must lie between " + std::to_string(least) + " and " + std::to_string(most));
  return {y, x};
}

// a * b, unless that is more than MOST.
inline ptrdiff_t times(ptrdiff_t a, ptrdiff_t b, const char* name) {
  require(a >= 1 && b >= 1 && a <= MOST / b, std::string(name) + " must be at least 1, and not above 2^27 numbers");
  return a * b;
}

// Where an argument lies.
struct Span {
  const char* name = "";
  uintptr_t at = 0;
  size_t bytes = 0;
};

// Where row i begins.
template <typename T>
T* at(const nb::ndarray<T, nb::ndim<2>, nb::device::cpu>& rows, ptrdiff_t i) {
  return rows.data() + i * rows.stride(0);
}

// Whether the numbers of each row stand together; rows that are written lie apart.
inline bool joined(const Rows& rows) {
  const auto length = static_cast<ptrdiff_t>(rows.shape(1));
  return (length <= 1 || rows.stride(1) == 1) && (rows.shape(0) <= 1 || rows.stride(0) >= length);
}
inline bool joined(const Spaced& rows) { return (rows.shape(1) <= 1 || rows.stride(1) == 1) && rows.stride(0) >= 0; }

// From the first row's first number to the last one's last; what lies between them counts as well.
template <typename T>
Span span(const char* name, const nb::ndarray<T, nb::ndim<2>, nb::device::cpu>& rows) {
  const bool empty = rows.shape(0) == 0 || rows.shape(1) == 0;
  const ptrdiff_t last = empty ? 0 : (static_cast<ptrdiff_t>(rows.shape(0)) - 1) * rows.stride(0);
  const size_t numbers = empty ? 0 : static_cast<size_t>(last) + rows.shape(1);
  return {name, reinterpret_cast<uintptr_t>(rows.data()), numbers * sizeof(float)};
}

template <typename T>
Span span(const char* name, const T& array) {
  return {name, reinterpret_cast<uintptr_t>(array.data()), array.nbytes()};
}

template <typename T>
Span span(const char* name, const std::optional<T>& array) {
  return array ? span(name, *array) : Span{};
}

// What is written shares memory with nothing else.
inline void apart(std::initializer_list<Span> written, std::initializer_list<Span> read) {
  const auto check = [](const Span& a, const Span& b) {
    if (a.bytes && b.bytes && a.at < b.at + b.bytes && b.at < a.at + a.bytes)
      refuse(std::string(a.name) + ", which is written, shares memory with " + b.name);
  };
  for (const Span* one = written.begin(); one != written.end(); ++one) {
    for (const Span* other = one + 1; other != written.end(); ++other) check(*one, *other);
    for (const Span& other : read) check(*one, other);
  }
}

// Whether a table has so many rows and columns.
template <typename T>
bool has(const T& table, ptrdiff_t rows, ptrdiff_t columns) {
  return static_cast<ptrdiff_t>(table.shape(0)) == rows && static_cast<ptrdiff_t>(table.shape(1)) == columns;
}

}  // namespace pomona
