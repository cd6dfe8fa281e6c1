// Vectors of the instruction set that this translation unit is compiled for.
//
// Arithmetic is written with the compiler's vector types. They lack a shift across two registers by
// a number known at run time, and a reciprocal square root: these are below, once per set.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define CASSI_ISA avx512
#define CASSI_BYTES 64
#elif defined(__AVX2__)
#define CASSI_ISA avx2
#define CASSI_BYTES 32
#else
#define CASSI_ISA baseline
#define CASSI_BYTES 16
#endif

namespace cassi {
namespace CASSI_ISA {

template <class T>
struct Vec {
  typedef T type __attribute__((vector_size(CASSI_BYTES)));
  static constexpr int64_t lanes = CASSI_BYTES / sizeof(T);
};

template <class T>
static inline typename Vec<T>::type load(const T* from) {
  typename Vec<T>::type v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

template <class T>
static inline void store(T* to, typename Vec<T>::type v) {
  __builtin_memcpy(to, &v, sizeof v);
}

// A store that bypasses the caches, to an aligned address; `drain` makes such stores visible.
template <class T>
static inline void stream(T* to, typename Vec<T>::type v) {
#if defined(__AVX512F__)
  _mm512_stream_ps(reinterpret_cast<float*>(to), (__m512)v);
#elif defined(__AVX2__)
  _mm256_stream_ps(reinterpret_cast<float*>(to), (__m256)v);
#elif defined(__x86_64__)
  _mm_stream_ps(reinterpret_cast<float*>(to), (__m128)v);
#else
  store(to, v);
#endif
}

static inline void drain() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// All bits of the first n lanes.
template <class T>
static inline __m256i first_lanes(int64_t n) {
  if constexpr (sizeof(T) == 4)
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                              _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
  else
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_set_epi64x(3, 2, 1, 0));
}
#endif

// The first n lanes; the others are zero, and memory behind them is not touched.
template <class T>
static inline typename Vec<T>::type load_part(const T* from, int64_t n) {
#if defined(__AVX512F__)
  const unsigned lanes = (1u << n) - 1;
  if constexpr (sizeof(T) == 4)
    return (typename Vec<T>::type)_mm512_maskz_loadu_ps(static_cast<__mmask16>(lanes), from);
  else
    return (typename Vec<T>::type)_mm512_maskz_loadu_pd(static_cast<__mmask8>(lanes), from);
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 4)
    return (typename Vec<T>::type)_mm256_maskload_ps(from, first_lanes<T>(n));
  else
    return (typename Vec<T>::type)_mm256_maskload_pd(from, first_lanes<T>(n));
#else
  T lanes[Vec<T>::lanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = from[i];
  return load(lanes);
#endif
}

template <class T>
static inline void store_part(T* to, typename Vec<T>::type v, int64_t n) {
#if defined(__AVX512F__)
  const unsigned lanes = (1u << n) - 1;
  if constexpr (sizeof(T) == 4)
    _mm512_mask_storeu_ps(to, static_cast<__mmask16>(lanes), (__m512)v);
  else
    _mm512_mask_storeu_pd(to, static_cast<__mmask8>(lanes), (__m512d)v);
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 4)
    _mm256_maskstore_ps(to, first_lanes<T>(n), (__m256)v);
  else
    _mm256_maskstore_pd(to, first_lanes<T>(n), (__m256d)v);
#else
  T lanes[Vec<T>::lanes];
  store(lanes, v);
  for (int64_t i = 0; i < n; ++i) to[i] = lanes[i];
#endif
}

// Whether a comparison holds in all lanes.
template <class M>
static inline bool all_lanes(const M& compared) {
  int64_t parts[CASSI_BYTES / 8], both = -1;
  __builtin_memcpy(parts, &compared, sizeof parts);
  for (const int64_t part : parts) both &= part;
  return both == -1;
}

template <class T>
static inline typename Vec<T>::type splat(T a) {
  return typename Vec<T>::type{} + a;
}

// Shifts a sequence of vectors right by `lanes` lanes; the vectors are passed one after another.
template <class T>
struct Shift {
  using V = typename Vec<T>::type;
  int64_t lanes;
  V previous = {};
  Shift() = default;
  explicit Shift(int64_t shift) : lanes(shift) {}
  V operator()(V current) {
    T both[2 * Vec<T>::lanes];
    store(both, previous);
    store(both + Vec<T>::lanes, current);
    previous = current;
    return load(both + Vec<T>::lanes - lanes);
  }
};

#if defined(__AVX512F__)
template <>
struct Shift<float> {
  using V = Vec<float>::type;
  __m512i index;
  __m512 previous = _mm512_setzero_ps();
  Shift() = default;
  explicit Shift(int64_t shift)
      : index(
            _mm512_add_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                             _mm512_set1_epi32(16 - static_cast<int>(shift)))) {}
  V operator()(V current) {
    const V moved = (V)_mm512_permutex2var_ps(previous, index, (__m512)current);
    previous = (__m512)current;
    return moved;
  }
};
#elif defined(__AVX2__)
template <>
struct Shift<float> {
  using V = Vec<float>::type;
  __m256i index;
  __m256 from_current, previous = _mm256_setzero_ps();  // whose lanes are rotated
  Shift() = default;
  explicit Shift(int64_t shift) {
    const __m256i lane = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    const __m256i s = _mm256_set1_epi32(static_cast<int>(shift));
    index = _mm256_and_si256(_mm256_sub_epi32(lane, s), _mm256_set1_epi32(7));
    from_current =
        _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_add_epi32(lane, _mm256_set1_epi32(1)), s));
  }
  V operator()(V current) {
    const __m256 rotated = _mm256_permutevar8x32_ps((__m256)current, index);
    const V moved = (V)_mm256_blendv_ps(previous, rotated, from_current);
    previous = rotated;
    return moved;
  }
};
#endif

// 1 / √a to the last digit or two, for a > 0.
template <class T>
static inline typename Vec<T>::type reciprocal_root(typename Vec<T>::type a) {
  typename Vec<T>::type out;
  for (int64_t i = 0; i < Vec<T>::lanes; ++i) out[i] = T(1) / __builtin_sqrt(a[i]);
  return out;
}

#if defined(__AVX512F__) || defined(__AVX2__)
template <>
inline __attribute__((always_inline)) Vec<float>::type reciprocal_root<float>(Vec<float>::type a) {
#if defined(__AVX512F__)
  const Vec<float>::type y = (Vec<float>::type)_mm512_rsqrt14_ps((__m512)a);
#else
  const Vec<float>::type y = (Vec<float>::type)_mm256_rsqrt_ps((__m256)a);
#endif
  return y * (1.5f - 0.5f * a * y * y);  // one Newton step
}
#endif

// The exponential, to the last digit or two: exp(a) = 2ⁿ exp(r), |r| <= ln(2)/2, by its Taylor
// series. Zero where it would be less than about twice the least normal number.
template <class T>
struct Exponential;
template <>
struct Exponential<float> {
  typedef int32_t Bits __attribute__((vector_size(CASSI_BYTES)));
  static constexpr float lowest = -86.9f, highest = 89.0f, rounder = 12582912.0f;  // 1.5·2²³
  static constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  static constexpr int degree = 7, bias = 127, mantissa = 23;
};
template <>
struct Exponential<double> {
  typedef int64_t Bits __attribute__((vector_size(CASSI_BYTES)));
  static constexpr double lowest = -707.9, highest = 710.0, rounder = 6755399441055744.0;
  static constexpr double ln2_high = 6.93145751953125e-1, ln2_low = 1.42860682030941723212e-6;
  static constexpr int degree = 13, bias = 1023, mantissa = 52;
};

template <class T>
static inline typename Vec<T>::type exponential(typename Vec<T>::type a) {
  using V = typename Vec<T>::type;
  using E = Exponential<T>;
  constexpr T inverse[] = {T(1),
                           T(1),
                           T(1) / 2,
                           T(1) / 6,
                           T(1) / 24,
                           T(1) / 120,
                           T(1) / 720,
                           T(1) / 5040,
                           T(1) / 40320,
                           T(1) / 362880,
                           T(1) / 3628800,
                           T(1) / 39916800,
                           T(1) / 479001600,
                           T(1) / 6227020800};
  const V rounder = splat<T>(E::rounder);
  // The sum's last bits are the integer n.
  const V sum = a * T(1.4426950408889634) + rounder, n = sum - rounder;
  const V r = (a - n * E::ln2_high) - n * E::ln2_low;
  V p = splat<T>(inverse[E::degree]);
  for (int k = E::degree - 1; k >= 0; --k) p = p * r + inverse[k];
  typename E::Bits bits, zero;
  __builtin_memcpy(&bits, &sum, sizeof bits);
  __builtin_memcpy(&zero, &rounder, sizeof zero);
  bits = (bits - zero + (E::bias - 1)) << E::mantissa;  // 2ⁿ⁻¹: n may be one more than fits
  V half;
  __builtin_memcpy(&half, &bits, sizeof half);
  const V value = (p + p) * half;
  const V infinite = splat<T>(static_cast<T>(__builtin_inf()));
  return a < E::lowest ? V{} : a > E::highest ? infinite : value;  // a NaN stays a NaN
}

}  // namespace CASSI_ISA
}  // namespace cassi
