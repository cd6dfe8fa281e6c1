// y[b,k,h,w'] = Σ_c m[k,c,h,w'-o(c)] x[b,c,h,w'-o(c)], of a cube x or of the components of one
#include "parts.cuh"
#include "subspace.cuh"

namespace cassi {
namespace cuda {
namespace {

// Some bands at a time come into shared memory; where they are not all of them, the sums wait there
// for the next ones. `Mixed`: they are mixed there from components.
template <class D, class T, class E, int N, bool Mixed>
__global__ void __launch_bounds__(kMost<N>, kBlocks<T, E, N>)
    forward_rows(const __grid_constant__ Forward a, const __grid_constant__ Rows r,
                 const __grid_constant__ Tile tile) {
  const Geometry& g = a.g;
  const int bands = static_cast<int>(g.bands), shots = static_cast<int>(g.shots);
  const int d = static_cast<int>(g.step < 0 ? -g.step : g.step);
  const bool once = r.chunk >= bands;
  char* memory = row_memory(r);
  D* x = reinterpret_cast<D*>(memory);
  T* staged = reinterpret_cast<T*>(memory + r.mask);
  T* sums = reinterpret_cast<T*>(memory + r.first_line);
  T* basis = reinterpret_cast<T*>(memory + r.second_line);
  for (unsigned block = blockIdx.x; block < r.count; block += gridDim.x) {
    const Place at = place(r, g, block);
    if (at.inside && std::is_same_v<E, Staged>)
      stage_mask(a.mask, at, shots, r.width, false, staged);
    if (at.inside && !once)
      for (int i = threadIdx.x; i < shots * r.wide; i += blockDim.x) sums[i] = T(0);
    if constexpr (Mixed) {
      if (at.inside) stage_basis(a, at.b, basis);
      __syncthreads();
    }
    for (int first = 0; first < bands; first += r.chunk) {
      const int last = first + r.chunk < bands ? first + r.chunk : bands;
      const int c0 = first_band(g, first, last);
      if constexpr (Mixed) {
        if (at.inside) mix<N>(a, at, basis, tile, x, c0, last - first, r.width);
      } else {
        if (at.inside) copy_in(tile, x, row_of<D>(a.x, at, c0), last - first, r.width);
        await_copies();
      }
      __syncthreads();
      // The detector columns between those that these bands reach are zero unless this is all.
      const int begin = once ? 0 : first * d, end = once ? r.wide : (last - 1) * d + r.width;
      for (int k = 0; at.inside && k < shots; ++k) {
        const MaskRow<T, E> mask = mask_row<T, E>(a.mask, at, k, staged, r.width);
        for (int w = begin + N * threadIdx.x; w < end; w += N * blockDim.x) {
          T sum[N];
#pragma unroll
          for (int i = 0; i < N; ++i) sum[i] = once ? T(0) : sums[k * r.wide + w + i];
          gather(sum, g, tile, x, c0, mask, first, last, w);
#pragma unroll
          for (int i = 0; i < N; ++i)
            if (once)
              store(a.y, index(a.y, at.b, k, at.h, w + i), sum[i]);
            else
              sums[k * r.wide + w + i] = sum[i];
        }
      }
      __syncthreads();
    }
    if (at.inside && !once)
      for (int k = 0; k < shots; ++k)
        for (int w = threadIdx.x; w < r.wide; w += blockDim.x)
          store(a.y, index(a.y, at.b, k, at.h, w), sums[k * r.wide + w]);
    if (!once) __syncthreads();
  }
}

// One value of the cube, or of the cube E a if the components a are given.
template <class T>
CASSI_DEVICE_INLINE T light(const Forward& a, int64_t b, int64_t c, int64_t h, int64_t w) {
  if (!a.basis.data) return load<T>(a.x, index(a.x, b, c, h, w));
  T value = 0;
  for (int64_t r = 0; r < a.rank; ++r)
    value += load<T>(a.basis, basis_index(a.basis, b, c, r)) * load<T>(a.x, index(a.x, b, r, h, w));
  return value;
}

// Any dtype and any size, straight from global memory.
template <class T>
__global__ void __launch_bounds__(256)
    forward_direct(const __grid_constant__ Forward a, int64_t rows, int64_t wide) {
  const Geometry& g = a.g;
  const int64_t d = g.step < 0 ? -g.step : g.step;
  for (int64_t row = first_row(); row < rows; row += rows_apart()) {
    const int64_t h = row % g.height, k = row / g.height % g.shots, b = row / g.height / g.shots;
    for (int64_t w = threadIdx.x; w < wide; w += blockDim.x) {
      const Ranks<int64_t> reach = ranks_at(g, w);
      T sum = 0;
#pragma unroll 1
      for (int64_t rank = reach.first; rank < reach.last; ++rank) {
        const int64_t c = band_of_rank(g, rank), column = w - rank * d;
        sum += load<T>(a.mask, index(a.mask, b, k, c, h, column)) * light<T>(a, b, c, h, column);
      }
      store(a.y, index(a.y, b, k, h, w), sum);
    }
  }
}

template <class D, class T, bool Mixed>
bool launch_rows(const Forward& a, void* stream) {
  const Geometry& g = a.g;
  if (!is_small(g)) return false;
  const View cube = Mixed ? View{nullptr, a.sums, {0, g.width, 0, 1, 0}} : a.x;
  const int64_t chunk = bands_at_once(g, sizeof(D)), size = sizeof(T);
  const bool staged = a.mask.stride[2] == 0, once = chunk == g.bands;
  const Tile tile = tile_of(cube, g, chunk, g.width);
  const bool runs = !tile.bands_inner && in_pairs(g) && takes_runs(g, a.mask, cube.dtype, kPair) &&
                    (!Mixed || in_runs(a.x, 4, kPair));
  Rows r;
  if (!arrange(r, g, chunk, tile.bytes(chunk, g.width), 0, staged ? g.shots * g.width * size : 0,
               once ? 0 : g.shots * detector_width(g) * size,
               Mixed ? g.bands * padded_rank(a.rank) * size : 0, runs, runs ? kPair : 1))
    return false;
  with_mask<D, kPair, 1>(a.mask, cube.dtype, g, runs, [&](auto e, auto n) {
    run(forward_rows<D, T, decltype(e), n.cube, Mixed>, r.count, r.threads, r.shared(), stream, a,
        r, tile);
  });
  return true;
}

}  // namespace
}  // namespace cuda

void launch(const Forward& a, void* stream) {
  using namespace cuda;
  bool done = false;
  if (a.basis.data)
    with_sums(a.sums, [&](auto t) {
      using T = decltype(t);
      done = launch_rows<T, T, true>(a, stream);
    });
  else
    done = with_types(a.x.dtype, a.sums, [&](auto d, auto t) {
      return launch_rows<decltype(d), decltype(t), false>(a, stream);
    });
  if (done) return;
  const int64_t wide = detector_width(a.g);
  const Lines lines = {a.g.batch * a.g.shots * a.g.height, wide};
  with_sums(a.sums, [&](auto t) {
    run_lines(forward_direct<decltype(t)>, lines, stream, a, lines.rows, wide);
  });
}

}  // namespace cassi
