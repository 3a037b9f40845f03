// Shared memory. `step` is the distance of neighbouring lanes in accesses, so that a step of n = 2^k
// makes an n-way bank conflict of 4-byte accesses; 0 is one address for all lanes.
// Loads are volatile: the assembler would take equal ones out of the loop.

extern __shared__ __align__(1024) char shared[];

__device__ __forceinline__ u32 chase_address(int width, int step) {
  // every word of shared memory that is loaded holds the address that its lane loads next
  const u32 lane = threadIdx.x % 32;
  const u32 offset = lane * width * step;
  if (threadIdx.x < 32) *(u32*)(shared + offset) = address_of(shared + offset);
  __syncthreads();
  return address_of(shared + offset);
}

__device__ __forceinline__ void clear(int bytes) {
  for (int k = threadIdx.x * 4; k < bytes; k += blockDim.x * 4) *(u32*)(shared + k) = 0;
  __syncthreads();
}

KERNEL ld_shared_latency(u64* times, u32* data, int iters, int step) {
  u32 x = chase_address(4, step);
  TIMED(R32(asm volatile("ld.volatile.shared.u32 %0, [%0];" : "+r"(x)::"memory");))
  data[threadIdx.x] = x;
}

KERNEL ld_shared_v4_latency(u64* times, u32* data, int iters, int step) {
  u32 x = chase_address(16, step), s = 0;
  TIMED(R32({
    u32 b, c, d;
    asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%0];"
                 : "+r"(x), "=r"(b), "=r"(c), "=r"(d)::"memory");
    s ^= b ^ c ^ d;
  }))
  data[threadIdx.x] = x + s;
}

#define LD(k) \
  asm volatile("ld.volatile.shared.u32 %0, [%1+" #k "*4];" : "=r"(r[k]) : "r"(x) : "memory");
KERNEL ld_shared_rate(u64* times, u32* data, int iters, int step) {
  clear(16384);
  const u32 x = address_of(shared) + threadIdx.x % 32 * 4 * step;
  u32 s = 0;
  TIMED({
    u32 r[16];
    LD(0) LD(1) LD(2) LD(3) LD(4) LD(5) LD(6) LD(7)
    LD(8) LD(9) LD(10) LD(11) LD(12) LD(13) LD(14) LD(15)
    _Pragma("unroll") for (int k = 0; k < 16; ++k) s ^= r[k];
  })
  data[threadIdx.x] = s;
}

#define LD4(k)                                                       \
  asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4+" #k "*16];" \
               : "=r"(r[4 * k]), "=r"(r[4 * k + 1]), "=r"(r[4 * k + 2]), "=r"(r[4 * k + 3]) \
               : "r"(x)                                              \
               : "memory");
KERNEL ld_shared_v4_rate(u64* times, u32* data, int iters, int step) {
  clear(16384);
  const u32 x = address_of(shared) + threadIdx.x % 32 * 16 * step;
  u32 s = 0;
  TIMED({
    u32 r[32];
    LD4(0) LD4(1) LD4(2) LD4(3) LD4(4) LD4(5) LD4(6) LD4(7)
    _Pragma("unroll") for (int k = 0; k < 32; ++k) s ^= r[k];
  })
  data[threadIdx.x] = s;
}

#define ST(k) asm volatile("st.volatile.shared.u32 [%0+" #k "*4], %1;" ::"r"(x), "r"(v) : "memory");
KERNEL st_shared_rate(u64* times, u32* data, int iters, int step) {
  const u32 x = address_of(shared) + threadIdx.x % 32 * 4 * step;
  const u32 v = data[threadIdx.x];
  TIMED({
    ST(0) ST(1) ST(2) ST(3) ST(4) ST(5) ST(6) ST(7)
    ST(8) ST(9) ST(10) ST(11) ST(12) ST(13) ST(14) ST(15)
  })
}

#define ST4(k)                                                                               \
  asm volatile("st.volatile.shared.v4.u32 [%0+" #k "*16], {%1, %2, %3, %4};" ::"r"(x), \
               "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])                                     \
               : "memory");
KERNEL st_shared_v4_rate(u64* times, u32* data, int iters, int step) {
  const u32 x = address_of(shared) + threadIdx.x % 32 * 16 * step;
  const u32 v[4] = FOUR(data);
  TIMED({ ST4(0) ST4(1) ST4(2) ST4(3) ST4(4) ST4(5) ST4(6) ST4(7) })
}

KERNEL st_ld_shared_latency(u64* times, u32* data, int iters) {
  const u32 a = address_of(shared) + threadIdx.x * 4;
  u32 x = data[threadIdx.x];
  TIMED(R16(asm volatile("st.volatile.shared.u32 [%1], %0;\nld.volatile.shared.u32 %0, [%1];"
                         : "+r"(x)
                         : "r"(a)
                         : "memory");))
  data[threadIdx.x] = x;
}

// The rows are zero; adding what was loaded to the address makes the next load wait.
#define LDMATRIX_LATENCY(name, form)                                                       \
  KERNEL name##_latency(u64* times, u32* data, int iters) {                                \
    clear(4096);                                                                           \
    u32 x = address_of(shared) + threadIdx.x % 32 * 16, s = 0;                             \
    TIMED(R16({                                                                            \
      u32 p, q, r, t;                                                                      \
      asm volatile("ldmatrix.sync.aligned.m8n8.x4" form ".shared.b16 {%0, %1, %2, %3}, [%4];" \
                   : "=r"(p), "=r"(q), "=r"(r), "=r"(t)                                    \
                   : "r"(x)                                                                \
                   : "memory");                                                            \
      x += p;                                                                              \
      s ^= q ^ r ^ t;                                                                      \
    }))                                                                                    \
    data[threadIdx.x] = x + s;                                                             \
  }
LDMATRIX_LATENCY(ldmatrix, "")
LDMATRIX_LATENCY(ldmatrix_trans, ".trans")

#define LM(k, form)                                                                    \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4" form                                    \
               ".shared.b16 {%0, %1, %2, %3}, [%4+" #k "*512];"                        \
               : "=r"(r[4 * k]), "=r"(r[4 * k + 1]), "=r"(r[4 * k + 2]), "=r"(r[4 * k + 3]) \
               : "r"(x)                                                                \
               : "memory");
#define LDMATRIX_RATE(name, form)                                                      \
  KERNEL name##_rate(u64* times, u32* data, int iters) {                               \
    clear(4096);                                                                       \
    const u32 x = address_of(shared) + threadIdx.x % 32 * 16;                          \
    u32 s = 0;                                                                         \
    TIMED({                                                                            \
      u32 r[32];                                                                       \
      LM(0, form) LM(1, form) LM(2, form) LM(3, form)                                  \
      LM(4, form) LM(5, form) LM(6, form) LM(7, form)                                  \
      _Pragma("unroll") for (int k = 0; k < 32; ++k) s ^= r[k];                        \
    })                                                                                 \
    data[threadIdx.x] = s;                                                             \
  }
LDMATRIX_RATE(ldmatrix, "")
LDMATRIX_RATE(ldmatrix_trans, ".trans")

#define SM(k)                                                                                 \
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0+" #k "*512], {%1, %2, %3, %4};" :: \
                   "r"(x),                                                                    \
               "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])                                     \
               : "memory");
KERNEL stmatrix_rate(u64* times, u32* data, int iters) {
  const u32 x = address_of(shared) + threadIdx.x % 32 * 16;
  const u32 v[4] = FOUR(data);
  TIMED({ SM(0) SM(1) SM(2) SM(3) SM(4) SM(5) SM(6) SM(7) })
}

KERNEL stmatrix_ld_latency(u64* times, u32* data, int iters) {
  clear(4096);
  const u32 a = address_of(shared) + threadIdx.x * 16;
  const u32 v[4] = FOUR(data);
  u32 x = v[0];
  TIMED(R16(asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%1], {%0, %2, %3, %4};\n"
                         "ld.volatile.shared.u32 %0, [%1];"
                         : "+r"(x)
                         : "r"(a), "r"(v[1]), "r"(v[2]), "r"(v[3])
                         : "memory");))
  data[threadIdx.x] = x;
}

KERNEL atom_shared_latency(u64* times, u32* data, int iters, int step) {
  clear(4096);
  const u32 a = address_of(shared) + threadIdx.x % 32 * 4 * step;
  u32 x = data[threadIdx.x];
  TIMED(R16(asm volatile("atom.shared.add.u32 %0, [%1], %0;" : "+r"(x) : "r"(a) : "memory");))
  data[threadIdx.x] = x;
}
