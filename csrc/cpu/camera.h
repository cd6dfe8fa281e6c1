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

template <class T, int N>
static inline void accumulate_row(T* y, const T* const* x, const T* const* m,
                                  const Shift<T>& shift, int64_t width, int64_t stride) {
  using V = typename Vec<T>::type;
  constexpr int64_t L = Vec<T>::lanes;
  const int64_t whole = width / L, rest = width % L, blocks = whole + (rest > 0);
  const int64_t lag = (N - 1) * stride;
  V previous = {};
  const auto edge = [&](int64_t j) {
    V sum = {};
    for (int i = 0; i < N; ++i) {
      const int64_t q = j - i * stride;
      if (q < 0 || q >= blocks) continue;
      const V a = q < whole ? load(x[i] + q * L) : load_part(x[i] + q * L, rest);
      const V b = q < whole ? load(m[i] + q * L) : load_part(m[i] + q * L, rest);
      sum += a * b;
    }
    store(y + j * L, load(y + j * L) + shift(previous, sum));
    previous = sum;
  };
  int64_t j = 0;
  for (; j < lag && j <= blocks + lag; ++j) edge(j);
  for (; j < whole; ++j) {
    V sum = {};
    for (int i = 0; i < N; ++i) {
      const int64_t q = (j - i * stride) * L;
      sum += load(x[i] + q) * load(m[i] + q);
    }
    store(y + j * L, load(y + j * L) + shift(previous, sum));
    previous = sum;
  }
  for (; j <= blocks + lag; ++j) edge(j);
}

template <class T>
static inline void accumulate_class(const Walk<T>& walk, int64_t first, int count,
                                    const Block<T>& y, const Block<T>& x, const Block<T>& m,
                                    int64_t rows) {
  constexpr int64_t L = Vec<T>::lanes;
  const Geometry& g = walk.g;
  const int64_t offset = band_offset(g, band_of_rank(g, first));
  const Shift<T> shift(offset % L);
  for (int64_t r = 0; r < rows; ++r) {
    const T *xs[4], *ms[4];
    for (int i = 0; i < count; ++i) {
      const int64_t c = band_of_rank(g, first + i * walk.period);
      xs[i] = x.at(c, r);
      ms[i] = m.at(c, r);
    }
    T* to = y.at(0, r) + offset / L * L;
    switch (count) {
      case 4: accumulate_row<T, 4>(to, xs, ms, shift, g.width, walk.stride); break;
      case 3: accumulate_row<T, 3>(to, xs, ms, shift, g.width, walk.stride); break;
      case 2: accumulate_row<T, 2>(to, xs, ms, shift, g.width, walk.stride); break;
      default: accumulate_row<T, 1>(to, xs, ms, shift, g.width, walk.stride);
    }
  }
}

// y is zeroed by the caller; its rows have walk.pitch() elements.
template <class T>
static inline void accumulate(const Walk<T>& walk, const Block<T>& y, const Block<T>& x,
                              const Block<T>& m, int64_t rows) {
  const int64_t bands = walk.g.bands;
  for (int64_t start = 0; start < walk.period && start < bands; ++start)
    for (int64_t first = start; first < bands; first += walk.together * walk.period) {
      int64_t count = (bands - first + walk.period - 1) / walk.period;
      if (count > walk.together) count = walk.together;
      accumulate_class(walk, first, static_cast<int>(count), y, x, m, rows);
    }
}

template <class T>
static inline void clear(const Block<T>& y, int64_t rows, int64_t pitch) {
  __builtin_memset(y.base, 0, rows * pitch * sizeof(T));
}

// One band of one row. Start: 0 nothing, 1 add to v.
template <class T, int Start, int Sign>
static inline void emit_row(T* x, const T* v, const T* m, const T* z, int64_t width) {
  using V = typename Vec<T>::type;
  constexpr int64_t L = Vec<T>::lanes;
  int64_t w = 0;
  for (; w + L <= width; w += L) {
    const V product = load(m + w) * load(z + w);
    const V base = Start ? load(v + w) : V{};
    store(x + w, Start ? (Sign > 0 ? base + product : base - product) : product);
  }
  for (; w < width; ++w) {
    const T product = m[w] * z[w];
    x[w] = Start ? (Sign > 0 ? v[w] + product : v[w] - product) : product;
  }
}

// z: K rows of measurement per image row, z.at(k, r).
template <class T, bool Start, int Sign = 1>
static inline void emit(const Geometry& g, const Block<T>& x, const Block<T>& v, const Block<T>* m,
                        const Block<T>& z, int64_t rows) {
  for (int64_t c = 0; c < g.bands; ++c) {
    const int64_t o = band_offset(g, c);
    for (int64_t r = 0; r < rows; ++r) {
      T* to = x.at(c, r);
      emit_row<T, Start, Sign>(to, Start ? v.at(c, r) : nullptr, m[0].at(c, r), z.at(0, r) + o,
                               g.width);
      for (int64_t k = 1; k < g.shots; ++k)
        emit_row<T, 1, Sign>(to, to, m[k].at(c, r), z.at(k, r) + o, g.width);
    }
  }
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
