// The camera that moves and spreads each band by itself: a thread gathers one element. A block of
// the forward kernel takes a tile of the detector, and passes over the bands that cannot reach it.
#include "device.cuh"

namespace cassi {
namespace cuda {
namespace {

// Starts and weights of the taps of one sample.
template <class T>
struct Spread {
  const Taps& taps;
  int64_t sample;
  __device__ __forceinline__ int64_t start(int64_t c) const {
    return taps.starts[sample * taps.starts_batch + c * taps.starts_band];
  }
  __device__ __forceinline__ T weight(int64_t c, int64_t t) const {
    const View& v = taps.weights;
    return load<T>(v, sample * v.stride[0] + c * v.stride[1] + t * v.stride[2]);
  }
};

// Whether a column of a band falls on the detector. Its values must not count otherwise, NaN
// included.
template <class T>
CASSI_DEVICE_INLINE bool is_seen(const Spread<T>& spread, int64_t detector, int64_t c, int64_t w) {
  const int64_t at = w + spread.start(c);
  return at < detector && at + spread.taps.count > 0;
}

// Σ_t a[c,t] y[k, h, w + s(c) + t], over the columns that the detector has, each times m(t).
template <class T, class M>
CASSI_DEVICE_INLINE T collect(const Spread<T>& spread, const View& y, int64_t detector, int64_t c,
                              int64_t k, int64_t h, int64_t w, M m) {
  const int64_t at = w + spread.start(c);
  T sum = T(0);
  for (int64_t t = 0; t < spread.taps.count; ++t)
    if (at + t >= 0 && at + t < detector)
      sum += spread.weight(c, t) * (m(t) * load<T>(y, index(y, spread.sample, k, h, at + t)));
  return sum;
}

// A tile of the detector, a thread for each pixel, and so many bands that are listed at a time.
constexpr int kColumns = 32, kRows = 8, kListed = kColumns * kRows;

template <class T>
__global__ void __launch_bounds__(kListed)
    forward_kernel(const __grid_constant__ ForwardTaps a, int64_t across, int64_t tiles) {
  const Geometry& g = a.g;
  int64_t* const starts = reinterpret_cast<int64_t*>(shared_memory());  // by rank
  const int thread = static_cast<int>(threadIdx.y * kColumns + threadIdx.x);
  const int64_t down = (g.height + kRows - 1) / kRows, lowest = -(g.width + a.taps.count);
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t left = tile % across * kColumns, column = left + threadIdx.x;
    const int64_t h = tile / across % down * kRows + threadIdx.y;
    const int64_t k = tile / across / down % g.shots, b = tile / across / down / g.shots;
    const bool inside = h < g.height && column < a.detector;
    const Spread<T> spread = {a.taps, b};
    // From left to right, as `forward` sums: bands that move by whole pixels give its bits.
    const bool falling = spread.start(g.bands - 1) < spread.start(0);
    const auto reaches = [&](int64_t start) {
      return start < left + kColumns && start + g.width + a.taps.count > left + 1;
    };
    T sum = T(0);
    for (int64_t first = 0; first < g.bands; first += kListed) {
      const int64_t rest = g.bands - first;
      const int count = static_cast<int>(rest < kListed ? rest : kListed);
      const auto band = [&](int64_t rank) { return falling ? g.bands - 1 - rank : rank; };
      __syncthreads();
      if (thread < count) {
        const int64_t start = spread.start(band(first + thread));
        starts[thread] = start < lowest ? lowest : start > a.detector ? a.detector : start;
      }
      __syncthreads();
      int low = 0, high = inside ? count : 0;  // ranks of the bands that reach the tile
      while (low < high && !reaches(starts[low])) ++low;
      while (low < high && !reaches(starts[high - 1])) --high;
      for (int rank = low; rank < high; ++rank) {
        const int64_t c = band(first + rank), from = column - starts[rank];
        for (int64_t t = 0; t < a.taps.count; ++t) {
          const int64_t w = from - t;
          if (w < 0 || w >= g.width) continue;
          const T m = load<T>(a.mask, index(a.mask, b, k, c, h, a.taps.after ? from : w));
          sum += spread.weight(c, t) * m * load<T>(a.x, index(a.x, b, c, h, w));
        }
      }
    }
    if (inside) store(a.y, index(a.y, b, k, h, column), sum);
  }
}

template <class T>
__global__ void __launch_bounds__(256)
    adjoint_kernel(const __grid_constant__ AdjointTaps a, int64_t rows) {
  const Geometry& g = a.g;
  for (int64_t row = first_row(); row < rows; row += rows_apart()) {
    const int64_t h = row % g.height, c = row / g.height % g.bands;
    const int64_t b = row / g.height / g.bands;
    const Spread<T> spread = {a.taps, b};
    for (int64_t w = threadIdx.x; w < g.width; w += blockDim.x) {
      T sum = a.v.data ? load<T>(a.v, index(a.v, b, c, h, w)) : T(0);
      for (int64_t k = 0; k < g.shots && is_seen(spread, a.detector, c, w); ++k) {
        const auto code = [&](int64_t t) {
          return load<T>(a.mask, index(a.mask, b, k, c, h, w + t));
        };
        if (a.taps.after)
          sum += collect(spread, a.y, a.detector, c, k, h, w, code);
        else
          sum +=
              code(0) * collect(spread, a.y, a.detector, c, k, h, w, [](int64_t) { return T(1); });
      }
      store(a.x, index(a.x, b, c, h, w), sum);
    }
  }
}

// y[k, h, w + s(c)] Σ_t a[c,t] x[c, h, w − t], where the detector has that column.
template <class T>
CASSI_DEVICE_INLINE T seen_after(const MaskAdjointTaps& a, const Spread<T>& spread, int64_t c,
                                 int64_t k, int64_t h, int64_t w) {
  const int64_t at = w + spread.start(c), b = spread.sample;
  if (at < 0 || at >= a.detector) return T(0);
  T sum = T(0);
  for (int64_t t = 0; t < a.taps.count; ++t)
    if (w - t >= 0 && w - t < a.g.width)
      sum += spread.weight(c, t) * load<T>(a.x, index(a.x, b, c, h, w - t));
  return sum * load<T>(a.y, index(a.y, b, k, h, at));
}

template <class T>
__global__ void __launch_bounds__(256)
    mask_kernel(const __grid_constant__ MaskAdjointTaps a, int64_t rows) {
  const Geometry& g = a.g;
  const int64_t bands = a.per_band ? g.bands : 1;
  for (int64_t row = first_row(); row < rows; row += rows_apart()) {
    const int64_t h = row % g.height, c = row / g.height % bands;
    const int64_t k = row / g.height / bands % g.shots, s = row / g.height / bands / g.shots;
    const int64_t first = a.per_sample ? s : 0, last = a.per_sample ? s + 1 : g.batch;
    for (int64_t w = threadIdx.x; w < a.taps.coded(g.width); w += blockDim.x) {
      T sum = T(0);
      for (int64_t b = first; b < last; ++b) {
        const Spread<T> spread = {a.taps, b};
        for (int64_t band = a.per_band ? c : 0; band < (a.per_band ? c + 1 : g.bands); ++band)
          if (a.taps.after)
            sum += seen_after(a, spread, band, k, h, w);
          else if (is_seen(spread, a.detector, band, w))
            sum += load<T>(a.x, index(a.x, b, band, h, w)) *
                   collect(spread, a.y, a.detector, band, k, h, w, [](int64_t) { return T(1); });
      }
      store(a.mask, index(a.mask, s, k, c, h, w), sum);
    }
  }
}

}  // namespace
}  // namespace cuda

void launch(const ForwardTaps& a, void* stream) {
  using namespace cuda;
  const int64_t across = (a.detector + kColumns - 1) / kColumns;
  const int64_t tiles = a.g.batch * a.g.shots * ((a.g.height + kRows - 1) / kRows) * across;
  with_sums(a.sums, [&](auto t) {
    run(forward_kernel<decltype(t)>, tiles, dim3(kColumns, kRows), kListed * sizeof(int64_t),
        stream, a, across, tiles);
  });
}

void launch(const AdjointTaps& a, void* stream) {
  using namespace cuda;
  const Lines lines = {a.g.batch * a.g.bands * a.g.height, a.g.width};
  with_sums(a.sums,
            [&](auto t) { run_lines(adjoint_kernel<decltype(t)>, lines, stream, a, lines.rows); });
}

void launch(const MaskAdjointTaps& a, void* stream) {
  using namespace cuda;
  const int64_t samples = a.per_sample ? a.g.batch : 1, bands = a.per_band ? a.g.bands : 1;
  const Lines lines = {samples * a.g.shots * bands * a.g.height, a.taps.coded(a.g.width)};
  with_sums(a.sums,
            [&](auto t) { run_lines(mask_kernel<decltype(t)>, lines, stream, a, lines.rows); });
}

}  // namespace cassi
