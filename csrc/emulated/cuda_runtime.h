// The part of CUDA that csrc/cuda uses, for a C++ compiler and one CPU thread: the threads of a
// block take turns, each from one barrier to the next, so that kernels run and are tested without a
// GPU.
//
// Environment variables choose the order at each launch; another limit of shared memory is another
// device:
//
//   CASSI_EMULATED_ORDER=descending   of the threads between two barriers; or shuffled, ascending
//   CASSI_EMULATED_SHARED=99          KB of shared memory that a block may ask for (227)
//   CASSI_EMULATED_BLOCKS=2           the most blocks of a grid: kernels must stride over the rest
//   CASSI_EMULATED_SKIP=gram.cu:75    a barrier to leave out
//   CASSI_EMULATED_MEMORY=1           the most KB of scratch memory
//   CASSI_EMULATED_FAIL=2             the error that every launch returns
//   CASSI_EMULATED_BROKEN=1           a request that fails finds that the device failed before
//
// Not shown: inline PTX, registers, streams, several devices, graphs, weak memory order, and the
// rounding of rsqrt and of fused multiply-adds.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#define __host__
#define __device__
#define __global__
#define __shared__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorLaunchFailure = 719
};
enum cudaDeviceAttr { cudaDevAttrMaxSharedMemoryPerBlockOptin = 97 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
using cudaStream_t = void*;

namespace emulated {

// A place in the code where threads wait.
struct Site {
  const char* file;
  int line;
};

struct Thread;
extern Thread* current;
extern dim3 thread_index, block_index, block_size, grid_size;

void barrier(const Site& site);
void copy_later(void* to, const void* from, int bytes);
void await_copies();
[[noreturn]] void misaligned();

cudaError_t allow_shared(const void* kernel, int bytes);
cudaError_t launch(const void* kernel, void (*entry)(void*), void* call, dim3 grid, dim3 block,
                   size_t shared);

template <class... P>
struct Call {
  void (*kernel)(P...);
  void** args;
  template <size_t... I>
  void operator()(std::index_sequence<I...>) const {
    kernel(*static_cast<std::remove_const_t<P>*>(args[I])...);
  }
};

template <class T>
T read_only(const T* p) {
  if (reinterpret_cast<uintptr_t>(p) % sizeof(T) != 0) misaligned();
  return *p;
}

}  // namespace emulated

#define threadIdx emulated::thread_index
#define blockIdx emulated::block_index
#define blockDim emulated::block_size
#define gridDim emulated::grid_size
#define __ldg(p) emulated::read_only(p)
#define __syncthreads()                                          \
  do {                                                           \
    static constexpr emulated::Site here = {__FILE__, __LINE__}; \
    emulated::barrier(here);                                     \
  } while (false)

using std::exp;
using std::sqrt;
inline float rsqrtf(float a) { return 1.0f / std::sqrt(a); }
inline double rsqrt(double a) { return 1.0 / std::sqrt(a); }

const char* cudaGetErrorString(cudaError_t code);
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device);

template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute, int value) {
  return emulated::allow_shared(reinterpret_cast<const void*>(kernel), value);
}

template <class... P>
cudaError_t cudaLaunchKernel(void (*kernel)(P...), dim3 grid, dim3 block, void** args,
                             size_t shared, cudaStream_t) {
  emulated::Call<P...> call = {kernel, args};
  const auto entry = [](void* call) {
    (*static_cast<emulated::Call<P...>*>(call))(std::index_sequence_for<P...>());
  };
  return emulated::launch(reinterpret_cast<const void*>(kernel), entry, &call, grid, block, shared);
}
