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
  T *matrix, *vectors, *right;

  static int64_t bytes(int64_t shots, int64_t width) {
    return (shots * shots * (padded<T>(width) + 2) + 2 * shots + 16) * sizeof(T);
  }

  Solver(Arena& arena, const View& gram, const View& rho, int64_t shots, int64_t width)
      : gram(gram), rho(rho), shots(shots), width(width) {
    rows = arena.block<T>(shots * shots, 1, padded<T>(width));
    matrix = reinterpret_cast<T*>(arena.next);
    vectors = matrix + shots * shots;
    right = vectors + shots * shots;
    arena.next = reinterpret_cast<char*>(right + 2 * shots + 16);
    arena.next -= reinterpret_cast<uintptr_t>(arena.next) % (16 * sizeof(T)) % 64;
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
      for (int64_t w = 0; w < width; ++w) {
        for (int64_t e = 0; e < shots * shots; ++e) matrix[e] = rows.at(e, 0)[w];
        for (int64_t k = 0; k < shots; ++k) right[k] = r.at(k, i)[w];
        solve_symmetric(shots, matrix, vectors, 1, right, 1, right + shots, 1, damping,
                        resolution<T>(gram.dtype));
        for (int64_t k = 0; k < shots; ++k) r.at(k, i)[w] = right[shots + k];
      }
    }
  }
};

}  // namespace CASSI_ISA
}  // namespace cassi
