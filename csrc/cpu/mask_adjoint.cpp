// m[k,c,h,w] = Σ_b x[b,c,h,w] y[b,k,h,w+o(c)], summed over the bands too where they share a mask.
#include "camera.h"

namespace cassi {
namespace CASSI_ISA {

template <class T>
static int64_t rows_of(const Geometry& g) {
  return rows_per_tile(g, sizeof(T), kTileBytes, 8);
}

template <class T>
static void run_as(const MaskAdjoint& a, int64_t begin, int64_t end) {
  const Geometry& g = a.g;
  const int64_t R = rows_of<T>(g), wide = detector_width(g), line = padded<T>(g.width);
  const int64_t pitch = padded<T>(wide);
  Arena arena = {scratch((g.bands * R * line + g.shots * R * pitch) * sizeof(T))};
  const Block<T> x_space = arena.block<T>(g.bands, R, line);
  const Block<T> y_space = arena.block<T>(g.shots, R, pitch);
  for (int64_t t = begin; t < end; ++t) {
    Tile tile = tile_at(g, R, t);
    const int64_t first = tile.sample, last = a.per_sample ? first + 1 : g.batch;
    for (; tile.sample < last; ++tile.sample) {
      const Block<T> x =
          as_block(cube_part(a.x, tile.sample, tile.h), g.bands, tile.rows, g.width, x_space);
      const Block<T> y =
          as_block(cube_part(a.y, tile.sample, tile.h), g.shots, tile.rows, wide, y_space);
      for (int64_t k = 0; k < g.shots; ++k) {
        const Part part = mask_part(a.mask, a.per_sample ? first : 0, k, tile.h);
        const Block<T> m = {reinterpret_cast<T*>(part.data), a.per_band ? part.band : 0, part.row};
        for (int64_t c = 0; c < g.bands; ++c) {
          const bool fresh = tile.sample == first && (c == 0 || a.per_band);
          const Block<T> by = x.from(c), at = y.from(k, band_offset(g, c));
          const auto emit =
              fresh ? emit_rows<T, false, 1, Reach::near> : emit_rows<T, true, 1, Reach::near>;
          emit(m.from(c), m.from(c), &by, &at, tile.rows, g.width);
        }
      }
    }
  }
}

int64_t work(const MaskAdjoint& a) {
  return tiles(a.g, a.sums == Dtype::f64 ? rows_of<double>(a.g) : rows_of<float>(a.g),
               a.per_sample ? a.g.batch : 1);
}

void run(const MaskAdjoint& a, int64_t begin, int64_t end) {
  a.sums == Dtype::f64 ? run_as<double>(a, begin, end) : run_as<float>(a, begin, end);
}

}  // namespace CASSI_ISA
}  // namespace cassi
