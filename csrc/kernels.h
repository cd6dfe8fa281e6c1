// The arguments of every kernel, filled and checked by ops.cpp, launched by cpu/ or cuda/.
#pragma once

#include "common.h"

namespace cassi {

// `sums` is the dtype that sums run in, f32 or f64. Views of read-only tensors are not written.
struct Forward {
  Geometry g;
  Dtype sums;
  View x, mask, y;
  // Where data is not null: `(1|B, C, R)`, and x holds R components of a cube E x.
  View basis = {};
  int64_t rank = 0;
};

struct Adjoint {
  Geometry g;
  Dtype sums;
  View y, mask, x;
  bool ratio;   // divide by band count and mask instead of multiplying by the mask
  View v = {};  // what the result is added to; data is null where there is none
  // Where data is not null: `(1|B, C, R)`, and the result is Eᵀ times the cube.
  View basis = {};
  int64_t rank = 0;
};

struct MaskAdjoint {
  Geometry g;
  Dtype sums;
  View x, y, mask;  // mask: (1|B, K, 1|C, H, W), contiguous, in the dtype of the sums
  bool per_sample, per_band;
};

struct Gram {
  Geometry g;
  Dtype sums;
  View mask, gram;
};

struct GramSolve {
  Geometry g;  // without bands and step: width is the detector's
  Dtype sums;
  View r, gram, rho, z;  // rho: (1|B, 1|K, 1|H, 1|W')
};

struct DataStep {
  Geometry g;
  Dtype sums;
  View v, y, mask, gram, rho, x;
};

struct DataStepBackward {
  Geometry g;
  Dtype sums;
  View grad, v, y, mask, gram, rho;
  View grad_v, grad_y;
  View grad_mask;  // like MaskAdjoint's
  View grad_rho;   // of each pixel, (B, K, H, W'), or summed over each row, (B, 1, H, 1);
                   // contiguous, in the dtype of the sums
  bool need_mask, need_rho, per_sample, per_band, per_pixel;
};

// The norm of the gradient at a pixel: of each band by itself, or of the 2×C Jacobian of all bands.
enum class Norm : int32_t { band, frobenius, nuclear };

struct TvProx {
  Geometry g;  // without shots and step
  Dtype sums;
  View x, weight, u;
  View dual_in, dual_out;  // (B, 2, C, H, W); data is null where there is none
  int64_t iterations;
  Norm norm;
  int64_t threads;  // to share tiles among; results do not depend on it
};

struct Convolve {
  int64_t rows, n, m;  // n: length of a (convolve) or of g (correlate); m: length of v
  Dtype sums;
  View a, v, out;  // (rows, length)
  bool correlate;
};

struct Trilinear {
  int64_t cells, channels;
  Dtype sums;
  View features, points, out;
};

struct TrilinearBackward {
  int64_t cells, channels;
  Dtype sums;
  View grad, features, points, grad_features, grad_points;
};

// A camera that shifts and spreads each band: column w of band c falls on the detector columns
// start(c) + w + t, with the weights tap(c, t). `g` has no detector columns. `after`: the mask
// codes bands after they are spread, and has a column for each detector column that they fall on.
struct Taps {
  View weights;                       // (1|B, C, T)
  const int64_t* starts;              // (1|B, C)
  int64_t starts_batch, starts_band;  // strides, that of a batch 0 where samples share them
  int64_t count;                      // T
  bool after;
  CASSI_MEMBER int64_t coded(int64_t width) const { return after ? width + count - 1 : width; }
};

struct ForwardTaps {
  Geometry g;
  int64_t detector;
  Dtype sums;
  View x, mask;
  Taps taps;
  View y;
};

struct AdjointTaps {
  Geometry g;
  int64_t detector;
  Dtype sums;
  View y, mask;
  Taps taps;
  View x;
  View v = {};  // what the result is added to; data is null where there is none
};

struct MaskAdjointTaps {
  Geometry g;
  int64_t detector;
  Dtype sums;
  View x, y;
  Taps taps;
  View mask;  // like MaskAdjoint's
  bool per_sample, per_band;
};

struct BandSolve {
  Geometry g;            // without bands and step: width is the detector's
  int64_t couplings;     // T
  View r, gram, rho, z;  // gram: (1|B, T·K, K, H, D)
};

// h_t = exp(Δ_t a) h_{t-1} + Δ_t b_t u_t, y_t = c_t · h_t, of `channels` by `states` numbers h. A
// tile is a group of channels of one sample, from the first step to the last.
constexpr int64_t kScanGroup = 16;
constexpr int64_t kMostStates = 64;
constexpr int64_t kScanChunk = 64;  // steps whose states are made again for the gradient

struct SelectiveScan {
  int64_t batch, length, channels, states;
  Dtype sums;
  View u, delta, rates, b, c, y;  // (B, L, D), (1|B, D, N), (B, L, N)
  CASSI_MEMBER int64_t groups() const { return (channels + kScanGroup - 1) / kScanGroup; }
};

struct SelectiveScanBackward {
  SelectiveScan scan;  // without y
  View grad, grad_u, grad_delta;
  View grad_rates;      // (B, D, N)
  View grad_b, grad_c;  // (G, B, L, N), each group's share
  void* kept;  // states, (B, G, chunks + kScanChunk, N, kScanGroup), in the dtype of the sums
  CASSI_MEMBER int64_t chunks() const { return (scan.length + kScanChunk - 1) / kScanChunk; }
  CASSI_MEMBER int64_t kept_by_a_tile() const {
    return (chunks() + kScanChunk) * scan.states * kScanGroup;
  }
};

// Groups of patches of one sample's image (R, H, W), with R components a pixel.
constexpr int64_t kMostMatches = 48;

struct Groups {
  int64_t count, matches, patch, channels, height, width;
  Dtype sums;
  const int64_t* first;        // h·W + w of each patch's first pixel
  int64_t of_group, of_match;  // strides
  CASSI_MEMBER int64_t numbers() const { return patch * patch * channels; }
};

// The matrix of each group, a patch a row, with its singular values shrunk.
struct ShrinkGroups {
  Groups g;
  View image;      // (1, R, H, W), of the sample
  View threshold;  // (1), of the sample
  void* clean;     // (count, matches, numbers), contiguous, in the dtype of the sums
  void* reach;     // of CUDA: (count, 4) int32, least and greatest row and column of a group
};

// The patches, added where they came from, in their order.
struct AddGroups {
  Groups g;
  const void *clean, *reach;
  void* total;  // (H, W, R), contiguous, in the dtype of the sums
};

// The first row and column of a patch, moved into the image.
struct Corner {
  int64_t row, column;
};

CASSI_INLINE int64_t clamped(int64_t a, int64_t most) { return a < 0 ? 0 : a > most ? most : a; }

CASSI_INLINE Corner corner_of(const Groups& g, int64_t group, int64_t match) {
  const int64_t first = g.first[group * g.of_group + match * g.of_match];
  const int64_t inside = clamped(first, g.height * g.width - 1), row = inside / g.width;
  return {clamped(row, g.height - g.patch), clamped(inside - row * g.width, g.width - g.patch)};
}

// Steps of orthogonal iteration, in double precision.
struct OrthogonalIteration {
  int64_t batch, size, rank, steps;
  View moments, frame;     // (B, C, C), (B, C, R)
  double *values, *found;  // (B, R), (B, C, R), contiguous
};

// A convolution that keeps the size, with zeros around the image, and what comes after it. Only the
// CPU has a kernel: CUDA's own library is better.
struct Convolve3x3 {
  int64_t batch, inputs, outputs, height, width;
  Dtype sums;
  View image;     // (B, C, H, W)
  View weight;    // (O, C, 3, 3)
  View bias;      // (O)
  View residual;  // like out; data is null where there is none
  View out;       // (B, O, H, W)
  bool rectify;
};

constexpr int64_t kStrip = 16;  // image rows that one sum of `Convolve3x3Backward` is over

// The gradient of the weight, a sum for each strip of an image. The strips are the works, so every
// number of threads gives the same bits.
struct Convolve3x3Backward {
  int64_t batch, inputs, outputs, height, width;
  Dtype sums;
  View gradient;  // (B, O, H, W), of the result
  View image;     // (B, C, H, W)
  void* out;      // (B, strips, 3, 3, C, O), contiguous, in the dtype of the sums
};

// Launchers. `stream` is the CUDA stream, unused on the CPU.
void launch(const Forward&, void* stream);
void launch(const Adjoint&, void* stream);
void launch(const MaskAdjoint&, void* stream);
void launch(const Gram&, void* stream);
void launch(const GramSolve&, void* stream);
void launch(const DataStep&, void* stream);
void launch(const DataStepBackward&, void* stream);
void launch(const TvProx&, void* stream);
void launch(const Convolve&, void* stream);
void launch(const Trilinear&, void* stream);
void launch(const TrilinearBackward&, void* stream);
void launch(const ForwardTaps&, void* stream);
void launch(const AdjointTaps&, void* stream);
void launch(const MaskAdjointTaps&, void* stream);
void launch(const BandSolve&, void* stream);
void launch(const SelectiveScan&, void* stream);
void launch(const SelectiveScanBackward&, void* stream);
void launch(const ShrinkGroups&, void* stream);
void launch(const AddGroups&, void* stream);
void launch(const OrthogonalIteration&, void* stream);
void launch(const Convolve3x3&, void* stream);
void launch(const Convolve3x3Backward&, void* stream);

}  // namespace cassi
