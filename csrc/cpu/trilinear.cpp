// Trilinear interpolation between the eight corners of unit cells, and its gradient.
#include "rows.h"

namespace cassi {
namespace CASSI_ISA {
namespace {

constexpr int64_t kCells = 256;  // cells of a tile

// Corners are the bands of a block, channels its columns.
Part cell_part(const View& features, int64_t cell) {
  return {static_cast<char*>(features.data) + cell * features.stride[0] * size_of(features.dtype),
          features.dtype, features.stride[1], 0, features.stride[2]};
}

Part row_part(const View& v, int64_t cell) {
  return {static_cast<char*>(v.data) + cell * v.stride[0] * size_of(v.dtype), v.dtype, 0, 0,
          v.stride[1]};
}

template <class T>
void read_point(const View& points, int64_t cell, T* u) {
  read_block(Block<T>{u, 0, 0}, row_part(points, cell), 1, 1, 3);
  for (int axis = 0; axis < 3; ++axis) u[axis] = (u[axis] + T(1)) / T(2);
}

template <class T>
void run_as(const Trilinear& a, int64_t begin, int64_t end) {
  const int64_t line = padded<T>(a.channels);
  Arena arena = {scratch(9 * line * sizeof(T))};
  const Block<T> space = arena.block<T>(8, 1, line);
  const Block<T> out = arena.block<T>(1, 1, line);
  const int64_t last = end * kCells < a.cells ? end * kCells : a.cells;
  for (int64_t n = begin * kCells; n < last; ++n) {
    T u[3];
    read_point(a.points, n, u);
    const Block<T> corner = as_block(cell_part(a.features, n), 8, 1, a.channels, space);
    for (int64_t f = 0; f < a.channels; ++f) {
      T values[8];
      for (int i = 0; i < 8; ++i) values[i] = corner.at(i, 0)[f];
      out.base[f] = trilinear_value(values, u[0], u[1], u[2]);
    }
    write_block(row_part(a.out, n), out, 1, 1, a.channels);
  }
}

template <class T>
void run_as(const TrilinearBackward& a, int64_t begin, int64_t end) {
  const int64_t line = padded<T>(a.channels);
  Arena arena = {scratch(17 * line * sizeof(T))};
  const Block<T> space = arena.block<T>(8, 1, line);
  const Block<T> out = arena.block<T>(8, 1, line);
  const Block<T> grad_space = arena.block<T>(1, 1, line);
  const int64_t last = end * kCells < a.cells ? end * kCells : a.cells;
  for (int64_t n = begin * kCells; n < last; ++n) {
    T u[3], share[8], slope[3];
    read_point(a.points, n, u);
    const Block<T> corner = as_block(cell_part(a.features, n), 8, 1, a.channels, space);
    const T* grad = as_block(row_part(a.grad, n), 1, 1, a.channels, grad_space).base;
    for (int i = 0; i < 8; ++i) {
      const T weight = corner_weight(i, u[0], u[1], u[2]);
      const T* feature = corner.at(i, 0);
      T sum = 0;
      for (int64_t f = 0; f < a.channels; ++f) {
        out.at(i, 0)[f] = weight * grad[f];
        sum += feature[f] * grad[f];
      }
      share[i] = sum;
    }
    point_gradient(share, u[0], u[1], u[2], slope);
    write_block(cell_part(a.grad_features, n), out, 8, 1, a.channels);
    write_block(row_part(a.grad_points, n), Block<T>{slope, 0, 0}, 1, 1, 3);
  }
}

}  // namespace

int64_t work(const Trilinear& a) { return (a.cells + kCells - 1) / kCells; }

void run(const Trilinear& a, int64_t begin, int64_t end) {
  a.sums == Dtype::f64 ? run_as<double>(a, begin, end) : run_as<float>(a, begin, end);
}

int64_t work(const TrilinearBackward& a) { return (a.cells + kCells - 1) / kCells; }

void run(const TrilinearBackward& a, int64_t begin, int64_t end) {
  a.sums == Dtype::f64 ? run_as<double>(a, begin, end) : run_as<float>(a, begin, end);
}

}  // namespace CASSI_ISA
}  // namespace cassi
