// The arithmetic of total variation, per pixel.
#pragma once

#include "device.cuh"

namespace cassi {
namespace cuda {

template <class T>
CASSI_DEVICE_INLINE T limit_of(const TvProx& a, int64_t b) {
  const T limit = load<T>(a.weight, b * a.weight.stride[0]);
  return limit > Precision<T>::largest ? Precision<T>::largest : limit;
}

CASSI_DEVICE_INLINE float reciprocal_root(float a) { return rsqrtf(a); }
CASSI_DEVICE_INLINE double reciprocal_root(double a) { return rsqrt(a); }

// min(1, limit / √square), where a NaN stays a NaN; square + tiny is never zero.
template <class T>
CASSI_DEVICE_INLINE T shrinkage(T limit, T square) {
  const T s = limit * reciprocal_root(square + Precision<T>::tiny);
  return s >= T(1) ? T(1) : s;
}

template <class T>
CASSI_DEVICE_INLINE Symmetric<T> frobenius_shrinkage(T limit, Symmetric<T> square) {
  const T s = shrinkage(limit, square.a + square.c);
  return {s, T(0), s};
}

template <class T>
CASSI_DEVICE_INLINE Symmetric<T> nuclear_shrinkage(T limit, Symmetric<T> square) {
  return spectral_shrinkage<T>(
      limit, square, Precision<T>::tiny, [](T v) { return reciprocal_root(v); },
      [](T s) { return s >= T(1) ? T(1) : s; });
}

}  // namespace cuda
}  // namespace cassi
