// Kernels that work on whole image rows: a row of a block's threads (threadIdx.x, all with the same
// threadIdx.y) takes one image row of one sample, its bands in a tile of shared memory.
#pragma once

#include "tile.cuh"

namespace cassi {
namespace cuda {

// Where sizes and addresses permit, see `takes_runs`, a thread takes several adjacent columns: 16
// bytes of the sums' dtype of the cube, and, where the step is even, two of the detector.
constexpr int kPair = 2;
template <class T>
constexpr int kRun = 16 / sizeof(T);

constexpr int kThreads = 512;  // of a block at most

// How a call is shared among blocks, and what the shared memory of one row holds: the tile (or
// tiles), then rows of T, at these offsets in bytes.
struct Rows {
  unsigned per_sample, count;  // blocks' worth of rows, of a sample and in all
  int width, wide, chunk;      // columns of cube and detector; bands at a time
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

// Whether rows begin at, and bands and rows are apart by, multiples of n elements, bands by as many
// as an int holds.
inline bool in_runs(const View& v, int dimensions, int64_t n) {
  if (v.stride[dimensions - 3] > 0x7fffffff) return false;
  int64_t all = 0;
  for (int i = 0; i + 1 < dimensions; ++i) all |= v.stride[i];
  return v.stride[dimensions - 1] == 1 && all % n == 0 &&
         reinterpret_cast<uintptr_t>(v.data) % (n * size_of(v.dtype)) == 0;
}

// Whether two neighbours on the detector are reached by the same bands.
inline bool in_pairs(const Geometry& g) { return g.step % kPair == 0; }

// Whether threads may take n columns at a time of a cube in storage `dtype`.
inline bool takes_runs(const Geometry& g, const View& mask, Dtype dtype, int64_t n) {
  return g.width % n == 0 && (mask.stride[2] == 0 || (mask.dtype == dtype && in_runs(mask, 5, n)));
}

// Lays out the shared memory of a row whose threads take `columns` of the detector at a time, or
// `runs` of the cube; false where a block cannot have that much.
inline bool arrange(Rows& r, const Geometry& g, int64_t chunk, int64_t first_tile,
                    int64_t second_tile, int64_t mask, int64_t first_line, int64_t second_line,
                    bool runs, int64_t columns) {
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
  const int64_t most = runs ? kThreads / 2 : kThreads;
  const int64_t items = (r.wide + columns - 1) / columns, passes = (items + most - 1) / most;
  const int64_t x = ((items + passes - 1) / passes + 31) / 32 * 32;
  int64_t y = 256 / x;
  while (y > 1 && (y > g.height || y * bytes > (48 << 10))) --y;
  r.threads = dim3(static_cast<unsigned>(x), static_cast<unsigned>(y < 1 ? 1 : y));
  constexpr int64_t most_rows = 0x7fffffff;  // 32-bit numbers of blocks: they are divided
  const int64_t per_sample = (g.height + r.threads.y - 1) / r.threads.y;
  if (g.height > most_rows || g.batch > most_rows / (per_sample > 0 ? per_sample : 1)) return false;
  r.per_sample = static_cast<unsigned>(per_sample);
  r.count = static_cast<unsigned>(g.batch * per_sample);
  return true;
}

// The image row of the calling thread. Threads without one still meet the others at barriers.
struct Place {
  unsigned b, h;
  bool inside;
};

CASSI_DEVICE_INLINE Place place(const Rows& r, const Geometry& g, unsigned block) {
  const unsigned b = block / r.per_sample;
  const unsigned h = (block - b * r.per_sample) * blockDim.y + threadIdx.y;
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

// How many threads a block has at most, and how many such blocks must fit a multiprocessor's
// registers. More hide more of memory's latency, but doubles, a mask that is read from global
// memory, and several columns need registers. Turing has room for two.
template <int N>
constexpr int kMost = N > 1 ? kThreads / 2 : kThreads;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
template <class T, class E, int N = 1>
constexpr int kBlocks = 2;
#else
template <class T, class E, int N = 1>
constexpr int kBlocks = (std::is_same_v<E, Staged> && sizeof(T) == 4 ? 3 : 2) + (N > 1 ? 1 : 0);
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
  template <int N>
  __device__ __forceinline__ void run(T (&out)[N], Offset i) const {
    if constexpr (N == 1)
      out[0] = at(i);
    else if constexpr (staged)
      load_run<N, N>(out, static_cast<const T*>(data) + i);
    else
      load_run<N, N, true>(out, static_cast<const E*>(data) + i);
  }
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

// How many columns of cube and detector a thread takes.
template <int N, int P>
struct Columns {
  static constexpr int cube = N, detector = P;
};

// Calls f with the way a mask is read by a kernel whose cube is stored as D, and with the columns
// that a thread takes: of the cube one, or in runs N, or `Odd` where the step is.
template <class D, int N, int Odd, class F>
void with_mask(const View& mask, Dtype cube, const Geometry& g, bool runs, F f) {
  const auto with_columns = [&](auto e) {
    if (runs && in_pairs(g))
      f(e, Columns<N, kPair>());
    else if (runs)
      f(e, Columns<Odd, 1>());
    else
      f(e, Columns<1, 1>());
  };
  if (mask.stride[2] == 0)
    with_columns(Staged());
  else if (mask.dtype == cube)
    with_columns(D());
  else
    f(Any(), Columns<1, 1>());
}

// The bands of ranks [first, last) that reach the N detector columns from w on, summed onto `sum`
// in order of rank. `tile` holds bands from `c0` on.
template <int N, class T, class D, class E>
CASSI_DEVICE_INLINE void gather(T (&sum)[N], const Geometry& g, const Tile& t, const D* tile,
                                int c0, const MaskRow<T, E>& mask, int first, int last, int w) {
  const Ranks<int> reach = ranks_at(g, w);
  const int from = reach.first > first ? reach.first : first;
  const int to = reach.last < last ? reach.last : last;
  // From one rank to the next, the band moves by one and the column by -d.
  const int d = static_cast<int>(g.step < 0 ? -g.step : g.step), on = g.step >= 0 ? 1 : -1;
  const int c = static_cast<int>(band_of_rank(g, from)), column = w - from * d;
  const D* x = tile + (c - c0) * t.band + column * t.column;
  typename MaskRow<T, E>::Offset m = mask.offset(c, column);
  const int x_on = on * t.band - d * t.column;
  const auto m_on = on * mask.band - d * mask.column;
#pragma unroll 4
  for (int rank = from; rank < to; ++rank, x += x_on, m += m_on) {
    T value[N], factor[N];
    load_run<N, N>(value, x);
    mask.run(factor, m);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += factor[i] * value[i];
  }
}

// The first of the bands whose ranks are [first, last): they are adjacent.
CASSI_DEVICE_INLINE int first_band(const Geometry& g, int first, int last) {
  return static_cast<int>(band_of_rank(g, g.step >= 0 ? first : last - 1));
}

// The factors that `emit` multiplies: the masks of an image row, and the detector rows z, which are
// `wide` elements apart.
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

// Elements between the bands of a cube of which a thread takes N columns, see `in_runs`.
template <int N>
using Apart = std::conditional_t<(N > 1), int, int64_t>;

// To the band after, in one instruction: a compiler that knew that the elements between bands are
// as many as before would multiply them outside of the loop, and add two words in it.
template <class D>
CASSI_DEVICE_INLINE void advance(D*& at, int& apart) {
#if defined(__CUDA_ARCH__)
  asm("" : "+r"(apart));
#endif
  at += apart;
}
template <class D>
CASSI_DEVICE_INLINE void advance(D*& at, int64_t& apart) {
  at += apart;
}

// The N columns from w on of bands [first, last), which lie `v_on` and `x_on` apart:
// x = v ± Σ_k m_k z_k, or without v if not Add, P of z at a time. A few bands are read before any
// is written: several loads are in flight. Bands are walked in order of rank, as the detector
// rises. At the steps that are usual, P and 3, they overlap on it: what four of them read is loaded
// at once, 16 bytes at a time. `Many`: there may be several shots.
template <bool Add, int N, int P, bool Many, class T, class E, class D>
CASSI_DEVICE_INLINE void emit(const Factors<T, E>& f, int first, int last, int offset, int w,
                              const D* v, Apart<N> v_on, D* x, Apart<N> x_on) {
  const int on = f.step >= 0 ? 1 : -1, rise = on * f.step, begin = on > 0 ? 0 : last - 1 - first;
  const MaskRow<T, E> mask = mask_row<T, E>(f.mask, f.at, 0, f.staged, f.width);
  const auto m_on = on * mask.band;
  typename MaskRow<T, E>::Offset m = mask.offset(first + begin, w);
  T factor[N] = {};
  const auto scale = [&] {
    mask.run(factor, m);
#pragma unroll
    for (int j = 0; j < N; ++j)
      factor[j] =
          f.sign * (!MaskRow<T, E>::staged && f.inverse ? inverse_mask(factor[j]) : factor[j]);
  };
  if constexpr (MaskRow<T, E>::staged) scale();
  const T* z = f.z + offset - begin * rise + w;
  if (Add) v += begin * static_cast<int64_t>(v_on);
  x += begin * static_cast<int64_t>(x_on);
  v_on *= on;
  x_on *= on;
  int c = first + begin, left = last - first;
  const auto some = [&](auto count, auto known) {
    constexpr int n = decltype(count)::value, step = decltype(known)::value;  // 0: of any size
    T window[((n - 1) * step + N + 3) / 4 * 4];
    if constexpr (step > 0) load_run<sizeof(window) / sizeof(T), 4>(window, z);
    T value[n][N] = {};
#pragma unroll
    for (int i = 0; i < n && Add; ++i) {
      load_run<N, N>(value[i], v);
      v += v_on;
    }
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if constexpr (!MaskRow<T, E>::staged) {
        scale();
        m += m_on;
      }
      T light[N];
      if constexpr (step == 0) load_run<N, P>(light, z);
#pragma unroll
      for (int j = 0; j < N && step > 0; ++j) light[j] = window[i * step + j];
      z += rise;
#pragma unroll
      for (int j = 0; j < N; ++j)
        value[i][j] = Add ? value[i][j] + factor[j] * light[j] : factor[j] * light[j];
    }
#pragma unroll 1
    for (int k = 1; Many && k < f.shots; ++k) {
      const MaskRow<T, E> other = mask_row<T, E>(f.mask, f.at, k, f.staged, f.width);
#pragma unroll
      for (int i = 0; i < n; ++i) {
        T light[N], shot[N];
        load_run<N, P>(light, z + k * f.wide + (i - n) * rise);
        other.run(shot, other.offset(c + on * i, w));
#pragma unroll
        for (int j = 0; j < N; ++j) value[i][j] += f.sign * shot[j] * light[j];
      }
    }
#pragma unroll
    for (int i = 0; i < n; ++i) {
      store_run(x, value[i]);
      advance(x, x_on);
    }
    c += on * n;
    left -= n;
  };
  using Four = std::integral_constant<int, 4>;
  using Unknown = std::integral_constant<int, 0>;
  const auto windows = [&](auto known) {
    if (rise == decltype(known)::value)
      while (left >= 4) some(Four(), known);
  };
  if constexpr (N == 4) windows(std::integral_constant<int, P>());
  if constexpr (N == 4 && P == 1) windows(std::integral_constant<int, 3>());
  while (left >= 4) some(Four(), Unknown());
  while (left > 0) some(std::integral_constant<int, 1>(), Unknown());
}

}  // namespace cuda
}  // namespace cassi
