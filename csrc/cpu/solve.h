// (G + diag ρ)⁺ r on blocks of detector rows, in place.
#pragma once

#include "camera.h"

namespace cassi {
namespace CASSI_ISA {

// Where ρ is at least this share of the trace of G + diag ρ, that matrix is solved directly. A gram
// in less than the dtype of the sums is not: eigenvalues that are rounding must count as zero.
constexpr float kWellDamped = 1e-3f;

template <class T>
struct Solver {
  const View& gram;
  const View& rho;
  int64_t shots, width;
  Block<T> rows;    // K·K rows of the gram, one image row at a time
  Block<T> space;   // K rows of ρ
  Block<T>* grams;  // K times K rows, in place or in `rows`
  using V = typename Vec<T>::type;
  T* pixel;
  V *lower, *solution;  // of as many pixels as a vector has lanes
  // ρ of an image row, and what is in it.
  Block<T> damping = {};
  bool damped = false;
  int64_t held = -1;  // the sample whose rows all have that ρ

  static int64_t bytes(int64_t shots, int64_t width) {
    return (shots * (shots + 1) * padded<T>(width) + 2 * shots * shots + 2 * shots + 16) *
               sizeof(T) +
           (shots * shots + shots + 1) * sizeof(V) + shots * sizeof(Block<T>);
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
    grams = reinterpret_cast<Block<T>*>(solution + shots);
    arena.next = reinterpret_cast<char*>(grams + shots);
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
        grams[k] = as_block(mask_part(gram, tile.sample, k, tile.h + i), shots, 1, width,
                            Block<T>{rows.at(k * shots, 0), rows.band, rows.row});
      // Loops over few shots are unrolled, and what they compute stays in registers.
      shots == 2   ? solve_few<2>(r, i)
      : shots == 3 ? solve_few<3>(r, i)
      : shots == 4 ? solve_few<4>(r, i)
                   : solve_row(shots, r, i, lower, solution);
    }
  }

  template <int K>
  __attribute__((flatten)) void solve_few(const Block<T>& r, int64_t i) {
    V lower[K * K], solution[K];
    solve_row(K, r, i, lower, solution);
  }

  // One value for all pixels of a sample is spread over a row once.
  void read_damping(int64_t sample, int64_t h) {
    const bool shared = rho.stride[2] == 0 && rho.stride[3] == 0;
    if (shared && held == sample) return;
    held = shared ? sample : -1;
    damping = as_block(cube_part(rho, sample, h), shots, 1, width, space);
    damped = false;
    for (int64_t k = 0; shots > 1 && k < shots; ++k)
      for (int64_t w = 0; w < width; ++w) damped |= damping.at(k, 0)[w] != T(0);
  }

  __attribute__((always_inline)) void solve_row(int64_t shots, const Block<T>& r, int64_t i,
                                                V* lower, V* solution) {
    int64_t w = 0;
    for (; w + Vec<T>::lanes <= width; w += Vec<T>::lanes)
      solve_pixels(shots, r, i, w, Vec<T>::lanes, lower, solution);
    if (w < width) solve_pixels(shots, r, i, w, width - w, lower, solution);
  }

  // `count` pixels from column w on: those that are well determined all at once.
  __attribute__((always_inline)) void solve_pixels(int64_t shots, const Block<T>& r, int64_t i,
                                                   int64_t w, int64_t count, V* lower,
                                                   V* solution) {
    const bool whole = count == Vec<T>::lanes;
    const auto part = [&](const T* from) {
      return whole ? load(from + w) : load_part(from + w, count);
    };
    const auto entry = [&](int64_t k, int64_t l) { return part(grams[k].at(l, 0)); };
    const auto rho = [&](int64_t k) { return part(damping.at(k, 0)); };
    const auto solve_with = [&](auto rho) {
      for (int64_t k = 0; k < shots; ++k) solution[k] = part(r.at(k, i));
      return solve_definite(shots, entry, rho, lower, 1, solution, 1);
    };
    auto direct = solve_with([](int64_t) { return V{}; }) > definite_above<T>(shots, gram.dtype);
    if (damped) {
      solve_with(rho);
      // No eigenvalue of G + diag ρ is below the least ρ, which decides where G has too few bands.
      V least = rho(0), most = rho(0), trace = V{};
      for (int64_t k = 0; k < shots; ++k) {
        const V own = rho(k);
        least = own < least ? own : least;
        most = own > most ? own : most;
        trace += own + entry(k, k);
      }
      const bool exact = resolution<T>(gram.dtype) <= Precision<T>::epsilon;
      const T share = exact ? T(kWellDamped) : Precision<T>::largest;
      direct = (direct | (least > share * trace)) & (most <= Precision<T>::largest);
    }
    for (int64_t lane = 0; !all_lanes(direct) && lane < count; ++lane) {
      if (direct[lane]) continue;
      const int64_t at = w + lane;
      bool all = true;
      for (int64_t k = 0; k < shots; ++k) all &= !is_infinite(damping.at(k, 0)[at]);
      solve_pixel(
          shots, [&](int64_t k, int64_t l) { return grams[k].at(l, 0)[at]; },
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
