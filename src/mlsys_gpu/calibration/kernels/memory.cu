// Global memory: chains of dependent loads, streams, cp.async and atomics.

// Every 8 bytes that are loaded hold the address of the next load.
#define CHASE(name, form)                                                                   \
  KERNEL chase_##name(u64* times, u64 from, int iters) {                                    \
    u64 x = from;                                                                           \
    TIMED(asm volatile("ld.global" form ".u64 %0, [%0];" : "+l"(x)::"memory");)             \
    if (x == 0) times[0] = 0;                                                               \
  }
CHASE(ca, ".ca")
CHASE(cg, ".cg")

// CTA 0 chases; the others stream until it is done, and count how many passes they made.
KERNEL chase_loaded(u64* times, u64 from, int iters, const char* a, u64 mask,
                    volatile u32* done) {
  if (blockIdx.x == 0) {
    if (threadIdx.x) return;
    u64 x = from;
    for (int k = 0; k < iters / 4; ++k) asm volatile("ld.global.cg.u64 %0, [%0];" : "+l"(x)::"memory");
    const u64 began = clock_now();
    for (int k = 0; k < iters; ++k) asm volatile("ld.global.cg.u64 %0, [%0];" : "+l"(x)::"memory");
    times[0] = clock_now() - began;
    *done = x ? 1 : 2;
    return;
  }
  u64 at = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * 16, passes = 0;
  const u64 stride = (u64)gridDim.x * blockDim.x * 16, began = clock_now();
  u32 s = 0;
  while ((passes % 8 || *done == 0) && passes < 1000000) {
    u32 v[16];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v[4 * k]), "=r"(v[4 * k + 1]), "=r"(v[4 * k + 2]), "=r"(v[4 * k + 3])
                   : "l"(a + ((at + k * stride) & mask))
                   : "memory");
#pragma unroll
    for (int k = 0; k < 16; ++k) s ^= v[k];
    at += 4 * stride;
    ++passes;
  }
  if (threadIdx.x == 0) {
    times[2 * blockIdx.x] = passes;
    times[2 * blockIdx.x + 1] = clock_now() - began + (s == 12345);
  }
}

// 16-byte accesses of all threads, one after another through 2^k bytes.
#define READ(name, form)                                                                      \
  KERNEL read_##name(u64* times, u32* sink, const char* a, u64 mask, int iters) {             \
    const u64 stride = (u64)gridDim.x * blockDim.x * 16;                                      \
    u64 at = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * 16;                               \
    u32 s = 0;                                                                                \
    TIMED({                                                                                   \
      u32 v[32];                                                                              \
      _Pragma("unroll") for (int k = 0; k < 8; ++k) asm volatile(                             \
          "ld.global" form ".v4.u32 {%0, %1, %2, %3}, [%4];"                                  \
          : "=r"(v[4 * k]), "=r"(v[4 * k + 1]), "=r"(v[4 * k + 2]), "=r"(v[4 * k + 3])        \
          : "l"(a + ((at + k * stride) & mask))                                               \
          : "memory");                                                                        \
      _Pragma("unroll") for (int k = 0; k < 32; ++k) s ^= v[k];                               \
      at += 8 * stride;                                                                       \
    })                                                                                        \
    if (s == 12345) sink[threadIdx.x] = s;                                                    \
  }
READ(ca, ".ca")
READ(cg, ".cg")

KERNEL write_global(u64* times, u32* data, char* a, u64 mask, int iters) {
  const u64 stride = (u64)gridDim.x * blockDim.x * 16;
  u64 at = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * 16;
  const u32 v[4] = FOUR(data);
  TIMED({
    _Pragma("unroll") for (int k = 0; k < 8; ++k) asm volatile(
        "st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(a + ((at + k * stride) & mask)),
        "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
        : "memory");
    at += 8 * stride;
  })
}

// COUNT loads of 16 bytes, then as many stores
#define COPY(name, COUNT)                                                                     \
  KERNEL name(u64* times, const char* a, char* b, u64 mask, int iters) {                      \
    const u64 stride = (u64)gridDim.x * blockDim.x * 16;                                      \
    u64 at = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * 16;                               \
    TIMED({                                                                                   \
      u32 v[4 * COUNT];                                                                       \
      _Pragma("unroll") for (int k = 0; k < COUNT; ++k) asm volatile(                         \
          "ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"                                          \
          : "=r"(v[4 * k]), "=r"(v[4 * k + 1]), "=r"(v[4 * k + 2]), "=r"(v[4 * k + 3])        \
          : "l"(a + ((at + k * stride) & mask))                                               \
          : "memory");                                                                        \
      _Pragma("unroll") for (int k = 0; k < COUNT; ++k) asm volatile(                         \
          "st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(b + ((at + k * stride) & mask)),   \
          "r"(v[4 * k]), "r"(v[4 * k + 1]), "r"(v[4 * k + 2]), "r"(v[4 * k + 3])              \
          : "memory");                                                                        \
      at += COUNT * stride;                                                                   \
    })                                                                                        \
  }
COPY(copy_global_1, 1)
COPY(copy_global_4, 4)

// 4-byte accesses of lanes that lie `step` bytes apart, one warp's after the other's
#define STRIDED(name, form)                                                                   \
  KERNEL read_strided_##name(u64* times, u32* sink, const char* a, u64 mask, int iters,       \
                             int step) {                                                      \
    const u64 stride = (u64)gridDim.x * blockDim.x * step;                                    \
    u64 at = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * step;                             \
    u32 s = 0;                                                                                \
    TIMED({                                                                                   \
      u32 v[8];                                                                               \
      _Pragma("unroll") for (int k = 0; k < 8; ++k) asm volatile(                             \
          "ld.global" form ".u32 %0, [%1];"                                                   \
          : "=r"(v[k])                                                                        \
          : "l"(a + ((at + k * stride) & mask))                                               \
          : "memory");                                                                        \
      _Pragma("unroll") for (int k = 0; k < 8; ++k) s ^= v[k];                                \
      at += 8 * stride;                                                                       \
    })                                                                                        \
    if (s == 12345) sink[threadIdx.x] = s;                                                    \
  }
STRIDED(ca, ".ca")
STRIDED(cg, ".cg")

KERNEL write_strided(u64* times, u32* data, char* a, u64 mask, int iters, int step) {
  const u64 stride = (u64)gridDim.x * blockDim.x * step;
  u64 at = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * step;
  const u32 v = data[threadIdx.x];
  TIMED({
    _Pragma("unroll") for (int k = 0; k < 8; ++k) asm volatile(
        "st.global.u32 [%0], %1;" ::"l"(a + ((at + k * stride) & mask)), "r"(v)
        : "memory");
    at += 8 * stride;
  })
}

// One group of `R`-many 16-byte cp.async for each thread, waited for.
KERNEL cp_async_latency(u64* times, const char* a, u64 mask, int iters) {
  extern __shared__ __align__(1024) char shared[];
  const u32 to = address_of(shared) + threadIdx.x * 16;
  u64 at = threadIdx.x * 16;
  TIMED({
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\ncp.async.commit_group;\n"
                 "cp.async.wait_group 0;" ::"r"(to),
                 "l"(a + (at & mask))
                 : "memory");
    at += 512;
  })
}

KERNEL cp_async_rate(u64* times, const char* a, u64 mask, int iters) {
  extern __shared__ __align__(1024) char shared[];
  const u32 to = address_of(shared) + threadIdx.x * 16;
  const u64 stride = (u64)blockDim.x * 16;
  u64 at = threadIdx.x * 16;
  TIMED({
    _Pragma("unroll") for (int k = 0; k < 4; ++k) asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + (i & 1) * 65536 + k * 16384),
        "l"(a + ((at + k * stride) & mask))
        : "memory");
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 1;" ::: "memory");
    at += 4 * stride;
  })
}

KERNEL cp_async_wait_done(u64* times, int iters) {
  TIMED(R16(asm volatile("cp.async.wait_group 0;" ::: "memory");))
}

// Thread t updates the word at `step` * t: 0 is one address for all.
KERNEL red_global_rate(u64* times, char* a, int iters, int step) {
  char* mine = a + ((u64)blockIdx.x * blockDim.x + threadIdx.x) * step;
  TIMED(R8(asm volatile("red.global.add.f32 [%0], %1;" ::"l"(mine), "f"(1.f) : "memory");))
}

KERNEL atom_global_rate(u64* times, u32* sink, char* a, int iters, int step) {
  char* mine = a + ((u64)blockIdx.x * blockDim.x + threadIdx.x) * step;
  u32 s = 0;
  TIMED({
    u32 r[8];
    _Pragma("unroll") for (int k = 0; k < 8; ++k) asm volatile(
        "atom.global.add.u32 %0, [%1], 1;" : "=r"(r[k]) : "l"(mine) : "memory");
    _Pragma("unroll") for (int k = 0; k < 8; ++k) s ^= r[k];
  })
  if (s == 12345) sink[0] = s;
}

KERNEL atom_global_latency(u64* times, u32* sink, char* a, int iters) {
  char* mine = a + threadIdx.x * 4;  // of one address, the compiler would make one atomic a warp
  u32 x = 1;
  TIMED(asm volatile("atom.global.add.u32 %0, [%1], %0;" : "+r"(x) : "l"(mine) : "memory");)
  if (x == 12345) sink[0] = x;
}
