// Loads of global memory as copies of tiles make them, and loads beside conflicts in shared memory.

extern __shared__ __align__(1024) char shared[];

// Uses what was loaded; a chain that begins with a clock that is read behind the loads, so that the
// compiler uses none before all are issued.
template <int N>
__device__ __forceinline__ u32 used(const u32 (&v)[N]) {
  u32 s = (u32)clock_now();
#pragma unroll
  for (int k = 0; k < N; k += 2)
    asm volatile("lop3.b32 %0, %0, %1, %2, 0x96;" : "+r"(s) : "r"(v[k]), "r"(v[k + 1]));
  return s;
}

// 128 threads load a tile of 16 * N rows of 128 bytes, eight lanes a row, all loads before any is
// used. A CTA has rows of its own, a pass the next 128 bytes of them. Clocks of each warp and pass.
template <int N>
__device__ __forceinline__ void tile(u64* times, const char* a, u64 pitch, int passes) {
  const char* from =
      a + ((u64)blockIdx.x * 16 * N + threadIdx.x / 8) * pitch + threadIdx.x % 8 * 16;
#pragma unroll 1
  for (int pass = 0; pass < passes; ++pass) {
    u32 v[4 * N];
    __syncthreads();
    const u64 began = clock_now();
#pragma unroll
    for (int k = 0; k < N; ++k)
      asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v[4 * k]), "=r"(v[4 * k + 1]), "=r"(v[4 * k + 2]), "=r"(v[4 * k + 3])
                   : "l"(from + 16 * k * pitch)
                   : "memory");
    // the data are ones: what is left is two clocks, which do not differ in all their bits
    if ((used(v) ^ (u32)began) == 0xffffffffu) asm volatile("trap;" ::: "memory");
    const u64 ended = clock_now();
    from += 128;
    if (threadIdx.x % 32 == 0) {
      u64* mine = times + 2 * ((pass * gridDim.x + blockIdx.x) * 4 + threadIdx.x / 32);
      mine[0] = began;
      mine[1] = ended;
    }
  }
}
#define TILE(n)                                                              \
  KERNEL tile_load_##n(u64* times, const char* a, u64 pitch, int passes) {   \
    tile<n>(times, a, pitch, passes);                                        \
  }
TILE(4)
TILE(8)
TILE(16)

// A pass of each warp: 8 loads of 16 bytes of each lane, one after another, and then `STORES` times
// st.shared of all lanes to one bank; the loads are waited for behind the stores.
#define LSU(name, form, LOADS, STORES)                                                          \
  KERNEL lsu_##name(u64* times, u32* sink, const char* a, u64 mask, int iters) {                \
    u64 at = threadIdx.x * 16;                                                                  \
    const u32 to = address_of(shared) + threadIdx.x % 32 * 128 + threadIdx.x / 32 * 4;          \
    u32 s = sink[threadIdx.x];                                                                  \
    TIMED({                                                                                     \
      u32 v[LOADS ? 4 * LOADS : 2] = {};                                                        \
      _Pragma("unroll") for (int k = 0; k < LOADS; ++k) asm volatile(                           \
          "ld.global" form ".v4.u32 {%0, %1, %2, %3}, [%4];"                                    \
          : "=r"(v[4 * k]), "=r"(v[4 * k + 1]), "=r"(v[4 * k + 2]), "=r"(v[4 * k + 3])          \
          : "l"(a + ((at + k * 8192) & mask))                                                   \
          : "memory");                                                                          \
      _Pragma("unroll") for (int k = 0; k < STORES; ++k) asm volatile(                          \
          "st.volatile.shared.u32 [%0], %1;" ::"r"(to), "r"(i)                                  \
          : "memory");                                                                          \
      s ^= used(v);                                                                             \
      at += 65536;                                                                              \
    })                                                                                          \
    sink[4096 + threadIdx.x] = s;                                                               \
  }
LSU(loads, ".cg", 8, 0)
LSU(stores, ".cg", 0, 1)
LSU(both, ".cg", 8, 1)
LSU(both2, ".cg", 8, 2)
LSU(loads_l1, ".ca", 8, 0)
LSU(both_l1, ".ca", 8, 1)
