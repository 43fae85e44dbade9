// Functions of vectors of floats, to a few units in the last place, and the activations made of them.
#pragma once

#include "vector.h"

namespace pomona {

inline Vector either(Integers which, Vector yes, Vector no) { return which ? yes : no; }
inline Vector all(float x) { return Vector{} + x; }
inline Vector clamped(Vector x, float least, float most) {
  x = either(x < least, all(least), x);  // what is no number stays none
  return either(x > most, all(most), x);
}

// e^x: x = n ln 2 + r, a polynomial of r, and n added to the exponent. Adding 1.5 * 2^23 rounds to whole numbers.
inline Vector exp(Vector x) {
  constexpr float ROUND = 12582912.0f;
  x = clamped(x, -87.0f, 88.0f);
  const Vector shifted = x * 1.44269504f + ROUND, n = shifted - ROUND;
  const Vector r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Vector p = all(1.9875691500e-4f);
  for (const float next : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    p = p * r + next;
  p = p * r * r + r + 1.0f;
  return (Vector)((Integers)p + (((Integers)shifted - static_cast<int32_t>(bits_of(ROUND))) << 23));
}

inline Vector absolute(Vector x) { return (Vector)((Integers)x & 0x7fffffff); }
inline Vector signed_as(Vector x, Vector sign) {
  return (Vector)((Integers)absolute(x) | ((Integers)sign & static_cast<int32_t>(0x80000000)));
}

// tanh: near 0 the polynomial of Cephes' tanhf, since 1 - 2 / (e^2x + 1) would lose what is small.
inline Vector tanh(Vector x) {
  const Vector square = x * x, far = 1.0f - 2.0f / (exp(2.0f * absolute(x)) + 1.0f);
  Vector p = all(-5.70498872745e-3f);
  for (const float next : {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f})
    p = p * square + next;
  return either(absolute(x) < 0.625f, p * square * x + x, signed_as(far, x));
}

inline Vector sigmoid(Vector x) { return 1.0f / (1.0f + exp(-x)); }

// The standard normal distribution's density, but for its factor, and distribution function (Abramowitz and Stegun
// 7.1.26; error below 1e-7).
inline Vector bell(Vector x) { return exp(-0.5f * x * x); }

inline Vector normal(Vector x) {
  const Vector t = 1.0f / (1.0f + 0.2316418880f * absolute(x));  // 0.3275911 / sqrt(2)
  Vector p = all(1.061405429f);
  for (const float next : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) p = p * t + next;
  const Vector tail = 0.5f * p * t * bell(x);
  return either(x < 0, tail, 1.0f - tail);
}

// An activation: its value at x, and its slope.
struct Rectifier {
  static Vector value(Vector x) { return either(x < 0, Vector{}, x); }
  static Vector slope(Vector x) { return either(x > 0, all(1), Vector{}); }
};

struct Rectifier6 {
  static Vector value(Vector x) { return clamped(x, 0, 6); }
  static Vector slope(Vector x) { return either((x > 0) & (x < 6), all(1), Vector{}); }
};

struct Tanh {
  static Vector value(Vector x) { return tanh(x); }
  static Vector slope(Vector x) { return 1.0f - tanh(x) * tanh(x); }
};

struct Sigmoid {
  static Vector value(Vector x) { return sigmoid(x); }
  static Vector slope(Vector x) { return sigmoid(x) * (1.0f - sigmoid(x)); }
};

struct Silu {
  static Vector value(Vector x) { return x * sigmoid(x); }
  static Vector slope(Vector x) { return sigmoid(x) * (1.0f + x * (1.0f - sigmoid(x))); }
};

struct Gelu {
  static Vector value(Vector x) { return x * normal(x); }
  static Vector slope(Vector x) { return normal(x) + 0.398942280f * x * bell(x); }
};

}  // namespace pomona
