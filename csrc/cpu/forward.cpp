// y[b,k,h,w'] = Σ_c m[k,c,h,w'-o(c)] x[b,c,h,w'-o(c)], of a cube or of its components in a basis,
// whose cube is made in cache, some rows at a time.
#include "camera.h"
#include "subspace.h"

namespace cassi {
namespace CASSI_ISA {

template <class T>
static int64_t rows_of(const Geometry& g) {
  return rows_per_tile(g, sizeof(T), kTileBytes, 8);
}

template <class T>
static void run_as(const Forward& a, int64_t begin, int64_t end) {
  const Geometry& g = a.g;
  const Walk<T> walk(g);
  const int64_t R = rows_of<T>(g), pitch = walk.pitch(), wide = detector_width(g);
  const int64_t line = padded<T>(g.width);
  const int64_t rank = a.rank, coefficients = padded<T>(g.bands * rank);
  Arena arena = {scratch((R * pitch + (2 * g.bands + rank) * R * line + coefficients) * sizeof(T))};
  const Block<T> y = arena.block<T>(1, R, pitch);
  const Block<T> x_space = arena.block<T>(g.bands, R, line);
  const Block<T> m_space = arena.block<T>(g.bands, R, line);
  const Block<T> a_space = arena.block<T>(rank, R, line);
  T* const basis = arena.block<T>(1, 1, coefficients).base;
  const bool cube = !a.basis.data;
  int64_t sample = -1;
  for (int64_t t = begin; t < end; ++t) {
    const Tile tile = tile_at(g, R, t);
    const Part given = cube_part(a.x, tile.sample, tile.h);
    const Block<T> x = cube ? as_block(given, g.bands, tile.rows, g.width, x_space) : x_space;
    if (!cube) {
      if (tile.sample != sample) read_basis(a.basis, tile.sample, g.bands, rank, basis);
      sample = tile.sample;
      expand(basis, as_block(given, rank, tile.rows, g.width, a_space), rank, x, g.bands, tile.rows,
             g.width);
    }
    for (int64_t k = 0; k < g.shots; ++k) {
      const Block<T> m =
          as_mask(mask_part(a.mask, tile.sample, k, tile.h), g.bands, tile.rows, g.width, m_space);
      clear(y, tile.rows, pitch);
      accumulate(walk, y, x, m, tile.rows);
      Part out = cube_part(a.y, tile.sample, tile.h);
      out.data += k * a.y.stride[1] * size_of(a.y.dtype);
      write_block(out, y, 1, tile.rows, wide);
    }
  }
}

int64_t work(const Forward& a) {
  return tiles(a.g, a.sums == Dtype::f64 ? rows_of<double>(a.g) : rows_of<float>(a.g), a.g.batch);
}

void run(const Forward& a, int64_t begin, int64_t end) {
  a.sums == Dtype::f64 ? run_as<double>(a, begin, end) : run_as<float>(a, begin, end);
}

}  // namespace CASSI_ISA
}  // namespace cassi
