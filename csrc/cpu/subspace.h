// Rows of a cube and of its components in a spectral basis E, `(C, R)`, which lies in one block of
// memory, band by band:
//
//   expand     x[c] = Σ_r E[c,r] a[r]
//   contract   a[r] = Σ_c E[c,r] x[c]
#pragma once

#include "rows.h"

namespace cassi {
namespace CASSI_ISA {

// N rows, out[i] = Σ_j weight(i, j) in[j]; U vectors of every row of `in` are loaded once for all
// of them. N · U sums run side by side, since one alone waits for each of its products.
template <class T, int N, int U, class Weight, class In, class Out>
static inline void combine_rows(const Weight& weight, int64_t count, const In& in, const Out& out,
                                int64_t width) {
  using V = typename Vec<T>::type;
  constexpr int64_t L = Vec<T>::lanes;
  int64_t w = 0;
  for (; w + U * L <= width; w += U * L) {
    V sum[N][U] = {};
    for (int64_t j = 0; j < count; ++j) {
      const T* const from = in(j) + w;
      for (int u = 0; u < U; ++u) {
        const V value = load(from + u * L);
        for (int i = 0; i < N; ++i) sum[i][u] += weight(i, j) * value;
      }
    }
    for (int i = 0; i < N; ++i)
      for (int u = 0; u < U; ++u) store(out(i) + w + u * L, sum[i][u]);
  }
  if constexpr (U > 1) {
    const auto rest_in = [&](int64_t j) { return in(j) + w; };
    const auto rest_out = [&](int64_t i) { return out(i) + w; };
    combine_rows<T, N, 1>(weight, count, rest_in, rest_out, width - w);
  } else {
    for (; w < width; ++w)
      for (int i = 0; i < N; ++i) {
        T sum = 0;
        for (int64_t j = 0; j < count; ++j) sum += weight(i, j) * in(j)[w];
        out(i)[w] = sum;
      }
  }
}

// Combine all rows of a block. With few outputs each sums many rows, and several vectors are summed
// at once.
template <class T, class Weight>
static inline void combine(const Weight& weight, const Block<T>& in, int64_t count,
                           const Block<T>& out, int64_t outputs, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t first = 0; first < outputs;) {
      const auto from = [&](int64_t j) { return in.at(j, r); };
      const auto to = [&](int64_t i) { return out.at(first + i, r); };
      const auto by = [&](int64_t i, int64_t j) { return weight(first + i, j); };
      const int64_t left = outputs - first;
      if (left >= 4 && count <= outputs) {
        combine_rows<T, 4, 1>(by, count, from, to, width);
        first += 4;
      } else if (left == 3 || left > 4) {
        combine_rows<T, 3, 4>(by, count, from, to, width);
        first += 3;
      } else if (left >= 2) {
        combine_rows<T, 2, 4>(by, count, from, to, width);
        first += 2;
      } else {
        combine_rows<T, 1, 8>(by, count, from, to, width);
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
