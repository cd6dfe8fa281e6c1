// The two sweeps that every operator of the camera is made of, on blocks of rows:
//
//   accumulate   y[w'] += Σ_c m[c][w'-o(c)] · x[c][w'-o(c)]
//   emit         x[c][w] = v[c][w] ± Σ_k m[k,c][w] · z[k][w+o(c)]
#pragma once

#include "rows.h"

namespace cassi {
namespace CASSI_ISA {

// How `accumulate` walks the bands, in order of rank, each |step| columns further right. Those
// whose offsets leave the same remainder modulo the vector length form a class: they are summed
// while they are aligned with each other, whole vectors apart, and shifted into place together.
// With step 2 and 16 lanes, one shift serves four bands. A sweep over a row takes a group, up to
// `most` bands of each of a few neighbouring classes which begin at the same vector: they see the
// same vectors of the mask, and the detector's row is read and written once for all. The smaller
// the vectors the fewer classes, since a line of the cache is then used in several parts, and lines
// of bands that lie a power of two apart displace each other.
template <class T>
struct Walk {
  static constexpr int64_t lanes = Vec<T>::lanes, most = 4, most_classes = CASSI_BYTES / 16;
  const Geometry& g;
  int64_t rise, period, apart;  // columns between ranks; ranks and vectors between bands of a class

  explicit Walk(const Geometry& geometry) : g(geometry), rise(g.step < 0 ? -g.step : g.step) {
    int64_t common = lanes;
    while (rise % common) common /= 2;
    period = lanes / common;
    apart = rise / common;
  }

  int64_t bands(int64_t first) const { return (g.bands - first + period - 1) / period; }

  // How many classes, that of rank `first` and those after it, make a group.
  int64_t classes(int64_t first) const {
    const int64_t end = period < g.bands ? period : g.bands;
    int64_t n = 1;
    while (n < most_classes && first + n < end &&
           first * rise / lanes == (first + n) * rise / lanes && bands(first + n) == bands(first))
      ++n;
    return n;
  }

  // Elements of an accumulator row: whole vectors, and two more that shifts may touch.
  int64_t pitch() const { return padded<T>(detector_width(g)) + 3 * lanes; }
};

// One row of a cube or mask, and the distances to the next class and to the next band of a class.
template <class T>
struct Bands {
  const T* at;
  int64_t next, on;
};

// Adds N bands of each of G classes to a row of the detector. The bands of a class lie `apart`
// vectors apart, the classes `lane`, `lane + rise`, … columns right of y. Shared: all bands have
// one mask.
template <class T, int G, int N, bool Shared>
static __attribute__((noinline)) void accumulate_row(T* y, const Bands<T>& x, const Bands<T>& m,
                                                     int64_t lane, int64_t rise, int64_t apart,
                                                     int64_t width) {
  using V = typename Vec<T>::type;
  constexpr int64_t L = Vec<T>::lanes;
  Shift<T> shift[G];
  for (int i = 0; i < G; ++i) shift[i] = Shift<T>(lane + i * rise);
  // From band to band of a class, at the same vector of the detector.
  const int64_t x_on = x.on - apart * L, m_on = m.on - apart * L;
  const int64_t whole = width / L, rest = width % L;
  const int64_t begin = (N - 1) * apart;  // the first vector that all bands reach
  const int64_t end = begin + whole + (rest > 0) + 1;
  int64_t low = 0, high = 1;  // bands [low, high) have a whole vector there
  for (int64_t j = 0; j < end; ++j) {
    const T *from = x.at + j * L, *by = m.at + j * L;
    V sum[G] = {};
    const auto add = [&](auto load) __attribute__((always_inline)) {
      const V mask = load(by);
#pragma GCC unroll 4
      for (int i = 0; i < G; ++i)
        sum[i] += load(from + i * x.next) * (Shared ? mask : load(by + i * m.next));
      from += x_on;
      by += m_on;
    };
    if (__builtin_expect(begin <= j && j < whole, 1)) {
#pragma GCC unroll 4
      for (int k = 0; k < N; ++k) add(load<T>);
    } else {
      while (low < N && low * apart + whole < j) ++low;
      while (high < N && high * apart <= j) ++high;
      from += low * x_on;
      by += low * m_on;
      for (; low < N && low * apart + whole == j; ++low)
        if (rest)
          add([&](const T* part) { return load_part(part, rest); });
        else
          from += x_on, by += m_on;
      for (int64_t k = low; k < high; ++k) add(load<T>);
    }
    V out = load(y + j * L);
#pragma GCC unroll 4
    for (int i = 0; i < G; ++i) out += shift[i](sum[i]);
    store(y + j * L, out);
  }
}

template <int N>
struct Count {
  static constexpr int value = N;
};

// Calls f with a number from 1 to Most as a Count.
template <int Most, class F>
static inline void with_count(int64_t n, F f) {
  if constexpr (Most == 1)
    f(Count<1>());
  else
    n == Most ? f(Count<Most>()) : with_count<Most - 1>(n, f);
}

// y is zeroed by the caller; its rows have walk.pitch() elements.
template <class T>
static inline void accumulate(const Walk<T>& walk, const Block<T>& y, const Block<T>& x,
                              const Block<T>& m, int64_t rows) {
  constexpr int most = Walk<T>::most, most_classes = Walk<T>::most_classes;
  const Geometry& g = walk.g;
  const int64_t next = g.step < 0 ? -1 : 1, on = next * walk.period;
  const auto row_of = [&](const Block<T>& block, int64_t rank, int64_t r) {
    return Bands<T>{block.at(band_of_rank(g, rank), r), next * block.band, on * block.band};
  };
  for (int64_t first = 0, classes; first < walk.period && first < g.bands; first += classes) {
    classes = walk.classes(first);
    const int64_t bands = walk.bands(first), lane = first * walk.rise % walk.lanes;
    for (int64_t i = 0; i < bands; i += most) {
      const int64_t rank = first + i * walk.period;
      with_count<most_classes>(classes, [&](auto G) {
        with_count<most>(bands - i < most ? bands - i : most, [&](auto N) {
          const auto add = m.band == 0 ? accumulate_row<T, G.value, N.value, true>
                                       : accumulate_row<T, G.value, N.value, false>;
          for (int64_t r = 0; r < rows; ++r)
            add(y.at(0, r) + rank * walk.rise - lane, row_of(x, rank, r), row_of(m, rank, r), lane,
                walk.rise, walk.apart, g.width);
        });
      });
    }
  }
}

template <class T>
static inline void clear(const Block<T>& y, int64_t rows, int64_t pitch) {
  __builtin_memset(y.base, 0, rows * pitch * sizeof(T));
}

// How the second sweep meets memory. Near: scratch. Cached: a tensor; while rows of v + m·z are
// written, those of the next tile are fetched: hardware does not foresee them where a tile has a
// few kilobytes of every band. Far, for cubes larger than the caches: stores that bypass them, so
// that no line is fetched only to be overwritten.
enum class Reach { near, cached, far };

constexpr int64_t kFarBytes = 16 << 20;

template <class T>
static inline bool is_far(const Geometry& g) {
  return g.batch * g.bands * g.height * g.width * static_cast<int64_t>(sizeof(T)) > kFarBytes;
}

// Some rows of one band: x = v ± Σ_k m[k]·z[k] over K shots, or without v if not Start.
template <class T, bool Start, int Sign, Reach reach, int K = 1>
static __attribute__((noinline)) void emit_rows(Block<T> x, Block<T> v, const Block<T>* m,
                                                const Block<T>* z, int64_t rows, int64_t width) {
  using V = typename Vec<T>::type;
  constexpr int64_t L = Vec<T>::lanes;
  for (int64_t r = 0; r < rows; ++r) {
    T* const to = x.at(0, r);
    const T* const from = v.at(0, r);
    const T *by[K], *at[K];
    for (int k = 0; k < K; ++k) by[k] = m[k].at(0, r), at[k] = z[k].at(0, r);
    const auto sum_at = [&](int64_t w, auto load) __attribute__((always_inline)) {
      auto sum = load(by[0] + w) * load(at[0] + w);
      if (Start) sum = Sign > 0 ? load(from + w) + sum : load(from + w) - sum;
      for (int k = 1; k < K; ++k) {
        const auto product = load(by[k] + w) * load(at[k] + w);
        sum = Sign > 0 ? sum + product : sum - product;
      }
      return sum;
    };
    const auto one = [&](int64_t w) { to[w] = sum_at(w, [](const T* a) { return *a; }); };
    int64_t w = 0;
    if (reach == Reach::far)
      for (; w < width && reinterpret_cast<uintptr_t>(to + w) % CASSI_BYTES; ++w) one(w);
    for (; w + L <= width; w += L) {
      const V sum = sum_at(w, load<T>);
      const bool ahead = Start && w / L % (64 / CASSI_BYTES) == 0;  // once a line
      if (reach == Reach::far && ahead) __builtin_prefetch(from + rows * v.row + w, 0, 2);
      if (reach == Reach::cached && ahead) __builtin_prefetch(to + rows * x.row + w, 1, 2);
      reach == Reach::far ? stream(to + w, sum) : store(to + w, sum);
    }
    for (; w < width; ++w) one(w);
  }
}

// z: K rows of measurement per image row, z.at(k, r). Two shots at a time.
template <class T, bool Start, int Sign, Reach reach>
static inline void emit(const Geometry& g, const Block<T>& x, const Block<T>& v, const Block<T>* m,
                        const Block<T>& z, int64_t rows) {
  for (int64_t c = 0; c < g.bands; ++c) {
    const int64_t o = band_offset(g, c);
    const Block<T> to = x.from(c), from = Start ? v.from(c) : to;
    for (int64_t k = 0; k < g.shots; k += 2) {
      const bool both = k + 1 < g.shots;
      const Block<T> by[] = {m[k].from(c), m[k + both].from(c)};
      const Block<T> at[] = {z.from(k, o), z.from(k + both, o)};
      if (k == 0)
        (both ? emit_rows<T, Start, Sign, reach, 2>
              : emit_rows<T, Start, Sign, reach>)(to, from, by, at, rows, g.width);
      else
        (both ? emit_rows<T, true, Sign, Reach::near, 2>
              : emit_rows<T, true, Sign, Reach::near>)(to, to, by, at, rows, g.width);
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
    emit<T, Start, Sign, Reach::cached>(g, x, v, m, z, rows);
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
