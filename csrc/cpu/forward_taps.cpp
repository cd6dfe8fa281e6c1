// y[b,k,h,w'] = Σ_c Σ_t a[c,t] (m·x)[b,k,c,h,w'-s(c)-t]
#include "taps.h"

namespace cassi {
namespace CASSI_ISA {

template <class T>
static int64_t rows_of(const Geometry& g) {
  return rows_per_tile(g, sizeof(T), kTileBytes, 4);
}

template <class T>
static void run_as(const ForwardTaps& a, int64_t begin, int64_t end) {
  const Geometry& g = a.g;
  const int64_t R = rows_of<T>(g), coded = a.taps.coded(g.width), line = padded<T>(coded);
  // The sums lie among so many more that a band which misses the detector writes only those.
  const int64_t before = padded<T>(g.width + a.taps.count);
  const int64_t pitch = 2 * before + padded<T>(a.detector) + 3 * Vec<T>::lanes;
  const int64_t weights = padded<T>(g.bands * a.taps.count);
  Arena arena = {scratch((weights + R * pitch + 2 * g.bands * R * line) * sizeof(T))};
  T* const weight = arena.block<T>(1, 1, weights).base;
  const Block<T> y = arena.block<T>(1, R, pitch);
  const Block<T> x_space = arena.block<T>(g.bands, R, line);
  const Block<T> m_space = arena.block<T>(g.bands, R, line);
  const auto spread = a.taps.after ? spread_row<T, true> : spread_row<T, false>;
  int64_t sample = -1;
  for (int64_t t = begin; t < end; ++t) {
    const Tile tile = tile_at(g, R, t);
    if (sample != tile.sample) read_weights(a.taps, sample = tile.sample, g.bands, weight);
    const Block<T> x =
        as_block(cube_part(a.x, sample, tile.h), g.bands, tile.rows, g.width, x_space);
    const int64_t ahead = x.band;
    for (int64_t k = 0; k < g.shots; ++k) {
      const Block<T> m =
          as_mask(mask_part(a.mask, sample, k, tile.h), g.bands, tile.rows, coded, m_space);
      clear(y, tile.rows, pitch);
      for (int64_t c = 0; c < g.bands; ++c) {
        const int64_t start = start_of(a.taps, sample, c, g.width, a.detector);
        // The band falls beside the detector.
        if (start >= a.detector || start + g.width + a.taps.count <= 1) continue;
        for (int64_t r = 0; r < tile.rows; ++r)
          spread(y.at(0, r), before + start, x.at(c, r), m.at(c, r), weight + c * a.taps.count,
                 a.taps.count, g.width, ahead, m.band);
      }
      Part out = cube_part(a.y, sample, tile.h);
      out.data += k * a.y.stride[1] * size_of(a.y.dtype);
      write_block(out, Block<T>{y.base + before, y.band, y.row}, 1, tile.rows, a.detector);
    }
  }
}

int64_t work(const ForwardTaps& a) {
  return tiles(a.g, a.sums == Dtype::f64 ? rows_of<double>(a.g) : rows_of<float>(a.g), a.g.batch);
}

void run(const ForwardTaps& a, int64_t begin, int64_t end) {
  a.sums == Dtype::f64 ? run_as<double>(a, begin, end) : run_as<float>(a, begin, end);
}

}  // namespace CASSI_ISA
}  // namespace cassi
