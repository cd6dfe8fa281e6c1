// The operators as torch sees them, written once for both devices: check, allocate, launch.
// Compiled with CASSI_DEVICE=CPU or CUDA. The public Python functions have already said in words
// what does not fit; the checks here keep direct calls from reading outside of memory.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <exception>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "kernels.h"

#if !defined(USE_CUDA)
#include "results.h"
#endif
#if defined(USE_CUDA) || defined(CASSI_EMULATED)
#include "cuda/memory.h"
#endif

namespace cassi {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

Dtype dtype_of(const Tensor& t, const char* name) {
  switch (t.scalar_type()) {
    case ScalarType::Float:
      return Dtype::f32;
    case ScalarType::Double:
      return Dtype::f64;
    case ScalarType::BFloat16:
      return Dtype::bf16;
    case ScalarType::Half:
      return Dtype::f16;
    default:
      break;
  }
  STD_TORCH_CHECK(false, name, ": expected float32, float64, bfloat16 or float16");
  return Dtype::f32;
}

ScalarType scalar_type(Dtype sums) {
  return sums == Dtype::f64 ? ScalarType::Double : ScalarType::Float;
}

Dtype sums_of(std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* t : tensors)
    if (t->scalar_type() == ScalarType::Double) return Dtype::f64;
  return Dtype::f32;
}

void check_device(const Tensor& t, const Tensor& like, const char* name) {
#if defined(USE_CUDA)
  STD_TORCH_CHECK(t.is_cuda() && t.get_device() == like.get_device(), name,
                  ": expected a tensor on CUDA device ", static_cast<int>(like.get_device()));
#else
  STD_TORCH_CHECK(t.is_cpu(), name, ": expected a tensor on the CPU");
#endif
}

// A view of a tensor with these sizes; where `shared`, a size of 1 serves any expected size.
View view(const Tensor& t, const char* name, std::initializer_list<int64_t> sizes,
          std::initializer_list<bool> shared = {}) {
  STD_TORCH_CHECK(t.dim() == static_cast<int64_t>(sizes.size()), name, ": expected ", sizes.size(),
                  " dimensions, got ", t.dim());
  View v = {t.mutable_data_ptr(), dtype_of(t, name), {0, 0, 0, 0, 0}};
  int64_t i = 0;
  for (const int64_t size : sizes) {
    const bool may_share = shared.size() > 0 && shared.begin()[i];
    STD_TORCH_CHECK(t.size(i) == size || (may_share && t.size(i) == 1), name, ": expected size ",
                    size, " in dimension ", i, ", got ", t.size(i));
    v.stride[i] = may_share && t.size(i) == 1 ? 0 : t.stride(i);
    ++i;
  }
  return v;
}

View read(const Tensor& t, const Tensor& like, const char* name,
          std::initializer_list<int64_t> sizes, std::initializer_list<bool> shared = {}) {
  check_device(t, like, name);
  return view(t, name, sizes, shared);
}

void* stream_of(const Tensor& t) {
#if defined(USE_CUDA)
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(t.get_device(), &stream));
  return stream;
#else
  return nullptr;
#endif
}

// Launches run on the device of their tensors, whichever is current.
#if defined(USE_CUDA)
struct DeviceGuard {
  CUDAGuardHandle handle;
  explicit DeviceGuard(const Tensor& t) {
    TORCH_ERROR_CODE_CHECK(aoti_torch_create_cuda_guard(t.get_device(), &handle));
  }
  ~DeviceGuard() { aoti_torch_delete_cuda_guard(handle); }
};
#else
struct DeviceGuard {
  explicit DeviceGuard(const Tensor&) {}
};
#endif

template <class Args>
void start(const Args& args, const Tensor& output) {
  if (output.numel() == 0) return;
  const DeviceGuard guard(output);
  launch(args, stream_of(output));
}

using Sizes = std::vector<int64_t>;

// Strides of memory without gaps, the last axis innermost, or the second.
Sizes dense(const Sizes& sizes, bool channels_last) {
  Sizes strides(sizes.size());
  int64_t next = 1;
  const auto place = [&](std::size_t axis) {
    strides[axis] = next;
    if (sizes[axis] > 1 && __builtin_mul_overflow(next, sizes[axis], &next)) throw std::bad_alloc();
  };
  if (channels_last) place(1);
  for (std::size_t axis = sizes.size(); axis-- > 0;)
    if (!channels_last || axis != 1) place(axis);
  return strides;
}

// By the shim itself: torch::stable::empty and its like look the operator up in every call. Where
// it is large, on a CPU, in memory of `Results`.
Tensor empty_strided(const Tensor& like, const Sizes& sizes, const Sizes& strides,
                     ScalarType dtype) {
  const torch::stable::Device device = like.device();
#if !defined(USE_CUDA)
  int64_t bytes = dtype == ScalarType::Double ? 8 : dtype == ScalarType::Float ? 4 : 2;
  for (const int64_t size : sizes)
    if (__builtin_mul_overflow(bytes, size, &bytes)) throw std::bad_alloc();
  if (bytes >= static_cast<int64_t>(Results::least)) {
    void* const start = Results::shared().take(bytes);
    return torch::stable::from_blob(start, sizes, strides, device, dtype,
                                    [bytes](void* freed) { Results::shared().give(freed, bytes); });
  }
#endif
  const auto number = [](auto value) {
    return torch::stable::detail::to<int32_t>(torch::stable::detail::from(value));
  };
  AtenTensorHandle made = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(),
                                                  strides.data(), number(dtype),
                                                  number(device.type()), device.index(), &made));
  return Tensor(made);
}

// Torch's words for a lack of memory stay behind the stable interface; the commands know these.
template <class Strides>
Tensor allocate(const Tensor& like, const Sizes& sizes, ScalarType dtype, Strides strides) {
  try {
    return empty_strided(like, sizes, strides(), dtype);
  } catch (const std::exception&) {
#if defined(USE_CUDA) || defined(CASSI_EMULATED)
    cuda::check_earlier();
#endif
    std::ostringstream shape;
    for (const int64_t size : sizes) shape << (shape.tellp() > 0 ? " x " : "") << size;
    throw std::runtime_error("cassi: can't allocate memory for " + shape.str() + " elements");
  }
}

Tensor empty(const Tensor& like, const Sizes& sizes, ScalarType dtype, bool channels_last = false) {
  return allocate(like, sizes, dtype, [&] { return dense(sizes, channels_last); });
}

// With the strides that torch.empty_like gives.
Tensor empty_as(const Tensor& like) {
  const Sizes sizes(like.sizes().begin(), like.sizes().end());
  return allocate(like, sizes, like.scalar_type(), [&] {
    const Sizes strides(like.strides().begin(), like.strides().end());
    const auto is_dense = [&](bool channels_last) {
      const Sizes wanted = dense(sizes, channels_last);
      for (std::size_t i = 0; i < sizes.size(); ++i)
        if (sizes[i] != 1 && strides[i] != wanted[i]) return false;
      return true;
    };
    if (is_dense(false) || (sizes.size() == 4 && is_dense(true))) return strides;
    const Tensor other = torch::stable::empty_like(like);
    return Sizes(other.strides().begin(), other.strides().end());
  });
}

// Most elements of one image row, far below the number at which sizes in bytes overflow.
constexpr double kMostElements = 1e15;

Geometry geometry(int64_t batch, int64_t shots, int64_t bands, int64_t height, int64_t width,
                  int64_t step) {
  STD_TORCH_CHECK(bands >= 1 && shots >= 1 && width >= 1, "expected at least one band, shot and ",
                  "column, got ", bands, ", ", shots, " and ", width);
  const int64_t most = int64_t{1} << 31;
  STD_TORCH_CHECK(step > -most && step < most && bands < most && width < most,
                  "step, bands or width are out of range");
  const Geometry g = {batch, shots, bands, height, width, step};
  // Rows of all bands and shots must be countable, even where strides of 0 need no memory for them.
  const double cube = static_cast<double>(bands) * static_cast<double>(width);
  const double rows = static_cast<double>(shots + 2) * static_cast<double>(detector_width(g));
  STD_TORCH_CHECK(static_cast<double>(shots) * (cube + rows) < kMostElements,
                  "a row of all bands and shots is too large");
  return g;
}

// Mask (1|B, K, 1|C, H, W) of a call over B samples and C bands.
View mask_view(const Tensor& mask, const Tensor& like, const Geometry& g, int64_t further = 0) {
  return read(mask, like, "mask", {g.batch, g.shots, g.bands, g.height, g.width + further},
              {true, false, true, false, false});
}

View gram_view(const Tensor& gram, const Tensor& like, const Geometry& g, int64_t wide) {
  return read(gram, like, "gram", {g.batch, g.shots, g.shots, g.height, wide},
              {true, false, false, false, false});
}

// Damping ρ (1|B, 1|K, 1|H, 1|W') of a measurement with `wide` columns.
View damping_view(const Tensor& rho, const Tensor& like, const Geometry& g, int64_t wide) {
  return read(rho, like, "rho", {g.batch, g.shots, g.height, wide}, {true, true, true, true});
}

void check_rank(const Tensor& t, const char* name, int64_t rank) {
  STD_TORCH_CHECK(t.dim() == rank, name, ": expected ", rank, " dimensions, got ", t.dim());
}

Tensor forward(const Tensor& x, const Tensor& mask, int64_t step) {
  check_rank(x, "x", 4);
  check_rank(mask, "mask", 5);
  const Geometry g = geometry(x.size(0), mask.size(1), x.size(1), x.size(2), x.size(3), step);
  const int64_t wide = detector_width(g);
  Tensor y = empty(x, {g.batch, g.shots, g.height, wide}, x.scalar_type());
  start(Forward{g, sums_of({&x, &mask}), read(x, x, "x", {g.batch, g.bands, g.height, g.width}),
                mask_view(mask, x, g), view(y, "y", {g.batch, g.shots, g.height, wide})},
        y);
  return y;
}

Tensor backproject(const Tensor& y, const Tensor& mask, int64_t bands, int64_t step,
                   bool channels_last, bool ratio) {
  check_rank(y, "y", 4);
  check_rank(mask, "mask", 5);
  const Geometry g = geometry(y.size(0), y.size(1), bands, y.size(2), mask.size(4), step);
  STD_TORCH_CHECK(!ratio || g.shots == 1, "ratio_inverse: expected one shot, got ", g.shots);
  Tensor x = empty(y, {g.batch, bands, g.height, g.width}, y.scalar_type(), channels_last);
  start(Adjoint{g, sums_of({&y, &mask}),
                read(y, y, "y", {g.batch, g.shots, g.height, detector_width(g)}),
                mask_view(mask, y, g), view(x, "x", {g.batch, bands, g.height, g.width}), ratio},
        x);
  return x;
}

Tensor adjoint(const Tensor& y, const Tensor& mask, int64_t bands, int64_t step,
               bool channels_last) {
  return backproject(y, mask, bands, step, channels_last, false);
}

Tensor add_adjoint(const Tensor& v, const Tensor& y, const Tensor& mask, int64_t step) {
  check_rank(v, "v", 4);
  check_rank(mask, "mask", 5);
  const Geometry g = geometry(v.size(0), mask.size(1), v.size(1), v.size(2), v.size(3), step);
  const std::initializer_list<int64_t> cube = {g.batch, g.bands, g.height, g.width};
  Tensor x = empty_as(v);
  start(Adjoint{g, sums_of({&v, &y, &mask}),
                read(y, v, "y", {g.batch, g.shots, g.height, detector_width(g)}),
                mask_view(mask, v, g), view(x, "x", cube), false, read(v, v, "v", cube)},
        x);
  return x;
}

// A basis (1|B, C, R) of a call over B samples.
View basis_view(const Tensor& basis, const Tensor& like, const Geometry& g) {
  const View v =
      read(basis, like, "basis", {g.batch, g.bands, basis.size(2)}, {true, false, false});
  const double elements =
      static_cast<double>(g.bands + g.width) * static_cast<double>(basis.size(2));
  STD_TORCH_CHECK(elements < kMostElements, "a row of all components is too large");
  return v;
}

Tensor forward_subspace(const Tensor& components, const Tensor& basis, const Tensor& mask,
                        int64_t step) {
  check_rank(components, "components", 4);
  check_rank(basis, "basis", 3);
  check_rank(mask, "mask", 5);
  const int64_t rank = basis.size(2);
  const Geometry g = geometry(components.size(0), mask.size(1), basis.size(1), components.size(2),
                              components.size(3), step);
  const int64_t wide = detector_width(g);
  Tensor y = empty(components, {g.batch, g.shots, g.height, wide}, components.scalar_type());
  start(Forward{g, sums_of({&components, &basis, &mask}),
                read(components, components, "components", {g.batch, rank, g.height, g.width}),
                mask_view(mask, components, g), view(y, "y", {g.batch, g.shots, g.height, wide}),
                basis_view(basis, components, g), rank},
        y);
  return y;
}

Tensor adjoint_subspace(const Tensor& y, const Tensor& basis, const Tensor& mask, int64_t step) {
  check_rank(y, "y", 4);
  check_rank(basis, "basis", 3);
  check_rank(mask, "mask", 5);
  const int64_t rank = basis.size(2);
  const Geometry g = geometry(y.size(0), y.size(1), basis.size(1), y.size(2), mask.size(4), step);
  Tensor a = empty(y, {g.batch, rank, g.height, g.width}, y.scalar_type());
  start(Adjoint{g, sums_of({&y, &basis, &mask}),
                read(y, y, "y", {g.batch, g.shots, g.height, detector_width(g)}),
                mask_view(mask, y, g), view(a, "components", {g.batch, rank, g.height, g.width}),
                false, View{}, basis_view(basis, y, g), rank},
        a);
  return a;
}

Tensor ratio_inverse(const Tensor& y, const Tensor& mask, int64_t bands, int64_t step,
                     bool channels_last) {
  return backproject(y, mask, bands, step, channels_last, true);
}

Tensor mask_adjoint(const Tensor& x, const Tensor& y, int64_t step, bool per_sample,
                    bool per_band) {
  check_rank(x, "x", 4);
  check_rank(y, "y", 4);
  const Geometry g = geometry(x.size(0), y.size(1), x.size(1), x.size(2), x.size(3), step);
  const Dtype sums = sums_of({&x, &y});
  const int64_t samples = per_sample ? g.batch : 1, bands = per_band ? g.bands : 1;
  Tensor m = empty(x, {samples, g.shots, bands, g.height, g.width}, scalar_type(sums));
  const MaskAdjoint args = {g,
                            sums,
                            read(x, x, "x", {g.batch, g.bands, g.height, g.width}),
                            read(y, x, "y", {g.batch, g.shots, g.height, detector_width(g)}),
                            view(m, "mask", {samples, g.shots, bands, g.height, g.width}),
                            per_sample,
                            per_band};
  if (g.batch == 0) return torch::stable::zero_(m);
  start(args, m);
  return m;
}

Tensor gram(const Tensor& mask, int64_t bands, int64_t step) {
  check_rank(mask, "mask", 5);
  const Geometry g = geometry(mask.size(0), mask.size(1), bands, mask.size(3), mask.size(4), step);
  const int64_t wide = detector_width(g);
  const Dtype sums = sums_of({&mask});
  Tensor out = empty(mask, {g.batch, g.shots, g.shots, g.height, wide}, scalar_type(sums));
  start(Gram{g, sums, mask_view(mask, mask, g),
             view(out, "gram", {g.batch, g.shots, g.shots, g.height, wide})},
        out);
  return out;
}

Tensor gram_solve(const Tensor& r, const Tensor& gram, const Tensor& rho) {
  check_rank(r, "r", 4);
  const Geometry g = geometry(r.size(0), r.size(1), 1, r.size(2), r.size(3), 0);
  Tensor z = empty(r, {g.batch, g.shots, g.height, g.width}, r.scalar_type());
  const std::initializer_list<int64_t> sizes = {g.batch, g.shots, g.height, g.width};
  start(GramSolve{g, sums_of({&r, &gram, &rho}), read(r, r, "r", sizes),
                  gram_view(gram, r, g, g.width), damping_view(rho, r, g, g.width),
                  view(z, "z", sizes)},
        z);
  return z;
}

Tensor data_step(const Tensor& v, const Tensor& y, const Tensor& mask, const Tensor& gram,
                 const Tensor& rho, int64_t step) {
  check_rank(v, "v", 4);
  check_rank(mask, "mask", 5);
  const Geometry g = geometry(v.size(0), mask.size(1), v.size(1), v.size(2), v.size(3), step);
  const int64_t wide = detector_width(g);
  const std::initializer_list<int64_t> cube = {g.batch, g.bands, g.height, g.width};
  Tensor x = empty_as(v);
  start(DataStep{g, sums_of({&v, &y, &mask}), read(v, v, "v", cube),
                 read(y, v, "y", {g.batch, g.shots, g.height, wide}), mask_view(mask, v, g),
                 gram_view(gram, v, g, wide), damping_view(rho, v, g, wide), view(x, "x", cube)},
        x);
  return x;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> data_step_backward(const Tensor& grad, const Tensor& v,
                                                              const Tensor& y, const Tensor& mask,
                                                              const Tensor& gram, const Tensor& rho,
                                                              int64_t step, bool need_mask,
                                                              bool need_rho) {
  check_rank(v, "v", 4);
  check_rank(mask, "mask", 5);
  const Geometry g = geometry(v.size(0), mask.size(1), v.size(1), v.size(2), v.size(3), step);
  const int64_t wide = detector_width(g);
  const Dtype sums = sums_of({&v, &y, &mask});
  const ScalarType type = scalar_type(sums);
  const std::initializer_list<int64_t> cube = {g.batch, g.bands, g.height, g.width};
  const std::initializer_list<int64_t> measurement = {g.batch, g.shots, g.height, wide};
  const bool per_sample = mask.size(0) > 1 || g.batch == 1, per_band = mask.size(2) > 1;
  Tensor grad_v = empty_as(v);
  Tensor grad_y = empty(y, measurement, y.scalar_type());
  Sizes mask_sizes = {0};
  if (need_mask)
    mask_sizes = {mask.size(0), mask.size(1), mask.size(2), mask.size(3), mask.size(4)};
  Tensor grad_mask = empty(mask, mask_sizes, type);
  if (need_mask && g.batch == 0) torch::stable::zero_(grad_mask);
  check_rank(rho, "rho", 4);
  const bool per_pixel = rho.size(1) > 1 || rho.size(3) > 1;
  const int64_t rho_shots = per_pixel ? g.shots : 1, rho_columns = per_pixel ? wide : 1;
  Sizes rho_sizes = {0};
  if (need_rho) rho_sizes = {g.batch, rho_shots, g.height, rho_columns};
  Tensor grad_rho = empty(v, rho_sizes, type);
  DataStepBackward args = {g,
                           sums,
                           read(grad, v, "grad", cube),
                           read(v, v, "v", cube),
                           read(y, v, "y", measurement),
                           mask_view(mask, v, g),
                           gram_view(gram, v, g, wide),
                           damping_view(rho, v, g, wide),
                           view(grad_v, "grad_v", cube),
                           view(grad_y, "grad_y", measurement),
                           {},
                           {},
                           need_mask,
                           need_rho,
                           per_sample,
                           per_band,
                           per_pixel};
  if (need_mask)
    args.grad_mask =
        view(grad_mask, "grad_mask",
             {per_sample ? g.batch : 1, g.shots, per_band ? g.bands : 1, g.height, g.width});
  if (need_rho)
    args.grad_rho = view(grad_rho, "grad_rho", {g.batch, rho_shots, g.height, rho_columns});
  start(args, grad_v);
  return {grad_v, grad_y, grad_mask, grad_rho};
}

// How many iterations one sweep takes; the dual passes through memory between sweeps.
constexpr int64_t kTvSweep = 8;
// On CUDA, sweeps take equally many, 9 being 5 and 4: tiles overlap by as many pixels.
#if defined(USE_CUDA) || defined(CASSI_EMULATED)
constexpr bool kEvenSweeps = true;
#else
constexpr bool kEvenSweeps = false;
#endif

struct TvResult {
  Tensor u, dual;
};

TvResult tv(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& dual,
            int64_t iterations, int64_t norm, bool keep) {
  check_rank(x, "x", 4);
  STD_TORCH_CHECK(iterations >= 0, "iterations: expected at least 0, got ", iterations);
  STD_TORCH_CHECK(norm >= 0 && norm <= 2, "norm: expected 0, 1 or 2, got ", norm);
  const int64_t batch = x.size(0), bands = x.size(1), height = x.size(2), width = x.size(3);
  const Geometry g = {batch, 1, bands, height, width, 0};
  const Dtype sums = sums_of({&x});
  const ScalarType type = scalar_type(sums);
  const std::initializer_list<int64_t> cube = {batch, bands, height, width};
  const std::initializer_list<int64_t> pair = {batch, 2, bands, height, width};
  Tensor u = empty_as(x);
  const bool several = iterations > kTvSweep && u.numel() > 0;
  const int64_t sweeps = several ? (iterations - 1) / kTvSweep + 1 : 1;
  TvProx args = {g,
                 sums,
                 read(x, x, "x", cube),
                 read(weight, x, "weight", {batch}, {true}),
                 {},
                 {},
                 {},
                 0,
                 static_cast<Norm>(norm),
                 torch::stable::get_num_threads()};
  if (dual) args.dual_in = read(*dual, x, "dual", pair);
  // Two buffers in turn: a tile reads what its neighbours must not overwrite yet.
  std::vector<Tensor> buffers;
  for (int64_t i = 0; i < 2 && i < sweeps - 1 + (keep ? 1 : 0); ++i)
    buffers.push_back(empty(x, pair, type));
  int64_t left = iterations;
  int64_t slot = 0;
  for (int64_t i = 0; i < sweeps; ++i) {
    const bool last = i + 1 == sweeps;
    args.iterations = kEvenSweeps ? (left + sweeps - i - 1) / (sweeps - i) : last ? left : kTvSweep;
    left -= args.iterations;
    args.u = last ? view(u, "u", cube) : View{};
    args.dual_out = View{};
    if (!last || keep) {
      args.dual_out = view(buffers[slot], "dual", pair);
    }
    start(args, u);
    if (!last) {
      args.dual_in = args.dual_out;
      slot = 1 - slot;
    }
  }
  return {u, keep ? buffers[slot] : u};
}

Tensor tv_prox(const Tensor& x, const Tensor& weight, int64_t iterations, int64_t norm) {
  return tv(x, weight, std::nullopt, iterations, norm, false).u;
}

std::tuple<Tensor, Tensor> tv_prox_dual(const Tensor& x, const Tensor& weight,
                                        std::optional<Tensor> dual, int64_t iterations,
                                        int64_t norm) {
  TvResult result = tv(x, weight, dual, iterations, norm, true);
  return {result.u, result.dual};
}

Tensor convolve(const Tensor& a, const Tensor& v, bool correlate) {
  check_rank(a, "a", 2);
  check_rank(v, "v", 2);
  const int64_t rows = a.size(0), n = a.size(1), m = v.size(1);
  STD_TORCH_CHECK(n >= 1 && m >= 1, "expected rows of at least one element, got ", n, " and ", m);
  STD_TORCH_CHECK(static_cast<double>(n) + static_cast<double>(m) < kMostElements, "rows of ", n,
                  " and ", m, " elements are too long");
  STD_TORCH_CHECK(!correlate || n >= m, "g: expected at least ", m, " elements, got ", n);
  const int64_t length = correlate ? n - m + 1 : n + m - 1;
  Tensor out = empty(a, {rows, length}, a.scalar_type());
  const View signal = read(a, a, "a", {rows, n}), kernel = read(v, a, "v", {rows, m});
  const View sums = view(out, "out", {rows, length});
  // Kernels hold the second one whole: a convolution may take either for it.
  start(!correlate && m > n
            ? Convolve{rows, m, n, sums_of({&a, &v}), kernel, signal, sums, correlate}
            : Convolve{rows, n, m, sums_of({&a, &v}), signal, kernel, sums, correlate},
        out);
  return out;
}

Tensor convolve1d(const Tensor& a, const Tensor& v) { return convolve(a, v, false); }

Tensor correlate1d(const Tensor& g, const Tensor& v) { return convolve(g, v, true); }

Tensor trilinear(const Tensor& features, const Tensor& points) {
  check_rank(features, "features", 3);
  const int64_t cells = features.size(0), channels = features.size(2);
  Tensor out = empty(features, {cells, channels}, features.scalar_type());
  start(
      Trilinear{cells, channels, sums_of({&features, &points}),
                read(features, features, "features", {cells, 8, channels}),
                read(points, features, "points", {cells, 3}), view(out, "out", {cells, channels})},
      out);
  return out;
}

std::tuple<Tensor, Tensor> trilinear_backward(const Tensor& grad, const Tensor& features,
                                              const Tensor& points) {
  check_rank(features, "features", 3);
  const int64_t cells = features.size(0), channels = features.size(2);
  Tensor grad_features = empty(features, {cells, 8, channels}, features.scalar_type());
  Tensor grad_points = empty(points, {cells, 3}, points.scalar_type());
  start(TrilinearBackward{cells, channels, sums_of({&features, &points}),
                          read(grad, features, "grad", {cells, channels}),
                          read(features, features, "features", {cells, 8, channels}),
                          read(points, features, "points", {cells, 3}),
                          view(grad_features, "grad_features", {cells, 8, channels}),
                          view(grad_points, "grad_points", {cells, 3})},
        grad_points);
  return {grad_features, grad_points};
}

Taps taps_view(const Tensor& taps, const Tensor& starts, const Tensor& like, int64_t batch,
               int64_t bands, bool after) {
  check_rank(taps, "taps", 3);
  STD_TORCH_CHECK(starts.scalar_type() == ScalarType::Long, "starts: expected int64");
  check_device(starts, like, "starts");
  STD_TORCH_CHECK(starts.dim() == 2 && starts.size(1) == bands &&
                      (starts.size(0) == 1 || starts.size(0) == batch),
                  "starts: expected (1 or ", batch, ", ", bands, ")");
  STD_TORCH_CHECK(taps.size(2) >= 1 && taps.size(2) < int64_t{1} << 20,
                  "taps: expected at least one tap and fewer than 2^20, got ", taps.size(2));
  return {read(taps, like, "taps", {batch, bands, taps.size(2)}, {true, false, false}),
          static_cast<const int64_t*>(starts.mutable_data_ptr()),
          starts.size(0) == 1 ? 0 : starts.stride(0),
          starts.stride(1),
          taps.size(2),
          after};
}

Geometry taps_geometry(int64_t batch, int64_t shots, int64_t bands, int64_t height, int64_t width,
                       int64_t detector, int64_t taps, bool after) {
  STD_TORCH_CHECK(detector >= 1 && detector < int64_t{1} << 31,
                  "detector: expected 1 to 2^31 - 1 columns, got ", detector);
  const double rows = static_cast<double>(shots + 2) *
                      (static_cast<double>(detector) + 2.0 * static_cast<double>(width + taps));
  STD_TORCH_CHECK(rows < kMostElements, "a row of all shots is too large");
  STD_TORCH_CHECK(!after || width >= 1, "mask: expected more columns than ", taps - 1, ", got ",
                  width + taps - 1);
  Geometry g = geometry(batch, shots, bands, height, after ? width + taps - 1 : width, 0);
  g.width = width;
  return g;
}

// Where bands move by whole pixels, evenly, and are not spread: their step, the camera of
// `forward`, whose kernels are faster; on the CPU, where the numbers can be looked at.
std::optional<Geometry> as_step(const Taps& taps, const Geometry& g, int64_t detector) {
#if !defined(USE_CUDA) && !defined(CASSI_EMULATED)
  if (g.batch == 0 || (taps.after && taps.count > 1)) return std::nullopt;
  const int64_t step = g.bands > 1 ? taps.starts[taps.starts_band] - taps.starts[0] : 0;
  if (step <= -detector || step >= detector) return std::nullopt;
  Geometry same = g;
  same.step = step;
  if (detector_width(same) != detector) return std::nullopt;
  const View& v = taps.weights;
  for (int64_t b = 0; b < g.batch; ++b) {
    for (int64_t c = 0; c < g.bands; ++c) {
      if (taps.starts[b * taps.starts_batch + c * taps.starts_band] != band_offset(same, c))
        return std::nullopt;
      for (int64_t t = 0; t < taps.count; ++t) {
        const int64_t i = b * v.stride[0] + c * v.stride[1] + t * v.stride[2];
        const double weight = v.dtype == Dtype::f64   ? static_cast<const double*>(v.data)[i]
                              : v.dtype == Dtype::f32 ? static_cast<const float*>(v.data)[i]
                                                      : -1.0;
        if (weight != (t == 0 ? 1.0 : 0.0)) return std::nullopt;
      }
    }
    if (v.stride[0] == 0 && taps.starts_batch == 0) break;
  }
  return same;
#else
  return std::nullopt;
#endif
}

Tensor forward_taps(const Tensor& x, const Tensor& mask, const Tensor& taps, const Tensor& starts,
                    int64_t detector, bool after) {
  check_rank(x, "x", 4);
  check_rank(mask, "mask", 5);
  check_rank(taps, "taps", 3);
  const Geometry g = taps_geometry(x.size(0), mask.size(1), x.size(1), x.size(2), x.size(3),
                                   detector, taps.size(2), after);
  const Taps t = taps_view(taps, starts, x, g.batch, g.bands, after);
  const View from = read(x, x, "x", {g.batch, g.bands, g.height, g.width});
  const View coded = mask_view(mask, x, g, t.coded(0));
  Tensor y = empty(x, {g.batch, g.shots, g.height, detector}, x.scalar_type());
  const View to = view(y, "y", {g.batch, g.shots, g.height, detector});
  const Dtype sums = sums_of({&x, &mask});
  if (const auto same = as_step(t, g, detector))
    start(Forward{*same, sums, from, coded, to}, y);
  else
    start(ForwardTaps{g, detector, sums, from, coded, t, to}, y);
  return y;
}

// v + Aᵀy into x, Aᵀy where there is no v.
Tensor backproject_taps(const std::optional<Tensor>& v, const Tensor& y, const Tensor& mask,
                        const Tensor& taps, const Tensor& starts, bool after, const Geometry& g,
                        Tensor x) {
  const int64_t detector = y.size(3);
  const Taps t = taps_view(taps, starts, y, g.batch, g.bands, after);
  const std::initializer_list<int64_t> cube = {g.batch, g.bands, g.height, g.width};
  const View from = read(y, y, "y", {g.batch, g.shots, g.height, detector});
  const View coded = mask_view(mask, y, g, t.coded(0));
  const View to = view(x, "x", cube), added = v ? read(*v, y, "v", cube) : View{};
  const Dtype sums = v ? sums_of({&*v, &y, &mask}) : sums_of({&y, &mask});
  if (const auto same = as_step(t, g, detector))
    start(Adjoint{*same, sums, from, coded, to, false, added}, x);
  else
    start(AdjointTaps{g, detector, sums, from, coded, t, to, added}, x);
  return x;
}

Tensor adjoint_taps(const Tensor& y, const Tensor& mask, const Tensor& taps, const Tensor& starts,
                    bool channels_last, bool after) {
  check_rank(y, "y", 4);
  check_rank(mask, "mask", 5);
  check_rank(taps, "taps", 3);
  const int64_t bands = taps.size(1), width = mask.size(4) - (after ? taps.size(2) - 1 : 0);
  const Geometry g =
      taps_geometry(y.size(0), y.size(1), bands, y.size(2), width, y.size(3), taps.size(2), after);
  Tensor x = empty(y, {g.batch, bands, g.height, width}, y.scalar_type(), channels_last);
  return backproject_taps({}, y, mask, taps, starts, after, g, x);
}

Tensor add_adjoint_taps(const Tensor& v, const Tensor& y, const Tensor& mask, const Tensor& taps,
                        const Tensor& starts, bool after) {
  check_rank(v, "v", 4);
  check_rank(y, "y", 4);
  check_rank(mask, "mask", 5);
  check_rank(taps, "taps", 3);
  const Geometry g = taps_geometry(v.size(0), mask.size(1), v.size(1), v.size(2), v.size(3),
                                   y.size(3), taps.size(2), after);
  return backproject_taps(v, y, mask, taps, starts, after, g, empty_as(v));
}

Tensor mask_adjoint_taps(const Tensor& x, const Tensor& y, const Tensor& taps, const Tensor& starts,
                         bool after, bool per_sample, bool per_band) {
  check_rank(x, "x", 4);
  check_rank(y, "y", 4);
  check_rank(taps, "taps", 3);
  const int64_t detector = y.size(3);
  const Geometry g = taps_geometry(x.size(0), y.size(1), x.size(1), x.size(2), x.size(3), detector,
                                   taps.size(2), after);
  const Dtype sums = sums_of({&x, &y});
  const int64_t samples = per_sample ? g.batch : 1, bands = per_band ? g.bands : 1;
  const Taps t = taps_view(taps, starts, x, g.batch, g.bands, after);
  const View cube = read(x, x, "x", {g.batch, g.bands, g.height, g.width});
  const View measured = read(y, x, "y", {g.batch, g.shots, g.height, detector});
  const int64_t wide = t.coded(g.width);
  Tensor m = empty(x, {samples, g.shots, bands, g.height, wide}, scalar_type(sums));
  if (g.batch == 0) return torch::stable::zero_(m);
  const View to = view(m, "mask", {samples, g.shots, bands, g.height, wide});
  if (const auto same = as_step(t, g, detector))
    start(MaskAdjoint{*same, sums, cube, measured, to, per_sample, per_band}, m);
  else
    start(MaskAdjointTaps{g, detector, sums, cube, measured, t, to, per_sample, per_band}, m);
  return m;
}

Tensor band_solve(const Tensor& r, const Tensor& gram, const Tensor& rho) {
  check_rank(r, "r", 4);
  check_rank(gram, "gram", 5);
  const Geometry g = geometry(r.size(0), r.size(1), 1, r.size(2), r.size(3), 0);
  const int64_t couplings = gram.size(1) / g.shots;
  STD_TORCH_CHECK(couplings >= 1 && couplings * g.shots == gram.size(1),
                  "gram: expected a multiple of ", g.shots, " in dimension 1, got ", gram.size(1));
  const double elements = static_cast<double>(g.width) * static_cast<double>(g.shots) *
                          (static_cast<double>(gram.size(1)) + 2);
  STD_TORCH_CHECK(elements < kMostElements, "a row of all shots and couplings is too large");
  const std::initializer_list<int64_t> sizes = {g.batch, g.shots, g.height, g.width};
  const View from = read(r, r, "r", sizes);
  const View matrix = read(gram, r, "gram", {g.batch, gram.size(1), g.shots, g.height, g.width},
                           {true, false, false, false, false});
  const View damping = damping_view(rho, r, g, g.width);
  Tensor z = empty(r, {g.batch, g.shots, g.height, g.width}, r.scalar_type());
  start(BandSolve{g, couplings, from, matrix, damping, view(z, "z", sizes)}, z);
  return z;
}

SelectiveScan scan_of(const Tensor& u, const Tensor& delta, const Tensor& rates, const Tensor& b,
                      const Tensor& c) {
  check_rank(u, "u", 3);
  check_rank(rates, "rates", 3);
  const int64_t batch = u.size(0), length = u.size(1), channels = u.size(2);
  const int64_t states = rates.size(2);
  STD_TORCH_CHECK(states >= 1 && states <= kMostStates, "rates: expected 1 to ", kMostStates,
                  " states, got ", states);
  STD_TORCH_CHECK(static_cast<double>(batch) * (static_cast<double>(length) + kScanChunk) *
                          (static_cast<double>(channels) + kScanGroup) * kMostStates <
                      kMostElements,
                  "u: ", batch, " sequences of ", length, " and ", channels, " are too long");
  return {batch,
          length,
          channels,
          states,
          sums_of({&u, &delta, &rates, &b, &c}),
          read(u, u, "u", {batch, length, channels}),
          read(delta, u, "delta", {batch, length, channels}),
          read(rates, u, "rates", {batch, channels, states}, {true, false, false}),
          read(b, u, "b", {batch, length, states}),
          read(c, u, "c", {batch, length, states}),
          {}};
}

Tensor selective_scan(const Tensor& u, const Tensor& delta, const Tensor& rates, const Tensor& b,
                      const Tensor& c) {
  SelectiveScan args = scan_of(u, delta, rates, b, c);
  Tensor y = empty(u, {args.batch, args.length, args.channels}, u.scalar_type());
  args.y = view(y, "y", {args.batch, args.length, args.channels});
  start(args, y);
  return y;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> selective_scan_backward(
    const Tensor& grad, const Tensor& u, const Tensor& delta, const Tensor& rates, const Tensor& b,
    const Tensor& c) {
  SelectiveScanBackward args = {};
  SelectiveScan& scan = args.scan;
  scan = scan_of(u, delta, rates, b, c);
  const std::initializer_list<int64_t> sequence = {scan.batch, scan.length, scan.channels};
  const std::initializer_list<int64_t> matrix = {scan.batch, scan.channels, scan.states};
  const std::initializer_list<int64_t> shares = {scan.groups(), scan.batch, scan.length,
                                                 scan.states};
  args.grad = read(grad, u, "grad", sequence);
  const ScalarType sums = scalar_type(scan.sums);
  Tensor grad_u = empty(u, sequence, u.scalar_type());
  Tensor grad_delta = empty(u, sequence, delta.scalar_type());
  Tensor grad_rates = empty(u, matrix, sums);
  Tensor grad_b = empty(u, shares, sums), grad_c = empty(u, shares, sums);
  if (grad_u.numel() == 0)
    return {grad_u, grad_delta, torch::stable::zero_(grad_rates), grad_b, grad_c};
  Tensor kept = empty(u, {scan.batch * scan.groups(), args.kept_by_a_tile()}, sums);
  args.grad_u = view(grad_u, "grad_u", sequence);
  args.grad_delta = view(grad_delta, "grad_delta", sequence);
  args.grad_rates = view(grad_rates, "grad_rates", matrix);
  args.grad_b = view(grad_b, "grad_b", shares);
  args.grad_c = view(grad_c, "grad_c", shares);
  args.kept = kept.mutable_data_ptr();
  start(args, grad_u);
  return {grad_u, grad_delta, grad_rates, grad_b, grad_c};
}

// Fewer elements than this in one group, so that int32 counts them.
constexpr double kMostGroup = 0x1p31;
// Numbers in the groups that are in memory at a time.
#if defined(USE_CUDA) || defined(CASSI_EMULATED)
constexpr int64_t kGroupNumbers = int64_t{1} << 24;
#else
constexpr int64_t kGroupNumbers = int64_t{1} << 20;
#endif

Tensor shrink_groups(const Tensor& image, const Tensor& groups, const Tensor& threshold,
                     int64_t patch) {
  check_rank(image, "image", 4);
  check_rank(groups, "groups", 3);
  const int64_t batch = image.size(0), channels = image.size(1);
  const int64_t height = image.size(2), width = image.size(3);
  const int64_t count = groups.size(1), matches = groups.size(2);
  STD_TORCH_CHECK(groups.scalar_type() == ScalarType::Long, "groups: expected int64");
  check_device(groups, image, "groups");
  STD_TORCH_CHECK(groups.size(0) == batch, "groups: expected size ", batch, " in dimension 0, got ",
                  groups.size(0));
  STD_TORCH_CHECK(matches >= 1 && matches <= kMostMatches, "groups: expected 1 to ", kMostMatches,
                  " patches in each, got ", matches);
  STD_TORCH_CHECK(patch >= 1 && patch <= height && patch <= width,
                  "patch: expected 1 to the sides of the image, ", height, " and ", width, ", got ",
                  patch);
  // Each group has a work of its own, which no size of the result bounds.
  STD_TORCH_CHECK(count / width <= height && count <= height * width, "groups: expected at most ",
                  "one for each pixel, got ", count);
  const double side = static_cast<double>(patch), pixels = static_cast<double>(width);
  STD_TORCH_CHECK(
      (side * side * static_cast<double>(matches) + pixels) * (static_cast<double>(channels) + 1) <
          kMostGroup,
      "image: a group or a row of all components is too large");
  const Dtype sums = sums_of({&image});
  const View from = read(image, image, "image", {batch, channels, height, width});
  const View levels = read(threshold, image, "threshold", {batch}, {true});
  Tensor total = empty(image, {batch, channels, height, width}, scalar_type(sums), true);
  torch::stable::zero_(total);
  if (total.numel() == 0 || count == 0) return total;
  const int64_t numbers = matches * patch * patch * channels;
  const int64_t fit = numbers < kGroupNumbers ? kGroupNumbers / numbers : 1;
  const int64_t chunk = count < fit ? count : fit;
  // Four numbers more hold the reach of a group.
  Tensor clean = empty(image, {chunk, numbers + 4}, scalar_type(sums));
  const int64_t bytes = sums == Dtype::f64 ? 8 : 4;
  void* const stacks = clean.mutable_data_ptr();
  void* const reach = static_cast<char*>(stacks) + chunk * numbers * bytes;
  const auto sample = [](View v, int64_t b) {
    const int64_t width = v.dtype == Dtype::f64 ? 8 : v.dtype == Dtype::f32 ? 4 : 2;
    v.data = static_cast<char*>(v.data) + b * v.stride[0] * width;
    return v;
  };
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t start_at = 0; start_at < count; start_at += chunk) {
      const Groups g = {count - start_at < chunk ? count - start_at : chunk,
                        matches,
                        patch,
                        channels,
                        height,
                        width,
                        sums,
                        static_cast<const int64_t*>(groups.mutable_data_ptr()) +
                            b * groups.stride(0) + start_at * groups.stride(1),
                        groups.stride(1),
                        groups.stride(2)};
      start(ShrinkGroups{g, sample(from, b), sample(levels, b), stacks, reach}, clean);
      start(AddGroups{g, stacks, reach,
                      static_cast<char*>(total.mutable_data_ptr()) +
                          b * channels * height * width * bytes},
            clean);
    }
  return total;
}

constexpr int64_t kMostSteps = 1000;

std::tuple<Tensor, Tensor> orthogonal_iteration(const Tensor& moments, const Tensor& frame,
                                                int64_t steps) {
  check_rank(frame, "frame", 3);
  const int64_t batch = frame.size(0), size = frame.size(1), rank = frame.size(2);
  STD_TORCH_CHECK(rank >= 1 && rank <= size, "frame: expected 1 to ", size, " columns, got ", rank);
  STD_TORCH_CHECK(steps >= 1 && steps <= kMostSteps, "steps: expected 1 to ", kMostSteps, ", got ",
                  steps);
  STD_TORCH_CHECK(3 * static_cast<double>(size) * static_cast<double>(size) < kMostElements,
                  "frame: ", size, " rows are too many");
  Tensor values = empty(frame, {batch, rank}, ScalarType::Double);
  Tensor found = empty(frame, {batch, size, rank}, ScalarType::Double);
  start(OrthogonalIteration{batch, size, rank, steps,
                            read(moments, frame, "moments", {batch, size, size}),
                            read(frame, frame, "frame", {batch, size, rank}),
                            static_cast<double*>(values.mutable_data_ptr()),
                            static_cast<double*>(found.mutable_data_ptr())},
        found);
  return {values, found};
}

#if !defined(USE_CUDA) && !defined(CASSI_EMULATED)
void check_channels(int64_t inputs, int64_t outputs) {
  const double matrix = (static_cast<double>(inputs) + 64) * (static_cast<double>(outputs) + 64);
  STD_TORCH_CHECK(matrix < kMostElements / 1e6, outputs, " x ", inputs, " channels are too many");
}

Tensor convolve3x3(const Tensor& image, const Tensor& weight, const Tensor& bias,
                   std::optional<Tensor> residual, bool rectify) {
  check_rank(image, "image", 4);
  check_rank(weight, "weight", 4);
  const int64_t batch = image.size(0), inputs = image.size(1), outputs = weight.size(0);
  const int64_t height = image.size(2), width = image.size(3);
  check_channels(inputs, outputs);
  const std::initializer_list<int64_t> sizes = {batch, outputs, height, width};
  Convolve3x3 args = {batch,
                      inputs,
                      outputs,
                      height,
                      width,
                      sums_of({&image, &weight, &bias}),
                      read(image, image, "image", {batch, inputs, height, width}),
                      read(weight, image, "weight", {outputs, inputs, 3, 3}),
                      read(bias, image, "bias", {outputs}),
                      {},
                      {},
                      rectify};
  if (residual) args.residual = read(*residual, image, "residual", sizes);
  Tensor out = empty(image, sizes, image.scalar_type(), true);
  args.out = view(out, "out", sizes);
  start(args, out);
  return out;
}

Tensor convolve3x3_backward(const Tensor& grad, const Tensor& image) {
  check_rank(grad, "grad", 4);
  check_rank(image, "image", 4);
  const int64_t batch = image.size(0), inputs = image.size(1), outputs = grad.size(1);
  const int64_t height = image.size(2), width = image.size(3);
  check_channels(inputs, outputs);
  const Dtype sums = sums_of({&grad, &image});
  const int64_t strips = (height + kStrip - 1) / kStrip;
  Tensor out = empty(image, {batch, strips, 3, 3, inputs, outputs}, scalar_type(sums));
  start(Convolve3x3Backward{batch, inputs, outputs, height, width, sums,
                            read(grad, image, "grad", {batch, outputs, height, width}),
                            read(image, image, "image", {batch, inputs, height, width}),
                            out.mutable_data_ptr()},
        out);
  return out;
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(cassi, CASSI_DEVICE, library) {
  library.impl("forward", TORCH_BOX(&forward));
  library.impl("adjoint", TORCH_BOX(&adjoint));
  library.impl("add_adjoint", TORCH_BOX(&add_adjoint));
  library.impl("forward_subspace", TORCH_BOX(&forward_subspace));
  library.impl("adjoint_subspace", TORCH_BOX(&adjoint_subspace));
  library.impl("mask_adjoint", TORCH_BOX(&mask_adjoint));
  library.impl("ratio_inverse", TORCH_BOX(&ratio_inverse));
  library.impl("gram", TORCH_BOX(&gram));
  library.impl("gram_solve", TORCH_BOX(&gram_solve));
  library.impl("data_step", TORCH_BOX(&data_step));
  library.impl("data_step_backward", TORCH_BOX(&data_step_backward));
  library.impl("tv_prox", TORCH_BOX(&tv_prox));
  library.impl("tv_prox_dual", TORCH_BOX(&tv_prox_dual));
  library.impl("convolve1d", TORCH_BOX(&convolve1d));
  library.impl("correlate1d", TORCH_BOX(&correlate1d));
  library.impl("trilinear", TORCH_BOX(&trilinear));
  library.impl("trilinear_backward", TORCH_BOX(&trilinear_backward));
  library.impl("forward_taps", TORCH_BOX(&forward_taps));
  library.impl("adjoint_taps", TORCH_BOX(&adjoint_taps));
  library.impl("add_adjoint_taps", TORCH_BOX(&add_adjoint_taps));
  library.impl("mask_adjoint_taps", TORCH_BOX(&mask_adjoint_taps));
  library.impl("band_solve", TORCH_BOX(&band_solve));
  library.impl("selective_scan", TORCH_BOX(&selective_scan));
  library.impl("selective_scan_backward", TORCH_BOX(&selective_scan_backward));
  library.impl("shrink_groups", TORCH_BOX(&shrink_groups));
  library.impl("orthogonal_iteration", TORCH_BOX(&orthogonal_iteration));
#if !defined(USE_CUDA) && !defined(CASSI_EMULATED)
  library.impl("convolve3x3", TORCH_BOX(&convolve3x3));
  library.impl("convolve3x3_backward", TORCH_BOX(&convolve3x3_backward));
#endif
}

}  // namespace cassi
