// The copy engine: boxes of a 2-D tensor map, and bulk copies of consecutive bytes.
// Box number k is at column 64 * (k % columns), row `rows` * (k / columns), 64 columns wide.

extern __shared__ __align__(1024) char shared[];

struct Boxes {
  int rows, bytes, columns, first;
};

// Where the next copy is, without a division in what is timed.
template <typename Memory>
struct Cursor;

template <>
struct Cursor<const TensorMap> {
  const TensorMap& map;
  const Boxes& boxes;
  int x, y;
  __device__ __forceinline__ Cursor(const TensorMap& map, const Boxes& boxes)
      : map(map), boxes(boxes) {}
  __device__ __forceinline__ void at(int k) {
    x = (boxes.first + k) % boxes.columns * 64;
    y = (boxes.first + k) / boxes.columns * boxes.rows;
  }
  __device__ __forceinline__ void advance(int by = 1) {
    x += 64 * by;
    if (x >= boxes.columns * 64) {
      x -= boxes.columns * 64;
      y += boxes.rows;
    }
  }
  __device__ __forceinline__ void load(u32 to, u32 barrier) { load_box(to, map, x, y, barrier); }
  __device__ __forceinline__ void store(u32 from) { store_box(map, x, y, from); }
};

template <>
struct Cursor<char* const> {
  char* const from;
  const Boxes& boxes;
  char* p;
  __device__ __forceinline__ Cursor(char* from, const Boxes& boxes) : from(from), boxes(boxes) {}
  __device__ __forceinline__ void at(int k) { p = from + (u64)(boxes.first + k) * boxes.bytes; }
  __device__ __forceinline__ void advance() { p += boxes.bytes; }
  __device__ __forceinline__ void load(u32 to, u32 barrier) {
    load_bulk(to, p, boxes.bytes, barrier);
  }
  __device__ __forceinline__ void store(u32 from) { store_bulk(p, from, boxes.bytes); }
};

#define TENSOR const __grid_constant__ TensorMap
#define BYTES char *const

// One copy after another, each waited for: cycles from its issue to the barrier's success.
template <typename Memory>
__device__ __forceinline__ void load_latency(u64* times, Memory& memory, Boxes boxes, int count) {
  __shared__ u64 storage;
  const u32 barrier = address_of(&storage);
  if (threadIdx.x) return;
  barrier_init(barrier, 1);
  fence_barrier_init();
  Cursor<Memory> cursor(memory, boxes);
  cursor.at(0);
  for (int k = 0; k < count; ++k) {
    barrier_expect(barrier, boxes.bytes);
    const u64 t0 = clock_now();
    cursor.load(address_of(shared), barrier);
    barrier_wait(barrier, k & 1);
    times[k] = clock_now() - t0;
    cursor.advance();
  }
}
KERNEL tma_load_latency(u64* times, TENSOR map, Boxes boxes, int count) {
  load_latency(times, map, boxes, count);
}
KERNEL bulk_load_latency(u64* times, BYTES from, Boxes boxes, int count) {
  load_latency(times, from, boxes, count);
}

// Each warp has a ring of `stages` copies in flight. Rings b * share, …, b * share + share - 1 all
// copy numbers b * stride, b * stride + 1, …, and begin again after `period` of them.
template <typename Memory>
__device__ __forceinline__ void load_ring(u64* times, Memory& memory, Boxes boxes, int count,
                                          int stages, int stride, int period, int share) {
  __shared__ u64 storage[32];
  const int warp = threadIdx.x / 32, ring = blockIdx.x * (blockDim.x / 32) + warp;
  const u32 full = address_of(storage) + warp * stages * 8;
  const u32 to = address_of(shared) + warp * stages * boxes.bytes;
  if (threadIdx.x % 32 == 0)
    for (int s = 0; s < stages; ++s) barrier_init(full + 8 * s, 1);
  fence_barrier_init();
  __syncthreads();
  if (threadIdx.x % 32) return;
  boxes.first += ring / share * stride;
  Cursor<Memory> cursor(memory, boxes);
  cursor.at(0);
  int next = 0;
  const u64 began = clock_now();
  for (int s = 0; s < stages; ++s) {
    barrier_expect(full + 8 * s, boxes.bytes);
    cursor.load(to + s * boxes.bytes, full + 8 * s);
    cursor.advance();
    if (++next == period) cursor.at(next = 0);
  }
  int stage = 0;
  u32 phase = 0;
  for (int k = 0; k < count; ++k) {
    barrier_wait(full + 8 * stage, phase);
    if (k + stages < count) {
      barrier_expect(full + 8 * stage, boxes.bytes);
      cursor.load(to + stage * boxes.bytes, full + 8 * stage);
      cursor.advance();
      if (++next == period) cursor.at(next = 0);
    }
    if (++stage == stages) {
      stage = 0;
      phase ^= 1;
    }
  }
  times[2 * ring] = began;
  times[2 * ring + 1] = clock_now();
}
KERNEL tma_load_ring(u64* times, TENSOR map, Boxes boxes, int count, int stages, int stride,
                     int period, int share) {
  load_ring(times, map, boxes, count, stages, stride, period, share);
}
KERNEL bulk_load_ring(u64* times, BYTES from, Boxes boxes, int count, int stages, int stride,
                      int period, int share) {
  load_ring(times, from, boxes, count, stages, stride, period, share);
}

// `count` times the same copy to one barrier, issued back to back: when the last was issued, when all had come.
template <typename Memory>
__device__ __forceinline__ void load_issue(u64* times, Memory& memory, Boxes boxes, int count) {
  __shared__ u64 storage;
  const u32 barrier = address_of(&storage);
  if (threadIdx.x) return;
  barrier_init(barrier, 1);
  fence_barrier_init();
  Cursor<Memory> cursor(memory, boxes);
  cursor.at(0);
  for (int pass = 0; pass < 3; ++pass) {
    barrier_expect(barrier, boxes.bytes * count);
    const u64 t0 = clock_now();
#pragma unroll 4
    for (int k = 0; k < count; ++k) cursor.load(address_of(shared), barrier);
    const u64 t1 = clock_now();
    barrier_wait(barrier, pass & 1);
    times[0] = t1 - t0;
    times[1] = clock_now() - t0;
  }
}
KERNEL tma_load_issue(u64* times, TENSOR map, Boxes boxes, int count) {
  load_issue(times, map, boxes, count);
}
KERNEL bulk_load_issue(u64* times, BYTES from, Boxes boxes, int count) {
  load_issue(times, from, boxes, count);
}

// The same by a thread that elect.sync chose, where the compiler knows that there is one: it puts no
// loop over the lanes around the instruction.
KERNEL tma_load_issue_elected(u64* times, TENSOR map, Boxes boxes, int count) {
  __shared__ u64 storage;
  const u32 barrier = address_of(&storage);
  if (threadIdx.x == 0) {
    barrier_init(barrier, 1);
    fence_barrier_init();
  }
  __syncwarp();
  u32 elected;
  asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(elected));
  if (elected) {
    for (int pass = 0; pass < 3; ++pass) {
      barrier_expect(barrier, boxes.bytes * count);
      const u64 t0 = clock_now();
#pragma unroll 4
      for (int k = 0; k < count; ++k) load_box(address_of(shared), map, 0, 0, barrier);
      const u64 t1 = clock_now();
      barrier_wait(barrier, pass & 1);
      times[0] = t1 - t0;
      times[1] = clock_now() - t0;
    }
  }
}

// One store after another: cycles until shared memory has been read, and until all is written.
template <typename Memory>
__device__ __forceinline__ void store_latency(u64* times, Memory& memory, Boxes boxes, int count) {
  for (int k = threadIdx.x; k < boxes.bytes / 4; k += blockDim.x) ((u32*)shared)[k] = k;
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  if (threadIdx.x) return;
  Cursor<Memory> cursor(memory, boxes);
  cursor.at(0);
  for (int k = 0; k < count; ++k) {
    const u64 t0 = clock_now();
    cursor.store(address_of(shared));
    bulk_commit();
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    const u64 t1 = clock_now();
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    times[2 * k] = t1 - t0;
    times[2 * k + 1] = clock_now() - t0;
    cursor.advance();
  }
}
KERNEL tma_store_latency(u64* times, TENSOR map, Boxes boxes, int count) {
  store_latency(times, map, boxes, count);
}
KERNEL bulk_store_latency(u64* times, BYTES to, Boxes boxes, int count) {
  store_latency(times, to, boxes, count);
}

// Stores of which four may be reading shared memory at a time.
template <typename Memory>
__device__ __forceinline__ void store_ring(u64* times, Memory& memory, Boxes boxes, int count,
                                           int stride, int period) {
  if (threadIdx.x) return;
  boxes.first += blockIdx.x * stride;
  Cursor<Memory> cursor(memory, boxes);
  cursor.at(0);
  int next = 0;
  const u64 began = clock_now();
  for (int k = 0; k < count; ++k) {
    cursor.store(address_of(shared) + k % 4 * boxes.bytes);
    cursor.advance();
    if (++next == period) cursor.at(next = 0);
    bulk_commit();
    asm volatile("cp.async.bulk.wait_group.read 3;" ::: "memory");
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  times[2 * blockIdx.x] = began;
  times[2 * blockIdx.x + 1] = clock_now();
}
KERNEL tma_store_ring(u64* times, TENSOR map, Boxes boxes, int count, int stride, int period) {
  store_ring(times, map, boxes, count, stride, period);
}
KERNEL bulk_store_ring(u64* times, BYTES to, Boxes boxes, int count, int stride, int period) {
  store_ring(times, to, boxes, count, stride, period);
}

KERNEL bulk_wait_done(u64* times, int iters) {
  TIMED(R16(asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");))
}

// One box to both CTAs of a pair: cycles from the issue to the issuing CTA's barrier, and to the
// other's as the issuing CTA hears of it (its peer arrives back when its own copy has come).
KERNEL tma_multicast_latency(u64* times, TENSOR map, Boxes boxes, int count) {
  __shared__ u64 storage[2];
  const u32 full = address_of(storage), back = full + 8, rank = rank_in_cluster();
  if (threadIdx.x == 0) {
    barrier_init(full, 1);
    barrier_init(back, 1);
    fence_barrier_init();
  }
  cluster_sync();
  Cursor<const TensorMap> cursor(map, boxes);
  cursor.at(0);
  for (int k = 0; k < count; ++k) {
    if (threadIdx.x == 0) barrier_expect(full, boxes.bytes);
    cluster_sync();
    if (threadIdx.x == 0) {
      const u64 t0 = clock_now();
      if (rank == 0) load_box_multicast(address_of(shared), map, cursor.x, cursor.y, full, 3);
      barrier_wait(full, k & 1);
      if (rank == 0) {
        times[2 * k] = clock_now() - t0;
        barrier_wait(back, k & 1);
        times[2 * k + 1] = clock_now() - t0;
      } else {
        barrier_arrive_remote(in_cta(back, 0));
      }
    }
    cursor.advance();
    __syncwarp();
    cluster_sync();
  }
}

// Each CTA of a pair copies half of every stage to both. Warp 0 issues, warp 1 consumes.
KERNEL tma_multicast_ring(u64* times, TENSOR map, Boxes boxes, int count, int stages, int stride,
                          int period) {
  __shared__ u64 storage[32];
  const u32 full = address_of(storage), empty = full + 128, rank = rank_in_cluster();
  if (threadIdx.x == 0) {
    for (int s = 0; s < stages; ++s) {
      barrier_init(full + 8 * s, 1);
      barrier_init(empty + 8 * s, 2);
      barrier_expect(full + 8 * s, 2 * boxes.bytes);
    }
    fence_barrier_init();
  }
  __syncthreads();
  cluster_sync();
  const u64 began = clock_now();
  if (threadIdx.x == 0) {
    int stage = 0, next = rank;
    u32 phase = 1;
    boxes.first += blockIdx.x / 2 * stride;
    Cursor<const TensorMap> cursor(map, boxes);
    cursor.at(rank);
    for (int k = 0; k < count; ++k) {
      barrier_wait(empty + 8 * stage, phase);
      load_box_multicast(address_of(shared) + (2 * stage + rank) * boxes.bytes, map, cursor.x,
                         cursor.y, full + 8 * stage, 3);
      cursor.advance(2);
      next += 2;
      if (next >= period) cursor.at(next = rank);
      if (++stage == stages) {
        stage = 0;
        phase ^= 1;
      }
    }
  } else if (threadIdx.x == 32) {
    int stage = 0;
    u32 phase = 0;
    for (int k = 0; k < count; ++k) {
      barrier_wait(full + 8 * stage, phase);
      if (k + stages < count) barrier_expect(full + 8 * stage, 2 * boxes.bytes);
      barrier_arrive_remote(in_cta(empty + 8 * stage, 0));
      barrier_arrive_remote(in_cta(empty + 8 * stage, 1));
      if (++stage == stages) {
        stage = 0;
        phase ^= 1;
      }
    }
    const u64 ended = clock_now();
    for (int warp = 0; warp < 2; ++warp) {
      times[4 * blockIdx.x + 2 * warp] = began;
      times[4 * blockIdx.x + 2 * warp + 1] = ended;
    }
  }
  __syncthreads();
  cluster_sync();
}
