// Kernels that work on whole image rows: a row of a block's threads (threadIdx.x, all with the same
// threadIdx.y) takes one image row of one sample, its bands in a tile of shared memory.
#pragma once

#include "tile.cuh"

namespace cassi {
namespace cuda {

constexpr int kThreads = 512;  // of a block at most

// How a call is shared among blocks, and what the shared memory of one row holds: the tile (or
// tiles), then rows of T, at these offsets in bytes.
struct Rows {
  int64_t per_sample, count;  // blocks' worth of rows, of a sample and in all
  int width, wide, chunk;     // columns of cube and detector; bands at a time
  int second, mask, first_line, second_line;
  int bytes;
  dim3 threads;

  int64_t shared() const { return static_cast<int64_t>(bytes) * threads.y; }
};

// Sizes within which offsets in shared memory are ints, with room for sums of them.
inline bool is_small(const Geometry& g) {
  constexpr int64_t most = 1 << 24;
  const int64_t step = g.step < 0 ? -g.step : g.step;
  return g.width <= most && g.bands <= most && g.shots <= most && g.bands * step <= most;
}

// As many bands at a time as fit a tile of a moderate size, so that several blocks share a
// multiprocessor and one loads while another computes.
inline int64_t bands_at_once(const Geometry& g, int64_t size) {
  constexpr int64_t whole = 48 << 10, part = 32 << 10;
  if (g.bands <= whole / (g.width * size)) return g.bands;
  const int64_t bands = part / (g.width * size);
  return bands >= 16 ? bands / 8 * 8 : bands > 1 ? bands : 1;
}

// Lays out the shared memory of a row; false where a block cannot have that much.
inline bool arrange(Rows& r, const Geometry& g, int64_t chunk, int64_t first_tile,
                    int64_t second_tile, int64_t mask, int64_t first_line, int64_t second_line) {
  const auto rounded = [](int64_t bytes) { return (bytes + 15) / 16 * 16; };
  const int64_t at_mask = first_tile + second_tile, at_first = at_mask + rounded(mask);
  const int64_t at_second = at_first + rounded(first_line);
  const int64_t bytes = at_second + rounded(second_line);
  if (bytes > shared_limit()) return false;
  r.width = static_cast<int>(g.width);
  r.wide = static_cast<int>(detector_width(g));
  r.chunk = static_cast<int>(chunk);
  r.second = static_cast<int>(first_tile);
  r.mask = static_cast<int>(at_mask);
  r.first_line = static_cast<int>(at_first);
  r.second_line = static_cast<int>(at_second);
  r.bytes = static_cast<int>(bytes);
  // Warps along the detector's columns, with few left idle; short rows share a block.
  const int64_t passes = (r.wide + kThreads - 1) / kThreads;
  const int64_t x = ((r.wide + passes - 1) / passes + 31) / 32 * 32;
  int64_t y = 256 / x;
  while (y > 1 && (y > g.height || y * bytes > (48 << 10))) --y;
  r.threads = dim3(static_cast<unsigned>(x), static_cast<unsigned>(y < 1 ? 1 : y));
  r.per_sample = (g.height + r.threads.y - 1) / r.threads.y;
  r.count = g.batch * r.per_sample;
  return true;
}

// The image row of the calling thread. Threads without one still meet the others at barriers.
struct Place {
  int64_t b, h;
  bool inside;
};

CASSI_DEVICE_INLINE Place place(const Rows& r, const Geometry& g, int64_t block) {
  const int64_t b = block / r.per_sample;
  const int64_t h = (block - b * r.per_sample) * blockDim.y + threadIdx.y;
  return {b, h, h < g.height};
}

CASSI_DEVICE_INLINE char* row_memory(const Rows& r) {
  return shared_memory() + static_cast<int>(threadIdx.y) * r.bytes;
}

template <class D>
CASSI_DEVICE_INLINE D* row_of(const View& cube, const Place& at, int c) {
  return static_cast<D*>(cube.data) + index(cube, at.b, c, at.h, 0);
}

// One shot of the mask along an image row. Where all bands share it, it lies in shared memory,
// converted; else it is read from global memory, mostly from cache, in storage E or Any.
struct Staged {};

// How many blocks of kThreads must fit a multiprocessor's registers. More hide more of memory's
// latency, but doubles, and a mask that is read from global memory, need registers. Turing has room
// for two.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
template <class T, class E>
constexpr int kBlocks = 2;
#else
template <class T, class E>
constexpr int kBlocks = std::is_same_v<E, Staged> && sizeof(T) == 4 ? 3 : 2;
#endif

template <class T, class E>
struct MaskRow {
  static constexpr bool staged = std::is_same_v<E, Staged>;
  using Offset = std::conditional_t<staged, int, int64_t>;
  const void* data;
  Dtype dtype;
  Offset band, column;
  __device__ __forceinline__ Offset offset(int c, int w) const { return c * band + w * column; }
  __device__ __forceinline__ T at(Offset i) const {
    if constexpr (staged)
      return static_cast<const T*>(data)[i];
    else
      return fetch<T, E>(data, dtype, i);
  }
  __device__ __forceinline__ T operator()(int c, int w) const { return at(offset(c, w)); }
};

template <class T, class E>
CASSI_DEVICE_INLINE MaskRow<T, E> mask_row(const View& m, const Place& at, int64_t k,
                                           const T* staged, int width) {
  if constexpr (std::is_same_v<E, Staged>) return {staged + k * width, m.dtype, 0, 1};
  const int64_t start = index(m, at.b, k, 0, at.h, 0);
  return {static_cast<const char*>(m.data) + start * size_of(m.dtype), m.dtype,
          static_cast<typename MaskRow<T, E>::Offset>(m.stride[2]),
          static_cast<typename MaskRow<T, E>::Offset>(m.stride[4])};
}

template <class T>
CASSI_DEVICE_INLINE void stage_mask(const View& m, const Place& at, int64_t shots, int width,
                                    bool inverse, T* staged) {
  for (int64_t k = 0; k < shots; ++k)
    for (int w = threadIdx.x; w < width; w += blockDim.x) {
      const T value = load<T>(m, index(m, at.b, k, 0, at.h, w));
      staged[k * width + w] = inverse ? inverse_mask(value) : value;
    }
}

// Calls f with the way a mask is read by a kernel whose cube is stored as D.
template <class D, class F>
void with_mask(const View& mask, Dtype cube, F f) {
  if (mask.stride[2] == 0)
    f(Staged());
  else if (mask.dtype == cube)
    f(D());
  else
    f(Any());
}

// The bands of ranks [first, last) that reach detector column w, summed onto `sum` in order of
// rank. `tile` holds bands from `c0` on.
template <class T, class D, class E>
CASSI_DEVICE_INLINE T gather(T sum, const Geometry& g, const Tile& t, const D* tile, int c0,
                             const MaskRow<T, E>& mask, int first, int last, int w) {
  const Ranks reach = ranks_at(g, w);
  const int from = reach.first > first ? static_cast<int>(reach.first) : first;
  const int to = reach.last < last ? static_cast<int>(reach.last) : last;
  // From one rank to the next, the band moves by one and the column by -d.
  const int d = static_cast<int>(g.step < 0 ? -g.step : g.step), on = g.step >= 0 ? 1 : -1;
  const int c = static_cast<int>(band_of_rank(g, from)), column = w - from * d;
  const D* x = tile + (c - c0) * t.band + column * t.column;
  typename MaskRow<T, E>::Offset m = mask.offset(c, column);
  const int x_on = on * t.band - d * t.column;
  const auto m_on = on * mask.band - d * mask.column;
#pragma unroll 4
  for (int rank = from; rank < to; ++rank, x += x_on, m += m_on) sum += mask.at(m) * widen<T>(*x);
  return sum;
}

// The first of the bands whose ranks are [first, last): they are adjacent.
CASSI_DEVICE_INLINE int first_band(const Geometry& g, int first, int last) {
  return static_cast<int>(band_of_rank(g, g.step >= 0 ? first : last - 1));
}

// What `emit` multiplies: the masks of an image row, and the detector rows z, `wide` apart.
template <class T, class E>
struct Factors {
  const View& mask;
  const Place& at;
  const T* staged;
  const T* z;
  int width, wide, shots, step;
  T sign;
  bool inverse;  // divide by the mask; staged masks are inverse already
};

// Column w of bands [first, last), which lie `v_on` and `x_on` apart: x = v ± Σ_k m_k z_k, or
// without v if not Add. A few bands are read before any is written: several loads are in flight.
template <bool Add, class T, class E, class D>
CASSI_DEVICE_INLINE void emit(const Factors<T, E>& f, int first, int last, int offset, int w,
                              const D* v, int64_t v_on, D* x, int64_t x_on) {
  const MaskRow<T, E> mask = mask_row<T, E>(f.mask, f.at, 0, f.staged, f.width);
  typename MaskRow<T, E>::Offset m = mask.offset(first, w);
  const T fixed = MaskRow<T, E>::staged ? f.sign * mask.at(m) : T(0);
  const T* z = f.z + offset + w;
  int c = first;
  const auto some = [&](auto count) {
    constexpr int n = decltype(count)::value;
    T value[n];
#pragma unroll
    for (int i = 0; i < n; ++i) {
      value[i] = Add ? widen<T>(*v) : T(0);
      if (Add) v += v_on;
    }
#pragma unroll
    for (int i = 0; i < n; ++i) {
      T factor = fixed;
      if constexpr (!MaskRow<T, E>::staged) {
        factor = mask.at(m);
        m += mask.band;
        factor = f.sign * (f.inverse ? inverse_mask(factor) : factor);
      }
      value[i] = Add ? value[i] + factor * z[i * f.step] : factor * z[i * f.step];
    }
#pragma unroll 1
    for (int k = 1; k < f.shots; ++k) {
      const MaskRow<T, E> other = mask_row<T, E>(f.mask, f.at, k, f.staged, f.width);
#pragma unroll
      for (int i = 0; i < n; ++i) value[i] += f.sign * other(c + i, w) * z[k * f.wide + i * f.step];
    }
#pragma unroll
    for (int i = 0; i < n; ++i) {
      *x = narrow<D>(value[i]);
      x += x_on;
    }
    z += n * f.step;
    c += n;
  };
  while (c + 4 <= last) some(std::integral_constant<int, 4>());
  while (c < last) some(std::integral_constant<int, 1>());
}

}  // namespace cuda
}  // namespace cassi
