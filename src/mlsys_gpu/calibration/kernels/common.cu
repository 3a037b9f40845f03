// What every file of kernels begins with: clocks, barriers, copies, and the timed loop.
//
// A timed kernel runs its loop twice, a few passes to fill the instruction cache and then `iters`
// of them, and writes for each warp when it began and ended in cycles of its SM. The host takes
// two numbers of passes and divides the difference, so that what surrounds the loop drops out.

typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned short u16;

struct alignas(64) TensorMap {
  u64 opaque[16];
};

#define KERNEL extern "C" __global__ void

__device__ __forceinline__ u64 clock_now() {
  u64 t;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(t)::"memory");
  return t;
}

__device__ __forceinline__ u64 nanoseconds_now() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}

__device__ __forceinline__ u32 address_of(const void* p) {
  return (u32)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void record(u64* times, u64 began, u64 ended) {
  if (threadIdx.x % 32 == 0) {
    u64* mine = times + 2 * (blockIdx.x * ((blockDim.x + 31) / 32) + threadIdx.x / 32);
    mine[0] = began;
    mine[1] = ended;
  }
}

// four registers that are not known when compiling
#define FOUR(data) {data[threadIdx.x], data[threadIdx.x + 1], data[threadIdx.x + 2], \
                    data[threadIdx.x + 3]}

#define R2(...) __VA_ARGS__ __VA_ARGS__
#define R4(...) R2(__VA_ARGS__) R2(__VA_ARGS__)
#define R8(...) R4(__VA_ARGS__) R4(__VA_ARGS__)
#define R16(...) R8(__VA_ARGS__) R8(__VA_ARGS__)
#define R32(...) R16(__VA_ARGS__) R16(__VA_ARGS__)
#define R64(...) R32(__VA_ARGS__) R32(__VA_ARGS__)

// `i` counts the passes of both loops together, for phases of barriers.
#define TIMED(...)                                                        \
  u64 began = 0, ended = 0;                                               \
  int i = 0;                                                              \
  _Pragma("unroll 1") for (int pass = 0; pass < 2; ++pass) {              \
    const int until = i + (pass ? iters : 4);                             \
    __syncthreads();                                                      \
    began = clock_now();                                                  \
    _Pragma("unroll 1") for (; i < until; ++i) { __VA_ARGS__ }            \
    ended = clock_now();                                                  \
  }                                                                       \
  record(times, began, ended);

// ---------------------------------------------------------------------------------- mbarrier

__device__ __forceinline__ void barrier_init(u32 barrier, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "AGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\n"
      "bra AGAIN;\n"
      "DONE:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

__device__ __forceinline__ void barrier_wait_cluster(u32 barrier, u32 parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "AGAIN:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\n"
      "bra AGAIN;\n"
      "DONE:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// ----------------------------------------------------------------------------------- cluster

__device__ __forceinline__ u32 rank_in_cluster() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ u32 size_of_cluster() {
  u32 size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}

__device__ __forceinline__ u32 in_cta(u32 address, u32 rank) {
  u32 mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive_remote(u32 mapped) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(mapped) : "memory");
}

__device__ __forceinline__ void barrier_arrive_remote_cluster(u32 mapped) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(mapped)
               : "memory");
}

// ------------------------------------------------------------------------------------ copies

__device__ __forceinline__ void load_box(u32 to, const TensorMap& map, int x, int y, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(&map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void load_box_multicast(u32 to, const TensorMap& map, int x, int y,
                                                   u32 barrier, u16 mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(&map), "r"(x), "r"(y), "r"(barrier), "h"(mask)
      : "memory");
}

__device__ __forceinline__ void load_bulk(u32 to, const void* from, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void store_box(const TensorMap& map, int x, int y, u32 from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
                   &map),
               "r"(x), "r"(y), "r"(from)
               : "memory");
}

__device__ __forceinline__ void store_bulk(void* to, u32 from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
