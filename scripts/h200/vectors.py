"""The outputs of a Hopper GPU that the simulator is held to (tests/sim/vectors).

    python scripts/h200/vectors.py pack FOLDER [FAMILY …]   # anywhere with TVM: cubins and inputs
    python FOLDER/vectors.py launch FOLDER OUTPUTS          # on the GPU: NumPy and the driver alone
    python scripts/h200/vectors.py keep FOLDER OUTPUTS      # the outputs, into tests/sim/vectors
    python scripts/h200/vectors.py compare [FAMILY …]       # the simulator with what is kept

The kernels are compiled by the project's own lowering; the launcher needs neither TVM nor PyTorch.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]


# ---------------------------------------------------------------------------------------- pack


def pack(folder: Path, families: list[str]) -> None:
    """Compile the cases' kernels and write cubins, inputs and a manifest."""
    sys.path.insert(0, str(ROOT))
    from mlsys_gpu import artifacts
    from tests.sim import vectors
    from tests.sim.vectors.case import Mapped, array_of

    folder.mkdir(parents=True, exist_ok=True)
    manifest = []
    inputs: dict[str, np.ndarray] = {}
    for number, case in enumerate(vectors.all_cases(families)):
        made = artifacts.inspect(case.kernel(), "hopper")
        (folder / f"{number}.cubin").write_bytes(made.cubin)
        arguments = case.arguments()
        for i, argument in enumerate(arguments):
            inputs[f"{number}/{i}"] = array_of(argument)
        given: list[Any] = []
        for kind, *rest in made.lowered.arguments:
            if kind == "tensor":
                given.append(["tensor", rest[0], rest[1]])
            elif kind == "map":
                at = made.lowered.maps[rest[0]].tensor
                argument = arguments[at]
                assert isinstance(argument, Mapped), "a map that the host encodes"
                given.append(["map", at, _record(argument)])
            else:
                raise ValueError(f"{case.name}: a scalar argument")
        launch = made.launch
        manifest.append(
            {
                "family": case.family,
                "name": case.name,
                "function": made.name,
                "grid": launch.grid,
                "block": launch.block,
                "cluster": launch.cluster,
                "shared": launch.shared_bytes,
                "arguments": given,
                "outputs": case.outputs,
                "source": vectors.source_hash(case),
            }
        )
        print(f"{case.name}: {len(made.cubin)} bytes", flush=True)
    np.savez_compressed(folder / "inputs.npz", allow_pickle=False, **inputs)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "vectors.py").write_text(Path(__file__).read_text())


def _record(argument: Any) -> dict[str, Any]:
    import mlsys_gpu as mg

    return mg.TensorMap(argument.array, **argument.fields).record


# -------------------------------------------------------------------------------------- launch


class Attribute(ctypes.Structure):
    """``CUlaunchAttribute`` of a cluster: its id is 4 (CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)."""

    _fields_ = (
        ("id", ctypes.c_uint),
        ("pad", ctypes.c_uint),
        ("x", ctypes.c_uint),
        ("y", ctypes.c_uint),
        ("z", ctypes.c_uint),
        ("rest", ctypes.c_ubyte * 52),
    )


class Config(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint),
    )


_DATA_TYPES = {
    "uint8": 0, "int8": 0, "bool": 0, "uint16": 1, "int16": 1, "uint32": 2, "int32": 3,
    "uint64": 4, "int64": 5, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9,
}  # fmt: skip


class Driver:
    """The few functions of the CUDA driver that are needed."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        self.device, self.context = ctypes.c_int(), ctypes.c_void_p()
        self("cuDeviceGet", ctypes.byref(self.device), 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        self("cuCtxSetCurrent", self.context)

    def __call__(self, name: str, *arguments: Any) -> None:
        code = getattr(self.cuda, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorName(code, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'?').decode()}")

    def describe(self) -> dict[str, Any]:
        name, version = ctypes.create_string_buffer(100), ctypes.c_int()
        self("cuDeviceGetName", name, 100, self.device)
        self("cuDriverGetVersion", ctypes.byref(version))
        try:
            text = Path("/proc/driver/nvidia/version").read_text().split("Module")[-1].split()
            driver = next(word for word in text if word[0].isdigit())
        except (OSError, StopIteration):
            driver = "unknown"
        return {
            "gpu": name.value.decode(),
            "driver": driver,
            "cuda": f"{version.value // 1000}.{version.value % 1000 // 10}",
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        }

    def encode(self, record: dict[str, Any], address: int) -> Any:
        """An encoded tensor map, aligned to 64 bytes."""
        storage = ctypes.create_string_buffer(192)
        at = -(-ctypes.addressof(storage) // 64) * 64
        rank = len(record["shape"])
        self(
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(at),
            _DATA_TYPES[record["dtype"]],
            rank,
            ctypes.c_void_p(address),
            (ctypes.c_uint64 * rank)(*record["shape"]),
            (ctypes.c_uint64 * max(1, rank - 1))(*record["strides"]),
            (ctypes.c_uint32 * rank)(*record["box"]),
            (ctypes.c_uint32 * rank)(*record["steps"]),
            record["interleave"],
            record["swizzle"],
            0,
            record["fill"],
        )
        return storage, at


def launch(folder: Path, into: Path) -> None:
    """Run all packed cases and write what they wrote.

    A kernel that faults takes its process along: the others then run in a new one.
    """
    count = len(json.loads((folder / "manifest.json").read_text()))
    outputs: dict[str, np.ndarray] = {}
    first = 0
    while first < count:
        part = into.with_name(f"part{first}.npz")
        subprocess.run([sys.executable, __file__, "part", str(folder), str(part), str(first)])
        with np.load(part) as made:
            outputs.update({key: made[key] for key in made.files if key != "next"})
            first = int(made["next"])
        part.unlink()
    np.savez_compressed(into, allow_pickle=False, **outputs)
    into.with_suffix(".json").write_text(json.dumps(Driver().describe()))
    print(f"{count} kernels, {count - len({key.split('/')[0] for key in outputs})} failed")


def launch_part(folder: Path, into: Path, first: int) -> None:
    """Run the packed cases from one on, as far as the first that faults."""
    driver = Driver()
    manifest = json.loads((folder / "manifest.json").read_text())
    inputs = np.load(folder / "inputs.npz")
    outputs: dict[str, Any] = {"next": len(manifest)}
    for number in range(first, len(manifest)):
        try:
            done = _launch_one(driver, folder, number, manifest[number], inputs)
        except RuntimeError as error:
            print(f"{manifest[number]['name']}: {error}", flush=True)
            if "cuCtxSynchronize" in str(error):
                outputs["next"] = number + 1
                break
            continue
        outputs.update({f"{number}/{i}": array for i, array in done.items()})
    np.savez(into, allow_pickle=False, **outputs)


def _launch_one(driver: Driver, folder: Path, number: int, case: Any, inputs: Any) -> dict:
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    image = (folder / f"{number}.cubin").read_bytes()
    driver("cuModuleLoadData", ctypes.byref(module), image)
    # TVM names the device function kernel_kernel
    count = ctypes.c_uint()
    driver("cuModuleGetFunctionCount", ctypes.byref(count), module)
    functions = (ctypes.c_void_p * count.value)()
    driver("cuModuleEnumerateFunctions", functions, count, module)
    assert count.value == 1, f"{count.value} functions"
    function = ctypes.c_void_p(functions[0])
    if case["shared"] > 48 * 1024:
        driver("cuFuncSetAttribute", function, 8, case["shared"])
    arrays, memory = {}, {}
    for key in inputs.files:
        if key.startswith(f"{number}/"):
            i = int(key.split("/")[1])
            arrays[i] = np.ascontiguousarray(inputs[key]).copy()
            memory[i] = ctypes.c_uint64()
            driver("cuMemAlloc_v2", ctypes.byref(memory[i]), ctypes.c_size_t(arrays[i].nbytes + 64))
            source = ctypes.c_void_p(arrays[i].ctypes.data)
            driver("cuMemcpyHtoD_v2", memory[i], source, ctypes.c_size_t(arrays[i].nbytes))
    kept: list[Any] = []
    pointers = (ctypes.c_void_p * max(1, len(case["arguments"])))()
    for at, (kind, which, rest) in enumerate(case["arguments"]):
        if kind == "tensor":
            value = ctypes.c_uint64(memory[which].value + rest)
            kept.append(value)
            pointers[at] = ctypes.addressof(value)
        else:
            storage, address = driver.encode(rest, memory[which].value)
            kept.append(storage)
            pointers[at] = address
    attribute = Attribute(4, 0, *case["cluster"])
    clustered = int(np.prod(case["cluster"])) > 1
    config = Config(
        *case["grid"], *case["block"], case["shared"], None, ctypes.pointer(attribute), clustered
    )
    driver("cuLaunchKernelEx", ctypes.byref(config), function, pointers, None)
    driver("cuCtxSynchronize")
    results = {}
    for i in case["outputs"]:
        target = ctypes.c_void_p(arrays[i].ctypes.data)
        driver("cuMemcpyDtoH_v2", target, memory[i], ctypes.c_size_t(arrays[i].nbytes))
        results[i] = arrays[i]
    for address in memory.values():
        driver("cuMemFree_v2", address)
    driver("cuModuleUnload", module)
    return results


# ------------------------------------------------------------------------------ keep, compare


def keep(folder: Path, given: Path) -> None:
    """Write the outputs of a launch into tests/sim/vectors, one file for each family."""
    sys.path.insert(0, str(ROOT))
    from tests.sim import vectors

    manifest = json.loads((folder / "manifest.json").read_text())
    outputs = np.load(given)
    provenance = json.loads(given.with_suffix(".json").read_text())
    known = {case.name: case for case in vectors.all_cases()}
    found: dict[str, dict[str, Any]] = {}
    for number, record in enumerate(manifest):
        case = known[record["name"]]
        if f"{number}/{case.outputs[0]}" not in outputs.files:
            print(f"{case.name}: has no outputs")
            continue
        if vectors.source_hash(case) != record["source"]:
            print(f"{case.name}: changed since it was packed; left out")
            continue
        arrays = [outputs[f"{number}/{i}"] for i in case.outputs]
        found.setdefault(case.family, {})[case.name] = (record["source"], arrays)
    for family, cases in found.items():
        print(f"{family}: {vectors.write(family, cases, provenance):,} bytes")


def compare(families: list[str]) -> None:
    """Print, for each family, how many forms and elements agree, and how the others differ."""
    sys.path.insert(0, str(ROOT))
    from tests.sim import vectors

    print(vectors.summary(families, details=True))


def main() -> None:
    command, *rest = sys.argv[1:] or ["help"]
    if command == "pack":
        pack(Path(rest[0]), rest[1:])
    elif command == "launch":
        launch(Path(rest[0]), Path(rest[1]))
    elif command == "part":
        launch_part(Path(rest[0]), Path(rest[1]), int(rest[2]))
    elif command == "keep":
        keep(Path(rest[0]), Path(rest[1]))
    elif command == "compare":
        compare(rest)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
