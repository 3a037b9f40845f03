// Straight-line code that a warp goes through once, and once more: 16 bytes an instruction, in
// eight chains, so that what is waited for is the code.

#define FFMA(k) "fma.rn.f32 %" #k ", %" #k ", %8, %9;\n"
#define CHAINS FFMA(0) FFMA(1) FFMA(2) FFMA(3) FFMA(4) FFMA(5) FFMA(6) FFMA(7)
#define CODE_256                                                                            \
  asm volatile(R32(CHAINS)                                                                  \
               : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3]), "+f"(x[4]), "+f"(x[5]),    \
                 "+f"(x[6]), "+f"(x[7])                                                     \
               : "f"(a), "f"(b));
#define CODE(count, ...)                                                              \
  KERNEL code_##count(u64* times, float* data) {                                      \
    const float a = data[1024], b = data[1025];                                       \
    float x[8];                                                                       \
    _Pragma("unroll") for (int k = 0; k < 8; ++k) x[k] = data[threadIdx.x + k];       \
    const int warps = blockDim.x / 32;                                                \
    _Pragma("unroll 1") for (int pass = 0; pass < 2; ++pass) {                        \
      __syncthreads();                                                                \
      const u64 began = clock_now();                                                  \
      __VA_ARGS__                                                                     \
      const u64 ended = clock_now();                                                  \
      if (threadIdx.x % 32 == 0) {                                                    \
        u64* mine = times + 2 * (pass * warps + threadIdx.x / 32);                    \
        mine[0] = began;                                                              \
        mine[1] = ended;                                                              \
      }                                                                               \
    }                                                                                 \
    float sum = 0.f;                                                                  \
    _Pragma("unroll") for (int k = 0; k < 8; ++k) sum += x[k];                        \
    data[2048 + threadIdx.x] = sum;                                                   \
  }
CODE(512, R2(CODE_256))
CODE(2048, R8(CODE_256))
// 256 KiB: of what ran before, no cache of instructions but L2 holds a part
CODE(16384, R64(CODE_256))
