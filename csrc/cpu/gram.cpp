// G[k,l] = Σ_c m[k,c] m[l,c], shifted; and z = (G + diag ρ)⁺ r at every detector pixel.
#include "solve.h"

namespace cassi {
namespace CASSI_ISA {

template <class T>
static int64_t rows_of(const Geometry& g) {
  return rows_per_tile(g, sizeof(T), kTileBytes, 8);
}

template <class T>
static void run_as(const Gram& a, int64_t begin, int64_t end) {
  const Geometry& g = a.g;
  const Walk<T> walk(g);
  const int64_t R = rows_of<T>(g), pitch = walk.pitch(), wide = detector_width(g);
  const int64_t line = padded<T>(g.width), stack = g.bands * R * line;
  Arena arena = {scratch((R * pitch + 2 * stack) * sizeof(T))};
  const Block<T> sum = arena.block<T>(1, R, pitch);
  const Block<T> k_space = arena.block<T>(g.bands, R, line);
  const Block<T> l_space = arena.block<T>(g.bands, R, line);
  for (int64_t t = begin; t < end; ++t) {
    const Tile tile = tile_at(g, R, t);
    for (int64_t k = 0; k < g.shots; ++k) {
      const Block<T> mk =
          as_mask(mask_part(a.mask, tile.sample, k, tile.h), g.bands, tile.rows, g.width, k_space);
      for (int64_t l = 0; l < g.shots; ++l) {
        const Block<T> ml = as_mask(mask_part(a.mask, tile.sample, l, tile.h), g.bands, tile.rows,
                                    g.width, l_space);
        clear(sum, tile.rows, pitch);
        accumulate(walk, sum, mk, ml, tile.rows);
        Part out = mask_part(a.gram, tile.sample, k, tile.h);
        out.data += l * out.band * size_of(out.dtype);
        write_block(out, sum, 1, tile.rows, wide);
      }
    }
  }
}

template <class T>
static int64_t solve_rows(const Geometry& g) {
  return rows_per_tile({g.batch, 1, g.shots, g.height, g.width, 0}, sizeof(T), kTileBytes, 8);
}

template <class T>
static void run_as(const GramSolve& a, int64_t begin, int64_t end) {
  const Geometry& g = a.g;
  const int64_t R = solve_rows<T>(g), pitch = padded<T>(g.width);
  Arena arena = {scratch(g.shots * R * pitch * sizeof(T) + Solver<T>::bytes(g.shots, g.width))};
  const Block<T> r = arena.block<T>(g.shots, R, pitch);
  Solver<T> solver(arena, a.gram, a.rho, g.shots, g.width);
  for (int64_t t = begin; t < end; ++t) {
    const Tile tile = tile_at(g, R, t);
    read_block(r, cube_part(a.r, tile.sample, tile.h), g.shots, tile.rows, g.width);
    solver.solve(r, tile);
    write_block(cube_part(a.z, tile.sample, tile.h), r, g.shots, tile.rows, g.width);
  }
}

int64_t work(const Gram& a) {
  return tiles(a.g, a.sums == Dtype::f64 ? rows_of<double>(a.g) : rows_of<float>(a.g), a.g.batch);
}

void run(const Gram& a, int64_t begin, int64_t end) {
  a.sums == Dtype::f64 ? run_as<double>(a, begin, end) : run_as<float>(a, begin, end);
}

int64_t work(const GramSolve& a) {
  return tiles(a.g, a.sums == Dtype::f64 ? solve_rows<double>(a.g) : solve_rows<float>(a.g),
               a.g.batch);
}

void run(const GramSolve& a, int64_t begin, int64_t end) {
  a.sums == Dtype::f64 ? run_as<double>(a, begin, end) : run_as<float>(a, begin, end);
}

}  // namespace CASSI_ISA
}  // namespace cassi
