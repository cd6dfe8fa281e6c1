// (G + ρI)⁺ r on blocks of detector rows, in place.
#pragma once

#include "camera.h"

namespace cassi {
namespace CASSI_ISA {

template <class T>
struct Solver {
  const View& gram;
  const View& rho;
  int64_t shots, width;
  Block<T> rows;  // K·K rows of the gram, one image row at a time
  using V = typename Vec<T>::type;
  T *matrix, *vectors, *right;
  V *lower, *solution;  // of as many pixels as a vector has lanes

  static int64_t bytes(int64_t shots, int64_t width) {
    return (shots * shots * (padded<T>(width) + 2) + 2 * shots + 16) * sizeof(T) +
           (shots * shots + shots + 1) * sizeof(V);
  }

  Solver(Arena& arena, const View& gram, const View& rho, int64_t shots, int64_t width)
      : gram(gram), rho(rho), shots(shots), width(width) {
    rows = arena.block<T>(shots * shots, 1, padded<T>(width));
    matrix = reinterpret_cast<T*>(arena.next);
    vectors = matrix + shots * shots;
    right = vectors + shots * shots;
    arena.next = reinterpret_cast<char*>(right + 2 * shots);
    arena.next += (64 - reinterpret_cast<uintptr_t>(arena.next) % 64) % 64;
    lower = reinterpret_cast<V*>(arena.next);
    solution = lower + shots * shots;
    arena.next = reinterpret_cast<char*>(solution + shots);
  }

  // r: rows r.at(k, row) of one tile.
  void solve(const Block<T>& r, const Tile& tile) {
    const T damping = scalar_at<T>(rho, tile.sample);
    for (int64_t i = 0; i < tile.rows; ++i) {
      const Part part = mask_part(gram, tile.sample, 0, tile.h + i);
      if (shots == 1) {
        const T* g = as_block(part, 1, 1, width, rows).base;
        T* z = r.at(0, i);
        for (int64_t w = 0; w < width; ++w) z[w] = damped_solve(z[w], g[w], damping);
        continue;
      }
      for (int64_t k = 0; k < shots; ++k)
        read_block(Block<T>{rows.at(k * shots, 0), rows.band, rows.row},
                   mask_part(gram, tile.sample, k, tile.h + i), shots, 1, width);
      for (int64_t w = 0; w < width; w += Vec<T>::lanes)
        solve_pixels(r, i, w, width - w < Vec<T>::lanes ? width - w : Vec<T>::lanes, damping);
    }
  }

  // `count` pixels from column w on: those that are well determined all at once.
  void solve_pixels(const Block<T>& r, int64_t i, int64_t w, int64_t count, T damping) {
    const bool whole = count == Vec<T>::lanes;
    const auto part = [&](const T* from) {
      return whole ? load(from + w) : load_part(from + w, count);
    };
    const auto entry = [&](int64_t k, int64_t l) { return part(rows.at(k * shots + l, 0)); };
    const auto solve_with = [&](T rho) {
      for (int64_t k = 0; k < shots; ++k) solution[k] = part(r.at(k, i));
      return solve_definite(shots, entry, splat(rho), lower, 1, solution, 1);
    };
    const V bound = solve_with(T(0));
    if (damping != T(0)) solve_with(damping);
    const T enough = definite_above<T>(shots, gram.dtype);
    for (int64_t lane = 0; lane < count; ++lane) {
      if (bound[lane] > enough) continue;
      for (int64_t e = 0; e < shots * shots; ++e) matrix[e] = rows.at(e, 0)[w + lane];
      for (int64_t k = 0; k < shots; ++k) right[k] = r.at(k, i)[w + lane];
      solve_symmetric(shots, matrix, vectors, 1, right, 1, right + shots, 1, damping,
                      resolution<T>(gram.dtype));
      for (int64_t k = 0; k < shots; ++k) solution[k][lane] = right[shots + k];
    }
    for (int64_t k = 0; k < shots; ++k)
      whole ? store(r.at(k, i) + w, solution[k]) : store_part(r.at(k, i) + w, solution[k], count);
  }
};

}  // namespace CASSI_ISA
}  // namespace cassi
