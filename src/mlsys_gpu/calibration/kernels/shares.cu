// Copies as products of matrices need them whose CTAs share operands: each stage is a box of 128 rows
// of one matrix and two boxes of 64 rows of another, all 64 columns wide. A CTA is by itself, or one
// of a pair (a cluster of two) that needs the same rows of the second matrix.

extern __shared__ __align__(1024) char shared[];

// Cluster c reads block row c / rows_over % rows_of of the first matrix, 128 rows for each of its
// CTAs, and block row c / columns_over % columns_of of the second, 128 rows for all of them.
struct Shares {
  int rows_over, rows_of, columns_over, columns_of;
};

// How the CTAs of a pair get the rows of the second matrix: each all of them for itself; so, but
// both refill a stage only when both have read it; or each half of them, for both.
enum How { ALONE, JOINT, MULTICAST };

// Warp 0 issues. Warp 1 waits, works for at least `hold` cycles on each stage, one after another as
// a tensor core does, releases it, and alone writes its clocks. `own`: bytes of the first matrix in
// a stage, 16 KiB or none.
KERNEL shares_stages(u64* times, const __grid_constant__ TensorMap first,
                     const __grid_constant__ TensorMap second, Shares shares, int count, int stages,
                     int period, int own, int how, int hold) {
  constexpr int HALF = 8 * 1024;
  __shared__ u64 storage[32];
  const u32 full = address_of(storage), empty = full + 128, to = address_of(shared);
  const u32 rank = rank_in_cluster(), size = size_of_cluster(), bytes = own + 2 * HALF;
  if (threadIdx.x == 0) {
    for (int s = 0; s < stages; ++s) {
      barrier_init(full + 8 * s, 1);
      barrier_init(empty + 8 * s, how == ALONE ? 1 : 2);
    }
    fence_barrier_init();
  }
  __syncwarp();
  cluster_sync();
  u32 elected;
  asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(elected));
  if (threadIdx.x < 32 && elected) {
    const int c = blockIdx.x / size;
    const int row = (c / shares.rows_over % shares.rows_of * size + rank) * 128;
    const int other = c / shares.columns_over % shares.columns_of * 128;
    int x = 0, stage = 0;
    u32 phase = 1;
    for (int k = 0; k < count; ++k) {
      const u32 bar = full + 8 * stage, at = to + stage * bytes;
      barrier_wait(empty + 8 * stage, phase);
      barrier_expect(bar, bytes);
      if (own) load_box(at + 2 * HALF, first, x, row, bar);
      if (how == MULTICAST) {
        load_box_multicast(at + rank * HALF, second, x, other + 64 * rank, bar, 3);
      } else {
        load_box(at, second, x, other, bar);
        load_box(at + HALF, second, x, other + 64, bar);
      }
      x += 64;
      if (x == period * 64) x = 0;
      if (++stage == stages) {
        stage = 0;
        phase ^= 1;
      }
    }
  } else if (threadIdx.x >= 32 && elected) {
    const u32 mine = in_cta(empty, rank), peers = in_cta(empty, rank ^ 1);
    int stage = 0;
    u32 phase = 0;
    const u64 began = clock_now();
    u64 until = began;
    for (int k = 0; k < count; ++k) {
      barrier_wait(full + 8 * stage, phase);
      if (hold) {
        const u64 now = clock_now();
        until = (now > until ? now : until) + hold;
        while (clock_now() < until);
      }
      barrier_arrive_remote(mine + 8 * stage);
      if (how != ALONE) barrier_arrive_remote(peers + 8 * stage);
      if (++stage == stages) {
        stage = 0;
        phase ^= 1;
      }
    }
    u64* clocks = times + 2 * (2 * blockIdx.x + 1);
    clocks[0] = began;
    clocks[1] = clock_now();
  }
  __syncwarp();
  cluster_sync();  // a peer's copies and arrivals may still be on their way here
}
