// Instructions of the warp schedulers: one dependent chain for latency, eight for throughput.
// Start values and operands come from memory, so that nothing is known when compiling. A pass is 128
// steps, so that the loop around them weighs little; 32 where a step is many instructions.

#define ARITHMETIC(name, STEP, R)                                                        \
  KERNEL name##_latency(u64* times, u32* data, int iters) {                                \
    const u32 a = data[1024], b = data[1025];                                              \
    (void)a, (void)b;                                                                      \
    u32 x = data[threadIdx.x], y = data[threadIdx.x + 1];                                  \
    TIMED(R8(R(STEP(x, y))))                                                             \
    data[2048 + threadIdx.x] = x + y;                                                      \
  }                                                                                        \
  KERNEL name##_rate(u64* times, u32* data, int iters) {                                   \
    const u32 a = data[1024], b = data[1025];                                              \
    (void)a, (void)b;                                                                      \
    u32 x[8], y[8];                                                                        \
    _Pragma("unroll") for (int k = 0; k < 8; ++k) {                                        \
      x[k] = data[threadIdx.x + k];                                                        \
      y[k] = data[threadIdx.x + k + 8];                                                    \
    }                                                                                      \
    TIMED(R(STEP(x[0], y[0]) STEP(x[1], y[1]) STEP(x[2], y[2]) STEP(x[3], y[3])           \
             STEP(x[4], y[4]) STEP(x[5], y[5]) STEP(x[6], y[6]) STEP(x[7], y[7])))         \
    u32 sum = 0;                                                                           \
    _Pragma("unroll") for (int k = 0; k < 8; ++k) sum += x[k] + y[k];                      \
    data[2048 + threadIdx.x] = sum;                                                        \
  }

#define SIMPLE(text, x) asm volatile(text : "+r"(x) : "r"(a), "r"(b));

// One step is two instructions here, each the other's operand: the assembler would fold a chain
// of additions or logical operations with the same operand.
#define IADD(x, y)                                      \
  asm volatile("add.s32 %0, %0, %1;" : "+r"(x) : "r"(y)); \
  asm volatile("add.s32 %0, %0, %1;" : "+r"(y) : "r"(x));
#define LOP(x, y)                                                                 \
  asm volatile("lop3.b32 %0, %0, %1, %2, 0x6a;" : "+r"(x) : "r"(y), "r"(a)); \
  asm volatile("lop3.b32 %0, %0, %1, %2, 0x6a;" : "+r"(y) : "r"(x), "r"(b));
#define FMNMX(x, y) SIMPLE("max.f32 %0, %0, %1;", x) SIMPLE("min.f32 %0, %0, %2;", x)

#define FFMA(x, y) SIMPLE("fma.rn.f32 %0, %0, %1, %2;", x)
#define FADD(x, y) SIMPLE("add.f32 %0, %0, %1;", x)
#define FMUL(x, y) SIMPLE("mul.f32 %0, %0, %1;", x)
#define HFMA2(x, y) SIMPLE("fma.rn.f16x2 %0, %0, %1, %2;", x)
#define IMAD(x, y) SIMPLE("mad.lo.s32 %0, %0, %1, %2;", x)
#define PRMT(x, y) SIMPLE("prmt.b32 %0, %0, %1, %2;", x)
#define SHF(x, y) SIMPLE("shf.l.wrap.b32 %0, %0, %1, %2;", x)
#define EX2(x, y) SIMPLE("ex2.approx.ftz.f32 %0, %0;", x)
#define LG2(x, y) SIMPLE("lg2.approx.ftz.f32 %0, %0;", x)
// rcp of rcp would be taken out
#define RCP(x, y) SIMPLE("rcp.approx.ftz.f32 %0, %0; add.f32 %0, %0, %1;", x)
#define RSQRT(x, y) SIMPLE("rsqrt.approx.ftz.f32 %0, %0;", x)
#define TANH(x, y) SIMPLE("tanh.approx.f32 %0, %0;", x)
#define CVT_F16X2(x, y) SIMPLE("cvt.rn.f16x2.f32 %0, %0, %1;", x)
#define CVT_BF16X2(x, y) SIMPLE("cvt.rn.bf16x2.f32 %0, %0, %1;", x)
#define CVT_F32_F16(x, y) \
  SIMPLE("{.reg .b16 low, high; mov.b32 {low, high}, %0; cvt.f32.f16 %0, low;}", x)
#define I2F(x, y) SIMPLE("cvt.rn.f32.s32 %0, %0;", x)
#define F2I(x, y) SIMPLE("cvt.rzi.s32.f32 %0, %0;", x)
#define SETP_SEL(x, y) \
  SIMPLE("{.reg .pred p; setp.gt.s32 p, %0, %1; selp.b32 %0, %2, %0, p;}", x)
#define DIV_RN(x, y) SIMPLE("div.rn.f32 %0, %1, %0;", x)
#define DIV_APPROX(x, y) SIMPLE("div.approx.ftz.f32 %0, %1, %0;", x)
#define SQRT_RN(x, y) SIMPLE("sqrt.rn.f32 %0, %0;", x)
#define RCP_RN(x, y) SIMPLE("rcp.rn.f32 %0, %0;", x)
#define EXPF(x, y) x = __float_as_uint(expf(-__uint_as_float(x)));
#define EXP2F(x, y) x = __float_as_uint(exp2f(-__uint_as_float(x)));
#define SHFL(x, y) SIMPLE("shfl.sync.bfly.b32 %0, %0, 1, 0x1f, 0xffffffff;", x)
#define REDUX(x, y) SIMPLE("redux.sync.add.u32 %0, %0, 0xffffffff;", x)
#define BALLOT(x, y) \
  SIMPLE("{.reg .pred p; setp.ne.b32 p, %0, %1; vote.sync.ballot.b32 %0, p, 0xffffffff;}", x)

ARITHMETIC(ffma, FFMA, R16)
ARITHMETIC(fadd, FADD, R16)
ARITHMETIC(fmul, FMUL, R16)
ARITHMETIC(fmnmx, FMNMX, R16)
ARITHMETIC(hfma2, HFMA2, R16)
ARITHMETIC(iadd, IADD, R16)
ARITHMETIC(lop, LOP, R16)
ARITHMETIC(imad, IMAD, R16)
ARITHMETIC(prmt, PRMT, R16)
ARITHMETIC(shf, SHF, R16)
ARITHMETIC(setp_sel, SETP_SEL, R16)
ARITHMETIC(ex2, EX2, R16)
ARITHMETIC(lg2, LG2, R16)
ARITHMETIC(rcp, RCP, R16)
ARITHMETIC(rsqrt, RSQRT, R16)
ARITHMETIC(tanh, TANH, R16)
ARITHMETIC(cvt_f16x2_f32, CVT_F16X2, R16)
ARITHMETIC(cvt_bf16x2_f32, CVT_BF16X2, R16)
ARITHMETIC(cvt_f32_f16, CVT_F32_F16, R16)
ARITHMETIC(i2f, I2F, R16)
ARITHMETIC(f2i, F2I, R16)
ARITHMETIC(div_rn, DIV_RN, R4)
ARITHMETIC(div_approx, DIV_APPROX, R4)
ARITHMETIC(sqrt_rn, SQRT_RN, R4)
ARITHMETIC(rcp_rn, RCP_RN, R4)
ARITHMETIC(expf, EXPF, R4)
ARITHMETIC(exp2f, EXP2F, R4)
ARITHMETIC(shfl, SHFL, R16)
ARITHMETIC(redux, REDUX, R16)
ARITHMETIC(ballot, BALLOT, R16)
