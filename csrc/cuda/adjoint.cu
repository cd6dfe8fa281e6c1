// x[b,c,h,w] = Σ_k m[k,c,h,w] y[b,k,h,w+o(c)], and the ratio inverse
// x[b,c,h,w] = y[b,h,w+o(c)] / n(w+o(c)) / max(m[c,h,w], 1e-12), n the number of bands there;
// x may be asked for as components, Eᵀx.
#include "parts.cuh"
#include "subspace.cuh"

namespace cassi {
namespace cuda {
namespace {

// y of all shots at one detector column, divided by the number of bands there for the ratio
// inverse.
template <class T>
CASSI_DEVICE_INLINE T measured(const Adjoint& a, int64_t b, int64_t k, int64_t h, int64_t w) {
  const T y = load<T>(a.y, index(a.y, b, k, h, w));
  if (!a.ratio) return y;
  const Ranks<int64_t> reach = ranks_at(a.g, w);
  return y / static_cast<T>(reach.last > reach.first ? reach.last - reach.first : 1);
}

// Fewer blocks at a time where double precision or a mask that is not staged needs more registers.
template <class T, class E, int N>
constexpr int kAdjointBlocks =
    kBlocks<T, E, N> - (sizeof(T) == 8 || !std::is_same_v<E, Staged> ? 1 : 0);

// The detector rows come into shared memory; the cube goes there too where its bands are innermost,
// some at a time, and from there to global memory. `Mixed`: the result are components of it.
template <class D, class T, class E, int N, int P, bool Mixed>
__global__ void __launch_bounds__(kMost<N>, kAdjointBlocks<T, E, N>)
    adjoint_rows(const __grid_constant__ Backproject p, const __grid_constant__ Rows r,
                 const __grid_constant__ Tile tile, const __grid_constant__ Tile v_tile) {
  const Adjoint& a = p.a;
  const Geometry& g = a.g;
  const int bands = static_cast<int>(g.bands), shots = static_cast<int>(g.shots);
  const int step = static_cast<int>(g.step);
  const T sign = p.subtract ? T(-1) : T(1);
  const bool through = N == 1 && tile.bands_inner, add = p.v.data != nullptr;
  char* memory = row_memory(r);
  D* rows = reinterpret_cast<D*>(memory);
  T* staged = reinterpret_cast<T*>(memory + r.mask);
  T* y = reinterpret_cast<T*>(memory + r.first_line);
  T* basis = reinterpret_cast<T*>(memory + r.second_line);
  for (unsigned block = blockIdx.x; block < r.count; block += gridDim.x) {
    const Place at = place(r, g, block);
    for (int k = 0; at.inside && k < shots; ++k)
      for (int w = threadIdx.x; w < r.wide; w += blockDim.x)
        y[k * r.wide + w] = measured<T>(a, at.b, k, at.h, w);
    if (at.inside && std::is_same_v<E, Staged>)
      stage_mask(a.mask, at, shots, r.width, a.ratio, staged);
    if (Mixed && at.inside) stage_basis(a, at.b, basis);
    const Factors<T, E> factors = {a.mask, at,    staged, y,    r.width,
                                   r.wide, shots, step,   sign, a.ratio};
    for (int first = 0; first < bands; first += r.chunk) {
      const int last = first + r.chunk < bands ? first + r.chunk : bands;
      const int offset = static_cast<int>(band_offset(g, first));
      if (at.inside && through && add)
        copy_in(v_tile, rows, row_of<const D>(p.v, at, first), last - first, r.width);
      await_copies();
      __syncthreads();
      for (int w = N * threadIdx.x; at.inside && w < r.width; w += N * blockDim.x) {
        if constexpr (Mixed) {
          shots > 1 ? collect<N, P, true>(a, factors, basis, w)
                    : collect<N, P, false>(a, factors, basis, w);
        } else {
          D* here = rows + w * tile.column;
          D* x = through ? nullptr : row_of<D>(a.x, at, first) + w * a.x.stride[3];
          const D* v =
              through || !add ? nullptr : row_of<const D>(p.v, at, first) + w * p.v.stride[3];
          if (through && add)
            emit<true, 1, 1, true>(factors, first, last, offset, w, here, tile.band, here,
                                   tile.band);
          else if (through)
            emit<false, 1, 1, true>(factors, first, last, offset, w, here, tile.band, here,
                                    tile.band);
          else if (add)
            emit<true, N, P, true>(factors, first, last, offset, w, v, p.v.stride[1], x,
                                   a.x.stride[1]);
          else if (N == 1 || shots > 1)
            emit<false, N, P, true>(factors, first, last, offset, w, v, 0, x, a.x.stride[1]);
          else
            emit<false, N, P, false>(factors, first, last, offset, w, v, 0, x, a.x.stride[1]);
        }
      }
      __syncthreads();
      if (at.inside && through)
        copy_out(tile, row_of<D>(a.x, at, first), rows, last - first, r.width);
      if (through) __syncthreads();
    }
  }
}

// Any dtype and any size.
template <class T>
__global__ void __launch_bounds__(256, 2)
    adjoint_direct(const __grid_constant__ Backproject p, int64_t rows) {
  const Adjoint& a = p.a;
  const Geometry& g = a.g;
  const T sign = p.subtract ? T(-1) : T(1);
  const int64_t results = a.basis.data ? a.rank : g.bands;
  for (int64_t row = first_row(); row < rows; row += rows_apart()) {
    const int64_t h = row % g.height, i = row / g.height % results, b = row / g.height / results;
    for (int64_t w = threadIdx.x; w < g.width; w += blockDim.x) {
      const auto add_band = [&](T value, int64_t c) {
#pragma unroll 1
        for (int64_t k = 0; k < g.shots; ++k) {
          T factor = load<T>(a.mask, index(a.mask, b, k, c, h, w));
          if (a.ratio) factor = inverse_mask(factor);
          value += sign * factor * measured<T>(a, b, k, h, w + band_offset(g, c));
        }
        return value;
      };
      T value = p.v.data ? load<T>(p.v, index(p.v, b, i, h, w)) : T(0);
      if (!a.basis.data) value = add_band(value, i);
      for (int64_t c = 0; a.basis.data && c < g.bands; ++c)
        value += load<T>(a.basis, basis_index(a.basis, b, c, i)) * add_band(T(0), c);
      store(a.x, index(a.x, b, i, h, w), value);
    }
  }
}

template <class D, class T, bool Mixed>
bool launch_rows(const Backproject& p, void* stream) {
  const Adjoint& a = p.a;
  const Geometry& g = a.g;
  if (!is_small(g) || (p.v.data && p.v.dtype != a.x.dtype)) return false;
  constexpr int columns = Mixed ? kPair : kRun<T>;
  const View cube = Mixed ? View{nullptr, a.sums, {0, g.width, 0, 1, 0}} : a.x;
  // Without a tile, all bands at once.
  const int64_t chunk = bands_at_once(g, sizeof(D)), size = sizeof(T);
  const Tile tile = tile_of(cube, g, chunk, g.width);
  const bool staged = a.mask.stride[2] == 0, through = tile.bands_inner;
  // v comes through the tile of x where its bands are innermost too.
  Tile v_tile = tile;
  if (p.v.data && through) {
    v_tile = tile_of(p.v, g, chunk, g.width);
    if (!v_tile.bands_inner) return false;
  }
  const bool runs = !through && takes_runs(g, a.mask, cube.dtype, columns) &&
                    in_runs(a.x, 4, columns) && (!p.v.data || in_runs(p.v, 4, columns));
  Rows r;
  if (!arrange(r, g, through ? chunk : g.bands, through ? tile.bytes(chunk, g.width) : 0, 0,
               staged ? g.shots * g.width * size : 0, g.shots * detector_width(g) * size,
               Mixed ? g.bands * padded_rank(a.rank) * size : 0, runs, runs ? columns : 1))
    return false;
  with_mask<D, columns, columns>(a.mask, cube.dtype, g, runs, [&](auto e, auto n) {
    run(adjoint_rows<D, T, decltype(e), n.cube, n.detector, Mixed>, r.count, r.threads, r.shared(),
        stream, p, r, tile, v_tile);
  });
  return true;
}

}  // namespace

void backproject(const Backproject& p, void* stream) {
  const Geometry& g = p.a.g;
  const bool mixed = p.a.basis.data != nullptr;
  bool done = false;
  if (mixed)
    with_sums(p.a.sums, [&](auto t) {
      using T = decltype(t);
      done = launch_rows<T, T, true>(p, stream);
    });
  else
    done = with_types(p.a.x.dtype, p.a.sums, [&](auto d, auto t) {
      return launch_rows<decltype(d), decltype(t), false>(p, stream);
    });
  if (done) return;
  const Lines lines = {g.batch * (mixed ? p.a.rank : g.bands) * g.height, g.width};
  with_sums(p.a.sums,
            [&](auto t) { run_lines(adjoint_direct<decltype(t)>, lines, stream, p, lines.rows); });
}

}  // namespace cuda

void launch(const Adjoint& a, void* stream) { cuda::backproject({a, a.v, false}, stream); }

}  // namespace cassi
