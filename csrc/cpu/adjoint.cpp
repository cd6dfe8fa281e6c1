// x[b,c,h,w] = Σ_k m[k,c,h,w] y[b,k,h,w+o(c)], alone, added to a cube, or as its components in a
// basis, and the ratio inverse
// x[b,c,h,w] = y[b,h,w+o(c)] / n(w+o(c)) / max(m[c,h,w], 1e-12), n the number of bands there.
#include "camera.h"
#include "subspace.h"

namespace cassi {
namespace CASSI_ISA {

template <class T>
static int64_t rows_of(const Geometry& g) {
  return rows_per_tile(g, sizeof(T), kTileBytes, 8);
}

template <class T>
static void invert(const Block<T>& m, const Block<T>& to, int64_t bands, int64_t rows,
                   int64_t width) {
  for (int64_t c = 0; c < bands; ++c)
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t w = 0; w < width; ++w) to.at(c, r)[w] = inverse_mask(m.at(c, r)[w]);
}

template <class T>
static void run_as(const Adjoint& a, int64_t begin, int64_t end) {
  const Geometry& g = a.g;
  const int64_t R = rows_of<T>(g), wide = detector_width(g), line = padded<T>(g.width);
  const int64_t pitch = padded<T>(wide), stack = g.bands * R * line;
  const int64_t rank = a.rank, coefficients = padded<T>(g.bands * rank);
  Arena arena = {scratch(
      (pitch + g.shots * R * pitch + (g.shots + 1) * stack + rank * R * line + coefficients) *
          sizeof(T) +
      g.shots * sizeof(Block<T>))};
  const Block<T> share = arena.block<T>(1, 1, pitch);
  const Block<T> y_space = arena.block<T>(g.shots, R, pitch);
  const Block<T> x_space = arena.block<T>(g.bands, R, line);
  const Block<T> m_space = arena.block<T>(g.shots * g.bands, R, line);
  const Block<T> a_space = arena.block<T>(rank, R, line);
  T* const basis = arena.block<T>(1, 1, coefficients).base;
  int64_t sample = -1;
  Block<T>* m = reinterpret_cast<Block<T>*>(arena.next);
  if (a.ratio)
    for (int64_t w = 0; w < wide; ++w) {
      const Ranks<int64_t> ranks = ranks_at(g, w);
      share.base[w] = static_cast<T>(ranks.last > ranks.first ? ranks.last - ranks.first : 1);
    }
  for (int64_t t = begin; t < end; ++t) {
    const Tile tile = tile_at(g, R, t);
    Block<T> y = as_block(cube_part(a.y, tile.sample, tile.h), g.shots, tile.rows, wide, y_space);
    for (int64_t k = 0; k < g.shots; ++k) {
      const Block<T> space = {m_space.at(k * g.bands, 0), m_space.band, m_space.row};
      m[k] = as_mask(mask_part(a.mask, tile.sample, k, tile.h), g.bands, tile.rows, g.width, space);
      if (a.ratio) {
        const Block<T> inverse = {space.base, m[k].band == 0 ? 0 : space.band, space.row};
        invert(m[k], inverse, inverse.band == 0 ? 1 : g.bands, tile.rows, g.width);
        m[k] = inverse;
      }
    }
    if (a.ratio) {
      for (int64_t k = 0; k < g.shots; ++k)
        for (int64_t r = 0; r < tile.rows; ++r)
          for (int64_t w = 0; w < wide; ++w) y_space.at(k, r)[w] = y.at(k, r)[w] / share.base[w];
      y = y_space;
    }
    if (a.basis.data) {
      if (tile.sample != sample) read_basis(a.basis, tile.sample, g.bands, rank, basis);
      sample = tile.sample;
      emit<T, false, 1, Reach::near>(g, x_space, x_space, m, y, tile.rows);
      const Part part = cube_part(a.x, tile.sample, tile.h);
      const bool direct = in_place<T>(part, g.width);
      const Block<T> to =
          direct ? Block<T>{reinterpret_cast<T*>(part.data), part.band, part.row} : a_space;
      contract(basis, x_space, g.bands, to, rank, tile.rows, g.width);
      if (!direct) write_block(part, to, rank, tile.rows, g.width);
    } else if (a.v.data) {
      const Block<T> v =
          as_block(cube_part(a.v, tile.sample, tile.h), g.bands, tile.rows, g.width, x_space);
      emit_into<T, true, 1>(g, a.x, tile.sample, tile.h, v, m, y, tile.rows, x_space);
    } else {
      emit_into<T, false, 1>(g, a.x, tile.sample, tile.h, x_space, m, y, tile.rows, x_space);
    }
  }
  drain();
}

int64_t work(const Adjoint& a) {
  return tiles(a.g, a.sums == Dtype::f64 ? rows_of<double>(a.g) : rows_of<float>(a.g), a.g.batch);
}

void run(const Adjoint& a, int64_t begin, int64_t end) {
  a.sums == Dtype::f64 ? run_as<double>(a, begin, end) : run_as<float>(a, begin, end);
}

}  // namespace CASSI_ISA
}  // namespace cassi
