// x = v + Aᵀ(AAᵀ + diag ρ)⁺(y − Av) and its gradients, a few image rows at a time: the cube is read
// from memory once, the second sweep finds it in cache.
#include "solve.h"

namespace cassi {
namespace CASSI_ISA {

template <class T>
static int64_t rows_of(const Geometry& g) {
  return rows_per_tile(g, sizeof(T), kTileBytes, 4);
}

// Scratch that one cube's sweeps need.
template <class T>
struct Workspace {
  int64_t rows, pitch, line;
  Walk<T> walk;
  explicit Workspace(const Geometry& g) : rows(rows_of<T>(g)), walk(g) {
    pitch = walk.pitch();
    line = padded<T>(g.width);
  }
  int64_t cube() const { return walk.g.bands * rows * line; }
  int64_t measurement() const { return walk.g.shots * rows * pitch; }
};

// m[k] for all shots of a tile.
template <class T>
static void read_masks(const View& mask, const Geometry& g, const Tile& tile, const Block<T>& space,
                       Block<T>* m) {
  for (int64_t k = 0; k < g.shots; ++k)
    m[k] = as_mask(mask_part(mask, tile.sample, k, tile.h), g.bands, tile.rows, g.width,
                   Block<T>{space.at(k * g.bands, 0), space.band, space.row});
}

// sum ← A x for a tile.
template <class T>
static void project(const Workspace<T>& ws, const Block<T>& x, const Block<T>* m, const Tile& tile,
                    const Block<T>& sum) {
  for (int64_t k = 0; k < ws.walk.g.shots; ++k) {
    const Block<T> row = {sum.at(k, 0), sum.band, sum.row};
    clear(row, tile.rows, ws.pitch);
    accumulate(ws.walk, row, x, m[k], tile.rows);
  }
}

// sum ← y − sum
template <class T>
static void subtract_from(const View& y, const Geometry& g, const Tile& tile, const Block<T>& space,
                          const Block<T>& sum) {
  const int64_t wide = detector_width(g);
  const Block<T> rows =
      as_block(cube_part(y, tile.sample, tile.h), g.shots, tile.rows, wide, space);
  for (int64_t k = 0; k < g.shots; ++k)
    for (int64_t r = 0; r < tile.rows; ++r) {
      T* to = sum.at(k, r);
      const T* from = rows.at(k, r);
      for (int64_t w = 0; w < wide; ++w) to[w] = from[w] - to[w];
    }
}

template <class T>
static void run_as(const DataStep& a, int64_t begin, int64_t end) {
  const Geometry& g = a.g;
  const Workspace<T> ws(g);
  const int64_t wide = detector_width(g);
  Arena arena = {scratch((ws.cube() * (1 + g.shots) + 2 * ws.measurement()) * sizeof(T) +
                         Solver<T>::bytes(g.shots, wide) + g.shots * sizeof(Block<T>) + 64)};
  const Block<T> v_space = arena.block<T>(g.bands, ws.rows, ws.line);
  const Block<T> m_space = arena.block<T>(g.shots * g.bands, ws.rows, ws.line);
  const Block<T> z = arena.block<T>(g.shots, ws.rows, ws.pitch);
  const Block<T> y_space = arena.block<T>(g.shots, ws.rows, ws.pitch);
  Solver<T> solver(arena, a.gram, a.rho, g.shots, wide);
  Block<T>* m = reinterpret_cast<Block<T>*>(arena.next);
  for (int64_t t = begin; t < end; ++t) {
    const Tile tile = tile_at(g, ws.rows, t);
    read_masks(a.mask, g, tile, m_space, m);
    // The second sweep reads the rows again: they are still in cache, and a copy would cost more.
    const Block<T> v =
        as_block(cube_part(a.v, tile.sample, tile.h), g.bands, tile.rows, g.width, v_space);
    project(ws, v, m, tile, z);
    subtract_from(a.y, g, tile, y_space, z);
    solver.solve(z, tile);
    emit_into<T, true, 1>(g, a.x, tile.sample, tile.h, v, m, z, tile.rows, v_space);
  }
  drain();
}

// gm[w] += Σ_c (dv[c][w] z[w+o] − x[c][w] w̄[w+o]) with dv = g − m w̄, x = v + m z (all shots).
template <class T>
static void mask_gradient(const Geometry& g, int64_t shot, const Block<T>& grad, const Block<T>& v,
                          const Block<T>* m, const Block<T>& z, const Block<T>& w,
                          const Block<T>& out, bool fresh, int64_t rows) {
  const bool shared = out.band == 0;
  for (int64_t c = 0; c < g.bands; ++c) {
    const int64_t o = band_offset(g, c);
    for (int64_t r = 0; r < rows; ++r) {
      T* to = out.at(c, r);
      const T *gr = grad.at(c, r), *vr = v.at(c, r);
      const T *zk = z.at(shot, r) + o, *wk = w.at(shot, r) + o;
      const bool first = fresh && (c == 0 || !shared);
      if (g.shots == 1) {
        const T* mr = m[0].at(c, r);
        for (int64_t i = 0; i < g.width; ++i) {
          const T dv = gr[i] - mr[i] * wk[i], x = vr[i] + mr[i] * zk[i];
          to[i] = (first ? T(0) : to[i]) + (dv * zk[i] - x * wk[i]);
        }
        continue;
      }
      for (int64_t i = 0; i < g.width; ++i) {
        T dv = gr[i], x = vr[i];
        for (int64_t k = 0; k < g.shots; ++k) {
          const T mk = m[k].at(c, r)[i];
          dv -= mk * w.at(k, r)[i + o];
          x += mk * z.at(k, r)[i + o];
        }
        to[i] = (first ? T(0) : to[i]) + (dv * zk[i] - x * wk[i]);
      }
    }
  }
}

template <class T>
static void run_as(const DataStepBackward& a, int64_t begin, int64_t end) {
  const Geometry& g = a.g;
  const Workspace<T> ws(g);
  const int64_t wide = detector_width(g);
  const bool both = a.need_mask || a.need_rho;
  Arena arena = {scratch((ws.cube() * (2 + g.shots) + 3 * ws.measurement()) * sizeof(T) +
                         Solver<T>::bytes(g.shots, wide) + g.shots * sizeof(Block<T>) + 64)};
  const Block<T> grad_space = arena.block<T>(g.bands, ws.rows, ws.line);
  const Block<T> v_space = arena.block<T>(g.bands, ws.rows, ws.line);
  const Block<T> m_space = arena.block<T>(g.shots * g.bands, ws.rows, ws.line);
  const Block<T> w = arena.block<T>(g.shots, ws.rows, ws.pitch);
  const Block<T> z = arena.block<T>(g.shots, ws.rows, ws.pitch);
  const Block<T> y_space = arena.block<T>(g.shots, ws.rows, ws.pitch);
  Solver<T> solver(arena, a.gram, a.rho, g.shots, wide);
  Block<T>* m = reinterpret_cast<Block<T>*>(arena.next);
  // A mask gradient that is summed over the batch is summed by one thread, in order.
  const bool over_batch = a.need_mask && !a.per_sample;
  for (int64_t t = begin; t < end; ++t) {
    Tile tile = tile_at(g, ws.rows, t);
    const int64_t last = over_batch ? g.batch : tile.sample + 1;
    const int64_t first = tile.sample;
    for (; tile.sample < last; ++tile.sample) {
      read_masks(a.mask, g, tile, m_space, m);
      const Block<T> grad =
          as_block(cube_part(a.grad, tile.sample, tile.h), g.bands, tile.rows, g.width, grad_space);
      Block<T> v = {};
      project(ws, grad, m, tile, w);
      solver.solve(w, tile);
      write_block(cube_part(a.grad_y, tile.sample, tile.h), w, g.shots, tile.rows, wide);
      if (both) {
        v = as_block(cube_part(a.v, tile.sample, tile.h), g.bands, tile.rows, g.width, v_space);
        project(ws, v, m, tile, z);
        subtract_from(a.y, g, tile, y_space, z);
        solver.solve(z, tile);
      }
      for (int64_t r = 0; a.need_rho && r < tile.rows; ++r) {
        const Part part = cube_part(a.grad_rho, tile.sample, tile.h + r);
        T* out = reinterpret_cast<T*>(part.data);
        T sum = 0;
        for (int64_t k = 0; k < g.shots; ++k) {
          const T *wk = w.at(k, r), *zk = z.at(k, r);
          for (int64_t i = 0; a.per_pixel && i < wide; ++i) out[k * part.band + i] = -wk[i] * zk[i];
          for (int64_t i = 0; !a.per_pixel && i < wide; ++i) sum += wk[i] * zk[i];
        }
        if (!a.per_pixel) *out = -sum;
      }
      if (a.need_mask)
        for (int64_t k = 0; k < g.shots; ++k) {
          const Part part = mask_part(a.grad_mask, a.per_sample ? tile.sample : 0, k, tile.h);
          const Block<T> out = {reinterpret_cast<T*>(part.data), a.per_band ? part.band : 0,
                                part.row};
          mask_gradient(g, k, grad, v, m, z, w, out, tile.sample == first, tile.rows);
        }
      emit_into<T, true, -1>(g, a.grad_v, tile.sample, tile.h, grad, m, w, tile.rows, grad_space);
    }
  }
  drain();
}

int64_t work(const DataStep& a) {
  return tiles(a.g, a.sums == Dtype::f64 ? rows_of<double>(a.g) : rows_of<float>(a.g), a.g.batch);
}

void run(const DataStep& a, int64_t begin, int64_t end) {
  a.sums == Dtype::f64 ? run_as<double>(a, begin, end) : run_as<float>(a, begin, end);
}

int64_t work(const DataStepBackward& a) {
  const int64_t samples = a.need_mask && !a.per_sample ? 1 : a.g.batch;
  return tiles(a.g, a.sums == Dtype::f64 ? rows_of<double>(a.g) : rows_of<float>(a.g), samples);
}

void run(const DataStepBackward& a, int64_t begin, int64_t end) {
  a.sums == Dtype::f64 ? run_as<double>(a, begin, end) : run_as<float>(a, begin, end);
}

}  // namespace CASSI_ISA
}  // namespace cassi
