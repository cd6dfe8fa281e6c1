// V ← Q of (M + εI) V, for the leading eigenvectors of small matrices; a sample is a tile.
#include "rows.h"

namespace cassi {
namespace CASSI_ISA {

int64_t work(const OrthogonalIteration& a) { return a.batch; }

void run(const OrthogonalIteration& a, int64_t begin, int64_t end) {
  const int64_t C = a.size, R = a.rank;
  // Columns of M, of V and of the next V are rows here.
  double* const m = reinterpret_cast<double*>(scratch((C + 2 * R) * C * sizeof(double)));
  double *const v = m + C * C, *const w = v + R * C;
  const auto columns = [&](double* to, const View& from, int64_t sample, int64_t count) {
    char* const data =
        static_cast<char*>(from.data) + sample * from.stride[0] * size_of(from.dtype);
    const Part part = {data, from.dtype, 0, from.stride[2], from.stride[1]};
    read_block(Block<double>{to, 0, C}, part, 1, count, C);
  };
  const auto dot = [&](const double* x, const double* y) {
    double sum = 0;
    for (int64_t c = 0; c < C; ++c) sum += x[c] * y[c];
    return sum;
  };
  const auto multiply = [&](double shift) {  // w = (M + shift I) v
    for (int64_t r = 0; r < R; ++r) {
      const double* const x = v + r * C;
      double* const to = w + r * C;
      for (int64_t c = 0; c < C; ++c) to[c] = shift * x[c];
      for (int64_t j = 0; j < C; ++j)
        for (int64_t c = 0; c < C; ++c) to[c] += m[j * C + c] * x[j];
    }
  };
  for (int64_t b = begin; b < end; ++b) {
    columns(m, a.moments, b, C);
    columns(v, a.frame, b, R);
    double trace = 0;
    for (int64_t c = 0; c < C; ++c) trace += m[c * C + c];
    for (int64_t step = 0; step < a.steps; ++step) {
      multiply(diagonal_shift(trace));
      for (int64_t r = 0; r < R; ++r) {
        double* const to = w + r * C;
        const double before = dot(to, to);
        for (int64_t i = 0; i < r; ++i) {
          const double* const q = v + i * C;
          const double share = dot(q, to);
          for (int64_t c = 0; c < C; ++c) to[c] -= share * q[c];
        }
        const double inverse = inverse_length(dot(to, to), before);
        for (int64_t c = 0; c < C; ++c) v[r * C + c] = to[c] * inverse;
      }
    }
    multiply(0.0);
    for (int64_t r = 0; r < R; ++r) {
      const double value = dot(v + r * C, w + r * C);
      a.values[b * R + r] = value < 0 ? 0.0 : value;  // a NaN stays a NaN
      for (int64_t c = 0; c < C; ++c) a.found[(b * C + c) * R + r] = -v[r * C + c];
    }
  }
}

}  // namespace CASSI_ISA
}  // namespace cassi
