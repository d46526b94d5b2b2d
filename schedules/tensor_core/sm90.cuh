// The instructions of sm_90a that wgmma.cuh uses, a function each. tests/wgmma_emulator.h has the
// same functions for a CPU. Addresses of shared memory are 32-bit numbers.

#define DEVICE __device__ __forceinline__

namespace tensor_core {

DEVICE int thread_index() { return threadIdx.x; }
DEVICE int block_index() { return blockIdx.x; }
DEVICE int block_count() { return gridDim.x; }
DEVICE unsigned shared_address(const void* pointer) {
  return (unsigned)__cvta_generic_to_shared(pointer);
}

// ---- Shared and global memory ----

DEVICE float4 load_shared(unsigned from) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(from) : "memory");
  return v;
}
DEVICE int load_shared_int(unsigned from) {
  int v;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}
DEVICE void store_shared_int(unsigned to, int v) {
  asm volatile("st.shared.s32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
DEVICE int2 load_shared_pair(unsigned from) {
  int2 v;
  asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from) : "memory");
  return v;
}
DEVICE void store_shared_pair(unsigned to, int2 v) {
  asm volatile("st.shared.v2.s32 [%0], {%1, %2};" ::"r"(to), "r"(v.x), "r"(v.y) : "memory");
}
// Of data that no thread of the kernel writes.
DEVICE float load_constant(const float* from) { return __ldg(from); }
DEVICE unsigned load_constant(const unsigned* from) { return __ldg(from); }
DEVICE float4 load_constant4(const float* from) { return __ldg((const float4*)from); }
DEVICE void store_global(float* to, float v) { *to = v; }
DEVICE void store_global(unsigned* to, unsigned v) { *to = v; }
DEVICE void store_global4(float* to, float4 v) { *(float4*)to = v; }

// ---- Asynchronous copies to shared memory ----

// 16 bytes, or zeros if not `valid`: nothing is read then, wherever `from` points. The form with a
// size in a register would take 6 instructions more to move the address behind it.
DEVICE void copy16(unsigned to, const void* from, bool valid) {
  asm volatile(
      "{.reg .pred p; setp.eq.s32 p, %2, 0; cp.async.cg.shared.global [%0], [%1], 16, p;}"
      ::"r"(to), "l"(from), "r"((int)valid) : "memory");
}
// This thread's copies so far arrive at the barrier, once each thread, when they are complete.
DEVICE void arrive_after_copies(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
DEVICE void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// By one thread; `bytes`, a multiple of 16, are expected by `arrive_expecting` before.
DEVICE void copy_bulk(unsigned to, const void* from, int bytes, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

// ---- Barriers ----

DEVICE void block_barrier() { __syncthreads(); }
DEVICE void warp_barrier() { __syncwarp(); }
DEVICE void named_barrier(int name, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
DEVICE void named_arrive(int name, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
DEVICE void barrier_init(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
DEVICE void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
DEVICE void arrive_expecting(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               ::"r"(barrier), "r"(bytes) : "memory");
}
// Until the phase of that parity is complete. A try waits up to some microseconds; a barrier that
// never comes is an error of the launch, not a GPU that hangs.
DEVICE void wait(unsigned barrier, int parity) {
  unsigned done = 0;
#pragma unroll 1
  for (int i = 0; i < 1 << 24; ++i) {
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
        : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    if (done) return;
  }
  asm volatile("trap;");
}

// ---- Warps ----

DEVICE unsigned xor_lane(unsigned value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
// The lanes that have this lane's value; a maximum over them.
DEVICE unsigned lanes_alike(int value) { return __match_any_sync(0xffffffffu, value); }
DEVICE unsigned max_of_lanes(unsigned lanes, unsigned value) {
  return __reduce_max_sync(lanes, value);
}
DEVICE int first_lane(unsigned lanes) { return __ffs(lanes) - 1; }
DEVICE void global_max(unsigned* to, unsigned value) { atomicMax(to, value); }

// ---- Numbers ----

DEVICE float as_float(unsigned bits) { return __uint_as_float(bits); }
DEVICE unsigned as_bits(float value) { return __float_as_uint(value); }
DEVICE float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
// Two numbers, rounded to fp16, in one register: `low` in its low half.
DEVICE unsigned to_half2(float low, float high) {
  unsigned both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
DEVICE float2 from_half2(unsigned both) {
  float2 v;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
      : "=f"(v.x), "=f"(v.y) : "r"(both));
  return v;
}

// ---- wgmma, by the four warps of a warpgroup ----

template <int kCount> DEVICE void registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount> DEVICE void registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kLeft> DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

#define D8(i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define WGMMA(size, registers, a0, a1, a2, a3, b, keep)                                      \
  "{.reg .pred p; setp.ne.b32 p, " keep ", 0; wgmma.mma_async.sync.aligned.m64n" size        \
  "k16.f32.f16.f16 {" registers "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " b ", p, 1, 1, 0;}"
#define R32                                                                                  \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "    \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define R64                                                                                  \
  R32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "   \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define OPERANDS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep)

// d = A B + (keep ? d : 0): A 64 x 16 of fp16, 4 registers a thread; B 16 x 2 * kSums, described.
template <int kSums>
DEVICE void wgmma(float (&d)[kSums], const unsigned* a, unsigned long long b, int keep) {
  if constexpr (kSums == 32) {
    asm volatile(WGMMA("64", R32, "%32", "%33", "%34", "%35", "%36", "%37")
                 : D8(0), D8(8), D8(16), D8(24) : OPERANDS);
  } else {
    static_assert(kSums == 64, "64 or 128 filters");
    asm volatile(WGMMA("128", R64, "%64", "%65", "%66", "%67", "%68", "%69")
                 : D8(0), D8(8), D8(16), D8(24), D8(32), D8(40), D8(48), D8(56) : OPERANDS);
  }
}
#undef D8
#undef WGMMA
#undef R32
#undef R64
#undef OPERANDS

}  // namespace tensor_core
