// x[b,c,h,w] = Σ_k m[k,c,h,w] Σ_t a[c,t] y[b,k,h,w+s(c)+t], and the same with cube for mask:
// m[k,c,h,w] = Σ_b x[b,c,h,w] Σ_t a[c,t] y[b,k,h,w+s(c)+t].
#include "taps.h"

namespace cassi {
namespace CASSI_ISA {

template <class T>
static int64_t rows_of(const Geometry& g) {
  return rows_per_tile(g, sizeof(T), kTileBytes, 8);
}

template <class T>
static void run_as(const AdjointTaps& a, int64_t begin, int64_t end) {
  const Geometry& g = a.g;
  const int64_t R = rows_of<T>(g), line = padded<T>(g.width), count = a.taps.count;
  const int64_t pitch = padded<T>(a.detector);
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
    for (int64_t k = 0; k < g.shots; ++k) {
      const Block<T> m =
          as_mask(mask_part(a.mask, sample, k, tile.h), g.bands, tile.rows, g.width, m_space);
      for (int64_t c = 0; c < g.bands; ++c) {
        const int64_t at = start_of(a.taps, sample, c, g.width, a.detector);
        const T* const own = weight + c * count;
        for (int64_t r = 0; r < tile.rows; ++r) {
          const T* const z = y.at(k, r);
          if (k > 0)
            collect_row<T, true, Reach::near>(x.at(c, r), m.at(c, r), z, at, a.detector, own, count,
                                              g.width);
          else if (direct && far)
            collect_row<T, false, Reach::far>(x.at(c, r), m.at(c, r), z, at, a.detector, own, count,
                                              g.width);
          else
            collect_row<T, false, Reach::near>(x.at(c, r), m.at(c, r), z, at, a.detector, own,
                                               count, g.width);
        }
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
            const T* const z = y.at(k, r);
            fresh ? collect_row<T, false, Reach::near>(m.at(c, r), x.at(c, r), z, at, a.detector,
                                                       own, count, g.width)
                  : collect_row<T, true, Reach::near>(m.at(c, r), x.at(c, r), z, at, a.detector,
                                                      own, count, g.width);
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
