// Copies as a product of matrices needs them: each stage is a box of 128 rows of one matrix and a
// box of 64 rows of another, both 64 columns wide, waited for and refilled at once by one thread.

extern __shared__ __align__(1024) char shared[];

// CTA b reads rows 128 * (b / rows_over) of the first matrix and rows 64 * (b / columns_over %
// columns_of) of the second, and begins (b % columns_of) * skew boxes to the right.
struct Tiles {
  int rows_over, columns_over, columns_of, skew;
};

KERNEL ring_stages(u64* times, const __grid_constant__ TensorMap first,
                   const __grid_constant__ TensorMap second, Tiles tiles, int count, int stages,
                   int period) {
  constexpr int STAGE = 24 * 1024;
  __shared__ u64 storage[8];
  const u32 full = address_of(storage), to = address_of(shared);
  if (threadIdx.x == 0) {
    for (int s = 0; s < stages; ++s) barrier_init(full + 8 * s, 1);
    fence_barrier_init();
  }
  __syncwarp();
  u32 elected;
  asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(elected));
  if (elected) {
    const int b = blockIdx.x;
    const int row = b / tiles.rows_over * 128;
    const int other = b / tiles.columns_over % tiles.columns_of * 64;
    int x = b % tiles.columns_of * tiles.skew % period * 64;
    const u64 began = clock_now();
    int stage = 0;
    u32 phase = 1;
    for (int k = 0; k < count + stages; ++k) {
      if (k >= stages) barrier_wait(full + 8 * stage, phase);
      if (k < count) {
        barrier_expect(full + 8 * stage, STAGE);
        load_box(to + stage * STAGE, first, x, row, full + 8 * stage);
        load_box(to + stage * STAGE + 16 * 1024, second, x, other, full + 8 * stage);
        x += 64;
        if (x == period * 64) x = 0;
      }
      if (++stage == stages) {
        stage = 0;
        phase ^= 1;
      }
    }
    times[2 * b] = began;
    times[2 * b + 1] = clock_now();
  }
}
