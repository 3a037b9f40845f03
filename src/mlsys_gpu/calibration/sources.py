"""The micro-benchmarks' CUDA C++ (``kernels/*.cu``), and what NVRTC makes of it."""

from __future__ import annotations

from pathlib import Path

from mlsys_gpu import artifacts
from mlsys_gpu.artifacts import Compiled

FOLDER = Path(__file__).with_name("kernels")

OPTIONS = ("-default-device", "--ptxas-options=-v")
"""No fast math: IEEE division and full-precision functions are among what is measured."""

WGMMA_N = (8, 16, 32, 64, 96, 128, 192, 256)


def names() -> list[str]:
    """The files of kernels, without their common beginning."""
    return sorted(path.stem for path in FOLDER.glob("*.cu") if path.stem != "common")


def source(name: str) -> str:
    """CUDA C++ of one file, with what it begins with."""
    parts = [(FOLDER / "common.cu").read_text()]
    if name == "wgmma":
        parts += [_wgmma(n) for n in WGMMA_N]
    parts.append((FOLDER / f"{name}.cu").read_text())
    return "\n".join(parts)


def compiled(name: str, arch: str = "sm_90a") -> Compiled:
    """PTX, cubin and the compiler's log of one file.

    Raises:
        artifacts.CompileError: the compiler refused it.
        artifacts.MissingTool: NVRTC is not installed.
    """
    return artifacts.compile_cuda(source(name), arch, OPTIONS, headers=False)


def _wgmma(n: int) -> str:
    """``Wgmma<n>``: m64nNk16 of f16 with f32 accumulators, A in shared memory or registers."""
    count = n // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    held = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    shape = f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16"

    def form(signature: str, a: str, b: str, scale: str, inputs: str, tail: str) -> str:
        return (
            f"  static __device__ __forceinline__ void {signature} {{\n"
            f'    asm volatile("{{ .reg .pred p; setp.ne.b32 p, {scale}, 0;\\n"\n'
            f'      "{shape} {{{registers}}}, {a}, {b}, p, {tail}; }}"\n'
            f'      : {held} : {inputs}, "r"(1));\n'
            f"  }}\n"
        )

    ss = form(
        f"ss(float (&d)[{count}], u64 a, u64 b)",
        f"%{count}", f"%{count + 1}", f"%{count + 2}", '"l"(a), "l"(b)', "1, 1, 0, 0",
    )  # fmt: skip
    rs = form(
        f"rs(float (&d)[{count}], const u32 (&a)[4], u64 b)",
        "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}",
        f"%{count + 4}",
        f"%{count + 5}",
        '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)',
        "1, 1, 0",
    )
    first = "template <int N>\nstruct Wgmma;\n" if n == WGMMA_N[0] else ""
    return f"{first}template <>\nstruct Wgmma<{n}> {{\n{ss}{rs}}};\n"
