// Projected-gradient iterations on the dual of total variation, see ops/_reference_tv.py:
//
//   u = x + p − p↑ + q − q←,   (p, q) ← s·((p, q) + STEP·∇u),   s = min(1, limit / |·|)
//
// All iterations of a tile run in one sweep over its image rows. Iteration t works one row behind
// iteration t-1, so a few rows per iteration are alive, and they stay in cache: x is read once, u
// is written once. A tile starts `iterations` rows and columns outside what it writes; the values
// made up at that border need more iterations than there are to reach what is written.
#include "rows.h"

namespace cassi {
namespace CASSI_ISA {
namespace {

constexpr int64_t kBudget = 640 << 10;  // of a core's second-level cache

struct Plan {
  int64_t bands;          // bands that a tile works on together
  int64_t rows, columns;  // what a tile writes
  int64_t groups, row_tiles, column_tiles;
};

template <class T>
Plan plan(const TvProx& a) {
  const Geometry& g = a.g;
  Plan p;
  // With the bands innermost in memory, working on all of them reads every cache line once.
  const bool together = a.norm != Norm::band || (a.x.stride[1] == 1 && a.x.stride[3] != 1);
  p.bands = together ? g.bands : 1;
  p.groups = together ? 1 : g.bands;
  const int64_t row_bytes = kBudget / ((6 * a.iterations + 4) * p.bands);
  p.columns = row_bytes / static_cast<int64_t>(sizeof(T)) - 2 * a.iterations - 48;
  p.columns = p.columns < 64 ? 64 : p.columns;
  p.column_tiles = (g.width + p.columns - 1) / p.columns;
  p.columns = (g.width + p.column_tiles - 1) / p.column_tiles;
  // Split the rows only where there are few tiles to share among threads, and evenly.
  const int64_t tiles = g.batch * p.groups * p.column_tiles, most = g.height / 32 + 1;
  p.row_tiles = 1;
  while (p.row_tiles < most && tiles * p.row_tiles < 8 * a.threads &&
         tiles * p.row_tiles % a.threads != 0)
    ++p.row_tiles;
  p.rows = (g.height + p.row_tiles - 1) / p.row_tiles;
  p.row_tiles = (g.height + p.rows - 1) / p.rows;
  return p;
}

// The rows of one iteration, for `bands` bands each: u of the last row; p, q of the last row and of
// this one. A row has one vector of padding in front. With the Frobenius norm p and q are still to
// be multiplied by s, one row for all bands, which saves a pass over them.
template <class T>
struct Stage {
  T *u, *p[2], *q[2], *s[2];
};

// The rows of one stage from which a row of the next stage is computed. Held by value, so that the
// compiler need not read the addresses again after every store.
template <class T>
struct Rows {
  T* u;
  const T *p, *p_last, *q, *q_last, *s, *s_last;
  Rows(const Stage<T>& from, int now)
      : u(from.u),
        p(from.p[now]),
        p_last(from.p[1 - now]),
        q(from.q[now]),
        q_last(from.q[1 - now]),
        s(from.s[now]),
        s_last(from.s[1 - now]) {}
};

template <class T, Norm N>
struct Sweep {
  using V = typename Vec<T>::type;
  static constexpr int64_t L = Vec<T>::lanes;
  int64_t bands, width, pitch;
  V limit;

  // s = min(1, limit / √square), where square + tiny is never zero.
  V shrinkage(V square) const {
    const V s = limit * reciprocal_root<T>(square + Precision<T>::tiny);
    return at_most_one(s);
  }

  static V at_most_one(V s) { return s > V{} + T(1) ? V{} + T(1) : s; }  // a NaN stays a NaN

  static V dual(const T* row, const T* s) {
    return N == Norm::frobenius ? load(row) * load(s) : load(row);
  }

  // u(h) of a stage, at one vector of one band.
  static __attribute__((always_inline)) V primal(const Rows<T> r, const T* x, int64_t o,
                                                 int64_t w) {
    const T *q = r.q + o + w, *s = r.s + w;
    return load(x + o + w) + (dual(r.p + o + w, s) - dual(r.p_last + o + w, r.s_last + w)) +
           (dual(q, s) - dual(q - 1, s - 1));
  }

  // u(h), and from it (p, q)(h-1) of the next stage, at one vector of one band: before the norm is
  // known. Virtual: h is below the image, where no difference is taken. Cold: p and q are zero.
  // First: there is no row h-1.
  template <bool Virtual, bool Cold, bool First>
  static __attribute__((always_inline)) void update(const Rows<T> r, const T* x, int64_t o,
                                                    int64_t w, V& a, V& b) {
    T* u = r.u + o;
    const V above = load(u + w), right = load(u + w + 1);
    V here = above;
    if (!Virtual) {
      here = Cold ? load(x + o + w) : primal(r, x, o, w);
      store(u + w, here);
    }
    if (First) return;
    a = Virtual ? V{} : T(kTvStep) * (here - above);
    b = T(kTvStep) * (right - above);
    if (!Cold) {
      a = dual(r.p_last + o + w, r.s_last + w) + a;
      b = dual(r.q_last + o + w, r.s_last + w) + b;
    }
  }

  // A row of all bands.
  template <bool Virtual, bool Cold, bool First>
  void advance(const Stage<T>& stage, int now, const T* x, const Stage<T>& next) const {
    const Rows<T> rows(stage, now);
    const int64_t width = this->width, pitch = this->pitch, end = bands * pitch;
    T *const to_p = next.p[1 - now], *const to_q = next.q[1 - now];
    T* const to_s = next.s[1 - now];
    V a = {}, b = {};
    if (N == Norm::band || First) {
      for (int64_t o = 0; o < end; o += pitch)
        for (int64_t w = 0; w < width; w += L) {
          update<Virtual, Cold, First>(rows, x, o, w, a, b);
          if (First) continue;
          const V s = shrinkage(a * a + b * b);
          store(to_p + o + w, a * s);
          store(to_q + o + w, b * s);
        }
    } else {
      constexpr int K = N == Norm::nuclear ? 2 : 1;
      int64_t w = 0;
      for (; w + (K - 1) * L < width; w += K * L)
        couple<Virtual, Cold, K>(rows, x, w, to_p, to_q, to_s);
      if (w < width) couple<Virtual, Cold, 1>(rows, x, w, to_p, to_q, to_s);
    }
    if (!Virtual)
      for (int64_t o = 0; o < end; o += pitch) rows.u[o + width] = rows.u[o + width - 1];
  }

  // K neighbouring vectors of all bands, which share the norm: its sums stay in registers, and what
  // follows from those of one vector does not wait for the other's.
  template <bool Virtual, bool Cold, int K>
  __attribute__((always_inline)) void couple(const Rows<T>& rows, const T* x, int64_t w, T* p, T* q,
                                             T* s) const {
    const int64_t pitch = this->pitch, end = bands * pitch;
    Symmetric<V> sum[K] = {};
    for (int64_t o = 0; o < end; o += pitch)
      for (int k = 0; k < K; ++k) {
        V a = {}, b = {};
        update<Virtual, Cold, false>(rows, x, o, w + k * L, a, b);
        store(p + o + w + k * L, a);
        store(q + o + w + k * L, b);
        if (N == Norm::frobenius) {
          sum[k].a += a * a + b * b;
        } else {
          sum[k].a += a * a;
          sum[k].b += a * b;
          sum[k].c += b * b;
        }
      }
    if (N == Norm::frobenius) {
      for (int k = 0; k < K; ++k) store(s + w + k * L, shrinkage(sum[k].a));
      return;
    }
    // All bands are multiplied by f(P Pᵀ).
    Symmetric<V> f[K];
    for (int k = 0; k < K; ++k)
      f[k] = spectral_shrinkage<T>(
          limit, sum[k], V{} + Precision<T>::tiny, [](V v) { return reciprocal_root<T>(v); },
          at_most_one);
    for (int64_t o = w; o < end + w; o += pitch)
      for (int k = 0; k < K; ++k) {
        const V a = load(p + o + k * L), b = load(q + o + k * L);
        store(p + o + k * L, f[k].a * a + f[k].b * b);
        store(q + o + k * L, f[k].b * a + f[k].c * b);
      }
  }

  void advance(const Stage<T>& stage, int now, const T* x, const Stage<T>& next, bool first,
               bool below, bool cold) const {
    if (first && below) return;
    if (first)
      cold ? advance<false, true, true>(stage, now, x, next)
           : advance<false, false, true>(stage, now, x, next);
    else if (below)
      cold ? advance<true, true, false>(stage, now, x, next)
           : advance<true, false, false>(stage, now, x, next);
    else
      cold ? advance<false, true, false>(stage, now, x, next)
           : advance<false, false, false>(stage, now, x, next);
  }
};

template <class T>
Part dual_part(const View& dual, int64_t b, int64_t which, int64_t c, int64_t h, int64_t w) {
  Part part = mask_part(dual, b, which, h);
  part.data += (c * part.band + w * part.column) * size_of(part.dtype);
  return part;
}

template <class T, Norm N>
void run_as(const TvProx& a, int64_t begin, int64_t end) {
  constexpr int64_t L = Vec<T>::lanes;
  const Geometry& g = a.g;
  const Plan plan = CASSI_ISA::plan<T>(a);
  const int64_t iterations = a.iterations, stages = iterations + 1;
  const int64_t pitch = padded<T>(plan.columns + 2 * iterations + 1) + 2 * L;
  const int64_t row = plan.bands * pitch;
  const int64_t elements = 6 * stages * row + row + 2 * stages * pitch;
  T* space = reinterpret_cast<T*>(scratch(elements * sizeof(T) + stages * sizeof(Stage<T>)));
  Stage<T>* stage = reinterpret_cast<Stage<T>*>(space + elements);
  const bool cold = !a.dual_in.data;
  for (int64_t t = begin; t < end; ++t) {
    // Where the tile lies.
    int64_t rest = t;
    const int64_t column_tile = rest % plan.column_tiles;
    rest /= plan.column_tiles;
    const int64_t row_tile = rest % plan.row_tiles;
    rest /= plan.row_tiles;
    const int64_t c0 = rest % plan.groups, b = rest / plan.groups;
    const int64_t h0 = row_tile * plan.rows, w0 = column_tile * plan.columns;
    const int64_t h1 = h0 + plan.rows < g.height ? h0 + plan.rows : g.height;
    const int64_t w1 = w0 + plan.columns < g.width ? w0 + plan.columns : g.width;
    if (h0 >= g.height || w0 >= g.width) continue;
    const int64_t top = h0 > iterations ? h0 - iterations : 0;
    const int64_t left = w0 > iterations ? w0 - iterations : 0;
    const int64_t right = w1 + iterations < g.width ? w1 + iterations : g.width;
    const int64_t width = right - left;

    __builtin_memset(space, 0, elements * sizeof(T));
    T* at = space + L;
    for (int64_t i = 0; i < stages; ++i) {
      stage[i].u = at;
      for (int k = 0; k < 2; ++k) {
        stage[i].p[k] = at + (1 + k) * row;
        stage[i].q[k] = at + (3 + k) * row;
      }
      at += 5 * row;
    }
    T* ring = at;  // the last `stages` rows of x
    T* result = ring + stages * row;
    T* scale = result + row;
    for (int64_t i = 0; i < stages; ++i)
      for (int k = 0; k < 2; ++k) stage[i].s[k] = scale + (2 * i + k) * pitch;
    for (int64_t w = -L; w < pitch - L; ++w) stage[0].s[0][w] = stage[0].s[1][w] = T(1);
    T limit = scalar_at<T>(a.weight, b);
    limit = limit > Precision<T>::largest ? Precision<T>::largest : limit;
    using Steps = Sweep<T, N>;
    const Steps sweep = {plan.bands, width, pitch, splat<T>(limit)};

    const auto read_dual = [&](int64_t which, int64_t h, T* to) {
      // One more column on the left, whose q is subtracted in the first.
      const int64_t extra = left > 0 ? 1 : 0;
      read_block(Block<T>{to - extra, pitch, pitch},
                 dual_part<T>(a.dual_in, b, which, c0, h, left - extra), plan.bands, 1,
                 width + extra);
    };
    if (a.dual_in.data && top > 0) {
      read_dual(0, top - 1, stage[0].p[(top - 1) & 1]);
      read_dual(1, top - 1, stage[0].q[(top - 1) & 1]);
    }
    for (int64_t front = top; front < h1 + iterations; ++front) {
      if (front < g.height) {
        Part part = cube_part(a.x, b, front);
        part.data += (c0 * part.band + left * part.column) * size_of(part.dtype);
        read_block(Block<T>{ring + front % stages * row, pitch, pitch}, part, plan.bands, 1, width);
        if (a.dual_in.data) {
          read_dual(0, front, stage[0].p[front & 1]);
          read_dual(1, front, stage[0].q[front & 1]);
        }
      }
      for (int64_t i = 0; i < iterations; ++i) {
        const int64_t h = front - i;
        if (h < top) break;
        if (h > g.height) continue;
        sweep.advance(stage[i], h & 1, ring + h % stages * row, stage[i + 1], h == top,
                      h == g.height, cold && i == 0);
      }
      const int64_t h = front - iterations;
      if (h < h0) continue;
      const Stage<T>& last = stage[iterations];
      const T* x = ring + h % stages * row;
      const int64_t skip = w0 - left;
      const auto write = [&](const Part& out, auto value) {
        for (int64_t c = 0; c < plan.bands; ++c)
          for (int64_t w = 0; w < width; w += L) store(result + c * pitch + w, value(c * pitch, w));
        write_block(out, Block<T>{result + skip, pitch, pitch}, plan.bands, 1, w1 - w0);
      };
      if (a.u.data) {
        Part out = cube_part(a.u, b, h);
        out.data += (c0 * out.band + w0 * out.column) * size_of(out.dtype);
        write(out,
              [&](int64_t o, int64_t w) { return Steps::primal(Rows<T>(last, h & 1), x, o, w); });
      }
      if (a.dual_out.data)
        for (int which = 0; which < 2; ++which) {
          const T *from = (which ? last.q : last.p)[h & 1], *s = last.s[h & 1];
          write(dual_part<T>(a.dual_out, b, which, c0, h, w0),
                [&](int64_t o, int64_t w) { return Steps::dual(from + o + w, s + w); });
        }
    }
  }
}

template <class T>
void run_with(const TvProx& a, int64_t begin, int64_t end) {
  switch (a.norm) {
    case Norm::band:
      return run_as<T, Norm::band>(a, begin, end);
    case Norm::frobenius:
      return run_as<T, Norm::frobenius>(a, begin, end);
    case Norm::nuclear:
      return run_as<T, Norm::nuclear>(a, begin, end);
  }
}

}  // namespace

int64_t work(const TvProx& a) {
  const Plan p = a.sums == Dtype::f64 ? plan<double>(a) : plan<float>(a);
  return a.g.batch * p.groups * p.row_tiles * p.column_tiles;
}

void run(const TvProx& a, int64_t begin, int64_t end) {
  a.sums == Dtype::f64 ? run_with<double>(a, begin, end) : run_with<float>(a, begin, end);
}

}  // namespace CASSI_ISA
}  // namespace cassi
