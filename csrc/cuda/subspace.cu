// The camera on the components of a cube in a spectral basis E, `(C, R)`, whose cube is never made:
//
//   y[k,w'] = Σ_c m[k,c,w] Σ_r E[c,r] a[r,w],   a[r,w] = Σ_c E[c,r] Σ_k m[k,c,w] y[k,w'],  w' =
//   w+o(c)
//
// A thread makes one detector pixel, or all components at one pixel of the scene; what neighbours
// read twice comes from the first-level cache.
#include "device.cuh"
#include "parts.cuh"

namespace cassi {
namespace cuda {
namespace {

constexpr int kTogether = 8;  // components that a thread sums at once

CASSI_INLINE int64_t basis_index(const View& basis, int64_t b, int64_t c, int64_t r) {
  return b * basis.stride[0] + c * basis.stride[1] + r * basis.stride[2];
}

template <class T>
__global__ void __launch_bounds__(256)
    forward_components(const __grid_constant__ Forward a, int64_t rows, int64_t wide) {
  const Geometry& g = a.g;
  const int64_t d = g.step < 0 ? -g.step : g.step;
  for (int64_t row = first_row(); row < rows; row += rows_apart()) {
    const int64_t h = row % g.height, k = row / g.height % g.shots, b = row / g.height / g.shots;
    for (int64_t w = threadIdx.x; w < wide; w += blockDim.x) {
      const Ranks<int64_t> reach = ranks_at(g, w);
      T sum = 0;
#pragma unroll 1
      for (int64_t place = reach.first; place < reach.last; ++place) {
        const int64_t c = band_of_rank(g, place), column = w - place * d;
        T value = 0;
        for (int64_t r = 0; r < a.rank; ++r)
          value += load<T>(a.basis, basis_index(a.basis, b, c, r)) *
                   load<T>(a.x, index(a.x, b, r, h, column));
        sum += load<T>(a.mask, index(a.mask, b, k, c, h, column)) * value;
      }
      store(a.y, index(a.y, b, k, h, w), sum);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(256)
    adjoint_components(const __grid_constant__ Adjoint a, int64_t rows) {
  const Geometry& g = a.g;
  for (int64_t row = first_row(); row < rows; row += rows_apart()) {
    const int64_t h = row % g.height, b = row / g.height;
    for (int64_t w = threadIdx.x; w < g.width; w += blockDim.x)
      for (int64_t first = 0; first < a.rank; first += kTogether) {
        const int count = static_cast<int>(a.rank - first < kTogether ? a.rank - first : kTogether);
        T sum[kTogether] = {};
#pragma unroll 1
        for (int64_t c = 0; c < g.bands; ++c) {
          const int64_t column = w + band_offset(g, c);
          T value = 0;
          for (int64_t k = 0; k < g.shots; ++k)
            value += load<T>(a.mask, index(a.mask, b, k, c, h, w)) *
                     load<T>(a.y, index(a.y, b, k, h, column));
#pragma unroll
          for (int r = 0; r < kTogether; ++r)
            if (r < count)
              sum[r] += load<T>(a.basis, basis_index(a.basis, b, c, first + r)) * value;
        }
#pragma unroll
        for (int r = 0; r < kTogether; ++r)
          if (r < count) store(a.x, index(a.x, b, first + r, h, w), sum[r]);
      }
  }
}

}  // namespace

void forward_subspace(const Forward& a, void* stream) {
  const int64_t wide = detector_width(a.g);
  const Lines lines = {a.g.batch * a.g.shots * a.g.height, wide};
  with_sums(a.sums, [&](auto t) {
    run_lines(forward_components<decltype(t)>, lines, stream, a, lines.rows, wide);
  });
}

void adjoint_subspace(const Adjoint& a, void* stream) {
  const Lines lines = {a.g.batch * a.g.height, a.g.width};
  with_sums(a.sums, [&](auto t) {
    run_lines(adjoint_components<decltype(t)>, lines, stream, a, lines.rows);
  });
}

}  // namespace cuda
}  // namespace cassi
