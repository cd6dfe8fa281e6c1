// The camera on the components of a cube in a spectral basis E, `(C, R)`, whose cube is never made:
// forward of x[c,w] = Σ_r E[c,r] a[r,w], and a[r,w] = Σ_c E[c,r] x[c,w] of the adjoint's x.
#pragma once

#include "rows.cuh"

namespace cassi {
namespace cuda {

constexpr int kTogether = 8;  // components in a thread's registers

CASSI_INLINE int64_t padded_rank(int64_t rank) {
  return (rank + kTogether - 1) / kTogether * kTogether;
}

CASSI_INLINE int64_t basis_index(const View& basis, int64_t b, int64_t c, int64_t r) {
  return b * basis.stride[0] + c * basis.stride[1] + r * basis.stride[2];
}

// The basis of a sample in shared memory, with zeros up to the padded rank.
template <class T, class A>
CASSI_DEVICE_INLINE void stage_basis(const A& a, unsigned b, T* staged) {
  const int rank = static_cast<int>(a.rank), padded = static_cast<int>(padded_rank(rank));
  for (int i = threadIdx.x; i < static_cast<int>(a.g.bands) * padded; i += blockDim.x) {
    const int c = i / padded, r = i - c * padded;
    staged[i] = r < rank ? load<T>(a.basis, basis_index(a.basis, b, c, r)) : T(0);
  }
}

// Bands [c0, c0 + count) of an image row, from all of its components, to a tile of sums.
template <int N, class T>
CASSI_DEVICE_INLINE void mix(const Forward& a, const Place& at, const T* basis, const Tile& tile,
                             T* x, int c0, int count, int width) {
  const int rank = static_cast<int>(a.rank), padded = static_cast<int>(padded_rank(rank));
  for (int w = N * threadIdx.x; w < width; w += N * blockDim.x)
    for (int first = 0; first < rank; first += kTogether) {
      T part[kTogether][N] = {};
#pragma unroll
      for (int r = 0; r < kTogether; ++r)
        if (first + r < rank) load_run(part[r], a.x, index(a.x, at.b, first + r, at.h, w));
      const T* e = basis + c0 * padded + first;
      T* to = x + w;
#pragma unroll 2
      for (int c = 0; c < count; ++c, e += padded, to += tile.band) {
        T weight[kTogether], value[N] = {};
        load_run<kTogether, 16 / sizeof(T)>(weight, e);
        if (first > 0) load_run<N, N>(value, to);
#pragma unroll
        for (int r = 0; r < kTogether; ++r)
#pragma unroll
          for (int j = 0; j < N; ++j) value[j] += weight[r] * part[r][j];
        store_run(to, value);
      }
    }
}

// Compute all components at N columns from w on, from the detector rows in `f`, P components at a
// time. `Many`: there may be several shots.
template <int N, int P, bool Many, class T, class E>
CASSI_DEVICE_INLINE void collect(const Adjoint& a, const Factors<T, E>& f, const T* basis, int w) {
  const int rank = static_cast<int>(a.rank), padded = static_cast<int>(padded_rank(rank));
  const int bands = static_cast<int>(a.g.bands);
  for (int first = 0; first < rank; first += kTogether) {
    T sum[kTogether][N] = {}, factor[N];
    const T* e = basis + first;
    const T* y = f.z + static_cast<int>(band_offset(a.g, 0)) + w;
    const MaskRow<T, E> mask = mask_row<T, E>(f.mask, f.at, 0, f.staged, f.width);
    typename MaskRow<T, E>::Offset m = mask.offset(0, w);
    if constexpr (MaskRow<T, E>::staged) mask.run(factor, m);
#pragma unroll 2
    for (int c = 0; c < bands; ++c, e += padded, y += f.step) {
      T weight[kTogether], value[N];
      if constexpr (!MaskRow<T, E>::staged) {
        mask.run(factor, m);
        m += mask.band;
      }
      load_run<N, P>(value, y);
#pragma unroll
      for (int j = 0; j < N; ++j) value[j] *= factor[j];
#pragma unroll 1
      for (int k = 1; Many && k < f.shots; ++k) {
        const MaskRow<T, E> other = mask_row<T, E>(f.mask, f.at, k, f.staged, f.width);
        T light[N], shot[N];
        load_run<N, P>(light, y + k * f.wide);
        other.run(shot, other.offset(c, w));
#pragma unroll
        for (int j = 0; j < N; ++j) value[j] += shot[j] * light[j];
      }
      load_run<kTogether, 16 / sizeof(T)>(weight, e);
#pragma unroll
      for (int r = 0; r < kTogether; ++r)
#pragma unroll
        for (int j = 0; j < N; ++j) sum[r][j] += weight[r] * value[j];
    }
#pragma unroll
    for (int r = 0; r < kTogether; ++r)
      if (first + r < rank) store_run(a.x, index(a.x, f.at.b, first + r, f.at.h, w), sum[r]);
  }
}

}  // namespace cuda
}  // namespace cassi
