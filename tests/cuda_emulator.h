// A CUDA device for generated kernels, on one CPU thread: see cuda_emulator.py.
//
// Each thread of a block is a fiber that runs until its next barrier. Between two barriers the
// fibers run one after another, in an order drawn anew each time.

#pragma once

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

// ---- What the text takes from CUDA ----

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)

using uchar = unsigned char;

struct uint3 { unsigned x, y, z; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(4) ushort2 { unsigned short x, y; };
struct alignas(8) ushort4 { unsigned short x, y, z, w; };

inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }

template <class A, class B> auto max(A a, B b) { return a > b ? a : b; }
template <class A, class B> auto min(A a, B b) { return a < b ? a : b; }

namespace emulator {

constexpr size_t kStackBytes = 1 << 18;      // of a fiber; pages that no kernel touches are free
constexpr size_t kSharedBytes = 227 * 1024;  // the most of any GPU

struct Copy {
  char* to;
  const char* from;
  int bytes;
  bool guard;  // false: zeros
};

struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  uint3 index;
  bool finished;
  std::vector<Copy> uncommitted;
  std::deque<std::vector<Copy>> groups;  // oldest first
};

struct Region {
  char* start;
  size_t bytes;

  bool holds(const char* from, size_t size) const {
    return from >= start && from + size <= start + bytes;
  }
};

// static: inline variables would be one for all loaded kernels
static std::vector<Region> buffers;  // global memory, an array each
static std::string faults;           // in words, a line each
static std::mt19937 order;
static Region shared;                // of the current block
alignas(128) static char shared_memory[kSharedBytes];

static Thread* current;
static ucontext_t scheduler;
static uint3 block_index;
static std::function<void()> body;  // of the current kernel

inline void fault(const std::string& what) {
  if (faults.find(what) == std::string::npos) faults += what + "\n";
}

inline bool in_a_buffer(const char* from, int bytes) {
  return std::any_of(buffers.begin(), buffers.end(),
                     [=](const Region& buffer) { return buffer.holds(from, bytes); });
}

inline bool aligned(const void* pointer, int bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

inline void fill_with_nan(char* start, size_t bytes) {
  const float nan = NAN;
  for (size_t at = 0; at + sizeof nan <= bytes; at += sizeof nan)
    std::memcpy(start + at, &nan, sizeof nan);
}

// ---- What helpers of the text are replaced by ----

inline char* at(void* start, long bytes) { return static_cast<char*>(start) + bytes; }

inline const char* at(const void* start, long bytes) {
  return static_cast<const char*>(start) + bytes;
}

inline float held_load(const char* from, bool guard) {
  if (!guard) return 0;
  if (!in_a_buffer(from, sizeof(float)) || !aligned(from, sizeof(float))) {
    fault("a held load outside its buffer");
    return NAN;
  }
  float value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// The earliest a copy may overwrite its destination is now, the latest its data may be relied on is
// after a wait: between them it holds NaN.
inline void copy(char* to, const char* from, int bytes, bool guard) {
  if (!shared.holds(to, bytes)) return fault("a copy to outside of shared memory");
  if (guard && !in_a_buffer(from, bytes)) return fault("a copy from outside its buffer");
  if (!aligned(to, bytes) || (guard && !aligned(from, bytes))) fault("a copy that is not aligned");
  fill_with_nan(to, bytes);
  current->uncommitted.push_back({to, from, bytes, guard});
}

inline void commit() {
  current->groups.push_back(std::move(current->uncommitted));
  current->uncommitted.clear();
}

inline void wait(size_t groups_left) {
  for (auto& groups = current->groups; groups.size() > groups_left; groups.pop_front())
    for (const Copy& c : groups.front())
      if (c.guard) std::memcpy(c.to, c.from, c.bytes);
      else std::memset(c.to, 0, c.bytes);
}

// ---- Launches ----

inline void barrier() { swapcontext(&current->context, &scheduler); }

inline void run_thread() {
  body();
  current->finished = true;
  swapcontext(&current->context, &scheduler);
}

inline void start(Thread& thread, unsigned id, const uint3& block) {
  thread.index = {id % block.x, id / block.x % block.y, id / block.x / block.y};
  thread.finished = false;
  thread.uncommitted.clear();
  thread.groups.clear();
  getcontext(&thread.context);
  thread.context.uc_stack.ss_sp = thread.stack.get();
  thread.context.uc_stack.ss_size = kStackBytes;
  thread.context.uc_link = nullptr;
  makecontext(&thread.context, run_thread, 0);
}

// To the next barrier, all threads of a block; how many have come to the end.
inline size_t run_to_barrier(std::vector<Thread*>& threads) {
  std::shuffle(threads.begin(), threads.end(), order);
  for (Thread* thread : threads) {
    current = thread;
    swapcontext(&scheduler, &thread->context);
  }
  return std::count_if(threads.begin(), threads.end(), [](Thread* t) { return t->finished; });
}

inline void run_block(std::vector<Thread>& threads, const uint3& block) {
  fill_with_nan(shared_memory, kSharedBytes);
  std::vector<Thread*> running;
  for (Thread& thread : threads) {
    start(thread, running.size(), block);
    running.push_back(&thread);
  }
  size_t finished = 0;
  while (finished == 0) finished = run_to_barrier(running);
  if (finished < threads.size()) fault("a barrier that only some threads of a block came to");
}

template <class... Pointers, size_t... I>
void launch(void (*kernel)(Pointers...), const std::array<int, sizeof...(Pointers)>& arguments,
            uint3 grid, uint3 block, size_t shared_bytes, std::index_sequence<I...>) {
  body = [=] { kernel(reinterpret_cast<Pointers>(buffers[arguments[I]].start)...); };
  shared = {shared_memory, shared_bytes};
  std::vector<Thread> threads(block.x * block.y * block.z);
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        block_index = {x, y, z};
        run_block(threads, block);
      }
}

// Arguments are the places of arrays in `buffers`.
template <class... Pointers>
void launch(void (*kernel)(Pointers...), const std::array<int, sizeof...(Pointers)>& arguments,
            uint3 grid, uint3 block, size_t shared_bytes) {
  launch(kernel, arguments, grid, block, shared_bytes, std::index_sequence_for<Pointers...>());
}

}  // namespace emulator

#define threadIdx (emulator::current->index)
#define blockIdx (emulator::block_index)

inline void __syncthreads() { emulator::barrier(); }
