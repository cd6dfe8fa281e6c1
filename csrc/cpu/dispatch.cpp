// Chooses the kernels for this processor, shares their tiles among torch's threads, and holds the
// scratch memory of each.
#include <torch/csrc/stable/ops.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#if defined(CASSI_X86)
#include <cpuid.h>
#endif

#include "../kernels.h"

#define CASSI_DECLARE(ISA, Args)                     \
  namespace ISA {                                    \
  int64_t work(const Args&);                         \
  void run(const Args&, int64_t begin, int64_t end); \
  }

#if defined(CASSI_X86)
#define CASSI_KERNEL(Args)      \
  CASSI_DECLARE(avx512, Args)   \
  CASSI_DECLARE(avx2, Args)     \
  CASSI_DECLARE(baseline, Args) \
  CASSI_LAUNCH(Args)
#else
#define CASSI_KERNEL(Args) CASSI_DECLARE(baseline, Args) CASSI_LAUNCH(Args)
#endif

namespace cassi {

namespace {

struct Free {
  void operator()(char* memory) const { std::free(memory); }
};

thread_local std::unique_ptr<char, Free> memory;
thread_local int64_t available = 0;

enum class Isa { baseline, avx2, avx512 };

#if defined(CASSI_X86)
// Some compilers do not know the name of this feature.
bool f16c() {
  unsigned a, b, c = 0, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

// CASSI_ISA=baseline or avx2 asks for less than the processor has, for tests and comparisons.
Isa choose() {
#if defined(CASSI_X86)
  const char* wish = std::getenv("CASSI_ISA");
  const bool low = wish && !std::strcmp(wish, "baseline");
  const bool middle = wish && !std::strcmp(wish, "avx2");
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512bw");
  if (avx512 && !low && !middle) return Isa::avx512;
  if (avx2 && !low) return Isa::avx2;
#endif
  return Isa::baseline;
}

template <class Args>
using Run = void (*)(const Args&, int64_t, int64_t);

template <class Args>
void share(const Args& args, int64_t work, Run<Args> run) {
  torch::stable::parallel_for(0, work, 1,
                              [&](int64_t begin, int64_t end) { run(args, begin, end); });
}

}  // namespace

// The sanitizer sees what is touched behind exactly as many bytes as were asked for.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kExact = true;
#else
constexpr bool kExact = false;
#endif

char* scratch(int64_t bytes) {
  if (bytes > available || (kExact && bytes < available)) {
    const int64_t size = kExact ? bytes : (bytes + 4095) / 4096 * 4096;
    void* fresh = nullptr;
    STD_TORCH_CHECK(posix_memalign(&fresh, 4096, size) == 0, "cassi: can't allocate memory for ",
                    size, " bytes of scratch");
    memory.reset(static_cast<char*>(fresh));
    available = size;
  }
  return memory.get();
}

#if defined(CASSI_X86)
#define CASSI_LAUNCH(Args)                                                             \
  void launch(const Args& args, void*) {                                               \
    static const Isa isa = choose();                                                   \
    if (isa == Isa::avx512) return share<Args>(args, avx512::work(args), avx512::run); \
    if (isa == Isa::avx2) return share<Args>(args, avx2::work(args), avx2::run);       \
    share<Args>(args, baseline::work(args), baseline::run);                            \
  }
#else
#define CASSI_LAUNCH(Args) \
  void launch(const Args& args, void*) { share<Args>(args, baseline::work(args), baseline::run); }
#endif

CASSI_KERNEL(Forward)
CASSI_KERNEL(Adjoint)
CASSI_KERNEL(MaskAdjoint)
CASSI_KERNEL(Gram)
CASSI_KERNEL(GramSolve)
CASSI_KERNEL(DataStep)
CASSI_KERNEL(DataStepBackward)
CASSI_KERNEL(TvProx)
CASSI_KERNEL(Convolve)
CASSI_KERNEL(Trilinear)
CASSI_KERNEL(TrilinearBackward)
CASSI_KERNEL(ForwardTaps)
CASSI_KERNEL(AdjointTaps)
CASSI_KERNEL(MaskAdjointTaps)
CASSI_KERNEL(BandSolve)
CASSI_KERNEL(SelectiveScan)
CASSI_KERNEL(SelectiveScanBackward)
CASSI_KERNEL(ShrinkGroups)
CASSI_KERNEL(AddGroups)
CASSI_KERNEL(OrthogonalIteration)
CASSI_KERNEL(Convolve3x3)
CASSI_KERNEL(Convolve3x3Backward)

}  // namespace cassi
