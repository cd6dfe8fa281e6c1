// x = v + Aᵀ(AAᵀ + diag ρ)⁺(y − Av)
#include "parts.cuh"
#include "rows.cuh"

namespace cassi {
namespace cuda {
namespace {

// One shot: a row of v stays in shared memory, so that it is read once and x is written once.
template <class D, class T, class E, int N, int P>
__global__ void __launch_bounds__(kMost<N>, kBlocks<T, E, N>)
    data_step_rows(const __grid_constant__ DataStep a, const __grid_constant__ Rows r,
                   const __grid_constant__ Tile tile, const __grid_constant__ Tile x_tile) {
  const Geometry& g = a.g;
  const int bands = static_cast<int>(g.bands), step = static_cast<int>(g.step);
  const bool through = N == 1 && tile.bands_inner && x_tile.bands_inner;
  char* memory = row_memory(r);
  D* v = reinterpret_cast<D*>(memory);
  T* staged = reinterpret_cast<T*>(memory + r.mask);
  T* z = reinterpret_cast<T*>(memory + r.first_line);
  for (unsigned block = blockIdx.x; block < r.count; block += gridDim.x) {
    const Place at = place(r, g, block);
    if (at.inside) {
      copy_in(tile, v, row_of<const D>(a.v, at, 0), bands, r.width);
      if (std::is_same_v<E, Staged>) stage_mask(a.mask, at, 1, r.width, false, staged);
      for (int w = threadIdx.x; w < r.wide; w += blockDim.x)  // while the copies are under way
        z[w] = load<T>(a.y, index(a.y, at.b, 0, at.h, w));
    }
    await_copies();
    __syncthreads();
    if (at.inside) {
      const MaskRow<T, E> mask = mask_row<T, E>(a.mask, at, 0, staged, r.width);
      for (int w = P * threadIdx.x; w < r.wide; w += P * blockDim.x) {
        T rho[P], gram[P], sum[P] = {};
#pragma unroll
        for (int i = 0; i < P; ++i) {
          rho[i] = load<T>(a.rho, index(a.rho, at.b, 0, at.h, w + i));
          gram[i] = load<T>(a.gram, index(a.gram, at.b, 0, 0, at.h, w + i));
        }
        gather(sum, g, tile, v, 0, mask, 0, bands, w);
#pragma unroll
        for (int i = 0; i < P; ++i) z[w + i] = damped_solve(z[w + i] - sum[i], gram[i], rho[i]);
      }
    }
    __syncthreads();
    if (at.inside) {
      const Factors<T, E> factors = {a.mask, at, staged, z, r.width, r.wide, 1, step, T(1), false};
      const int offset = static_cast<int>(band_offset(g, 0));
      for (int w = N * threadIdx.x; w < r.width; w += N * blockDim.x) {
        D* here = v + w * tile.column;
        if (through)
          emit<true, 1, 1, false>(factors, 0, bands, offset, w, here, tile.band, here, tile.band);
        else
          emit<true, N, P, false>(factors, 0, bands, offset, w, here, tile.band,
                                  row_of<D>(a.x, at, 0) + w * a.x.stride[3], a.x.stride[1]);
      }
    }
    __syncthreads();
    if (through) {
      if (at.inside) copy_out(x_tile, row_of<D>(a.x, at, 0), v, bands, r.width);
      __syncthreads();
    }
  }
}

template <class D, class T>
bool launch_rows(const DataStep& a, void* stream) {
  const Geometry& g = a.g;
  if (g.shots != 1 || !is_small(g) || a.x.dtype != a.v.dtype || g.bands * g.width > shared_limit())
    return false;
  const Tile tile = tile_of(a.v, g, g.bands, g.width), x_tile = tile_of(a.x, g, g.bands, g.width);
  const bool staged = a.mask.stride[2] == 0;
  const bool runs =
      !tile.bands_inner && takes_runs(g, a.mask, a.v.dtype, kRun<T>) && in_runs(a.x, 4, kRun<T>);
  Rows r;
  if (!arrange(r, g, g.bands, tile.bytes(g.bands, g.width), 0, staged ? g.width * sizeof(T) : 0,
               detector_width(g) * sizeof(T), 0, runs, runs && in_pairs(g) ? kPair : 1))
    return false;
  with_mask<D, kRun<T>, kRun<T>>(a.mask, a.v.dtype, g, runs, [&](auto e, auto n) {
    run(data_step_rows<D, T, decltype(e), n.cube, n.detector>, r.count, r.threads, r.shared(),
        stream, a, r, tile, x_tile);
  });
  return true;
}

}  // namespace
}  // namespace cuda

void launch(const DataStep& a, void* stream) {
  using namespace cuda;
  if (with_types(a.v.dtype, a.sums,
                 [&](auto d, auto t) { return launch_rows<decltype(d), decltype(t)>(a, stream); }))
    return;
  // Several shots, or rows that do not fit: v is read twice, and z passes through memory.
  const Geometry& g = a.g;
  const int64_t wide = detector_width(g);
  const Memory memory = scratch(g.batch * g.shots * g.height * wide * size_of(a.sums));
  const View z = scratch_view(memory, a.sums, g.shots, g.height, wide);
  launch(Forward{g, a.sums, a.v, a.mask, z}, stream);
  const Geometry detector = {g.batch, g.shots, 1, g.height, wide, 0};
  solve({{detector, a.sums, z, a.gram, a.rho, z}, a.y, {}}, stream);
  backproject({{g, a.sums, z, a.mask, a.x, false}, a.v, false}, stream);
}

}  // namespace cassi
