// Rows of strided tensors in any dtype, as contiguous rows of the dtype that sums run in.
//
// A block is C bands × R image rows. Where a tensor already has such rows they are used in place;
// otherwise they are converted and transposed into scratch memory that fits a core's cache, and
// back.
#pragma once

#include "../kernels.h"
#include "simd.h"

namespace cassi {

// Scratch memory of the calling thread, 64-byte aligned, valid until the next call. (dispatch.cpp)
char* scratch(int64_t bytes);

namespace CASSI_ISA {

template <class T>
struct Block {
  T* base;
  int64_t band, row;  // distances in elements
  T* at(int64_t c, int64_t r) const { return base + c * band + r * row; }
  Block from(int64_t c, int64_t column = 0) const { return {at(c, 0) + column, band, row}; }
};

// Part of a view: one sample (and shot), rows from some h on.
struct Part {
  char* data;
  Dtype dtype;
  int64_t band, row, column;  // strides in elements
};

static inline int64_t size_of(Dtype d) { return d == Dtype::f64 ? 8 : d == Dtype::f32 ? 4 : 2; }

static inline Part cube_part(const View& v, int64_t b, int64_t h) {
  const int64_t offset = b * v.stride[0] + h * v.stride[2];
  return {static_cast<char*>(v.data) + offset * size_of(v.dtype), v.dtype, v.stride[1], v.stride[2],
          v.stride[3]};
}

static inline Part mask_part(const View& v, int64_t b, int64_t k, int64_t h) {
  const int64_t offset = b * v.stride[0] + k * v.stride[1] + h * v.stride[3];
  return {static_cast<char*>(v.data) + offset * size_of(v.dtype), v.dtype, v.stride[2], v.stride[3],
          v.stride[4]};
}

// Storage types. Half precision is kept as bits.
struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

static inline float bits_to_float(uint32_t bits) {
  float f;
  __builtin_memcpy(&f, &bits, 4);
  return f;
}

static inline uint32_t float_to_bits(float f) {
  uint32_t bits;
  __builtin_memcpy(&bits, &f, 4);
  return bits;
}

static inline float widen(float a) { return a; }
static inline double widen(double a) { return a; }
static inline float widen(Bf16 a) { return bits_to_float(static_cast<uint32_t>(a.bits) << 16); }

static inline float widen(F16 a) {
  const uint32_t sign = (a.bits & 0x8000u) << 16, rest = a.bits & 0x7fffu;
  if (rest >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  // A product by 2^112 moves the exponent and makes subnormals normal.
  return bits_to_float(sign | float_to_bits(bits_to_float(rest << 13) * 0x1p112f));
}

// Round to nearest, ties to even, as torch does.
template <class D>
static inline D narrow(float a);
template <>
inline __attribute__((always_inline)) Bf16 narrow<Bf16>(float a) {
  const uint32_t bits = float_to_bits(a);
  if (a != a) return {0x7fc0};
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}
template <>
inline __attribute__((always_inline)) F16 narrow<F16>(float a) {
  const uint32_t bits = float_to_bits(a), sign = bits >> 16 & 0x8000u;
  const float size = a < 0 ? -a : a;
  if (a != a) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (size >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7c00u)};
  if (size < 0x1p-14f) {  // subnormal: let the addition round
    const uint32_t rounded = float_to_bits(size + 0.5f) - 0x3f000000u;
    return {static_cast<uint16_t>(sign | rounded)};
  }
  const uint32_t rest = bits & 0x7fffffffu;
  return {static_cast<uint16_t>(sign | ((rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13))};
}

template <class D, class T>
struct Convert {
  static T in(D a) { return static_cast<T>(widen(a)); }
  static D out(T a) { return narrow<D>(static_cast<float>(a)); }
};
template <class T>
struct Convert<float, T> {
  static T in(float a) { return static_cast<T>(a); }
  static float out(T a) { return static_cast<float>(a); }
};
template <class T>
struct Convert<double, T> {
  static T in(double a) { return static_cast<T>(a); }
  static double out(T a) { return static_cast<double>(a); }
};

template <class D, class T>
static inline void read_row(T* __restrict to, const D* __restrict from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = Convert<D, T>::in(from[i]);
}

template <class D, class T>
static inline void write_row(D* __restrict to, const T* __restrict from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = Convert<D, T>::out(from[i]);
}

#if defined(__F16C__)
template <>
inline void read_row<F16, float>(float* __restrict to, const F16* __restrict from, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(from + i))));
  for (; i < n; ++i) to[i] = widen(from[i]);
}
template <>
inline void write_row<F16, float>(F16* __restrict to, const float* __restrict from, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128((__m128i*)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), 0));
  for (; i < n; ++i) to[i] = narrow<F16>(from[i]);
}
#endif

typedef float Eight __attribute__((vector_size(32)));

// Elements I… of a and, from its number of lanes on, of b.
template <int... I, class V>
static inline V pick(V a, V b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, I...);
#else
  return __builtin_shuffle(a, b, decltype(a < b){I...});
#endif
}

// Eight rows of eight become eight columns.
static inline void transpose8(float* to, int64_t to_pitch, const float* from, int64_t from_pitch) {
  Eight a[8], b[8];
  for (int i = 0; i < 8; ++i) __builtin_memcpy(&a[i], from + i * from_pitch, 32);
  for (int i = 0; i < 4; ++i) {
    b[2 * i] = pick<0, 8, 1, 9, 4, 12, 5, 13>(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = pick<2, 10, 3, 11, 6, 14, 7, 15>(a[2 * i], a[2 * i + 1]);
  }
  for (int half = 0; half < 2; ++half)
    for (int i = 0; i < 2; ++i) {
      const Eight x = b[4 * half + i], y = b[4 * half + 2 + i];
      a[4 * half + 2 * i] = pick<0, 1, 8, 9, 4, 5, 12, 13>(x, y);
      a[4 * half + 2 * i + 1] = pick<2, 3, 10, 11, 6, 7, 14, 15>(x, y);
    }
  for (int i = 0; i < 4; ++i) {
    const Eight x = pick<0, 1, 2, 3, 8, 9, 10, 11>(a[i], a[4 + i]);
    const Eight y = pick<4, 5, 6, 7, 12, 13, 14, 15>(a[i], a[4 + i]);
    __builtin_memcpy(to + i * to_pitch, &x, 32);
    __builtin_memcpy(to + (4 + i) * to_pitch, &y, 32);
  }
}

// to[i·to_pitch + j] ← from[j·from_pitch + i] for i < rows, j < columns.
template <class D, class T>
static inline void read_transposed(T* to, int64_t to_pitch, const D* from, int64_t from_pitch,
                                   int64_t rows, int64_t columns) {
  int64_t i = 0;
  if constexpr (__is_same(D, float) && __is_same(T, float)) {
    for (; i + 8 <= rows; i += 8) {
      int64_t j = 0;
      for (; j + 8 <= columns; j += 8)
        transpose8(to + i * to_pitch + j, to_pitch, from + j * from_pitch + i, from_pitch);
      for (; j < columns; ++j)
        for (int64_t k = i; k < i + 8; ++k) to[k * to_pitch + j] = from[j * from_pitch + k];
    }
  }
  for (int64_t j = 0; j < columns; ++j)
    for (int64_t k = i; k < rows; ++k)
      to[k * to_pitch + j] = Convert<D, T>::in(from[j * from_pitch + k]);
}

template <class D, class T>
static inline void write_transposed(D* to, int64_t to_pitch, const T* from, int64_t from_pitch,
                                    int64_t rows, int64_t columns) {
  int64_t i = 0;
  if constexpr (__is_same(D, float) && __is_same(T, float)) {
    for (; i + 8 <= rows; i += 8) {
      int64_t j = 0;
      for (; j + 8 <= columns; j += 8)
        transpose8(to + j * to_pitch + i, to_pitch, from + i * from_pitch + j, from_pitch);
      for (; j < columns; ++j)
        for (int64_t k = i; k < i + 8; ++k) to[j * to_pitch + k] = from[k * from_pitch + j];
    }
  }
  for (int64_t j = 0; j < columns; ++j)
    for (int64_t k = i; k < rows; ++k)
      to[j * to_pitch + k] = Convert<D, T>::out(from[k * from_pitch + j]);
}

template <class D, class T>
static inline void read_block_as(const Block<T>& to, const Part& p, int64_t bands, int64_t rows,
                                 int64_t width) {
  const D* from = reinterpret_cast<const D*>(p.data);
  if (p.column == 1 || width == 1) {
    for (int64_t c = 0; c < bands; ++c)
      for (int64_t r = 0; r < rows; ++r)
        read_row<D, T>(to.at(c, r), from + c * p.band + r * p.row, width);
  } else if (p.band == 1) {
    for (int64_t r = 0; r < rows; ++r)
      read_transposed<D, T>(to.at(0, r), to.band, from + r * p.row, p.column, bands, width);
  } else if (p.row == 1) {
    for (int64_t c = 0; c < bands; ++c)
      read_transposed<D, T>(to.at(c, 0), to.row, from + c * p.band, p.column, rows, width);
  } else {
    for (int64_t c = 0; c < bands; ++c)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t w = 0; w < width; ++w)
          to.at(c, r)[w] = Convert<D, T>::in(from[c * p.band + r * p.row + w * p.column]);
  }
}

template <class D, class T>
static inline void write_block_as(const Part& p, const Block<T>& from, int64_t bands, int64_t rows,
                                  int64_t width) {
  D* to = reinterpret_cast<D*>(p.data);
  if (p.column == 1 || width == 1) {
    for (int64_t c = 0; c < bands; ++c)
      for (int64_t r = 0; r < rows; ++r)
        write_row<D, T>(to + c * p.band + r * p.row, from.at(c, r), width);
  } else if (p.band == 1) {
    for (int64_t r = 0; r < rows; ++r)
      write_transposed<D, T>(to + r * p.row, p.column, from.at(0, r), from.band, bands, width);
  } else if (p.row == 1) {
    for (int64_t c = 0; c < bands; ++c)
      write_transposed<D, T>(to + c * p.band, p.column, from.at(c, 0), from.row, rows, width);
  } else {
    for (int64_t c = 0; c < bands; ++c)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t w = 0; w < width; ++w)
          to[c * p.band + r * p.row + w * p.column] = Convert<D, T>::out(from.at(c, r)[w]);
  }
}

template <class T>
static inline void read_block(const Block<T>& to, const Part& p, int64_t bands, int64_t rows,
                              int64_t width) {
  switch (p.dtype) {
    case Dtype::f32:
      return read_block_as<float, T>(to, p, bands, rows, width);
    case Dtype::f64:
      return read_block_as<double, T>(to, p, bands, rows, width);
    case Dtype::bf16:
      return read_block_as<Bf16, T>(to, p, bands, rows, width);
    case Dtype::f16:
      return read_block_as<F16, T>(to, p, bands, rows, width);
  }
}

template <class T>
static inline void write_block(const Part& p, const Block<T>& from, int64_t bands, int64_t rows,
                               int64_t width) {
  switch (p.dtype) {
    case Dtype::f32:
      return write_block_as<float, T>(p, from, bands, rows, width);
    case Dtype::f64:
      return write_block_as<double, T>(p, from, bands, rows, width);
    case Dtype::bf16:
      return write_block_as<Bf16, T>(p, from, bands, rows, width);
    case Dtype::f16:
      return write_block_as<F16, T>(p, from, bands, rows, width);
  }
}

template <class T>
static inline bool in_place(const Part& p, int64_t width) {
  constexpr Dtype own = sizeof(T) == 8 ? Dtype::f64 : Dtype::f32;
  return p.dtype == own && (p.column == 1 || width == 1);
}

// A part as a block: itself where its rows can be used in place, else a copy in `space`.
template <class T>
static inline Block<T> as_block(const Part& p, int64_t bands, int64_t rows, int64_t width,
                                const Block<T>& space) {
  if (in_place<T>(p, width)) return {reinterpret_cast<T*>(p.data), p.band, p.row};
  read_block(space, p, bands, rows, width);
  return space;
}

// The same for a mask, of which bands that share one (stride 0) are read once.
template <class T>
static inline Block<T> as_mask(const Part& p, int64_t bands, int64_t rows, int64_t width,
                               const Block<T>& space) {
  if (p.band != 0) return as_block(p, bands, rows, width, space);
  Block<T> block = as_block(p, 1, rows, width, space);
  block.band = 0;
  return block;
}

template <class T>
static inline T scalar_at(const View& v, int64_t index) {
  switch (v.dtype) {
    case Dtype::f32:
      return static_cast<T>(static_cast<const float*>(v.data)[index * v.stride[0]]);
    case Dtype::f64:
      return static_cast<T>(static_cast<const double*>(v.data)[index * v.stride[0]]);
    case Dtype::bf16:
      return widen(static_cast<const Bf16*>(v.data)[index * v.stride[0]]);
    default:
      return widen(static_cast<const F16*>(v.data)[index * v.stride[0]]);
  }
}

// Carves a thread's scratch memory into aligned pieces.
struct Arena {
  char* next;
  template <class T>
  Block<T> block(int64_t bands, int64_t rows, int64_t pitch) {
    T* base = reinterpret_cast<T*>(next);
    next += bands * rows * pitch * sizeof(T);
    return {base, rows * pitch, pitch};
  }
};

template <class T>
static inline int64_t padded(int64_t n) {  // to whole vectors
  return (n + Vec<T>::lanes - 1) / Vec<T>::lanes * Vec<T>::lanes;
}

}  // namespace CASSI_ISA
}  // namespace cassi
