// Groups of similar patches: the singular values of each matrix shrunk, and the patches added up.
//
// A tile is as many groups as a vector has lanes. Their Gram matrices lie side by side in the
// lanes, so that every step of the eigenvalue problem runs on all of them at once; a lane that has
// converged is turned by nothing, and comes out the same whatever is beside it.
#include <utility>

#include "rows.h"

namespace cassi {
namespace CASSI_ISA {
namespace {

constexpr int64_t kSweeps = 16;   // for each row at most; two are enough
constexpr int64_t kStrands = 64;  // parts of an image that are added up side by side
constexpr int64_t kScatter = 37;  // neighbouring rows go to strands far apart

template <class T>
constexpr T epsilon = sizeof(T) == 8 ? T(0x1p-52) : T(0x1p-23);
template <class T>
constexpr T least = sizeof(T) == 8 ? T(0x1p-1000) : T(0x1p-120);

template <class T>
using V = typename Vec<T>::type;

template <class T>
static inline V<T> larger(V<T> a, V<T> b) {
  return a > b ? a : b;
}

template <class T>
static inline V<T> magnitude(V<T> a) {
  return a < V<T>{} ? -a : a;
}

template <class T>
static inline V<T> root(V<T> a) {
  return a * reciprocal_root<T>(larger<T>(a, splat<T>(least<T>)));
}

template <class T>
static inline bool any_above(V<T> a, V<T> b) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ) != 0;
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 4)
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GT_OQ)) != 0;
#endif
  for (int64_t i = 0; i < Vec<T>::lanes; ++i)
    if (a[i] > b[i]) return true;
  return false;
}

// Turns a row of n vectors and the one below it.
template <class T>
static inline void turn_rows(V<T>* rows, int64_t n, V<T> c, V<T> s) {
  for (int64_t k = 0; k < n; ++k) {
    const V<T> x = rows[k], y = rows[n + k];
    rows[k] = c * x - s * y;
    rows[n + k] = s * x + c * y;
  }
}

// Householder's reduction of symmetric matrices, of which the upper triangles are used, to
// tridiagonal ones, with diagonals d and e beside them. `vectors` gets the directions as rows.
template <class T>
CASSI_APART void tridiagonalize(V<T>* a, V<T>* vectors, V<T>* d, V<T>* e, V<T>* work, int64_t n) {
  V<T>*const product = work, *const inverses = work + n;
  for (int64_t k = 0; k + 2 < n; ++k) {
    V<T>* const v = a + k * n;  // the reflection is 1 − v vᵀ/half
    V<T> rest = {};
    for (int64_t j = k + 2; j < n; ++j) rest += v[j] * v[j];
    const V<T> length = root<T>(rest + v[k + 1] * v[k + 1]);
    e[k] = v[k + 1] > V<T>{} ? -length : length;
    v[k + 1] -= e[k];
    const V<T> half = (rest + v[k + 1] * v[k + 1]) / T(2);
    const V<T> inverse = half > least<T> ? T(1) / half : V<T>{};
    inverses[k] = inverse;
    for (int64_t j = k + 1; j < n; ++j) product[j] = V<T>{};
    for (int64_t i = k + 1; i < n; ++i) {
      const V<T>*const row = a + i * n, own = v[i];
      V<T> sum = product[i] + row[i] * own;
      for (int64_t j = i + 1; j < n; ++j) {
        sum += row[j] * v[j];
        product[j] += row[j] * own;
      }
      product[i] = sum;
    }
    V<T> along = {};
    for (int64_t j = k + 1; j < n; ++j) along += product[j] * v[j];
    along *= inverse / T(2);
    for (int64_t j = k + 1; j < n; ++j) product[j] = inverse * (product[j] - along * v[j]);
    for (int64_t i = k + 1; i < n; ++i) {
      V<T>* const row = a + i * n;
      const V<T> own = v[i], other = product[i];
      for (int64_t j = i; j < n; ++j) row[j] -= own * product[j] + other * v[j];
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    d[i] = a[i * n + i];
    e[i] = i + 2 < n ? e[i] : i + 2 == n ? a[i * n + i + 1] : V<T>{};
    for (int64_t k = 0; k < n; ++k) vectors[i * n + k] = splat<T>(i == k ? T(1) : T(0));
  }
  for (int64_t k = n - 3; k >= 0; --k) {
    const V<T>* const v = a + k * n;
    for (int64_t i = k + 1; i < n; ++i) {
      V<T>* const row = vectors + i * n;
      V<T> along = {};
      for (int64_t j = k + 1; j < n; ++j) along += row[j] * v[j];
      along *= inverses[k];
      for (int64_t j = k + 1; j < n; ++j) row[j] -= along * v[j];
    }
  }
}

// The QL algorithm with implicit shifts, for tridiagonal matrices of trace 1: turns them until what
// is beside the diagonal is rounding errors, or has only eigenvalues up to `limit`. The rows of
// `vectors` become the eigenvectors of the others.
//
// Source: Golub, Van Loan, "Matrix computations", 4th ed., 2013, section 8.3.
template <class T>
CASSI_APART void diagonalize(V<T>* d, V<T>* e, V<T>* vectors, V<T>* alive, int64_t n, V<T> limit) {
  const V<T> small = splat<T>(epsilon<T>), one = splat<T>(T(1));
  for (int64_t sweep = 0; sweep < kSweeps * n; ++sweep) {
    // A block whose Gershgorin circles all end below the limit is done.
    V<T> large = {}, above = {}, here = {}, next = {}, square = {};
    for (int64_t i = n - 1; i >= 0; --i) {
      const V<T> below = magnitude<T>(e[i]), before = i ? magnitude<T>(e[i - 1]) : V<T>{};
      large = below > small ? large : V<T>{};
      large = magnitude<T>(d[i]) + below + before > limit ? one : large;
      alive[i] = large;
    }
    int64_t first = n, last = 0;
    for (int64_t i = 0; i + 1 < n; ++i) {
      large = above > small ? large : alive[i];
      above = magnitude<T>(e[i]);
      e[i] = above > small ? e[i] * large : V<T>{};
      if (!any_above<T>(magnitude<T>(e[i]), V<T>{})) continue;
      first = first < i ? first : i;
      last = i + 1;
      const auto begins = square == V<T>{};  // the first block that is not done has the shift
      here = begins ? d[i] : here;
      next = begins ? d[i + 1] : next;
      square = begins ? e[i] * e[i] : square;
    }
    if (first == n) return;
    const V<T> half = (next - here) / T(2);
    const V<T> reach = magnitude<T>(half) + root<T>(half * half + square);
    const V<T> step = square / larger<T>(reach, splat<T>(least<T>));
    const V<T> shift = half < V<T>{} ? here + step : here - step;
    V<T> g = {}, s = {}, c = {}, p = {}, beyond = {};
    for (int64_t i = last - 1; i >= first; --i) {
      const V<T> last_s = s, last_c = c;
      const auto begins = beyond == V<T>{};
      g = begins ? d[i + 1] - shift : g;
      s = begins ? one : s;
      c = begins ? one : c;
      p = begins ? V<T>{} : p;
      const V<T> f = s * e[i], b = c * e[i];
      const V<T> sum = e[i] == V<T>{} ? V<T>{} : f * f + g * g;
      V<T> inverse = reciprocal_root<T>(larger<T>(sum, splat<T>(least<T>)));
      // Another Newton step: hundreds of turns that all shorten would add up.
      inverse += inverse * (T(0.5) - T(0.5) * sum * inverse * inverse);
      const auto turns = sum > least<T>;
      s = turns ? f * inverse : V<T>{};
      c = turns ? g * inverse : one;
      beyond = e[i];
      e[i + 1] = begins ? V<T>{} : turns ? sum * inverse : g;
      g = d[i + 1] - p;
      const V<T> r = (d[i] - g) * s + (c + c) * b;
      p = s * r;
      d[i + 1] = g + p;
      g = c * r - b;
      // Those of the turn before: this one need not wait for them.
      if (i + 1 < last) turn_rows<T>(vectors + (i + 1) * n, n, last_c, last_s);
    }
    turn_rows<T>(vectors + first * n, n, c, s);
    d[first] -= p;
    e[first] = g;
  }
}

// Half as many vectors with the sums of as many: even runs of h lanes come from a, odd ones from b.
template <class T, int h, int... i>
static inline V<T> fold(V<T> a, V<T> b, std::integer_sequence<int, i...>) {
  constexpr int lanes = Vec<T>::lanes;
  return pick<(i & h ? lanes + i - h : i)...>(a, b) + pick<(i & h ? lanes + i : i + h)...>(a, b);
}

// The sums over the lanes of as many vectors as there are lanes.
template <class T, int h = Vec<T>::lanes / 2>
static inline V<T> sums_of(V<T>* a) {
  for (int i = 0; i < h; ++i)
    a[i] = fold<T, h>(a[i], a[i + h], std::make_integer_sequence<int, Vec<T>::lanes>{});
  if constexpr (h > 1) return sums_of<T, h / 2>(a);
  return a[0];
}

// to[r] = Σ_j scale[r·of_row + j·of_other]·others[j], R rows of D vectors each, of which the last
// may reach beyond `most` numbers.
template <class T, int R, int D>
static inline void combine(T* to, int64_t to_pitch, int64_t most, const T* scale, int64_t of_row,
                           int64_t of_other, const T* others, int64_t pitch, int64_t count) {
  constexpr int64_t lanes = Vec<T>::lanes;
  V<T> sums[R][D] = {};
  for (int64_t j = 0; j < count; ++j) {
    V<T> other[D];
    for (int k = 0; k < D; ++k) other[k] = load(others + j * pitch + k * lanes);
    for (int r = 0; r < R; ++r)
      for (int k = 0; k < D; ++k) sums[r][k] += scale[r * of_row + j * of_other] * other[k];
  }
  for (int r = 0; r < R; ++r)
    for (int k = 0; k < D; ++k) {
      T* const place = to + r * to_pitch + k * lanes;
      if ((k + 1) * lanes <= most)
        store(place, sums[r][k]);
      else
        store_part<T>(place, sums[r][k], most - k * lanes);
    }
}

// The same for all numbers of a row.
template <class T, int R>
CASSI_APART void combine_rows(T* to, int64_t to_pitch, int64_t most, const T* scale, int64_t of_row,
                              int64_t of_other, const T* others, int64_t pitch, int64_t count) {
  constexpr int64_t lanes = Vec<T>::lanes;
  int64_t d = 0;
  const auto some = [&](auto wide) {
    constexpr int D = decltype(wide)::value;
    for (; d + D * lanes <= pitch; d += D * lanes)
      combine<T, R, D>(to + d, to_pitch, most - d, scale, of_row, of_other, others + d, pitch,
                       count);
  };
  some(std::integral_constant<int, 3>{});
  some(std::integral_constant<int, 2>{});
  some(std::integral_constant<int, 1>{});
}

// The groups of a tile and what is made of them.
template <class T>
struct Tile {
  static constexpr int64_t lanes = Vec<T>::lanes;
  static constexpr int kRows = 4, kColumns = lanes > 8 ? 4 : 2;  // products held in registers
  const ShrinkGroups& a;
  int64_t n, numbers, pitch;
  T* stacks;                    // (lanes, n + 1, pitch), the last row their mean
  V<T>*gram, *vectors;          // (n, n)
  V<T>*values, *beside, *work;  // (n), (n), (2, n)
  T *across, *back, *parts;     // (n + 3, n), (n + 3, n), (n + 3, pitch), of one group

  static int64_t size(const ShrinkGroups& a) {
    const int64_t n = a.g.matches, pitch = padded<T>(a.g.numbers());
    return (lanes * (n + 1) * pitch + lanes * n * (2 * n + 4) + 2 * padded<T>((n + 3) * n) +
            (n + 3) * pitch) *
           sizeof(T);
  }

  Tile(const ShrinkGroups& a, char* memory)
      : a(a), n(a.g.matches), numbers(a.g.numbers()), pitch(padded<T>(numbers)) {
    Arena arena = {memory};
    stacks = arena.block<T>(lanes, n + 1, pitch).base;
    gram = reinterpret_cast<V<T>*>(arena.block<T>(n, n, lanes).base);
    vectors = reinterpret_cast<V<T>*>(arena.block<T>(n, n, lanes).base);
    values = reinterpret_cast<V<T>*>(arena.block<T>(1, n, lanes).base);
    beside = reinterpret_cast<V<T>*>(arena.block<T>(1, n, lanes).base);
    work = reinterpret_cast<V<T>*>(arena.block<T>(2, n, lanes).base);
    across = arena.block<T>(1, 1, padded<T>((n + 3) * n)).base;
    back = arena.block<T>(1, 1, padded<T>((n + 3) * n)).base;
    parts = arena.block<T>(1, n + 3, pitch).base;
  }

  T* row(int64_t lane, int64_t i) const { return stacks + (lane * (n + 1) + i) * pitch; }

  void read_patch(int64_t group, int64_t match, T* to) const {
    const Corner corner = corner_of(a.g, group, match);
    const int64_t side = a.g.patch, channels = a.g.channels, line = side * channels;
    const View& v = a.image;
    constexpr Dtype own = sizeof(T) == 8 ? Dtype::f64 : Dtype::f32;
    const int64_t from = corner.row * v.stride[2] + corner.column * v.stride[3];
    if (v.dtype == own && v.stride[1] == 1 && v.stride[3] == channels && line >= lanes) {
      for (int64_t r = 0; r < side; ++r) {
        const T* const start = static_cast<const T*>(v.data) + from + r * v.stride[2];
        for (int64_t d = 0; d + lanes < line; d += lanes) store(to + r * line + d, load(start + d));
        store(to + (r + 1) * line - lanes, load(start + line - lanes));
      }
      return;
    }
    // A pixel is a row of the block, its components the columns.
    for (int64_t r = 0; r < side; ++r) {
      char* const start = static_cast<char*>(v.data) + (from + r * v.stride[2]) * size_of(v.dtype);
      const Part part = {start, v.dtype, 0, v.stride[3], v.stride[1]};
      read_block(Block<T>{to + r * line, 0, channels}, part, 1, side, channels);
    }
  }

  // Less their mean; its Gram matrix goes into a lane. Whether all of it is finite.
  bool open(int64_t group, int64_t lane) {
    for (int64_t i = 0; i < n; ++i) {
      read_patch(group, i, row(lane, i));
      for (int64_t d = numbers; d < pitch; ++d) row(lane, i)[d] = T(0);
    }
    for (int64_t d = 0; d < pitch; d += lanes) {
      V<T> sum = {};
      for (int64_t i = 0; i < n; ++i) sum += load(row(lane, i) + d);
      sum /= static_cast<T>(n);
      store(row(lane, n) + d, sum);
      for (int64_t i = 0; i < n; ++i) store(row(lane, i) + d, load(row(lane, i) + d) - sum);
    }
    for (int64_t i = 0; i < n; i += kRows)
      for (int64_t j = i / kColumns * kColumns; j < n; j += kColumns) multiply(lane, i, j);
    const T* const from = reinterpret_cast<const T*>(gram) + lane;
    T trace = 0;
    for (int64_t i = 0; i < n; ++i) trace += from[(i * n + i) * lanes];
    return trace - trace == T(0);
  }

  // Products of some rows; the last row stands in for rows beyond it.
  void multiply(int64_t lane, int64_t i, int64_t j) {
    const auto at = [&](int64_t k) { return row(lane, k < n ? k : n - 1); };
    const T* const rows[4] = {at(i), at(i + 1), at(i + 2), at(i + 3)};
    const T* columns[kColumns];
    for (int k = 0; k < kColumns; ++k) columns[k] = at(j + k);
    V<T> sums[kRows * kColumns] = {};
    for (int64_t d = 0; d < pitch; d += lanes)
      for (int r = 0; r < kRows; ++r) {
        const V<T> own = load(rows[r] + d);
        for (int k = 0; k < kColumns; ++k) sums[r * kColumns + k] += own * load(columns[k] + d);
      }
    T totals[kRows * kColumns];
    for (int k = 0; k < kRows * kColumns; k += lanes) store(totals + k, sums_of<T>(sums + k));
    T* const into = reinterpret_cast<T*>(gram) + lane;
    for (int64_t r = 0; r < kRows && i + r < n; ++r)
      for (int64_t k = 0; k < kColumns && j + k < n; ++k)
        into[((i + r) * n + j + k) * lanes] = totals[r * kColumns + k];
  }

  void close(int64_t lane) {  // leaves nothing to turn
    T* const into = reinterpret_cast<T*>(gram) + lane;
    for (int64_t i = 0; i < n * n; ++i) into[i * lanes] = T(0);
  }

  // Eigenvectors of the Gram matrices, and the factors of what is along them in place of `values`.
  void solve(T threshold) {
    V<T> trace = {};
    for (int64_t i = 0; i < n; ++i) trace += gram[i * n + i];
    V<T> limit = splat<T>(threshold * threshold);
    const auto kept = trace > larger<T>(limit, splat<T>(least<T>));
    const V<T> scale = kept ? T(1) / trace : V<T>{};
    limit = kept ? limit * scale : splat<T>(T(1));
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = i; j < n; ++j) gram[i * n + j] *= scale;
    tridiagonalize<T>(gram, vectors, values, beside, work, n);
    diagonalize<T>(values, beside, vectors, work, n, limit);
    for (int64_t k = 0; k < n; ++k) {
      const V<T> ratio = limit / larger<T>(values[k], splat<T>(least<T>));
      const V<T> rest = root<T>(larger<T>(T(1) - ratio, V<T>{}));
      values[k] = ratio < T(1) ? (rest + T(1)) / T(2) : V<T>{};
    }
  }

  // The mean and what is along the eigenvectors that are left.
  void write(int64_t lane, T* to) {
    const T *const factors = reinterpret_cast<const T*>(values) + lane,
                   *const from = reinterpret_cast<const T*>(vectors) + lane;
    int64_t rank = 0, i = 0;
    for (int64_t k = 0; k < n; ++k) {
      const T factor = factors[k * lanes];
      if (!(factor > T(0))) continue;
      for (int64_t j = 0; j < n; ++j) {
        across[rank * n + j] = from[(k * n + j) * lanes];
        back[rank * n + j] = factor * across[rank * n + j];
      }
      ++rank;
    }
    // Rows beyond the rank are not read.
    for (int64_t k = 0; k < rank; k += 4)
      combine_rows<T, 4>(parts + k * pitch, pitch, pitch, across + k * n, n, 1, row(lane, 0), pitch,
                         n);
    for (int64_t d = 0; d < pitch; ++d) parts[rank * pitch + d] = row(lane, n)[d];
    for (int64_t j = 0; j < n; ++j) back[rank * n + j] = T(1);
    for (; i + 4 <= n; i += 4)
      combine_rows<T, 4>(to + i * numbers, numbers, numbers, back + i, 1, n, parts, pitch,
                         rank + 1);
    for (; i < n; ++i)
      combine_rows<T, 1>(to + i * numbers, numbers, numbers, back + i, 1, n, parts, pitch,
                         rank + 1);
  }
};

template <class T>
void run_as(const ShrinkGroups& a, int64_t begin, int64_t end) {
  constexpr int64_t lanes = Vec<T>::lanes;
  Tile<T> tile(a, scratch(Tile<T>::size(a)));
  const int64_t numbers = a.g.matches * tile.numbers;
  const T threshold = scalar_at<T>(a.threshold, 0);
  for (int64_t t = begin; t < end; ++t) {
    const int64_t first = t * lanes;
    bool finite[lanes] = {};
    for (int64_t lane = 0; lane < lanes; ++lane) {
      if (first + lane < a.g.count) finite[lane] = tile.open(first + lane, lane);
      if (!finite[lane]) tile.close(lane);
    }
    tile.solve(threshold);
    for (int64_t lane = 0; lane < lanes && first + lane < a.g.count; ++lane) {
      T* const to = static_cast<T*>(a.clean) + (first + lane) * numbers;
      if (finite[lane])
        tile.write(lane, to);
      else
        for (int64_t i = 0; i < numbers; ++i) to[i] = static_cast<T>(__builtin_nan(""));
    }
  }
}

template <class T>
void run_as(const AddGroups& a, int64_t begin, int64_t end) {
  const int64_t side = a.g.patch, channels = a.g.channels, line = side * channels;
  const T* from = static_cast<const T*>(a.clean);
  for (int64_t group = 0; group < a.g.count; ++group)
    for (int64_t match = 0; match < a.g.matches; ++match, from += side * line) {
      const Corner corner = corner_of(a.g, group, match);
      for (int64_t r = 0; r < side; ++r) {
        const int64_t strand = (corner.row + r) * kScatter % kStrands;
        if (strand < begin || strand >= end) continue;
        T* const to =
            static_cast<T*>(a.total) + ((corner.row + r) * a.g.width + corner.column) * channels;
        for (int64_t i = 0; i < line; ++i) to[i] += from[r * line + i];
      }
    }
}

}  // namespace

int64_t work(const ShrinkGroups& a) {
  const int64_t lanes = a.g.sums == Dtype::f64 ? Vec<double>::lanes : Vec<float>::lanes;
  return (a.g.count + lanes - 1) / lanes;
}

void run(const ShrinkGroups& a, int64_t begin, int64_t end) {
  a.g.sums == Dtype::f64 ? run_as<double>(a, begin, end) : run_as<float>(a, begin, end);
}

int64_t work(const AddGroups&) { return kStrands; }

void run(const AddGroups& a, int64_t begin, int64_t end) {
  a.g.sums == Dtype::f64 ? run_as<double>(a, begin, end) : run_as<float>(a, begin, end);
}

}  // namespace CASSI_ISA
}  // namespace cassi
