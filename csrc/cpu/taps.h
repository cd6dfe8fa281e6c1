// Rows that are moved by any number of columns and spread by a few weights.
#pragma once

#include "camera.h"

namespace cassi {
namespace CASSI_ISA {

// Where a band's first tap falls on the detector; how far it misses it does not matter.
static inline int64_t start_of(const Taps& taps, int64_t sample, int64_t band, int64_t width,
                               int64_t detector) {
  const int64_t start = taps.starts[sample * taps.starts_batch + band * taps.starts_band];
  const int64_t low = -(width + taps.count);
  return start < low ? low : start > detector ? detector : start;
}

// The weights of one sample, (C, T) in the dtype of the sums.
template <class T>
static inline void read_weights(const Taps& taps, int64_t sample, int64_t bands, T* to) {
  const View& v = taps.weights;
  View at = v;
  for (int64_t c = 0; c < bands; ++c)
    for (int64_t t = 0; t < taps.count; ++t) {
      at.stride[0] = 1;
      to[c * taps.count + t] =
          scalar_at<T>(at, sample * v.stride[0] + c * v.stride[1] + t * v.stride[2]);
    }
}

// y[at + w + t] += a[t] · m[w] x[w], m[w + t] for m[w] where After, and y begins at a multiple of a
// vector. Two taps, the shift by a fraction, in one pass, if they are finite: it multiplies zeros
// beside the row by them, and writes up to three vectors behind its end.
template <class T, bool After>
static inline void spread_row(T* y, int64_t at, const T* x, const T* m, const T* a, int64_t count,
                              int64_t width, int64_t ahead, int64_t m_ahead) {
  using V = typename Vec<T>::type;
  constexpr int64_t L = Vec<T>::lanes;
  const int64_t whole = width / L, rest = width % L;
  if (count == 2 && (a[0] - a[0]) + (a[1] - a[1]) == T(0)) {
    Shift<T> here(at % L), further(at % L + 1), code(at % L);
    const T first = a[0], second = a[1];
    T* const to = y + at / L * L;
    const auto put = [&](int64_t j, V light, V mask) __attribute__((always_inline)) {
      const V image = After ? light : light * mask;
      const V moved = first * here(image) + second * further(image);
      store(to + j * L, load(to + j * L) + (After ? code(mask) * moved : moved));
    };
    for (int64_t j = 0; j < whole; ++j) {
      if (ahead) __builtin_prefetch(x + j * L + ahead, 0, 2);
      if (m_ahead) __builtin_prefetch(m + j * L + m_ahead, 0, 2);
      put(j, load(x + j * L), load(m + j * L));
    }
    put(whole, load_part(x + whole * L, rest), load_part(m + whole * L, rest + After));
    put(whole + 1, V{}, V{});
    return;
  }
  for (int64_t t = 0; t < count; ++t, m += After) {
    T* const to = y + at + t;
    for (int64_t j = 0; j < whole; ++j) {
      if (ahead && t == 0) __builtin_prefetch(x + j * L + ahead, 0, 2);
      store(to + j * L, load(to + j * L) + a[t] * (load(x + j * L) * load(m + j * L)));
    }
    for (int64_t w = whole * L; w < width; ++w) to[w] += a[t] * (m[w] * x[w]);
  }
}

// x[w] = m[w] Σ_t a[t] z[w + t], or Σ_t a[t] m[w + t] z[w + t] where After, added to v where Add; z
// is a detector row moved by the band's start, and only columns of the detector count.
template <class T, bool Add, bool After, Reach reach>
static inline void collect_row(T* x, const T* v, const T* m, const T* row, int64_t start,
                               int64_t detector, const T* a, int64_t count, int64_t width,
                               int64_t v_ahead, int64_t m_ahead) {
  using V = typename Vec<T>::type;
  constexpr int64_t L = Vec<T>::lanes;
  const auto one = [&](int64_t w) {
    T sum = T(0);
    bool met = false;
    for (int64_t t = 0; t < count; ++t) {
      const int64_t at = w + start + t;
      if (at < 0 || at >= detector) continue;
      const T light = After ? m[w + t] * row[at] : row[at];
      sum = met ? sum + a[t] * light : a[t] * light;
      met = true;
    }
    if (!After && met) sum = m[w] * sum;
    x[w] = Add ? v[w] + sum : sum;
  };
  const auto within = [&](int64_t w) { return w < 0 ? 0 : w > width ? width : w; };
  const int64_t inner = within(-start);  // from here on, all taps meet the detector
  const int64_t outer =
      detector - start - count + 1 < inner ? inner : within(detector - start - count + 1);
  int64_t w = 0;
  for (; w < inner; ++w) one(w);
  if (reach == Reach::far)
    for (; w < outer && reinterpret_cast<uintptr_t>(x + w) % CASSI_BYTES; ++w) one(w);
  const T* const z = row + start;
  for (; w + L <= outer; w += L) {
    const auto light = [&](int64_t t) __attribute__((always_inline)) {
      return After ? load(m + w + t) * load(z + w + t) : load(z + w + t);
    };
    if (w / L % (64 / CASSI_BYTES) == 0) {  // once a line
      if (Add && v_ahead) __builtin_prefetch(v + w + v_ahead, 0, 2);
      if (m_ahead) __builtin_prefetch(m + w + m_ahead, 0, 2);
    }
    V sum = a[0] * light(0);
    for (int64_t t = 1; t < count; ++t) sum += a[t] * light(t);
    if (!After) sum = load(m + w) * sum;
    if (Add) sum = load(v + w) + sum;
    reach == Reach::far ? stream(x + w, sum) : store(x + w, sum);
  }
  for (; w < width; ++w) one(w);
}

// m[w + t] += a[t] · x[w] z[w + t], of a row m that is zero before where `fresh`.
template <class T>
static inline void code_row(T* m, bool fresh, const T* x, const T* row, int64_t start,
                            int64_t detector, const T* a, int64_t count, int64_t width) {
  for (int64_t w = 0; fresh && w < width + count - 1; ++w) m[w] = T(0);
  for (int64_t t = 0; t < count; ++t) {
    const int64_t from = start + t < 0 ? -start - t : 0, end = detector - start - t;
    for (int64_t w = from; w < (end < width ? end : width); ++w)
      m[w + t] += a[t] * (x[w] * row[start + w + t]);
  }
}

}  // namespace CASSI_ISA
}  // namespace cassi
