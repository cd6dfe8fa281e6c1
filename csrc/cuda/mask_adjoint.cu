// m[k,c,h,w] = Σ_b x[b,c,h,w] y[b,k,h,w+o(c)], summed over the bands too where they share a mask.
#include "parts.cuh"
#include "rows.cuh"

namespace cassi {
namespace cuda {
namespace {

constexpr int kBands = 8;  // that a thread holds, or adds, at a time

// The bands in groups of kBands, the result in lines of W; PerBand, a line for each group.
struct Split {
  Tile tile;
  int64_t lines;
  int split, bytes;  // number of groups; shared memory of a line
};

// A line of threads walks along a line of the result. Each thread sums its columns over the bands
// (unless PerBand) and over the samples (unless per_sample) in order.
template <class D, class T, bool PerBand>
__global__ void __launch_bounds__(256)
    mask_adjoint_lines(const __grid_constant__ MaskAdjoint a, const __grid_constant__ Split s) {
  const Geometry& g = a.g;
  const int bands = static_cast<int>(g.bands), width = static_cast<int>(g.width);
  const int step = static_cast<int>(g.step), across = static_cast<int>(blockDim.x);
  D* x = reinterpret_cast<D*>(shared_memory() + static_cast<int>(threadIdx.y) * s.bytes);
  for (int64_t block = blockIdx.x; block * blockDim.y < s.lines; block += gridDim.x) {
    int64_t rest = block * blockDim.y + threadIdx.y;
    const bool inside = rest < s.lines;
    const int64_t h = rest % g.height;
    rest /= g.height;
    const int begin = PerBand ? static_cast<int>(rest % s.split) * kBands : 0;
    const int end = PerBand && begin + kBands < bands ? begin + kBands : bands;
    rest /= PerBand ? s.split : 1;
    const int64_t k = rest % g.shots, sample = rest / g.shots;
    const int64_t last = a.per_sample ? sample + 1 : g.batch;
    for (int w0 = 0; w0 < width; w0 += across) {
      const int w = w0 + threadIdx.x, columns = w0 + across < width ? across : width - w0;
      T sum[PerBand ? kBands : 1] = {};
      for (int64_t n = last - (a.per_sample ? 1 : g.batch); n < last; ++n)
        // Every line has as many groups as the longest, as all threads meet at the barriers.
        for (int group = 0; group < (PerBand ? 1 : s.split); ++group) {
          const int c0 = begin + group * kBands;
          const int count = end - c0 < kBands ? end - c0 : kBands;
          if (inside) {
            const D* from = static_cast<const D*>(a.x.data) + index(a.x, n, c0, h, w0);
            copy_in(s.tile, x, from, count, columns);
          }
          await_copies();
          __syncthreads();
          if (inside && w < width) {
            const D* y =
                static_cast<const D*>(a.y.data) + index(a.y, n, k, h, w + band_offset(g, c0));
            const D* mine = x + static_cast<int>(threadIdx.x) * s.tile.column;
#pragma unroll
            for (int i = 0; i < kBands; ++i)
              if (i < count)
                sum[PerBand ? i : 0] +=
                    widen<T>(mine[i * s.tile.band]) * widen<T>(__ldg(y + i * step * a.y.stride[3]));
          }
          __syncthreads();
        }
      if (inside && w < width) {
#pragma unroll
        for (int i = 0; i < (PerBand ? kBands : 1); ++i)
          if (begin + i < end)
            static_cast<T*>(a.mask.data)[index(a.mask, sample, k, begin + i, h, w)] = sum[i];
      }
    }
  }
}

// Any dtype and any size.
template <class T>
__global__ void __launch_bounds__(256)
    mask_adjoint_direct(const __grid_constant__ MaskAdjoint a, int64_t rows, int64_t mask_bands) {
  const Geometry& g = a.g;
  for (int64_t row = first_row(); row < rows; row += rows_apart()) {
    int64_t rest = row;
    const int64_t h = rest % g.height;
    rest /= g.height;
    const int64_t band = rest % mask_bands;
    rest /= mask_bands;
    const int64_t k = rest % g.shots, sample = rest / g.shots;
    const int64_t b0 = a.per_sample ? sample : 0, b1 = a.per_sample ? sample + 1 : g.batch;
    const int64_t c0 = a.per_band ? band : 0, c1 = a.per_band ? band + 1 : g.bands;
    for (int64_t w = threadIdx.x; w < g.width; w += blockDim.x) {
      T sum = 0;
      for (int64_t b = b0; b < b1; ++b)
#pragma unroll 1
        for (int64_t c = c0; c < c1; ++c)
          sum += load<T>(a.x, index(a.x, b, c, h, w)) *
                 load<T>(a.y, index(a.y, b, k, h, w + band_offset(g, c)));
      store(a.mask, index(a.mask, sample, k, band, h, w), sum);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(256) sum_parts(const T* parts, T* out, int64_t batch, int64_t n) {
  const int64_t apart = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += apart) {
    T sum = 0;
#pragma unroll 4
    for (int64_t b = 0; b < batch; ++b) sum += parts[b * n + i];
    out[i] = sum;
  }
}

template <class D, class T>
bool launch_lines(const MaskAdjoint& a, void* stream) {
  const Geometry& g = a.g;
  if (!is_small(g) || a.y.dtype != a.x.dtype) return false;
  const unsigned across = g.width > 64 ? 128 : g.width > 32 ? 64 : 32;
  const dim3 threads(across, 256 / across);
  Split s;
  s.tile = tile_of(a.x, g, g.bands < kBands ? g.bands : kBands, across);
  s.bytes = static_cast<int>(s.tile.bytes(kBands, across));
  s.split = static_cast<int>((g.bands + kBands - 1) / kBands);
  s.lines = (a.per_sample ? g.batch : 1) * g.shots * (a.per_band ? s.split : 1) * g.height;
  const int64_t blocks = (s.lines + threads.y - 1) / threads.y;
  const int64_t shared = static_cast<int64_t>(s.bytes) * threads.y;
  if (a.per_band)
    run(mask_adjoint_lines<D, T, true>, blocks, threads, shared, stream, a, s);
  else
    run(mask_adjoint_lines<D, T, false>, blocks, threads, shared, stream, a, s);
  return true;
}

void mask_adjoint(const MaskAdjoint& a, void* stream) {
  if (with_types(a.x.dtype, a.sums,
                 [&](auto d, auto t) { return launch_lines<decltype(d), decltype(t)>(a, stream); }))
    return;
  const Geometry& g = a.g;
  const int64_t bands = a.per_band ? g.bands : 1;
  const Lines lines = {(a.per_sample ? g.batch : 1) * g.shots * bands * g.height, g.width};
  with_sums(a.sums, [&](auto t) {
    run_lines(mask_adjoint_direct<decltype(t)>, lines, stream, a, lines.rows, bands);
  });
}

}  // namespace

void sum_batch(const void* parts, void* out, int64_t batch, int64_t n, Dtype sums, void* stream) {
  with_sums(sums, [&](auto t) {
    using T = decltype(t);
    run(sum_parts<T>, (n + 255) / 256, 256, 0, stream, static_cast<const T*>(parts),
        static_cast<T*>(out), batch, n);
  });
}

}  // namespace cuda

void launch(const MaskAdjoint& a, void* stream) {
  using namespace cuda;
  const Geometry& g = a.g;
  if (a.per_sample || a.per_band || g.batch == 1) return mask_adjoint(a, stream);
  // One plane for the whole batch has too few elements to keep a device busy: sum each sample, then
  // the samples.
  const int64_t n = g.shots * g.height * g.width;
  const Memory parts = scratch(g.batch * n * size_of(a.sums));
  MaskAdjoint each = a;
  each.per_sample = true;
  each.mask = {parts.data, a.sums, {n, g.height * g.width, 0, g.width, 1}};
  mask_adjoint(each, stream);
  sum_batch(parts.data, a.mask.data, g.batch, n, a.sums, stream);
}

}  // namespace cassi
