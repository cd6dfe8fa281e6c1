// The two sweeps that every operator of the camera is made of, on blocks of rows:
//
//   accumulate   y[w'] += Σ_c m[c][w'-o(c)] · x[c][w'-o(c)]
//   emit         x[c][w] = v[c][w] ± Σ_k m[k,c][w] · z[k][w+o(c)]
#pragma once

#include "rows.h"

namespace cassi {
namespace CASSI_ISA {

// How `accumulate` walks the bands. Bands whose offsets leave the same remainder modulo the vector
// length are summed while they are aligned with each other, and shifted into place together: with
// step 2 and 16 lanes, one shift serves four bands.
template <class T>
struct Walk {
  static constexpr int64_t lanes = Vec<T>::lanes;
  static constexpr int64_t together = 4;
  const Geometry& g;
  int64_t period, stride;  // ranks between members of a class, and vectors between them

  explicit Walk(const Geometry& geometry) : g(geometry) {
    const int64_t d = g.step < 0 ? -g.step : g.step;
    int64_t common = lanes;
    while (d % common) common /= 2;
    period = lanes / common;
    stride = d / common;
  }

  // Elements of an accumulator row: whole vectors, and two more that shifts may touch.
  int64_t pitch() const { return padded<T>(detector_width(g)) + 3 * lanes; }
};

// Adds N bands of one row, band i of which lies `stride`·i vectors further right. Ahead: also fetch
// the memory `ahead` elements further on. Slide: all bands have one mask and the stride is 1, so
// that a vector of the mask serves band after band and is loaded once.
template <class T, int N, bool Ahead, bool Slide>
static inline void accumulate_row(T* y, const T* const* x, const T* const* m, const Shift<T>& shift,
                                  int64_t width, int64_t stride, int64_t ahead) {
  using V = typename Vec<T>::type;
  constexpr int64_t L = Vec<T>::lanes;
  if (Slide) stride = 1;  // known to the compiler
  const int64_t whole = width / L, rest = width % L, lag = (N - 1) * stride;
  const T *a[N], *b[N];  // so that vector j of the sum is made of vector j of all of these
  for (int i = 0; i < N; ++i) {
    a[i] = x[i] - i * stride * L;
    b[i] = m[i] - i * stride * L;
  }
  V previous = {};
  const auto put = [&](int64_t j, V sum) {
    store(y + j * L, load(y + j * L) + shift(previous, sum));
    previous = sum;
  };
  const auto part = [&](int i, int64_t j) {
    return load_part(a[i] + j * L, rest) * load_part(b[i] + j * L, rest);
  };
  if (stride == 0 || whole < lag) {  // rows so short that bands do not overlap
    for (int64_t j = 0; j <= whole + lag + 1; ++j) {
      V sum = {};
      for (int i = 0; i < N; ++i) {
        const int64_t q = j - i * stride;
        if (q >= 0 && q < whole) sum += load(a[i] + j * L) * load(b[i] + j * L);
        if (q == whole && rest) sum += part(i, j);
      }
      put(j, sum);
    }
    return;
  }
  int64_t j = 0;
  for (int p = 0; p + 1 < N; ++p)  // the first bands only
    for (int64_t s = 0; s < stride; ++s, ++j) {
      V sum = {};
      for (int i = 0; i <= p; ++i) sum += load(a[i] + j * L) * load(b[i] + j * L);
      put(j, sum);
    }
  V mask[N] = {};
  for (int i = 1; Slide && i < N; ++i) mask[i - 1] = load(b[i] + j * L);
  for (; j < whole; ++j) {
    if (Slide) {
      for (int i = N - 1; i > 0; --i) mask[i] = mask[i - 1];
      mask[0] = load(b[0] + j * L);
    }
    V sum = {};
    for (int i = 0; i < N; ++i) {
      if (Ahead) __builtin_prefetch(a[i] + j * L + ahead, 0, 2);
      sum += load(a[i] + j * L) * (Slide ? mask[i] : load(b[i] + j * L));
    }
    put(j, sum);
  }
  for (int p = 0; p < N; ++p)  // the last bands only
    for (int64_t s = 0; s < (p + 1 < N ? stride : 2); ++s, ++j) {
      V sum = {};
      if (s == 0 && rest) sum += part(p, j);
      for (int i = p + 1; i < N; ++i) sum += load(a[i] + j * L) * load(b[i] + j * L);
      put(j, sum);
    }
}

template <class T, int N, bool Ahead>
static inline void accumulate_class(const Walk<T>& walk, int64_t first, const Block<T>& y,
                                    const Block<T>& x, const Block<T>& m, int64_t rows) {
  constexpr int64_t L = Vec<T>::lanes;
  const Geometry& g = walk.g;
  const int64_t offset = band_offset(g, band_of_rank(g, first));
  const int64_t ahead = g.step < 0 ? -x.band : x.band;  // the class that comes next
  const Shift<T> shift(offset % L);
  const bool slide = m.band == 0 && walk.stride == 1;
  for (int64_t r = 0; r < rows; ++r) {
    const T *xs[N], *ms[N];
    for (int i = 0; i < N; ++i) {
      const int64_t c = band_of_rank(g, first + i * walk.period);
      xs[i] = x.at(c, r);
      ms[i] = m.at(c, r);
    }
    T* to = y.at(0, r) + offset / L * L;
    slide ? accumulate_row<T, N, Ahead, true>(to, xs, ms, shift, g.width, walk.stride, ahead)
          : accumulate_row<T, N, Ahead, false>(to, xs, ms, shift, g.width, walk.stride, ahead);
  }
}

// y is zeroed by the caller; its rows have walk.pitch() elements.
template <class T, bool Ahead = false>
static inline void accumulate(const Walk<T>& walk, const Block<T>& y, const Block<T>& x,
                              const Block<T>& m, int64_t rows) {
  const int64_t bands = walk.g.bands;
  for (int64_t start = 0; start < walk.period && start < bands; ++start)
    for (int64_t first = start; first < bands; first += walk.together * walk.period) {
      switch ((bands - first + walk.period - 1) / walk.period) {
        case 1:
          accumulate_class<T, 1, Ahead>(walk, first, y, x, m, rows);
          break;
        case 2:
          accumulate_class<T, 2, Ahead>(walk, first, y, x, m, rows);
          break;
        case 3:
          accumulate_class<T, 3, Ahead>(walk, first, y, x, m, rows);
          break;
        default:
          accumulate_class<T, 4, Ahead>(walk, first, y, x, m, rows);
      }
    }
}

template <class T>
static inline void clear(const Block<T>& y, int64_t rows, int64_t pitch) {
  __builtin_memset(y.base, 0, rows * pitch * sizeof(T));
}

// How the second sweep meets memory. Near: plain stores. Far, for cubes larger than the caches:
// stores that bypass them, so that no line is fetched only to be overwritten.
enum class Reach { near, far };

constexpr int64_t kFarBytes = 16 << 20;

template <class T>
static inline bool is_far(const Geometry& g) {
  return g.batch * g.bands * g.height * g.width * static_cast<int64_t>(sizeof(T)) > kFarBytes;
}

// One band of one row: x = v ± m·z, or m·z without Start. `ahead` (in elements of v, 0: nothing) is
// where the rows of the next tile lie, which are fetched while this one is written.
template <class T, bool Start, int Sign, Reach reach>
static inline void emit_row(T* x, const T* v, const T* m, const T* z, int64_t width,
                            int64_t ahead) {
  using V = typename Vec<T>::type;
  constexpr int64_t L = Vec<T>::lanes;
  const auto one = [&](int64_t w) {
    const T product = m[w] * z[w];
    x[w] = Start ? (Sign > 0 ? v[w] + product : v[w] - product) : product;
  };
  int64_t w = 0;
  if (reach == Reach::far)
    for (; w < width && reinterpret_cast<uintptr_t>(x + w) % CASSI_BYTES; ++w) one(w);
  for (; w + L <= width; w += L) {
    const V product = load(m + w) * load(z + w);
    const V base = Start ? load(v + w) : V{};
    if (Start && ahead) __builtin_prefetch(v + w + ahead, 0, 2);
    const V sum = Start ? (Sign > 0 ? base + product : base - product) : product;
    reach == Reach::far ? stream(x + w, sum) : store(x + w, sum);
  }
  for (; w < width; ++w) one(w);
}

// z: K rows of measurement per image row, z.at(k, r).
template <class T, bool Start, int Sign, Reach reach>
static inline void emit(const Geometry& g, const Block<T>& x, const Block<T>& v, const Block<T>* m,
                        const Block<T>& z, int64_t rows) {
  const int64_t ahead = Start && x.base != v.base ? rows * v.row : 0;
  for (int64_t c = 0; c < g.bands; ++c) {
    const int64_t o = band_offset(g, c);
    for (int64_t r = 0; r < rows; ++r) {
      T* to = x.at(c, r);
      emit_row<T, Start, Sign, reach>(to, Start ? v.at(c, r) : nullptr, m[0].at(c, r),
                                      z.at(0, r) + o, g.width, ahead);
      for (int64_t k = 1; k < g.shots; ++k)
        emit_row<T, true, Sign, reach>(to, to, m[k].at(c, r), z.at(k, r) + o, g.width, 0);
    }
  }
}

// The second sweep into a tensor: straight into its rows where they can be used in place, through
// `space`, which may be where v lies, otherwise.
template <class T, bool Start, int Sign>
static inline void emit_into(const Geometry& g, const View& out, int64_t sample, int64_t h,
                             const Block<T>& v, const Block<T>* m, const Block<T>& z, int64_t rows,
                             const Block<T>& space) {
  const Part part = cube_part(out, sample, h);
  if (!in_place<T>(part, g.width)) {
    emit<T, Start, Sign, Reach::near>(g, space, v, m, z, rows);
    write_block(part, space, g.bands, rows, g.width);
    return;
  }
  const Block<T> x = {reinterpret_cast<T*>(part.data), part.band, part.row};
  if (g.shots == 1 && is_far<T>(g))
    emit<T, Start, Sign, Reach::far>(g, x, v, m, z, rows);
  else
    emit<T, Start, Sign, Reach::near>(g, x, v, m, z, rows);
}

// How many image rows of a cube fit a good part of a core's cache; long runs of memory per band
// are what hardware prefetchers need.
static inline int64_t rows_per_tile(const Geometry& g, int64_t element, int64_t budget,
                                    int64_t most) {
  int64_t rows = budget / (g.bands * g.width * element + 1);
  if (rows > most) rows = most;
  if (rows > g.height) rows = g.height;
  return rows < 1 ? 1 : rows;
}

constexpr int64_t kTileBytes = 256 << 10;

// Tile t of a grid of (sample, rows).
struct Tile {
  int64_t sample, h, rows;
};

static inline Tile tile_at(const Geometry& g, int64_t rows, int64_t t) {
  const int64_t per_sample = (g.height + rows - 1) / rows;
  const int64_t h = t % per_sample * rows;
  return {t / per_sample, h, h + rows <= g.height ? rows : g.height - h};
}

static inline int64_t tiles(const Geometry& g, int64_t rows, int64_t samples) {
  return samples * ((g.height + rows - 1) / rows);
}

}  // namespace CASSI_ISA
}  // namespace cassi
