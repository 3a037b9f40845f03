// Matrix products of a warp: mma.sync.m16n8k16, f16 in and f32 out.

#define MMA(d)                                                                                \
  asm volatile(                                                                               \
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7},"  \
      " {%8, %9}, {%0, %1, %2, %3};"                                                          \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                        \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));

KERNEL mma_latency(u64* times, u32* data, int iters) {
  const u32 a[4] = FOUR(data), b[2] = {data[threadIdx.x + 4], data[threadIdx.x + 5]};
  float d[4] = {0.f, 0.f, 0.f, 0.f};
  TIMED(R32(MMA(d)))
  data[2048 + threadIdx.x] = __float_as_uint(d[0] + d[1] + d[2] + d[3]);
}

KERNEL mma_rate(u64* times, u32* data, int iters) {
  const u32 a[4] = FOUR(data), b[2] = {data[threadIdx.x + 4], data[threadIdx.x + 5]};
  float d[8][4] = {};
  TIMED(R4(_Pragma("unroll") for (int k = 0; k < 8; ++k) MMA(d[k])))
  float sum = 0.f;
#pragma unroll
  for (int k = 0; k < 8; ++k) sum += d[k][0] + d[k][1] + d[k][2] + d[k][3];
  data[2048 + threadIdx.x] = __float_as_uint(sum);
}
