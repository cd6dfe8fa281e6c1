// Steps that several operators are composed of.
#pragma once

#include "device.cuh"

namespace cassi {
namespace cuda {

// x = v ± Aᵀy, or without v what Adjoint says. v has the dtype of x. (adjoint.cu)
struct Backproject {
  Adjoint a;
  View v;
  bool subtract;
};
void backproject(const Backproject&, void* stream);

// z = (G + diag ρ)⁺ (y − r), or of r without y, which z may overwrite. A copy of z goes to `copy`,
// if there is one. (gram.cu)
struct Solve {
  GramSolve a;
  View y, copy;
};
void solve(const Solve&, void* stream);

// out[i] = Σ_b parts[b·n + i], in order, in the dtype of the sums. (mask_adjoint.cu)
void sum_batch(const void* parts, void* out, int64_t batch, int64_t n, Dtype sums, void* stream);

// The gradients of the data step with respect to mask and ρ, from w and z, (B, K, H, W') in the
// dtype of the sums. (data_step_gradients.cu)
void gradients(const DataStepBackward&, const View& w, const View& z, bool mask, bool rho,
               void* stream);

// tv_prox with one norm for all bands. (tv_prox_coupled.cu)
void tv_coupled(const TvProx&, void* stream);

}  // namespace cuda
}  // namespace cassi
