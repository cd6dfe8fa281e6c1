// x[b,c,h,w] = Σ_k m[k,c,h,w] Σ_t a[c,t] y[b,k,h,w+s(c)+t], alone or added to a cube, and the same
// with cube for mask: m[k,c,h,w] = Σ_b x[b,c,h,w] Σ_t a[c,t] y[b,k,h,w+s(c)+t].
#include "taps.h"

namespace cassi {
namespace CASSI_ISA {

template <class T>
static int64_t rows_of(const Geometry& g) {
  return rows_per_tile(g, sizeof(T), kTileBytes, 8);
}

// How a row of the cube is collected: whether something is added to it, and into it or past caches.
template <class T>
static auto collector(bool add, bool after, bool far) {
  constexpr Reach near = Reach::near, past = Reach::far;
  if (after)
    return add ? (far ? collect_row<T, true, true, past> : collect_row<T, true, true, near>)
               : (far ? collect_row<T, false, true, past> : collect_row<T, false, true, near>);
  return add ? (far ? collect_row<T, true, false, past> : collect_row<T, true, false, near>)
             : (far ? collect_row<T, false, false, past> : collect_row<T, false, false, near>);
}

template <class T>
static void run_as(const AdjointTaps& a, int64_t begin, int64_t end) {
  const Geometry& g = a.g;
  const int64_t R = rows_of<T>(g), count = a.taps.count, coded = a.taps.coded(g.width);
  const int64_t line = padded<T>(coded), pitch = padded<T>(a.detector);
  const int64_t weights = padded<T>(g.bands * count), stack = g.bands * R * line;
  Arena arena = {scratch((weights + g.shots * R * pitch + 2 * stack) * sizeof(T))};
  T* const weight = arena.block<T>(1, 1, weights).base;
  const Block<T> y_space = arena.block<T>(g.shots, R, pitch);
  const Block<T> x_space = arena.block<T>(g.bands, R, line);
  const Block<T> m_space = arena.block<T>(g.bands, R, line);
  const bool far = g.shots == 1 && is_far<T>(g);
  int64_t sample = -1;
  for (int64_t t = begin; t < end; ++t) {
    const Tile tile = tile_at(g, R, t);
    if (sample != tile.sample) read_weights(a.taps, sample = tile.sample, g.bands, weight);
    const Block<T> y =
        as_block(cube_part(a.y, sample, tile.h), g.shots, tile.rows, a.detector, y_space);
    const Part part = cube_part(a.x, sample, tile.h);
    const bool direct = in_place<T>(part, g.width);
    const Block<T> x =
        direct ? Block<T>{reinterpret_cast<T*>(part.data), part.band, part.row} : x_space;
    Block<T> v = x;
    if (a.v.data)
      v = as_block(cube_part(a.v, sample, tile.h), g.bands, tile.rows, g.width, x_space);
    for (int64_t k = 0; k < g.shots; ++k, v = x) {
      const auto collect = collector<T>(a.v.data || k > 0, a.taps.after, direct && far);
      const Block<T> m =
          as_mask(mask_part(a.mask, sample, k, tile.h), g.bands, tile.rows, coded, m_space);
      for (int64_t c = 0; c < g.bands; ++c) {
        const int64_t at = start_of(a.taps, sample, c, g.width, a.detector);
        for (int64_t r = 0; r < tile.rows; ++r)
          collect(x.at(c, r), v.at(c, r), m.at(c, r), y.at(k, r), at, a.detector,
                  weight + c * count, count, g.width, tile.rows * v.row,
                  m.band ? tile.rows * m.row : 0);
      }
    }
    if (!direct) write_block(part, x, g.bands, tile.rows, g.width);
  }
  drain();
}

template <class T>
static void run_as(const MaskAdjointTaps& a, int64_t begin, int64_t end) {
  const Geometry& g = a.g;
  const int64_t R = rows_of<T>(g), line = padded<T>(g.width), count = a.taps.count;
  const int64_t pitch = padded<T>(a.detector);
  const int64_t weights = padded<T>(g.bands * count);
  Arena arena = {scratch((weights + g.bands * R * line + g.shots * R * pitch) * sizeof(T))};
  T* const weight = arena.block<T>(1, 1, weights).base;
  const Block<T> x_space = arena.block<T>(g.bands, R, line);
  const Block<T> y_space = arena.block<T>(g.shots, R, pitch);
  for (int64_t t = begin; t < end; ++t) {
    Tile tile = tile_at(g, R, t);
    const int64_t first = tile.sample, last = a.per_sample ? first + 1 : g.batch;
    for (; tile.sample < last; ++tile.sample) {
      const int64_t sample = tile.sample;
      read_weights(a.taps, sample, g.bands, weight);
      const Block<T> x =
          as_block(cube_part(a.x, sample, tile.h), g.bands, tile.rows, g.width, x_space);
      const Block<T> y =
          as_block(cube_part(a.y, sample, tile.h), g.shots, tile.rows, a.detector, y_space);
      for (int64_t k = 0; k < g.shots; ++k) {
        const Part part = mask_part(a.mask, a.per_sample ? first : 0, k, tile.h);
        const Block<T> m = {reinterpret_cast<T*>(part.data), a.per_band ? part.band : 0, part.row};
        for (int64_t c = 0; c < g.bands; ++c) {
          const bool fresh = sample == first && (c == 0 || a.per_band);
          const int64_t at = start_of(a.taps, sample, c, g.width, a.detector);
          const T* const own = weight + c * count;
          for (int64_t r = 0; r < tile.rows; ++r) {
            const T *const z = y.at(k, r), *const from = x.at(c, r);
            T* const to = m.at(c, r);
            if (a.taps.after)
              code_row<T>(to, fresh, from, z, at, a.detector, own, count, g.width);
            else
              collector<T>(!fresh, false, false)(to, to, from, z, at, a.detector, own, count,
                                                 g.width, 0, 0);
          }
        }
      }
    }
  }
}

int64_t work(const AdjointTaps& a) {
  return tiles(a.g, a.sums == Dtype::f64 ? rows_of<double>(a.g) : rows_of<float>(a.g), a.g.batch);
}

void run(const AdjointTaps& a, int64_t begin, int64_t end) {
  a.sums == Dtype::f64 ? run_as<double>(a, begin, end) : run_as<float>(a, begin, end);
}

int64_t work(const MaskAdjointTaps& a) {
  return tiles(a.g, a.sums == Dtype::f64 ? rows_of<double>(a.g) : rows_of<float>(a.g),
               a.per_sample ? a.g.batch : 1);
}

void run(const MaskAdjointTaps& a, int64_t begin, int64_t end) {
  a.sums == Dtype::f64 ? run_as<double>(a, begin, end) : run_as<float>(a, begin, end);
}

}  // namespace CASSI_ISA
}  // namespace cassi
