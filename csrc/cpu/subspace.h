// Rows of a cube and of its components in a spectral basis E, `(C, R)`, which lies in one block of
// memory, band by band:
//
//   expand     x[c] = Σ_r E[c,r] a[r]
//   contract   a[r] = Σ_c E[c,r] x[c]
#pragma once

#include "rows.h"

namespace cassi {
namespace CASSI_ISA {

// N rows, out[i] = Σ_j weight(i, j) in[j]; every vector of `in` is loaded once for all of them.
template <class T, int N, class Weight, class In, class Out>
static inline void combine_rows(const Weight& weight, int64_t count, const In& in, const Out& out,
                                int64_t width) {
  using V = typename Vec<T>::type;
  constexpr int64_t L = Vec<T>::lanes;
  int64_t w = 0;
  for (; w + L <= width; w += L) {
    V sum[N] = {};
    for (int64_t j = 0; j < count; ++j) {
      const V value = load(in(j) + w);
      for (int i = 0; i < N; ++i) sum[i] += weight(i, j) * value;
    }
    for (int i = 0; i < N; ++i) store(out(i) + w, sum[i]);
  }
  for (; w < width; ++w)
    for (int i = 0; i < N; ++i) {
      T sum = 0;
      for (int64_t j = 0; j < count; ++j) sum += weight(i, j) * in(j)[w];
      out(i)[w] = sum;
    }
}

// All rows of a block: `most` at a time, then what is left.
template <class T, class Weight>
static inline void combine(const Weight& weight, const Block<T>& in, int64_t count,
                           const Block<T>& out, int64_t outputs, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t first = 0; first < outputs;) {
      const auto from = [&](int64_t j) { return in.at(j, r); };
      const auto to = [&](int64_t i) { return out.at(first + i, r); };
      const auto by = [&](int64_t i, int64_t j) { return weight(first + i, j); };
      const int64_t left = outputs - first;
      if (left >= 4) {
        combine_rows<T, 4>(by, count, from, to, width);
        first += 4;
      } else if (left >= 2) {
        combine_rows<T, 2>(by, count, from, to, width);
        first += 2;
      } else {
        combine_rows<T, 1>(by, count, from, to, width);
        first += 1;
      }
    }
}

template <class T>
static inline void expand(const T* basis, const Block<T>& components, int64_t rank,
                          const Block<T>& x, int64_t bands, int64_t rows, int64_t width) {
  combine<T>([&](int64_t c, int64_t r) { return basis[c * rank + r]; }, components, rank, x, bands,
             rows, width);
}

template <class T>
static inline void contract(const T* basis, const Block<T>& x, int64_t bands,
                            const Block<T>& components, int64_t rank, int64_t rows, int64_t width) {
  combine<T>([&](int64_t r, int64_t c) { return basis[c * rank + r]; }, x, bands, components, rank,
             rows, width);
}

// The basis of one sample, `(1|B, C, R)`.
template <class T>
static inline void read_basis(const View& basis, int64_t sample, int64_t bands, int64_t rank,
                              T* to) {
  for (int64_t c = 0; c < bands; ++c) {
    const Part row = {static_cast<char*>(basis.data) +
                          (sample * basis.stride[0] + c * basis.stride[1]) * size_of(basis.dtype),
                      basis.dtype, 0, 0, basis.stride[2]};
    read_block(Block<T>{to + c * rank, rank, rank}, row, 1, 1, rank);
  }
}

}  // namespace CASSI_ISA
}  // namespace cassi
