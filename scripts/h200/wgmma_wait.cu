// Which products does one warp's wgmma.wait_group cover? (the simulator's reading "wgmma-wait")
//
// A warpgroup multiplies 64 x 8 x 16 from shared memory; one of its four warps comes 100,000 cycles
// late. Printed for each warp, in cycles since the start: when it came to the product, when it had
// issued it, and when its wait was over. On an H200 the other three are held back at the instruction
// itself and all waits end together: no warp finds its product done while another's still reads.
//
//     nvcc -gencode arch=compute_90a,code=sm_90a -O3 -o /tmp/wgmma_wait scripts/h200/wgmma_wait.cu
//     /tmp/wgmma_wait
#include <cstdint>
#include <cstdio>
#include <cuda_fp16.h>

// No swizzle; core matrices of 8 x 16 bytes: 128 bytes apart along K, 256 along M and N.
__device__ uint64_t descriptor(const void* operand) {
  uint64_t address = __cvta_generic_to_shared(operand);
  return (address & 0x3FFFF) >> 4 | uint64_t(128 >> 4) << 16 | uint64_t(256 >> 4) << 32;
}

__global__ void product(long long* out, int late, long long delay) {
  __shared__ __align__(128) half a[64 * 16], b[8 * 16];
  int t = threadIdx.x;
  for (int i = t; i < 64 * 16; i += 128) a[i] = __float2half(1.f);
  b[t] = __float2half(1.f);
  asm volatile("fence.proxy.async.shared::cta;");
  __syncthreads();
  float d[4] = {0, 0, 0, 0};
  long long start = clock64();
  while (t / 32 == late && clock64() - start < delay) {
  }
  long long came = clock64();
  asm volatile("wgmma.fence.sync.aligned;");
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "l"(descriptor(a)), "l"(descriptor(b)));
  long long issued = clock64();
  asm volatile("wgmma.commit_group.sync.aligned;");
  asm volatile("wgmma.wait_group.sync.aligned 0;");
  for (float& x : d) asm volatile("" : "+f"(x)::"memory");
  long long waited = clock64();
  if (t % 32 == 0) {
    long long* mine = out + t / 32 * 4;
    mine[0] = came - start, mine[1] = issued - start, mine[2] = waited - start, mine[3] = d[0];
  }
}

int main() {
  long long* out;
  cudaMallocManaged(&out, 16 * sizeof(*out));
  for (int run = 0; run < 2; run++)  // the first one loads the code
    for (int late = -1; late < 4; late++) {
      product<<<1, 128>>>(out, late, 100000);
      if (cudaDeviceSynchronize() != cudaSuccess) return 1;
      if (run == 0) continue;
      printf("late warp %2d:", late);
      for (int w = 0; w < 4; w++)
        printf("  came %lld issued %lld waited %lld", out[w * 4], out[w * 4 + 1], out[w * 4 + 2]);
      printf(out[3] == 16 ? "\n" : "  WRONG PRODUCT\n");
    }
}
