// Scratch memory from torch's allocator, kept out of the files that nvcc compiles: torch's headers
// would be most of what it reads.
#include <cuda_runtime.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "memory.h"

// CUDA's version and the architectures that there is code for, read from the file before it is
// loaded, see ops/_library.py.
extern "C" const char cassi_cuda_build[];
__attribute__((used)) const char cassi_cuda_build[] = "cassi-cuda-build:" CASSI_CUDA_BUILD ";";

namespace cassi {
namespace cuda {

Memory allocate(int64_t bytes, int device) {
  using torch::stable::Tensor;
  const auto tensor = std::make_shared<Tensor>(
      torch::stable::empty({bytes}, torch::headeronly::ScalarType::Byte, std::nullopt,
                           torch::stable::Device(torch::headeronly::DeviceType::CUDA, device)));
  return {tensor, tensor->mutable_data_ptr()};
}

void check_earlier() {
  size_t free = 0, total = 0;
  const cudaError_t code = cudaMemGetInfo(&free, &total);
  if (code != cudaSuccess)
    throw std::runtime_error(std::string("cassi: the device failed earlier: ") +
                             cudaGetErrorString(code));
}

}  // namespace cuda
}  // namespace cassi
