// Runs the blocks of a grid one after the other, and the threads of a block in turns.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda_runtime.h"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace cassi {
namespace cuda {
// The shared memory that kernels declare for a block, and behind it a guard that they must not
// write to.
constexpr size_t kMostShared = 227 << 10, kGuard = 4096;
extern uint4 cassi_shared[(kMostShared + kGuard) / 16];
uint4 cassi_shared[(kMostShared + kGuard) / 16];
}  // namespace cuda
}  // namespace cassi

namespace emulated {

// A stack of its own, and the way from one to another.
#if defined(__x86_64__)
using Context = void*;
extern "C" void cassi_emulated_switch(Context* from, Context* to);
asm(R"(
.text
.type cassi_emulated_switch, @function
cassi_emulated_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq (%rsi), %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cassi_emulated_switch, . - cassi_emulated_switch
)");
void prepare(Context* context, char* stack, size_t bytes, void (*entry)()) {
  void** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack) + bytes) / 16 * 16);
  *--top = nullptr;  // where `entry` would return to
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  *context = top;
}
#else
using Context = ucontext_t;
void cassi_emulated_switch(Context* from, Context* to) { swapcontext(from, to); }
void prepare(Context* context, char* stack, size_t bytes, void (*entry)()) {
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = bytes;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
}
#endif

struct Copy {
  void* to;
  const void* from;
  int bytes;
};

struct Thread {
  Context context;
  char* stack;
  dim3 index;
  bool started, ended;
  const Site* site;  // of the barrier where it waits
  std::vector<Copy> copies;
};

Thread* current = nullptr;
dim3 thread_index, block_index, block_size, grid_size;

namespace {

// The device does one thing at a time, whichever host thread asks for it.
std::mutex device, attributes;
std::map<std::pair<const void*, int64_t>, int> allowed;  // by kernel and device
std::vector<Thread> threads;
std::vector<char*> free_stacks;
Context scheduler;
void (*run_kernel)(void*) = nullptr;
void* kernel_call = nullptr;
std::string problem, skipped;  // FILE:LINE of a barrier
int skipped_line = 0;
// An odd number of cache lines, so that stacks do not compete for the same ones.
constexpr size_t kStack = (32 << 10) + 5 * 64;

int64_t setting(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::atoll(text) : otherwise;
}

int64_t most_shared() {
  const int64_t bytes = setting("CASSI_EMULATED_SHARED", 227) << 10;
  return bytes < int64_t{cassi::cuda::kMostShared} ? bytes : cassi::cuda::kMostShared;
}

std::string name_of(const Site& site) {
  const char* base = std::strrchr(site.file, '/');
  return std::string(base ? base + 1 : site.file) + ":" + std::to_string(site.line);
}

bool is_skipped(const Site& site) { return site.line == skipped_line && name_of(site) == skipped; }

void to_scheduler() { cassi_emulated_switch(&current->context, &scheduler); }

void run_thread() {
  run_kernel(kernel_call);
  if (!current->copies.empty() && problem.empty()) problem = "a thread ended before its copies";
  current->ended = true;
  for (;;) to_scheduler();
}

void take_turn(Thread& thread) {
  if (!thread.started) {
    if (free_stacks.empty()) free_stacks.push_back(static_cast<char*>(std::malloc(kStack)));
    thread.stack = free_stacks.back();
    free_stacks.pop_back();
    prepare(&thread.context, thread.stack, kStack, run_thread);
    thread.started = true;
  }
  current = &thread;
  thread_index = thread.index;
  cassi_emulated_switch(&scheduler, &thread.context);
  if (thread.ended) free_stacks.push_back(thread.stack);
}

// False where the threads do not meet at the same barriers, see `problem`.
bool run_block(const std::string& order) {
  static uint32_t random = 1;
  const size_t n = size_t{block_size.x} * block_size.y * block_size.z;
  threads.resize(n);
  std::vector<Thread*> turns(n);
  for (size_t i = 0; i < n; ++i) {
    Thread& thread = threads[i];
    thread.started = thread.ended = false;
    thread.copies.clear();
    thread.index =
        dim3(i % block_size.x, i / block_size.x % block_size.y, i / block_size.x / block_size.y);
    turns[order == "descending" ? n - 1 - i : i] = &thread;
  }
  for (;;) {
    if (order == "shuffled")
      for (size_t i = n; i > 1; --i)
        std::swap(turns[i - 1], turns[((random = random * 1664525u + 1013904223u) >> 8) % i]);
    size_t waiting = 0;
    const Site* site = nullptr;
    for (Thread* thread : turns) {
      if (thread->ended) continue;
      take_turn(*thread);
      if (!problem.empty()) break;
      if (thread->ended) continue;
      if (site && site != thread->site) {
        problem = "threads wait at " + name_of(*site) + " and at " + name_of(*thread->site);
        break;
      }
      site = thread->site;
      ++waiting;
    }
    if (problem.empty() && waiting > 0 && waiting < n)
      problem = "threads ended while others wait at " + name_of(*site);
    if (!problem.empty()) break;
    if (waiting == 0) return true;
  }
  for (Thread& thread : threads)
    if (thread.started && !thread.ended) free_stacks.push_back(thread.stack);
  return false;
}

}  // namespace

void barrier(const Site& site) {
  if (is_skipped(site)) return;
  current->site = &site;
  to_scheduler();
}

// As late as allowed: until `await_copies`, there is nothing to be read.
void copy_later(void* to, const void* from, int bytes) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % bytes != 0)
    misaligned();
  std::memset(to, 0xff, bytes);
  current->copies.push_back({to, from, bytes});
}

void await_copies() {
  for (const Copy& copy : current->copies) std::memcpy(copy.to, copy.from, copy.bytes);
  current->copies.clear();
}

void misaligned() {
  problem = "misaligned address";
  for (;;) to_scheduler();
}

cudaError_t allow_shared(const void* kernel, int bytes) {
  if (bytes > most_shared()) return cudaErrorInvalidValue;
  {
    const std::lock_guard<std::mutex> lock(attributes);
    allowed[{kernel, most_shared()}] = bytes;
  }
  // Whoever else sets it does so now.
  std::this_thread::sleep_for(std::chrono::microseconds(200));
  return cudaSuccess;
}

cudaError_t launch(const void* kernel, void (*entry)(void*), void* call, dim3 grid, dim3 block,
                   size_t shared) {
  const size_t n = size_t{block.x} * block.y * block.z;
  if (n == 0 || n > 1024 || block.z > 64 || grid.x == 0 || grid.x > 0x7fffffffu ||
      grid.y * grid.z != 1)
    return cudaErrorInvalidConfiguration;
  {
    const std::lock_guard<std::mutex> lock(attributes);
    const auto limit = allowed.find({kernel, most_shared()});
    const size_t most = limit == allowed.end() ? 0 : static_cast<size_t>(limit->second);
    if (shared > (48 << 10) && shared > most) return cudaErrorInvalidValue;
  }
  if (const int64_t code = setting("CASSI_EMULATED_FAIL", 0)) return static_cast<cudaError_t>(code);
  const char* text = std::getenv("CASSI_EMULATED_ORDER");
  const std::string order = text ? text : "ascending";
  const std::lock_guard<std::mutex> lock(device);
  text = std::getenv("CASSI_EMULATED_SKIP");
  skipped = text ? text : "";
  skipped_line = std::atoi(skipped.c_str() + skipped.find(':') + 1);
  problem.clear();
  const unsigned most = static_cast<unsigned>(setting("CASSI_EMULATED_BLOCKS", 0x7fffffff));
  grid.x = grid.x < most ? grid.x : most;
  grid_size = grid;
  block_size = block;
  run_kernel = entry;
  kernel_call = call;
  char* memory = reinterpret_cast<char*>(cassi::cuda::cassi_shared);
  for (unsigned i = 0; i < grid.x && problem.empty(); ++i) {
    std::memset(memory, 0xff, shared + cassi::cuda::kGuard);  // NaN in every dtype
    block_index = dim3(i, 0, 0);
    run_block(order);
    for (size_t k = 0; k < cassi::cuda::kGuard; ++k)
      if (memory[shared + k] != static_cast<char>(0xff)) problem = "wrote beyond shared memory";
  }
  return problem.empty() ? cudaSuccess : cudaErrorLaunchFailure;
}

}  // namespace emulated

const char* cudaGetErrorString(cudaError_t code) {
  switch (code) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    default:
      return emulated::problem.c_str();
  }
}

cudaError_t cudaGetDevice(int* device) {
  *device = static_cast<int>(emulated::most_shared() >> 10);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = static_cast<int>(emulated::most_shared());
  return cudaSuccess;
}
