// Shared by the CPU and the CUDA kernels: geometry, views of tensors, the arithmetic of one
// element. This file is compiled once per instruction set, and the linker must not mix the copies.
// So it includes no torch header and no standard library beyond integers, and nothing in it has
// external linkage.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define CASSI_INLINE static __host__ __device__ __forceinline__
#define CASSI_APART CASSI_INLINE
#define CASSI_MEMBER __host__ __device__
#else
#define CASSI_INLINE static inline
// A function whose loops need the registers: inlined among others, it takes 5 % longer.
#define CASSI_APART static __attribute__((noinline))
#define CASSI_MEMBER
#endif

namespace cassi {

enum class Dtype : int32_t { f32, f64, bf16, f16 };

// A strided tensor in the operators' canonical shape, at most five dimensions, the last two (H, W).
// A dimension that is shared (the batch of a mask, its bands) has stride 0.
struct View {
  void* data;
  Dtype dtype;
  int64_t stride[5];
};

// The sizes of one call. The bands of a cube are `bands` everywhere.
struct Geometry {
  int64_t batch, shots, bands, height, width, step;
};

CASSI_INLINE int64_t detector_width(const Geometry& g) {
  return g.width + (g.bands - 1) * (g.step < 0 ? -g.step : g.step);
}

// The detector column where a band starts; the leftmost band starts at 0.
CASSI_INLINE int64_t band_offset(const Geometry& g, int64_t band) {
  return g.step >= 0 ? band * g.step : (g.bands - 1 - band) * -g.step;
}

// The bands that reach detector column w are those whose offset o satisfies w-W < o <= w. In order
// of rising offset (rank = o / |step|) they are an interval [first, last).
template <class I>
struct Ranks {
  I first, last;
};

// `I` holds the sizes: int divides several times faster than int64_t.
template <class I>
CASSI_INLINE Ranks<I> ranks_at(const Geometry& g, I w) {
  const I d = static_cast<I>(g.step < 0 ? -g.step : g.step), bands = static_cast<I>(g.bands);
  const I width = static_cast<I>(g.width);
  if (d == 0) return {0, bands};
  const I first = w < width ? 0 : (w - width) / d + 1;
  const I last = w / d + 1;
  return {first, last < bands ? last : bands};
}

CASSI_INLINE int64_t band_of_rank(const Geometry& g, int64_t rank) {
  return g.step >= 0 ? rank : g.bands - 1 - rank;
}

// Smallest value of a mask in `ratio_inverse`, which divides by it.
constexpr double kRatioFloor = 1e-12;

template <class T>
CASSI_INLINE T inverse_mask(T mask) {
  const T floor = static_cast<T>(kRatioFloor);
  return T(1) / (mask < floor ? floor : mask);  // a NaN stays a NaN
}

template <class T>
CASSI_INLINE T magnitude(T a) {
  return a < T(0) ? -a : a;
}

#if defined(__CUDACC__)
template <class T>
CASSI_INLINE T square_root(T a) {
  return sqrt(a);
}
#else
CASSI_INLINE float square_root(float a) { return __builtin_sqrtf(a); }
CASSI_INLINE double square_root(double a) { return __builtin_sqrt(a); }
#endif

template <class T>
struct Precision;
template <>
struct Precision<float> {
  static constexpr float epsilon = 1.1920928955078125e-07f, tiny = 1.1754943508222875e-38f;
  static constexpr float largest = 3.4028234663852886e+38f;
};
template <>
struct Precision<double> {
  static constexpr double epsilon = 2.220446049250313e-16, tiny = 2.2250738585072014e-308;
  static constexpr double largest = 1.7976931348623157e+308;
};

// Relative precision of numbers that were stored in a dtype, where sums run in T.
template <class T>
CASSI_INLINE T resolution(Dtype stored) {
  const T own = stored == Dtype::bf16  ? T(0.0078125)
                : stored == Dtype::f16 ? T(0.0009765625)
                : stored == Dtype::f32 ? T(1.1920928955078125e-07)
                                       : T(2.220446049250313e-16);
  return own > Precision<T>::epsilon ? own : Precision<T>::epsilon;
}

// Whether a damping says that its detector pixel has no influence.
template <class T>
CASSI_INLINE bool is_infinite(T rho) {
  return rho > Precision<T>::largest;
}

// d⁺ r: nothing comes back from a pixel that no light reaches.
template <class T>
CASSI_INLINE T divided(T r, T d) {
  return d == T(0) ? T(0) : r / d;
}

// (g + rho)⁺ r of one shot, zero, whatever r is, in a pixel without influence.
template <class T>
CASSI_INLINE T damped_solve(T r, T g, T rho) {
  return is_infinite(rho) ? T(0) : divided(r, g + rho);
}

// z = (G + D)⁺ r for the symmetric K×K matrix of one pixel and a diagonal D, by cyclic Jacobi
// rotations, which diagonalise to machine precision for any K. Eigenvalues below K·epsilon·largest
// count as zero, epsilon being the resolution of G, as in the reference. `a` (K·K) holds G, `d` (K)
// D and z (K) r; these and `q` (K·K), which is scratch, have `pitch` between elements so that
// neighbouring threads can interleave.
//
// A D with one value ρ for all shots is added to the eigenvalues of G. Any other D is added to G,
// in units t of the shots in which the eigenvalues are comparable: T (G + D) T with T² = 1/(G + D)
// on the diagonal. Shots with D = 0 have one unit, then T (T (G + D) T)⁺ T is the Moore–Penrose
// inverse: null vectors lie in those shots alone.
template <class T>
CASSI_APART void solve_symmetric(int64_t K, T* a, T* q, T* d, T* z, int64_t pitch, T epsilon) {
#define A_(i, j) a[((i) * K + (j)) * pitch]
#define Q_(i, j) q[((i) * K + (j)) * pitch]
#define D_(i) d[(i) * pitch]
  T least = D_(0), most = D_(0), total = 0, brightest = 0;
  for (int64_t i = 0; i < K; ++i) {
    least = D_(i) < least ? D_(i) : least;
    most = D_(i) > most ? D_(i) : most;
    total += D_(i);
    if (D_(i) == T(0) && A_(i, i) > brightest) brightest = A_(i, i);
  }
  const bool alike = !(most > least) || total != total;
  const T rho = !alike ? T(0) : total != total ? total : least;  // a NaN stays a NaN
  for (int64_t i = 0; i < K; ++i) {
    const T own = D_(i) > T(0) ? A_(i, i) + D_(i) : brightest;
    if (!alike) A_(i, i) += D_(i);
    D_(i) = alike || own == T(0) ? T(1) : T(1) / square_root(own);
  }
  for (int64_t i = 0; i < K && !alike; ++i)
    for (int64_t j = 0; j < K; ++j) A_(i, j) *= D_(i) * D_(j);
  for (int64_t i = 0; i < K; ++i)
    for (int64_t j = 0; j < K; ++j) Q_(i, j) = i == j ? T(1) : T(0);
  for (int sweep = 0; sweep < 30; ++sweep) {
    T off = 0, diagonal = 0;
    for (int64_t i = 0; i < K; ++i) {
      diagonal += A_(i, i) * A_(i, i);
      for (int64_t j = 0; j < i; ++j) off += A_(i, j) * A_(i, j);
    }
    const T precise = Precision<T>::epsilon;
    if (!(off > diagonal * precise * precise * T(0.01))) break;  // also leaves on NaN
    for (int64_t i = 0; i + 1 < K; ++i)
      for (int64_t j = i + 1; j < K; ++j) {
        const T apq = A_(i, j);
        if (apq == T(0)) continue;
        const T theta = (A_(j, j) - A_(i, i)) / (T(2) * apq);
        const T t =
            (theta < T(0) ? T(-1) : T(1)) / (magnitude(theta) + square_root(theta * theta + T(1)));
        const T c = T(1) / square_root(t * t + T(1)), s = t * c;
        for (int64_t k = 0; k < K; ++k) {
          const T x = A_(k, i), y = A_(k, j);
          A_(k, i) = c * x - s * y;
          A_(k, j) = s * x + c * y;
        }
        for (int64_t k = 0; k < K; ++k) {
          const T x = A_(i, k), y = A_(j, k);
          A_(i, k) = c * x - s * y;
          A_(j, k) = s * x + c * y;
        }
        for (int64_t k = 0; k < K; ++k) {
          const T x = Q_(k, i), y = Q_(k, j);
          Q_(k, i) = c * x - s * y;
          Q_(k, j) = s * x + c * y;
        }
        A_(i, j) = A_(j, i) = T(0);  // rounding is left, on which the sweeps would not end
      }
  }
  T largest = A_(0, 0);
  for (int64_t i = 1; i < K; ++i) largest = A_(i, i) > largest ? A_(i, i) : largest;
  const T floor = largest * T(K) * epsilon;
  // Coefficients take the place of the diagonal, which they need no longer.
  for (int64_t i = 0; i < K; ++i) {
    const T value = A_(i, i), damped = (value <= floor ? T(0) : value) + rho;
    T sum = 0;
    for (int64_t k = 0; k < K; ++k) sum += Q_(k, i) * (D_(k) * z[k * pitch]);
    A_(i, i) = damped == T(0) ? T(0) : sum / damped;
  }
  for (int64_t k = 0; k < K; ++k) {
    T sum = 0;
    for (int64_t i = 0; i < K; ++i) sum += Q_(k, i) * A_(i, i);
    z[k * pitch] = D_(k) * sum;
  }
#undef A_
#undef Q_
#undef D_
}

// Orthogonal iteration adds this to the diagonal, so that a direction without energy stays as it
// is.
CASSI_INLINE double diagonal_shift(double trace) { return 1e-9 * trace + 1e-150; }

// One over the length of a column after the columns before it were projected out. It is 0 if the
// column depends linearly on them.
CASSI_INLINE double inverse_length(double square, double before) {
  const bool depends = square < 1e-24 * before || square == 0.0;
  return depends ? 0.0 : 1.0 / square_root(square);  // a NaN stays a NaN
}

// The step of the dual iterations of total variation, see ops/_reference_tv.py.
constexpr double kTvStep = 0.125;

// The projection of a 2×C matrix P onto the ball of spectral norm `limit` is M P. M is the
// symmetric 2×2 matrix f(S) = min(1, limit / √S) of S = P Pᵀ = [[a, b], [b, c]]. `root` computes 1
// / √.
template <class T>
struct Symmetric {
  T a, b, c;
};

template <class T, class V, class Root, class Clamp>
CASSI_INLINE Symmetric<V> spectral_shrinkage(V limit, Symmetric<V> s, V tiny, Root root,
                                             Clamp at_most_one) {
  // In units of the trace, whose square might overflow.
  const V trace = s.a + s.c + tiny, unit = T(1) / trace;
  const V half = T(0.5) * (s.a - s.c) * unit, off = s.b * unit;
  const V square = half * half + off * off + tiny, inverse = root(square);
  const V radius = square * inverse;  // of the eigenvalues about their mean, 1/2
  const V small = T(0.5) - radius;
  const V f1 = at_most_one(limit * root(trace * (T(0.5) + radius) + tiny));
  const V f2 = at_most_one(limit * root(trace * (small > V{} ? small : V{}) + tiny));
  const V slope = T(0.5) * (f1 - f2) * inverse;
  // f(S) = (f1 + f2)/2 I + slope (S − I/2)
  const V middle = T(0.5) * (f1 + f2);
  return {middle + slope * half, slope * off, middle - slope * half};
}

// Trilinear interpolation in a unit cell, corner 4i + 2j + k, u = (p + 1) / 2: exact at the
// corners.
template <class T>
CASSI_INLINE T lerp(T a, T b, T t) {
  return (T(1) - t) * a + t * b;
}

template <class T>
CASSI_INLINE T trilinear_value(const T* corner, T u, T v, T w) {
  const T c00 = lerp(corner[0], corner[4], u), c01 = lerp(corner[1], corner[5], u);
  const T c10 = lerp(corner[2], corner[6], u), c11 = lerp(corner[3], corner[7], u);
  return lerp(lerp(c00, c10, v), lerp(c01, c11, v), w);
}

template <class T>
CASSI_INLINE T corner_weight(int corner, T u, T v, T w) {
  return ((corner & 4) ? u : T(1) - u) * ((corner & 2) ? v : T(1) - v) *
         ((corner & 1) ? w : T(1) - w);
}

// The gradient of the point, from the products of upstream gradient and corner features, summed
// over the channels. A half, because u = (p + 1) / 2.
template <class T>
CASSI_INLINE void point_gradient(const T* share, T u, T v, T w, T* out) {
  out[0] = out[1] = out[2] = T(0);
  for (int corner = 0; corner < 8; ++corner) {
    const T wu = (corner & 4) ? u : T(1) - u, wv = (corner & 2) ? v : T(1) - v;
    const T ww = (corner & 1) ? w : T(1) - w;
    out[0] += ((corner & 4) ? share[corner] : -share[corner]) * wv * ww;
    out[1] += ((corner & 2) ? share[corner] : -share[corner]) * wu * ww;
    out[2] += ((corner & 1) ? share[corner] : -share[corner]) * wu * wv;
  }
  for (int axis = 0; axis < 3; ++axis) out[axis] /= T(2);
}

// (G + diag ρ) z = r by L·D·Lᵀ for the symmetric K×K matrix of one pixel, or of as many as V has
// lanes: entry(i, j) is G[i, j] for j <= i, rho(i) is ρ, z holds r, `a` (K·K) is scratch with
// `pitch` between elements. Returns a bound from below of the least eigenvalue of the matrix as a
// share of its trace: (K-1)^(K-1) Π d/trace, over the pivots d.
template <class V, class Entry, class Rho>
CASSI_INLINE V solve_definite(int64_t K, Entry entry, Rho rho, V* a, int64_t pitch, V* z,
                              int64_t z_pitch) {
#define A_(i, j) a[((i) * K + (j)) * pitch]
  const V one = V{} + 1;
  V trace = entry(0, 0) + rho(0), bound = one, others = V{};
  for (int64_t u = 1; u < K; ++u) {
    trace += entry(u, u) + rho(u);
    others += one;  // K - 1
  }
  const V scale = one / trace;
  for (int64_t u = 0; u < K; ++u) {
    V pivot = entry(u, u) + rho(u), value = z[u * z_pitch];
    for (int64_t j = 0; j < u; ++j) {
      V rest = entry(u, j);
      for (int64_t i = 0; i < j; ++i) rest -= A_(i, u) * A_(j, i);
      const V factor = rest * A_(j, j);
      A_(j, u) = rest;
      A_(u, j) = factor;
      pivot -= factor * rest;
      value -= factor * z[j * z_pitch];
    }
    bound *= pivot * scale;
    if (u > 0) bound *= others;
    A_(u, u) = one / pivot;
    z[u * z_pitch] = value;
  }
  for (int64_t u = K - 1; u >= 0; --u) {
    V value = z[u * z_pitch] * A_(u, u);
    for (int64_t i = u + 1; i < K; ++i) value -= A_(i, u) * z[i * z_pitch];
    z[u * z_pitch] = value;
  }
  return bound;
#undef A_
}

// From which bound on no eigenvalue of a gram counts as zero, and its inverse is accurate.
template <class T>
CASSI_INLINE T definite_above(int64_t K, Dtype stored) {
  const T rank = static_cast<T>(K) * resolution<T>(stored),
          accurate = sizeof(T) == 8 ? 1e-8 : 1e-5f;
  return rank > accurate ? rank : accurate;
}

// z = (G + diag ρ)⁺ r of one pixel: shots whose ρ is infinite have z = 0, the others are solved for
// as if those did not exist. gram(k, l), rho(k) and right(k) read, put(k, z) writes; `space` is
// scratch of 2K² + 2K elements with `pitch` between them. `direct`: first by L·D·Lᵀ.
template <class T, class Gram, class Rho, class Right, class Put>
CASSI_INLINE void solve_pixel(int64_t K, Gram gram, Rho rho, Right right, Put put, bool direct,
                              T* space, int64_t pitch, Dtype stored) {
  T *a = space, *q = a + K * K * pitch, *z = q + K * K * pitch, *d = z + K * pitch;
  int64_t n = 0;
  bool damped = false;
  for (int64_t k = 0; k < K; ++k) {
    const T own = q[k * pitch] = rho(k);
    if (is_infinite(own)) continue;
    damped |= own != T(0);
    d[n++ * pitch] = own;
  }
  for (int64_t k = 0, i = 0; k < K; ++k) {
    if (n < K && is_infinite(q[k * pitch])) continue;
    for (int64_t l = 0, j = 0; l < K; ++l)
      if (n == K || !is_infinite(q[l * pitch])) a[(i * n + j++) * pitch] = gram(k, l);
    ++i;
  }
  const auto load_right = [&] {
    for (int64_t k = 0, i = 0; k < K; ++k)
      if (n == K || !is_infinite(rho(k))) z[i++ * pitch] = right(k);
  };
  const auto entry = [&](int64_t i, int64_t j) { return a[(i * n + j) * pitch]; };
  const auto none = [](int64_t) { return T(0); };
  const auto some = [&](int64_t i) { return d[i * pitch]; };
  if (n > 0 && direct) load_right();
  if (n > 0 && direct &&
      solve_definite(n, entry, none, q, pitch, z, pitch) > definite_above<T>(n, stored)) {
    if (damped) {
      load_right();
      solve_definite(n, entry, some, q, pitch, z, pitch);
    }
  } else if (n > 0) {
    load_right();
    solve_symmetric(n, a, q, d, z, pitch, resolution<T>(stored));
  }
  for (int64_t k = 0, i = 0; k < K; ++k)
    put(k, n < K && is_infinite(rho(k)) ? T(0) : z[i++ * pitch]);
}

// A pivot below this fraction of its diagonal element belongs to a detector pixel that depends
// linearly on those before it. The fraction is near the relative precision of r.
CASSI_INLINE double dependence(Dtype stored) { return stored == Dtype::f64 ? 1e-13 : 1e-6; }

// (G + diag ρ) z = r for a symmetric band matrix, by L·D·Lᵀ: entry(u, j) is G[u, j] for j <= u,
// zero where u - j > reach, rho(u) is ρ. z holds r. `lower` has size·reach elements, `inverse`
// size, `raw` reach, all with `pitch` between elements. V is a number, or a vector of as many
// systems side by side. An infinite ρ makes a pivot as large as its diagonal, so that the pixel is
// left out.
template <class V, class Entry, class Rho>
CASSI_INLINE void solve_band(int64_t size, int64_t reach, Entry entry, Rho rho, double dependent,
                             V* lower, V* inverse, V* raw, V* z, int64_t pitch) {
  for (int64_t u = 0; u < size; ++u) {
    const int64_t first = u > reach ? u - reach : 0;
    const V total = entry(u, u) + rho(u);
    V pivot = total, value = z[u * pitch];
    for (int64_t j = first; j < u; ++j) {
      V rest = entry(u, j);
      for (int64_t i = first; i < j; ++i)
        rest -= raw[(u - i - 1) * pitch] * lower[(j * reach + j - i - 1) * pitch];
      const V factor = rest * inverse[j * pitch];
      raw[(u - j - 1) * pitch] = rest;
      lower[(u * reach + u - j - 1) * pitch] = factor;
      pivot -= factor * rest;
      value -= factor * z[j * pitch];
    }
    inverse[u * pitch] = pivot <= dependent * total ? V{} : 1.0 / pivot;  // a NaN stays a NaN
    z[u * pitch] = inverse[u * pitch] == V{} ? V{} : value;
  }
  for (int64_t u = size - 1; u >= 0; --u) {
    V value = z[u * pitch] * inverse[u * pitch];
    const int64_t last = u + reach < size - 1 ? u + reach : size - 1;
    for (int64_t later = u + 1; later <= last; ++later)
      value -= lower[(later * reach + later - u - 1) * pitch] * z[later * pitch];
    z[u * pitch] = inverse[u * pitch] == V{} ? V{} : value;
  }
}

}  // namespace cassi
