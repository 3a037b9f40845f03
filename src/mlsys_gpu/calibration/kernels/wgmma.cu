// Warpgroup matrix products, f16 in and f32 out. sources.py writes `Wgmma<N>` above this file: the
// instruction has N / 2 accumulator registers as operands.

extern __shared__ __align__(1024) char shared[];

#define WGMMA_FENCE() asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define WGMMA_COMMIT() asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
#define WGMMA_WAIT(n) asm volatile("wgmma.wait_group.sync.aligned " #n ";" ::: "memory")

constexpr int B_AT = 32 * 1024;

// K-major rows of 128 bytes, swizzled: 8 rows are 1024 bytes
__device__ __forceinline__ u64 descriptor(u32 address) {
  return (u64)((address & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62;
}

__device__ __forceinline__ void fill(const u32* data) {
  for (int k = threadIdx.x; k < 16 * 1024; k += blockDim.x) ((u32*)shared)[k] = data[k];
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
}

template <int N, bool RS>
struct Product {
  float d[N / 2];
  u32 a[4];
  u64 da, db;
  __device__ __forceinline__ Product(const u32* data) {
    fill(data);
#pragma unroll
    for (int k = 0; k < N / 2; ++k) d[k] = 0.f;
    for (int k = 0; k < 4; ++k) a[k] = data[threadIdx.x * 4 + k];
    da = descriptor(address_of(shared));  // of all warpgroups: a uniform register holds it
    db = descriptor(address_of(shared) + B_AT);
  }
  __device__ __forceinline__ void step(int k) {
    if constexpr (RS)
      Wgmma<N>::rs(d, a, db + 2 * (k & 3));
    else
      Wgmma<N>::ss(d, da + 2 * (k & 3), db + 2 * (k & 3));
  }
  __device__ __forceinline__ void keep(u32* sink) {
    float sum = 0.f;
#pragma unroll
    for (int k = 0; k < N / 2; ++k) sum += d[k];
    sink[threadIdx.x] = __float_as_uint(sum);
  }
};

// 16 instructions in a group, one group in flight while the next is issued
template <int N, bool RS>
__device__ __forceinline__ void steady(u64* times, u32* sink, const u32* data, int iters) {
  Product<N, RS> product(data);
  u64 began = 0, ended = 0;
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    const int until = pass ? iters : 4;
    __syncthreads();
    began = clock_now();
#pragma unroll 1
    for (int i = 0; i < until; ++i) {
      WGMMA_FENCE();
#pragma unroll
      for (int k = 0; k < 16; ++k) product.step(k);
      WGMMA_COMMIT();
      WGMMA_WAIT(1);
    }
    WGMMA_WAIT(0);
    ended = clock_now();
  }
  record(times, began, ended);
  product.keep(sink);
}

// STEPS instructions in a group, which is waited for before the next
template <int N, bool RS, int STEPS>
__device__ __forceinline__ void waited(u64* times, u32* sink, const u32* data, int iters) {
  Product<N, RS> product(data);
  TIMED({
    WGMMA_FENCE();
    _Pragma("unroll") for (int k = 0; k < STEPS; ++k) product.step(k);
    WGMMA_COMMIT();
    WGMMA_WAIT(0);
  })
  product.keep(sink);
}

#define ARGUMENTS u64 *times, u32 *sink, const u32 *data, int iters
#define BOUNDS extern "C" __global__ void __launch_bounds__(256, 1)
#define STEADY(n)                                                                       \
  BOUNDS wgmma_ss_##n(ARGUMENTS) { steady<n, false>(times, sink, data, iters); }        \
  BOUNDS wgmma_rs_##n(ARGUMENTS) { steady<n, true>(times, sink, data, iters); }
STEADY(8)
STEADY(16)
STEADY(32)
STEADY(64)
STEADY(96)
STEADY(128)
STEADY(192)
STEADY(256)

#define WAITED(n)                                                                           \
  BOUNDS wgmma_ss_##n##_wait1(ARGUMENTS) { waited<n, false, 1>(times, sink, data, iters); } \
  BOUNDS wgmma_rs_##n##_wait1(ARGUMENTS) { waited<n, true, 1>(times, sink, data, iters); }  \
  BOUNDS wgmma_ss_##n##_wait4(ARGUMENTS) { waited<n, false, 4>(times, sink, data, iters); }
WAITED(8)
WAITED(64)
WAITED(128)
WAITED(256)

// How long the whole chip's tensor cores take, by the SM's clock and by the nanosecond timer.
BOUNDS wgmma_clock(ARGUMENTS) {
  const u64 from = clock_now(), from_ns = nanoseconds_now();
  steady<256, false>(times + 2 * gridDim.x, sink, data, iters);
  if (threadIdx.x == 0) {
    times[2 * blockIdx.x] = clock_now() - from;
    times[2 * blockIdx.x + 1] = nanoseconds_now() - from_ns;
  }
}

KERNEL wgmma_wait_done(u64* times, int iters) { TIMED(R16(WGMMA_WAIT(0);)) }
KERNEL wgmma_fence(u64* times, int iters) { TIMED(R16(WGMMA_FENCE();)) }

extern "C" __global__ void __launch_bounds__(384, 1) setmaxnreg(u64* times, int iters) {
  if (threadIdx.x >= 128) return;
  u64 taken = 0, given = 0;
#pragma unroll 1
  for (int i = 0; i < iters; ++i) {
    const u64 t0 = clock_now();
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;" ::: "memory");
    const u64 t1 = clock_now();
    asm volatile("setmaxnreg.inc.sync.aligned.u32 168;" ::: "memory");
    const u64 t2 = clock_now();
    given += t1 - t0;
    taken += t2 - t1;
  }
  if (threadIdx.x == 0) {
    times[0] = given;
    times[1] = taken;
  }
}
