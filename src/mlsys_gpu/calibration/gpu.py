"""The few functions of the CUDA driver that the micro-benchmarks need."""

from __future__ import annotations

import ctypes
import functools
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from mlsys_gpu.calibration import sources

_FLOAT16, _SWIZZLE_128B, _PROMOTE_128B = 6, 3, 2
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION


class DriverError(RuntimeError):
    """A driver call failed; the message names the call and the driver's error."""


class _Attribute(ctypes.Structure):
    """``CUlaunchAttribute``, for cluster dimensions."""

    _fields_: ClassVar = [
        ("id", ctypes.c_uint),
        ("pad", ctypes.c_uint),
        ("x", ctypes.c_uint),
        ("y", ctypes.c_uint),
        ("z", ctypes.c_uint),
        ("rest", ctypes.c_ubyte * 52),
    ]


class _Config(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_: ClassVar = [
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    ]


class Boxes(ctypes.Structure):
    """Which copies a kernel of ``tma.cu`` makes: see there."""

    _fields_: ClassVar = [(name, ctypes.c_int) for name in ("rows", "bytes", "columns", "first")]


class Tiles(ctypes.Structure):
    """Which tiles a CTA of ``ring.cu`` copies: see there."""

    _fields_: ClassVar = [
        (name, ctypes.c_int) for name in ("rows_over", "columns_over", "columns_of", "skew")
    ]


class Shares(ctypes.Structure):
    """Which block rows a cluster of ``shares.cu`` copies: see there."""

    _fields_: ClassVar = [
        (name, ctypes.c_int) for name in ("rows_over", "rows_of", "columns_over", "columns_of")
    ]


class TensorMap(ctypes.Structure):
    """``CUtensorMap``."""

    _fields_: ClassVar = [("opaque", ctypes.c_ubyte * 128)]


def u32(value: int) -> Any:
    """An ``int`` or ``unsigned`` argument."""
    return ctypes.c_uint(value & 0xFFFFFFFF)


def u64(value: int) -> Any:
    """A pointer or 64-bit argument."""
    return ctypes.c_uint64(value)


class Gpu:
    """The first GPU: memory, kernels, launches and events.

    Attributes:
        sms: number of multiprocessors.
    """

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuDeviceGetAttribute", ctypes.byref(count), 16, device)
        self.sms = count.value
        self._modules: dict[str, ctypes.c_void_p] = {}
        self._events = [ctypes.c_void_p() for _ in range(2)]
        for event in self._events:
            self.call("cuEventCreate", ctypes.byref(event), 0)
        self.times = self.allocate(1 << 20)
        """Where kernels write their clocks, 1 MiB."""

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver.

        Raises:
            DriverError: it did not succeed.
        """
        code = getattr(self._cuda, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(code, ctypes.byref(text))
            raise DriverError(f"{name}: {(text.value or b'unknown error').decode()}")

    # ------------------------------------------------------------------------------- memory

    def allocate(self, count: int) -> int:
        """The address of ``count`` bytes, which live as long as the process."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(count))
        return address.value

    def upload(self, array: np.ndarray, address: int | None = None) -> int:
        """Copy an array to the GPU; the address where it is."""
        array = np.ascontiguousarray(array)
        to = self.allocate(array.nbytes) if address is None else address
        self.call(
            "cuMemcpyHtoD_v2",
            ctypes.c_uint64(to),
            ctypes.c_void_p(array.ctypes.data),
            ctypes.c_size_t(array.nbytes),
        )
        return to

    def download(self, address: int, count: int) -> np.ndarray:
        """``count`` 64-bit numbers from the GPU."""
        out = np.zeros(count, np.uint64)
        self.call(
            "cuMemcpyDtoH_v2",
            ctypes.c_void_p(out.ctypes.data),
            ctypes.c_uint64(address),
            ctypes.c_size_t(out.nbytes),
        )
        return out

    def set(self, address: int, value: int, count: int) -> None:
        """Fill ``count`` bytes with a 32-bit value."""
        self.call(
            "cuMemsetD32_v2",
            ctypes.c_uint64(address),
            ctypes.c_uint(value),
            ctypes.c_size_t(count // 4),
        )

    @functools.cached_property
    def _flushing(self) -> int:
        address = self.allocate(256 << 20)
        self.set(address, 0, 256 << 20)
        return address

    def flush_l2(self) -> None:
        """Leave nothing in L2 but what nobody else reads (256 MiB), and nothing to write back."""
        here = ctypes.c_uint64(self._flushing)
        self.launch(
            "memory/read_cg",
            [u64(self.times), here, here, u64((256 << 20) - 1), u32(8)],
            grid=2 * self.sms,
            block=1024,
        )

    def tensor_map(self, address: int, rows: int, columns: int, box: tuple[int, int]) -> TensorMap:
        """A row-major f16 tensor in boxes of (rows, columns), swizzled by 128 bytes."""
        storage = ctypes.create_string_buffer(192)
        at = -(-ctypes.addressof(storage) // 64) * 64
        self.call(
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(at),
            _FLOAT16,
            2,
            ctypes.c_void_p(address),
            (ctypes.c_uint64 * 2)(columns, rows),
            (ctypes.c_uint64 * 1)(columns * 2),
            (ctypes.c_uint32 * 2)(box[1], box[0]),
            (ctypes.c_uint32 * 2)(1, 1),
            0,
            _SWIZZLE_128B,
            _PROMOTE_128B,
            0,
        )
        return TensorMap.from_buffer_copy(ctypes.string_at(at, 128))

    # ----------------------------------------------------------------------------- launches

    def _function(self, name: str) -> ctypes.c_void_p:
        """A kernel by ``file/name``."""
        file, _, kernel = name.partition("/")
        if file not in self._modules:
            module = ctypes.c_void_p()
            self.call("cuModuleLoadData", ctypes.byref(module), sources.compiled(file).cubin)
            self._modules[file] = module
        function = ctypes.c_void_p()
        self.call(
            "cuModuleGetFunction", ctypes.byref(function), self._modules[file], kernel.encode()
        )
        return function

    def prepare(
        self,
        name: str,
        arguments: Sequence[Any],
        *,
        grid: int = 1,
        block: int = 32,
        cluster: int = 1,
        shared: int = 0,
    ) -> Callable[[], None]:
        """What launches a kernel: arguments are laid out once, for launches back to back."""
        function = self._function(name)
        if shared > 48 * 1024:
            self.call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, shared)
        held = []
        for argument in arguments:
            # a tensor map must lie at a multiple of 64 bytes
            size = ctypes.sizeof(argument)
            storage = ctypes.create_string_buffer(size + 64)
            at = -(-ctypes.addressof(storage) // 64) * 64
            ctypes.memmove(at, ctypes.addressof(argument), size)
            held.append((storage, at))
        pointers = (ctypes.c_void_p * max(1, len(held)))(*(at for _, at in held))
        attribute = _Attribute(_CLUSTER_DIMENSION, 0, cluster, 1, 1)
        config = _Config(
            grid, 1, 1, block, 1, 1, shared, None, ctypes.pointer(attribute), int(cluster > 1)
        )

        def launch(_alive: Any = held) -> None:
            self.call("cuLaunchKernelEx", ctypes.byref(config), function, pointers, None)

        return launch

    def launch(self, name: str, arguments: Sequence[Any], **how: Any) -> None:
        """Launch a kernel and wait for it; see :meth:`prepare`."""
        self.prepare(name, arguments, **how)()
        self.synchronize()

    def synchronize(self) -> None:
        """Wait until all that was launched is done."""
        self.call("cuCtxSynchronize")

    def milliseconds(self, launches: Sequence[Callable[[], None]]) -> float:
        """How long launches take back to back, between two events on the GPU."""
        # the GPU waits until all are queued: 10 microseconds of the host for each
        self.prepare("launch/hold", [u64(400_000 + 20_000 * len(launches))])()
        self.call("cuEventRecord", self._events[0], None)
        for launch in launches:
            launch()
        self.call("cuEventRecord", self._events[1], None)
        self.synchronize()
        elapsed = ctypes.c_float()
        newer = hasattr(self._cuda, "cuEventElapsedTime_v2")
        name = "cuEventElapsedTime_v2" if newer else "cuEventElapsedTime"
        self.call(name, ctypes.byref(elapsed), *self._events)
        return elapsed.value

    def copy_seconds(self, to: int, address: int, count: int) -> float:
        """How long the driver's copy of ``count`` bytes on the device takes."""

        def copy() -> None:
            self.call(
                "cuMemcpyDtoDAsync_v2",
                ctypes.c_uint64(to),
                ctypes.c_uint64(address),
                ctypes.c_size_t(count),
                None,
            )

        return self.milliseconds([copy]) / 1e3

    # -------------------------------------------------------------------------------- power

    @functools.cached_property
    def _power(self) -> _Power:
        bus = ctypes.create_string_buffer(32)
        self.call("cuDeviceGetPCIBusId", bus, 32, 0)
        return _Power(bus.value)

    def power_limit(self) -> float:
        """The power limit in watts that the driver enforces."""
        return self._power.limit()

    def power(
        self, launch: Callable[[], None] | None, count: int
    ) -> tuple[list[float], list[float]]:
        """Watts and SM clocks in MHz over ``count`` quarters of a second, while a kernel runs again
        and again; idle where none is given. Half a second passes before.

        Raises:
            RuntimeError: NVML does not answer, or the kernels ended too early.
        """
        power = self._power
        if launch is not None:
            seconds = self.milliseconds([launch]) / 1e3
            for _ in range(int((0.8 + 0.4 * count) / seconds) + 1):
                launch()
        time.sleep(0.5)
        edges, megahertz = [power.edge()], []
        for _ in range(count):
            time.sleep(0.125)
            megahertz.append(power.megahertz())
            time.sleep(0.125)
            edges.append(power.edge())
        running = self._cuda.cuStreamQuery(None) != 0
        self.synchronize()
        if launch is not None and not running:
            raise RuntimeError("the kernels ended before their power was measured")
        watts = [
            (after[1] - before[1]) / (after[0] - before[0])
            for before, after in itertools.pairwise(edges)
        ]
        return watts, megahertz


class _Power:
    """The management library's energy counter and clocks of one GPU."""

    def __init__(self, bus: bytes) -> None:
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self._device = ctypes.c_void_p()
        self._call("nvmlInit_v2")
        self._call("nvmlDeviceGetHandleByPciBusId_v2", bus, ctypes.byref(self._device))

    def _call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._nvml, name)(*arguments):
            raise RuntimeError(f"{name}: error {code}")

    def edge(self) -> tuple[float, float]:
        """Seconds and joules as the energy counter is next written."""
        before = self._millijoules()
        until = time.perf_counter() + 2
        while (now := self._millijoules()) == before:
            if time.perf_counter() > until:
                raise RuntimeError("the energy counter stands still")
            time.sleep(0.001)
        return time.perf_counter(), now / 1e3

    def _millijoules(self) -> int:
        value = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", self._device, ctypes.byref(value))
        return value.value

    def megahertz(self) -> float:
        """The SM clock."""
        value = ctypes.c_uint()
        self._call("nvmlDeviceGetClockInfo", self._device, 1, ctypes.byref(value))
        return float(value.value)

    def limit(self) -> float:
        """Watts."""
        value = ctypes.c_uint()
        self._call("nvmlDeviceGetEnforcedPowerLimit", self._device, ctypes.byref(value))
        return value.value / 1e3
