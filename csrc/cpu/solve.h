// (G + diag ρ)⁺ r on blocks of detector rows, in place.
#pragma once

#include "camera.h"

namespace cassi {
namespace CASSI_ISA {

template <class T>
struct Solver {
  const View& gram;
  const View& rho;
  int64_t shots, width;
  Block<T> rows;   // K·K rows of the gram, one image row at a time
  Block<T> space;  // K rows of ρ
  using V = typename Vec<T>::type;
  T* pixel;
  V *lower, *solution;  // of as many pixels as a vector has lanes
  // ρ of an image row, and what is in it.
  Block<T> damping = {};
  bool damped = false, infinite = false;
  int64_t held = -1;  // the sample whose rows all have that ρ

  static int64_t bytes(int64_t shots, int64_t width) {
    return (shots * (shots + 1) * padded<T>(width) + 2 * shots * shots + 2 * shots + 16) *
               sizeof(T) +
           (shots * shots + shots + 1) * sizeof(V);
  }

  Solver(Arena& arena, const View& gram, const View& rho, int64_t shots, int64_t width)
      : gram(gram), rho(rho), shots(shots), width(width) {
    rows = arena.block<T>(shots * shots, 1, padded<T>(width));
    space = arena.block<T>(shots, 1, padded<T>(width));
    pixel = reinterpret_cast<T*>(arena.next);
    arena.next = reinterpret_cast<char*>(pixel + 2 * shots * shots + 2 * shots);
    arena.next += (64 - reinterpret_cast<uintptr_t>(arena.next) % 64) % 64;
    lower = reinterpret_cast<V*>(arena.next);
    solution = lower + shots * shots;
    arena.next = reinterpret_cast<char*>(solution + shots);
  }

  // r: rows r.at(k, row) of one tile.
  void solve(const Block<T>& r, const Tile& tile) {
    for (int64_t i = 0; i < tile.rows; ++i) {
      read_damping(tile.sample, tile.h + i);
      const Part part = mask_part(gram, tile.sample, 0, tile.h + i);
      if (shots == 1) {
        const T *g = as_block(part, 1, 1, width, rows).base, *d = damping.base;
        T* z = r.at(0, i);
        const T same = d[0];
        if (held < 0 || is_infinite(same))
          for (int64_t w = 0; w < width; ++w) z[w] = damped_solve(z[w], g[w], d[w]);
        else  // without a load and a comparison per pixel
          for (int64_t w = 0; w < width; ++w) z[w] = divided(z[w], g[w] + same);
        continue;
      }
      for (int64_t k = 0; k < shots; ++k)
        read_block(Block<T>{rows.at(k * shots, 0), rows.band, rows.row},
                   mask_part(gram, tile.sample, k, tile.h + i), shots, 1, width);
      // Loops over two shots, the most usual, are unrolled.
      shots == 2 ? solve_row(2, r, i) : solve_row(shots, r, i);
    }
  }

  // One value for all pixels of a sample is spread over a row once.
  void read_damping(int64_t sample, int64_t h) {
    const bool shared = rho.stride[2] == 0 && rho.stride[3] == 0;
    if (shared && held == sample) return;
    held = shared ? sample : -1;
    damping = as_block(cube_part(rho, sample, h), shots, 1, width, space);
    damped = infinite = false;
    for (int64_t k = 0; shots > 1 && k < shots; ++k)
      for (int64_t w = 0; w < width; ++w) {
        damped |= damping.at(k, 0)[w] != T(0);
        infinite |= is_infinite(damping.at(k, 0)[w]);
      }
  }

  __attribute__((always_inline)) void solve_row(int64_t shots, const Block<T>& r, int64_t i) {
    for (int64_t w = 0; w < width; w += Vec<T>::lanes)
      solve_pixels(shots, r, i, w, width - w < Vec<T>::lanes ? width - w : Vec<T>::lanes);
  }

  // `count` pixels from column w on: those that are well determined all at once.
  __attribute__((always_inline)) void solve_pixels(int64_t shots, const Block<T>& r, int64_t i,
                                                   int64_t w, int64_t count) {
    const bool whole = count == Vec<T>::lanes;
    const auto part = [&](const T* from) {
      return whole ? load(from + w) : load_part(from + w, count);
    };
    const auto entry = [&](int64_t k, int64_t l) { return part(rows.at(k * shots + l, 0)); };
    const auto solve_with = [&](auto rho) {
      for (int64_t k = 0; k < shots; ++k) solution[k] = part(r.at(k, i));
      return solve_definite(shots, entry, rho, lower, 1, solution, 1);
    };
    const V bound = solve_with([](int64_t) { return V{}; });
    if (damped) solve_with([&](int64_t k) { return part(damping.at(k, 0)); });
    const T enough = definite_above<T>(shots, gram.dtype);
    bool rest = infinite;
    for (int64_t lane = 0; lane < Vec<T>::lanes; ++lane) rest |= !(bound[lane] > enough);
    for (int64_t lane = 0; rest && lane < count; ++lane) {
      if (!infinite && bound[lane] > enough) continue;
      const int64_t at = w + lane;
      bool all = true;
      for (int64_t k = 0; k < shots; ++k) all &= !is_infinite(damping.at(k, 0)[at]);
      if (all && bound[lane] > enough) continue;
      solve_pixel(
          shots, [&](int64_t k, int64_t l) { return rows.at(k * shots + l, 0)[at]; },
          [&](int64_t k) { return damping.at(k, 0)[at]; },
          [&](int64_t k) { return r.at(k, i)[at]; }, [&](int64_t k, T z) { solution[k][lane] = z; },
          !all, pixel, 1, gram.dtype);
    }
    for (int64_t k = 0; k < shots; ++k)
      whole ? store(r.at(k, i) + w, solution[k]) : store_part(r.at(k, i) + w, solution[k], count);
  }
};

}  // namespace CASSI_ISA
}  // namespace cassi
