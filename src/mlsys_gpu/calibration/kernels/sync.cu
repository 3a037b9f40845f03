// Barriers and fences of one CTA, and of a cluster.

extern __shared__ __align__(1024) char shared[];

// ---------------------------------------------------------------------------------- mbarrier

__device__ __forceinline__ u32 one_barrier(u32 count) {
  __shared__ u64 storage;
  if (threadIdx.x == 0) {
    barrier_init(address_of(&storage), count);
    fence_barrier_init();
  }
  __syncthreads();
  return address_of(&storage);
}

// the phase before the first counts as complete
KERNEL mbarrier_wait_done(u64* times, int iters) {
  const u32 barrier = one_barrier(1);
  TIMED(R16(barrier_wait(barrier, 1);))
}

// a count that is never reached
KERNEL mbarrier_arrive(u64* times, int iters) {
  const u32 barrier = one_barrier(0xfffff);
  TIMED(R16(barrier_arrive(barrier);))
}

KERNEL mbarrier_expect(u64* times, int iters) {
  const u32 barrier = one_barrier(0xfffff);
  TIMED(R16(barrier_expect(barrier, 0);))
}

// Two parties in turn: an arrival, and the other's wait for it. Each party is in a loop of its own,
// as warps with different roles are; `first` says which, the last number of passes is timed.
#define IN_TURN(first, SEND, WAIT)                             \
  u64 began = 0, ended = 0;                                    \
  if (first) {                                                 \
    _Pragma("unroll 1") for (int i = 0; i < 4 + iters; ++i) {  \
      if (i == 4) began = clock_now();                         \
      SEND;                                                    \
      WAIT;                                                    \
    }                                                          \
    ended = clock_now();                                       \
  } else {                                                     \
    _Pragma("unroll 1") for (int i = 0; i < 4 + iters; ++i) {  \
      if (i == 4) began = clock_now();                         \
      WAIT;                                                    \
      SEND;                                                    \
    }                                                          \
    ended = clock_now();                                       \
  }                                                            \
  record(times, began, ended);

__device__ __forceinline__ u32 two_barriers() {
  __shared__ u64 storage[2];
  if (threadIdx.x == 0) {
    barrier_init(address_of(storage), 1);
    barrier_init(address_of(storage) + 8, 1);
    fence_barrier_init();
  }
  __syncthreads();
  return address_of(storage);
}

// one thread of each of two warps
KERNEL mbarrier_ping_pong(u64* times, int iters) {
  const u32 ping = two_barriers(), warp = threadIdx.x / 32;
  const u32 to = ping + 8 * warp, from = ping + 8 * (1 - warp);
  if (threadIdx.x % 32) return;
  IN_TURN(warp == 0, barrier_arrive(to), barrier_wait(from, i & 1))
}

// all 32 lanes wait, one of them arrives
KERNEL mbarrier_ping_pong_warp(u64* times, int iters) {
  const u32 ping = two_barriers(), warp = threadIdx.x / 32;
  const u32 to = ping + 8 * warp, from = ping + 8 * (1 - warp);
  const bool lead = threadIdx.x % 32 == 0;
  IN_TURN(warp == 0, if (lead) barrier_arrive(to); __syncwarp(), barrier_wait(from, i & 1))
}

// ------------------------------------------------------------------------------ named barriers

KERNEL bar_sync(u64* times, int iters) { TIMED(R16(asm volatile("bar.sync 0;" ::: "memory");)) }

KERNEL bar_ping_pong(u64* times, int iters) {
  const u32 to = 1 + threadIdx.x / 32, from = 3 - to;
  IN_TURN(threadIdx.x < 32, asm volatile("bar.arrive %0, 64;" ::"r"(to) : "memory"),
          asm volatile("bar.sync %0, 64;" ::"r"(from) : "memory"))
}

// -------------------------------------------------------------------------------------- fences

// alone, after a store to shared memory, and after one to global memory
#define FENCE(name, text)                                                                    \
  KERNEL fence_##name(u64* times, char* data, int iters) {                                   \
    TIMED(R8(asm volatile(text ::: "memory");))                                              \
  }
#define FENCE_SHARED(name, text)                                                             \
  KERNEL fence_##name##_after_st_shared(u64* times, char* data, int iters) {                 \
    const u32 at = address_of(shared) + threadIdx.x * 4;                                     \
    TIMED(R8(asm volatile("st.volatile.shared.u32 [%0], %1;\n" text ::"r"(at), "r"(i)        \
                          : "memory");))                                                     \
  }
#define FENCE_GLOBAL(name, text)                                                             \
  KERNEL fence_##name##_after_st_global(u64* times, char* data, int iters) {                 \
    char* at = data + ((u64)blockIdx.x * blockDim.x + threadIdx.x) * 4;                      \
    TIMED(R8(asm volatile("st.volatile.global.u32 [%0], %1;\n" text ::"l"(at), "r"(i)        \
                          : "memory");))                                                     \
  }
FENCE(proxy_async, "fence.proxy.async;")
FENCE(proxy_async_shared, "fence.proxy.async.shared::cta;")
FENCE_SHARED(proxy_async_shared, "fence.proxy.async.shared::cta;")
FENCE(acq_rel_cta, "fence.acq_rel.cta;")
FENCE(acq_rel_cluster, "fence.acq_rel.cluster;")
FENCE_SHARED(acq_rel_cluster, "fence.acq_rel.cluster;")
FENCE(sc_gpu, "fence.sc.gpu;")
FENCE_GLOBAL(sc_gpu, "fence.sc.gpu;")
FENCE(acq_rel_gpu, "fence.acq_rel.gpu;")
FENCE_GLOBAL(acq_rel_gpu, "fence.acq_rel.gpu;")

// ------------------------------------------------------------------------------------- cluster

KERNEL cluster_barrier(u64* times, int iters) {
  TIMED(R4(cluster_sync();))
  cluster_sync();
}

KERNEL cluster_barrier_relaxed(u64* times, int iters) {
  TIMED(R4(asm volatile("barrier.cluster.arrive.relaxed.aligned;\n"
                        "barrier.cluster.wait.aligned;" ::: "memory");))
  cluster_sync();
}

// Stores to global memory just before: the arrival releases them, and waits for them.
#define CLUSTER_BARRIER_STORES(count, form)                                                     \
  KERNEL cluster_barrier##form(u64* times, u32* data, char* a, int iters) {                     \
    u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * 4;                                       \
    const u32 v = data[threadIdx.x];                                                            \
    TIMED({                                                                                     \
      _Pragma("unroll") for (int k = 0; k < count; ++k) asm volatile(                           \
          "st.global.u32 [%0], %1;" ::"l"(a + ((at + k * 8192) & 0x3fffff)), "r"(v) : "memory"); \
      at += count * 8192;                                                                       \
      ARRIVE_AND_WAIT##form                                                                     \
    })                                                                                          \
    cluster_sync();                                                                             \
  }
#define ARRIVE_AND_WAIT_stores_1 cluster_sync();
#define ARRIVE_AND_WAIT_stores_4 cluster_sync();
#define ARRIVE_AND_WAIT_stores_16 cluster_sync();
#define ARRIVE_AND_WAIT_relaxed_stores_16                     \
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n"   \
               "barrier.cluster.wait.aligned;" ::: "memory");
CLUSTER_BARRIER_STORES(1, _stores_1)
CLUSTER_BARRIER_STORES(4, _stores_4)
CLUSTER_BARRIER_STORES(16, _stores_16)
CLUSTER_BARRIER_STORES(16, _relaxed_stores_16)

// Thread 0 of two CTAs in turn, each arriving on the other's barrier: in the scope that is the
// instructions' default, and in the cluster's.
#define REMOTE(name, ARRIVE, WAIT)                                         \
  KERNEL name(u64* times, int iters) {                                     \
    const u32 barrier = one_barrier(1), rank = rank_in_cluster();          \
    const u32 other = in_cta(barrier, rank ^ 1);                           \
    cluster_sync();                                                        \
    if (threadIdx.x == 0) {                                                \
      IN_TURN(rank == 0, ARRIVE(other), WAIT(barrier, i & 1))              \
    }                                                                      \
    __syncwarp();                                                          \
    cluster_sync();                                                        \
  }
REMOTE(mbarrier_remote_ping_pong, barrier_arrive_remote, barrier_wait)
REMOTE(mbarrier_remote_ping_pong_cluster, barrier_arrive_remote_cluster, barrier_wait_cluster)

KERNEL mbarrier_remote_arrive(u64* times, int iters) {
  const u32 other = in_cta(one_barrier(0xfffff), rank_in_cluster() ^ 1);
  cluster_sync();
  TIMED(R16(barrier_arrive_remote(other);))
  cluster_sync();
}

// Stores of 4 bytes that count on the other's barrier, in turn.
KERNEL st_async_ping_pong(u64* times, int iters) {
  const u32 barrier = one_barrier(1), rank = rank_in_cluster();
  const u32 other = in_cta(barrier, rank ^ 1), there = in_cta(address_of(shared), rank ^ 1);
  if (threadIdx.x == 0) barrier_expect(barrier, 4);
  __syncthreads();
  cluster_sync();
#define SEND                                                                                  \
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" \
               ::"r"(there), "r"(i), "r"(other)                                               \
               : "memory")
  if (threadIdx.x == 0) {
    IN_TURN(rank == 0, SEND, barrier_wait(barrier, i & 1); barrier_expect(barrier, 4))
  }
  __syncwarp();
  cluster_sync();
}

// Bulk copies from shared memory to the other's, in turn.
KERNEL bulk_dsmem_ping_pong(u64* times, int iters, int bytes) {
  const u32 barrier = one_barrier(1), rank = rank_in_cluster();
  const u32 other = in_cta(barrier, rank ^ 1), there = in_cta(address_of(shared), rank ^ 1);
  if (threadIdx.x == 0) barrier_expect(barrier, bytes);
  __syncthreads();
  cluster_sync();
#define SEND_BULK                                                                              \
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"        \
               " [%0], [%1], %2, [%3];" ::"r"(there),                                          \
               "r"(address_of(shared)), "r"(bytes), "r"(other)                                 \
               : "memory")
  if (threadIdx.x == 0) {
    IN_TURN(rank == 0, SEND_BULK, barrier_wait(barrier, i & 1); barrier_expect(barrier, bytes))
  }
  __syncwarp();
  cluster_sync();
}

KERNEL dsmem_ld_latency(u64* times, u32* data, int iters) {
  const u32 rank = rank_in_cluster(), next = (rank + 1) % size_of_cluster();
  const u32 own = address_of(shared) + threadIdx.x * 4;
  u32 x = in_cta(own, next);
  *(u32*)(shared + threadIdx.x * 4) = in_cta(own, rank);  // what the neighbour loads next
  __syncthreads();
  cluster_sync();
  if (rank) {
    cluster_sync();
    return;
  }
  TIMED(R8(asm volatile("ld.volatile.shared::cluster.u32 %0, [%0];" : "+r"(x)::"memory");))
  data[threadIdx.x] = x;
  cluster_sync();
}

#define RD(k)                                                                                  \
  asm volatile("ld.volatile.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4+" #k "*512];"         \
               : "=r"(r[4 * k]), "=r"(r[4 * k + 1]), "=r"(r[4 * k + 2]), "=r"(r[4 * k + 3])    \
               : "r"(x)                                                                        \
               : "memory");
KERNEL dsmem_ld_rate(u64* times, u32* data, int iters) {
  const u32 next = (rank_in_cluster() + 1) % size_of_cluster();
  const u32 x = in_cta(address_of(shared) + threadIdx.x % 32 * 16, next);
  u32 s = 0;
  cluster_sync();
  TIMED({
    u32 r[32];
    RD(0) RD(1) RD(2) RD(3) RD(4) RD(5) RD(6) RD(7)
    _Pragma("unroll") for (int k = 0; k < 32; ++k) s ^= r[k];
  })
  data[blockIdx.x * blockDim.x + threadIdx.x] = s;
  cluster_sync();
}

#define WR(k)                                                                                  \
  asm volatile("st.volatile.shared::cluster.v4.u32 [%0+" #k "*512], {%1, %2, %3, %4};" ::"r"(x), \
               "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])                                      \
               : "memory");
KERNEL dsmem_st_rate(u64* times, u32* data, int iters) {
  const u32 next = (rank_in_cluster() + 1) % size_of_cluster();
  const u32 x = in_cta(address_of(shared) + threadIdx.x % 32 * 16, next);
  const u32 v[4] = FOUR(data);
  cluster_sync();
  TIMED({ WR(0) WR(1) WR(2) WR(3) WR(4) WR(5) WR(6) WR(7) })
  cluster_sync();
}
