// An sm_90 for schedules/tensor_core/wgmma.cuh on one CPU thread: the functions of sm90.cuh.
//
// Each thread of a block is a fiber, which runs until it waits for something; who runs next is drawn
// anew each time. Asynchronous copies land at a random later moment, their destination holds NaN
// until then. wgmma reads shared memory when it is waited for, the latest moment it may, and its
// sums are NaN until then: what is released, overwritten or read too early shows in the result.
// Accesses of global memory must lie inside a registered array and be aligned.
//
// Not covered: what ptxas makes of the text, the order of memory accesses between threads that no
// barrier orders, the truncation of the tensor core's sums.

#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#define DEVICE inline
#define __align__(n)

struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) int2 { int x, y; };
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
using std::max;
using std::min;

namespace emulator {

constexpr size_t kStackBytes = 1 << 16;
constexpr int kSharedBytes = 227 * 1024;
constexpr int kIdleRounds = 2000;  // of all threads, none of which could go on: a deadlock

struct Product {  // a wgmma of one thread
  float* sums;
  unsigned a[4];
  uint64_t b;
  bool keep;
  int columns;
};
using Group = std::vector<Product>;

struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  int index;
  bool finished;
  std::vector<std::function<void()>> copies;    // since the last arrival
  int landing;                                  // arrivals whose copies are under way
  Group products;                               // since the last commit
  std::vector<Group> groups;                    // oldest first
  std::map<float*, std::vector<float>> hidden;  // what sums in the tensor core are
};

struct Barrier { int phase, pending, arrivals; long bytes; };
struct Meeting { int come = 0, generation = 0; std::vector<void*> given; };
struct Region { const char* start; size_t bytes; };

static std::vector<Region> buffers;
static std::string faults;
static std::mt19937 order;
alignas(1024) static char shared[kSharedBytes + 1024];
static int shared_bytes, block, blocks, threads_of_block;
static std::vector<Thread> threads;
static Thread* current;
static ucontext_t scheduler;
static std::function<void()> body;
static std::map<unsigned, Barrier> barriers;
static std::map<int, Meeting> meetings;
static std::vector<std::function<void()>> events;  // of the copy engine
static bool moved;                                 // since the last round

inline void fault(const std::string& what) {
  if (faults.find(what) == std::string::npos) faults += what + "\n";
}

inline void yield() { swapcontext(&current->context, &scheduler); }

inline bool inside(const void* from, size_t bytes) {
  const char* start = static_cast<const char*>(from);
  for (const Region& r : buffers)
    if (start >= r.start && start + bytes <= r.start + r.bytes) return true;
  return false;
}

template <class T> bool check(const T* at, const char* what) {
  const bool aligned = reinterpret_cast<uintptr_t>(at) % sizeof(T) == 0;
  if (inside(at, sizeof(T)) && aligned) return true;
  fault(std::string(what) + (aligned ? " outside of an array" : " that is not aligned"));
  return false;
}

inline char* shared_at(unsigned at, int bytes) {
  if (at % std::min(bytes, 16) == 0 && (int)at + bytes <= shared_bytes) return shared + at;
  fault("an access outside of shared memory or not aligned");
  return shared;
}

inline void poison(char* at, int bytes) {
  const float nan = NAN;
  for (int i = 0; i < bytes; i += 4) std::memcpy(at + i, &nan, 4);
}

// ---- Barriers ----

inline void settle(Barrier& b) {
  moved = true;
  if (b.pending < 0) fault("more arrivals than a barrier waits for");
  if (b.pending == 0 && b.bytes == 0) b.phase ^= 1, b.pending = b.arrivals;
}

// All `size` threads of a place meet; the last calls `act` with what each has given, by `index`.
template <class Act> void meet(int place, int index, int size, void* given, Act act) {
  Meeting& m = meetings[place];
  m.given.resize(size);
  m.given[index] = given;
  const int generation = m.generation;
  if (++m.come == size) {
    act(m.given);
    m.come = 0, ++m.generation, moved = true;
  } else {
    while (m.generation == generation) yield();
  }
}
inline void meet(int place, int size) {
  Meeting& m = meetings[place];
  const int generation = m.generation;
  if (++m.come == size) m.come = 0, ++m.generation, moved = true;
  else while (m.generation == generation) yield();
}

constexpr int kBlock = 1000, kWarp = 2000, kWarpgroup = 3000, kGroupOfLanes = 4000;

// ---- The tensor core ----

inline float half_value(unsigned bits) {
  _Float16 h;
  const uint16_t low = bits;
  std::memcpy(&h, &low, 2);
  return h;
}
inline unsigned half_bits(float v) {
  const _Float16 h = (_Float16)v;
  uint16_t bits;
  std::memcpy(&bits, &h, 2);
  return bits;
}

// Element (row, k) of a described operand of fp16 in rows of 128 bytes, swizzled.
inline float operand(uint64_t description, int row, int k) {
  const unsigned start = (description & 0x3fff) << 4;
  const unsigned group = ((description >> 32) & 0x3fff) << 4;
  unsigned at = start + row / 8 * group + row % 8 * 128 + k * 2;
  at ^= (at >> 7 & 7) << 4;
  uint16_t bits;
  std::memcpy(&bits, shared_at(at, 2), 2);
  return half_value(bits);
}

// One wgmma of the 128 threads of a warpgroup; a product of two halves is exact in float64.
inline void run_product(const std::vector<Product*>& p) {
  float a[64][16], b[16];
  for (int i = 0; i < 128; ++i)
    for (int r = 0; r < 4; ++r)
      for (int e = 0; e < 2; ++e)
        a[i / 32 * 16 + i % 32 / 4 + 8 * (r % 2)][i % 4 * 2 + e + r / 2 * 8] =
            half_value(p[i]->a[r] >> (16 * e));
  for (int column = 0; column < p[0]->columns; ++column) {
    for (int k = 0; k < 16; ++k) b[k] = operand(p[0]->b, column, k);
    for (int row = 0; row < 64; ++row) {
      const int thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
      float& sum = p[thread]->sums[column / 8 * 4 + row % 16 / 8 * 2 + column % 2];
      double value = p[thread]->keep ? sum : 0;
      for (int k = 0; k < 16; ++k) value += (double)a[row][k] * b[k];
      sum = (float)value;
    }
  }
}

inline void run_groups(const std::vector<void*>& given, size_t left) {
  Thread* first = static_cast<Thread*>(given[0]);
  const size_t count = first->groups.size() - left;
  for (size_t g = 0; g < count; ++g)
    for (size_t i = 0; i < first->groups[g].size(); ++i) {
      std::vector<Product*> products;
      for (void* t : given) products.push_back(&static_cast<Thread*>(t)->groups[g][i]);
      run_product(products);
    }
  for (void* t : given) {
    Thread& thread = *static_cast<Thread*>(t);
    thread.groups.erase(thread.groups.begin(), thread.groups.begin() + count);
    if (!thread.groups.empty()) continue;
    for (auto& [sums, values] : thread.hidden) std::copy(values.begin(), values.end(), sums);
    thread.hidden.clear();
  }
}

// ---- Launches ----

inline void run_thread() {
  body();
  current->finished = true;
  yield();
}

inline void start(Thread& thread, int index) {
  thread.index = index;
  thread.finished = false;
  thread.landing = 0;
  thread.copies.clear(), thread.products.clear(), thread.groups.clear(), thread.hidden.clear();
  getcontext(&thread.context);
  thread.context.uc_stack.ss_sp = thread.stack.get();
  thread.context.uc_stack.ss_size = kStackBytes;
  thread.context.uc_link = nullptr;
  makecontext(&thread.context, run_thread, 0);
}

inline void run_events() {
  std::vector<std::function<void()>> later;
  for (auto& event : events)
    if (order() % 2) event();
    else later.push_back(std::move(event));
  moved = moved || later.size() < events.size();
  events = std::move(later);
}

inline void run_block() {
  poison(shared, kSharedBytes);
  barriers.clear(), meetings.clear(), events.clear();
  std::vector<Thread*> running;
  for (int i = 0; i < threads_of_block; ++i) {
    start(threads[i], i);
    running.push_back(&threads[i]);
  }
  for (int idle = 0; !running.empty(); idle = moved ? 0 : idle + 1) {
    if (idle > kIdleRounds) return fault("threads that wait for ever");
    moved = false;
    std::shuffle(running.begin(), running.end(), order);
    for (Thread* thread : running) {
      current = thread;
      swapcontext(&scheduler, &thread->context);
    }
    run_events();
    running.erase(std::remove_if(running.begin(), running.end(), [](Thread* t) { return t->finished; }),
                  running.end());
  }
}

inline void launch(int grid, int block_threads, int dynamic_bytes, std::function<void()> kernel) {
  threads = std::vector<Thread>(block_threads);
  threads_of_block = block_threads, blocks = grid, body = std::move(kernel);
  shared_bytes = dynamic_bytes;
  for (block = 0; block < grid && faults.empty(); ++block) run_block();
}

}  // namespace emulator

// ---- sm90.cuh ----

inline int thread_index() { return emulator::current->index; }
inline int block_index() { return emulator::block; }
inline int block_count() { return emulator::blocks; }
inline unsigned shared_address(const void* pointer) {
  return static_cast<const char*>(pointer) - emulator::shared;
}

inline float4 load_shared(unsigned from) {
  float4 v;
  std::memcpy(&v, emulator::shared_at(from, 16), 16);
  return v;
}
inline int load_shared_int(unsigned from) {
  int v;
  std::memcpy(&v, emulator::shared_at(from, 4), 4);
  return v;
}
inline void store_shared_int(unsigned to, int v) {
  std::memcpy(emulator::shared_at(to, 4), &v, 4);
}
inline int2 load_shared_pair(unsigned from) {
  int2 v;
  std::memcpy(&v, emulator::shared_at(from, 8), 8);
  return v;
}
inline void store_shared_pair(unsigned to, int2 v) {
  std::memcpy(emulator::shared_at(to, 8), &v, 8);
}
inline float load_constant(const float* from) {
  return emulator::check(from, "a load") ? *from : NAN;
}
inline unsigned load_constant(const unsigned* from) {
  return emulator::check(from, "a load") ? *from : 0;
}
inline float4 load_constant4(const float* from) {
  const float4* vector = reinterpret_cast<const float4*>(from);
  return emulator::check(vector, "a vector load") ? *vector : float4{NAN, NAN, NAN, NAN};
}
template <class T> void store_global(T* to, T v) {
  if (emulator::check(to, "a store")) *to = v;
}
inline void store_global4(float* to, float4 v) {
  float4* vector = reinterpret_cast<float4*>(to);
  if (emulator::check(vector, "a vector store")) *vector = v;
}

inline void copy16(unsigned to, const void* from, bool valid) {
  const float4* source = static_cast<const float4*>(from);
  char* place = emulator::shared_at(to, 16);
  if (valid && !emulator::check(source, "a copy")) return;
  emulator::poison(place, 16);
  emulator::current->copies.push_back([=] {
    if (valid) std::memcpy(place, source, 16);
    else std::memset(place, 0, 16);
  });
}
inline void arrive_after_copies(unsigned barrier) {
  emulator::Thread* thread = emulator::current;
  ++thread->landing;
  emulator::events.push_back([barrier, thread, copies = std::move(thread->copies)] {
    for (auto& copy : copies) copy();
    --thread->landing;
    emulator::Barrier& b = emulator::barriers.at(barrier);
    --b.pending, emulator::settle(b);
  });
  thread->copies.clear();
}
inline void wait_for_copies() {
  while (emulator::current->landing > 0) emulator::yield();
}
inline void copy_bulk(unsigned to, const void* from, int bytes, unsigned barrier) {
  char* place = emulator::shared_at(to, bytes);
  if (reinterpret_cast<uintptr_t>(from) % 16 || to % 16 || bytes % 16)
    emulator::fault("a bulk copy that is not aligned");
  if (!emulator::inside(from, bytes)) return emulator::fault("a bulk copy outside of an array");
  emulator::poison(place, bytes);
  emulator::events.push_back([=] {
    std::memcpy(place, from, bytes);
    emulator::Barrier& b = emulator::barriers.at(barrier);
    b.bytes -= bytes, emulator::settle(b);
  });
}

inline void block_barrier() { emulator::meet(emulator::kBlock, emulator::threads_of_block); }
inline void warp_barrier() { emulator::meet(emulator::kWarp + thread_index() / 32, 32); }
inline void named_barrier(int name, int threads) { emulator::meet(name, threads); }
inline void named_arrive(int name, int threads) {
  emulator::Meeting& m = emulator::meetings[name];
  if (++m.come == threads) m.come = 0, ++m.generation, emulator::moved = true;
}
inline void barrier_init(unsigned barrier, int arrivals) {
  emulator::shared_at(barrier, 8);
  emulator::barriers[barrier] = {0, arrivals, arrivals, 0};
}
inline void barriers_ready() {}
inline void arrive(unsigned barrier) {
  emulator::Barrier& b = emulator::barriers.at(barrier);
  --b.pending, emulator::settle(b);
}
inline void arrive_expecting(unsigned barrier, int bytes) {
  emulator::Barrier& b = emulator::barriers.at(barrier);
  b.bytes += bytes, --b.pending, emulator::settle(b);
}
inline void wait(unsigned barrier, int parity) {
  while (emulator::barriers.at(barrier).phase == parity) emulator::yield();
}

inline unsigned xor_lane(unsigned value, int mask) {
  unsigned out = value, *result = &out;
  struct Lane { unsigned value, *result; } lane{value, result};
  emulator::meet(emulator::kWarp + 100 + thread_index() / 32, thread_index() % 32, 32, &lane,
                 [mask](const std::vector<void*>& lanes) {
                   for (int i = 0; i < 32; ++i)
                     *static_cast<Lane*>(lanes[i])->result = static_cast<Lane*>(lanes[i ^ mask])->value;
                 });
  return out;
}
inline unsigned lanes_alike(int value) {
  struct Lane { int value; unsigned alike; } lane{value, 0};
  emulator::meet(emulator::kWarp + 200 + thread_index() / 32, thread_index() % 32, 32, &lane,
                 [](const std::vector<void*>& lanes) {
                   for (void* one : lanes)
                     for (int i = 0; i < 32; ++i)
                       if (static_cast<Lane*>(lanes[i])->value == static_cast<Lane*>(one)->value)
                         static_cast<Lane*>(one)->alike |= 1u << i;
                 });
  return lane.alike;
}
// Members of `lanes` meet; other sets of the warp may meet meanwhile.
inline unsigned max_of_lanes(unsigned members, unsigned value) {
  struct Lane { unsigned members, value, most; } lane{members, value, 0};
  emulator::meet(emulator::kWarp + 300 + thread_index() / 32, thread_index() % 32, 32, &lane,
                 [](const std::vector<void*>& lanes) {
                   for (void* one : lanes)
                     for (int i = 0; i < 32; ++i)
                       if (static_cast<Lane*>(one)->members >> i & 1)
                         static_cast<Lane*>(one)->most = std::max(
                             static_cast<Lane*>(one)->most, static_cast<Lane*>(lanes[i])->value);
                 });
  return lane.most;
}
inline int first_lane(unsigned lanes) { return __builtin_ctz(lanes); }
inline void global_max(unsigned* to, unsigned value) {
  if (emulator::check(to, "an atomic maximum")) *to = std::max(*to, value);
}

inline float as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline unsigned as_bits(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline float multiply_add(float a, float b, float c) { return std::fma(a, b, c); }
inline unsigned to_half2(float low, float high) {
  return emulator::half_bits(low) | emulator::half_bits(high) << 16;
}
inline float2 from_half2(unsigned both) {
  return {emulator::half_value(both & 0xffff), emulator::half_value(both >> 16)};
}

template <int kCount> void registers_down() {}
template <int kCount> void registers_up() {}
inline void wgmma_fence() {}
inline void wgmma_commit() {
  emulator::current->groups.push_back(std::move(emulator::current->products));
  emulator::current->products.clear();
}
template <int kLeft> void wgmma_wait() {
  if (emulator::current->groups.size() <= kLeft) return;
  emulator::meet(emulator::kWarpgroup + thread_index() / 128, thread_index() % 128, 128,
                 emulator::current,
                 [](const std::vector<void*>& given) { emulator::run_groups(given, kLeft); });
}
template <int kSums>
void wgmma(float (&d)[kSums], const unsigned* a, unsigned long long b, int keep) {
  emulator::Thread& thread = *emulator::current;
  auto& values = thread.hidden[d];
  if (values.empty()) {
    values.assign(d, d + kSums);
    std::fill(d, d + kSums, NAN);
  }
  thread.products.push_back({values.data(), {a[0], a[1], a[2], a[3]}, b, keep != 0, 2 * kSums});
}
