// What a kernel takes to start, and what its first accesses to memory take beyond later ones.

extern __shared__ __align__(1024) char shared[];

// A kernel with parameters that loads nothing.
KERNEL start_nothing(u64* sink, const char* from) {
  if (((u64)from & 1) != 0) sink[0] = 1;
}

// One 16-byte load of each thread, which the thread waits for.
KERNEL start_load(u64* sink, const char* from) {
  u32 v[4];
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "l"(from + ((u64)blockIdx.x * blockDim.x + threadIdx.x) * 16)
               : "memory");
  if ((v[0] ^ v[1] ^ v[2] ^ v[3]) == 12345) sink[0] = 1;
}

// One box of 64 rows by thread 0, which waits for it; a CTA's box lies behind the box before.
KERNEL start_tma(const __grid_constant__ TensorMap map, int row) {
  __shared__ u64 storage;
  const u32 barrier = address_of(&storage);
  if (threadIdx.x) return;
  barrier_init(barrier, 1);
  fence_barrier_init();
  barrier_expect(barrier, 8192);
  load_box(address_of(shared), map, 0, row + blockIdx.x * 64, barrier);
  barrier_wait(barrier, 0);
}

// Clocks of one thread: as it begins, as it has used a parameter, and as each of four loads `step`
// bytes apart has come. A branch uses what came before the clock is read.
#define USED(x) \
  if ((x) == 12345) asm volatile("trap;" ::: "memory");
KERNEL start_first(const char* from, u64 step, u64* times) {
  u64 t[6];
  t[0] = clock_now();
  USED((u64)from & 0xffff)
  t[1] = clock_now();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    u32 v;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(from + k * step) : "memory");
    USED(v)
    t[2 + k] = clock_now();
  }
#pragma unroll
  for (int k = 0; k < 6; ++k) times[k] = t[k];
}
