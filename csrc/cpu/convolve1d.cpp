// out[n] = Σ_m v[m] a[n-m] (convolve) and out[n] = Σ_m v[m] g[n+m] (correlate), row by row.
#include "rows.h"

namespace cassi {
namespace CASSI_ISA {
namespace {

constexpr int64_t kChunk = 1024;  // outputs of a tile

int64_t length_of(const Convolve& a) { return a.correlate ? a.n - a.m + 1 : a.n + a.m - 1; }

Part row_part(const View& v, int64_t row, int64_t start) {
  const int64_t offset = row * v.stride[0] + start * v.stride[1];
  return {static_cast<char*>(v.data) + offset * size_of(v.dtype), v.dtype, 0, 0, v.stride[1]};
}

template <class T>
void run_as(const Convolve& a, int64_t begin, int64_t end) {
  using V = typename Vec<T>::type;
  constexpr int64_t L = Vec<T>::lanes;
  const int64_t length = length_of(a), chunks = (length + kChunk - 1) / kChunk;
  const int64_t reach = padded<T>(kChunk + a.m) + 4 * L;
  Arena arena = {scratch((reach + padded<T>(a.m) + kChunk + 4 * L) * sizeof(T))};
  const Block<T> signal = arena.block<T>(1, 1, reach);
  const Block<T> kernel = arena.block<T>(1, 1, padded<T>(a.m));
  const Block<T> out = arena.block<T>(1, 1, kChunk + 4 * L);
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t / chunks, n0 = t % chunks * kChunk;
    const int64_t count = length - n0 < kChunk ? length - n0 : kChunk;
    // signal[i] is a[start + i], zero outside of a; out[n0 + i] = Σ_m kernel[m] signal[i + m].
    const int64_t start = a.correlate ? n0 : n0 - (a.m - 1);
    const int64_t from = start > 0 ? start : 0;
    const int64_t stop = start + count + a.m - 1;
    const int64_t to = stop < a.n ? stop : a.n;
    __builtin_memset(signal.base, 0, reach * sizeof(T));
    if (to > from)
      read_block(Block<T>{signal.base + (from - start), 0, 0}, row_part(a.a, row, from), 1, 1,
                 to - from);
    read_block(kernel, row_part(a.v, row, 0), 1, 1, a.m);
    if (!a.correlate)
      for (int64_t i = 0, j = a.m - 1; i < j; ++i, --j) {
        const T swap = kernel.base[i];
        kernel.base[i] = kernel.base[j];
        kernel.base[j] = swap;
      }
    // A tap that is not finite must not meet the zeros outside of a: these are no elements.
    bool finite = true;
    for (int64_t m = 0; m < a.m; ++m) finite &= kernel.base[m] - kernel.base[m] == T(0);
    for (int64_t i = 0; i < count && !finite; ++i) {
      T sum = 0;
      for (int64_t m = 0; m < a.m; ++m)
        if (start + i + m >= 0 && start + i + m < a.n) sum += kernel.base[m] * signal.base[i + m];
      out.base[i] = sum;
    }
    for (int64_t i = 0; i < count && finite; i += 4 * L) {
      V sum[4] = {};
      for (int64_t m = 0; m < a.m; ++m) {
        const V tap = splat<T>(kernel.base[m]);
        for (int k = 0; k < 4; ++k) sum[k] += tap * load(signal.base + i + m + k * L);
      }
      for (int k = 0; k < 4; ++k) store(out.base + i + k * L, sum[k]);
    }
    write_block(row_part(a.out, row, n0), out, 1, 1, count);
  }
}

}  // namespace

int64_t work(const Convolve& a) { return a.rows * ((length_of(a) + kChunk - 1) / kChunk); }

void run(const Convolve& a, int64_t begin, int64_t end) {
  a.sums == Dtype::f64 ? run_as<double>(a, begin, end) : run_as<float>(a, begin, end);
}

}  // namespace CASSI_ISA
}  // namespace cassi
