// Launches and clocks.

KERNEL empty() {}

// Holds the GPU while the host queues what is to be timed.
KERNEL hold(u64 cycles) {
  const u64 began = clock_now();
  while (clock_now() - began < cycles) {
  }
}

// By the SM's clock and by the nanosecond timer, while little happens.
KERNEL clock_light(u64* times, u64 cycles) {
  const u64 began = clock_now(), began_ns = nanoseconds_now();
  while (clock_now() - began < cycles) {
  }
  times[2 * blockIdx.x] = clock_now() - began;
  times[2 * blockIdx.x + 1] = nanoseconds_now() - began_ns;
}

// Two readings of the clock with nothing between, as the latencies of single copies are taken.
KERNEL clock_overhead(u64* times, int count) {
  for (int k = 0; k < count; ++k) {
    const u64 t0 = clock_now();
    times[k] = clock_now() - t0;
  }
}

// When each CTA began and ended, and on which SM.
KERNEL stamps(u64* times, u32 cycles) {
  const u64 began = clock_now();
  while (clock_now() - began < cycles) {
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    u32 sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    times[3 * blockIdx.x] = sm;
    times[3 * blockIdx.x + 1] = began;
    times[3 * blockIdx.x + 2] = clock_now();
  }
}
