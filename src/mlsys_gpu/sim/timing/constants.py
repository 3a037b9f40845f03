"""The constants of the time model: one JSON file for each GPU, ``gpus/NAME.json``.

Each constant is ``{"value": …, "unit": …, "source": …}``: a number, or a table of numbers by shape;
where it comes from is said beside it (a measurement of ``mlsys-gpu calibrate``, or a document).
Units are ``cycles`` (of the SM clock), ``bytes/cycle/SM``, ``instructions/cycle/SM`` (of a warp),
``GB/s``, ``MHz``, ``us``, ``bytes``, ``W`` and ``1`` (a count).
"""

from __future__ import annotations

import itertools
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

UNITS = (
    "cycles", "bytes/cycle/SM", "instructions/cycle/SM", "GB/s", "MHz", "us", "bytes", "W", "1",
)  # fmt: skip

_FOLDER = Path(__file__).resolve().parent / "gpus"

#: The GPU that stands for an architecture, unless another is asked for.
DEFAULT = {"sm_90": "h200", "sm_100": "b200"}


class Gpu:
    """A GPU's constants, and what the replay works out from them once.

    ``gpu["hbm_read"]`` is a constant's value. Raises ``KeyError`` naming a constant that the file
    lacks.
    """

    def __init__(self, record: dict[str, Any]):
        self.name: str = record["name"]
        self.arch: str = record["arch"]
        self.constants: dict[str, dict[str, Any]] = record["constants"]
        self.prepare()

    def __getitem__(self, name: str) -> Any:
        if name not in self.constants:
            raise KeyError(f"the constants of {self.name} have no {name!r}")
        return self.constants[name]["value"]

    def cycles(self, name: str) -> float:
        """A constant in cycles."""
        return float(self[name])

    def rate(self, name: str) -> float:
        """Cycles that one warp instruction takes of its quarter's pipe."""
        return 4.0 / float(self[name])

    def prepare(self) -> None:
        c = self.cycles
        self.clock_hz = float(self["clock"]) * 1e6
        self.sms = int(self["sms"])
        self.pipes = {
            "fma": ("fma", self.rate("fma")),
            "fma2": ("fma", self.rate("fma2")),
            "alu": ("alu", self.rate("alu")),
            "imad": ("fma", self.rate("imad")),
            "pack": ("alu", self.rate("pack")),
            "xu": ("xu", self.rate("mufu")),
            "cvt": ("xu", self.rate("cvt")),
            "half": ("half", self.rate("half")),
            "f64": ("f64", self.rate("f64")),
        }
        self.dependent = c("alu_latency")
        self.lane_wake = c("lane_wake")
        self.barrier_warp = c("barrier_warp")
        self.atomic_same = c("atomic_same")
        self.doubling = (c("cold_doubling"), c("cold_doubling_rows"))
        self.apart = c("alu_latency") / float(self["independent"])
        self.drain = c("store_drain")
        self.acknowledged = c("store_acknowledged")
        self.store_buffer = c("store_buffer")
        self.shared_latency = {
            "threads": c("shared_load_latency"),
            "matrix": c("ldmatrix_latency"),
        }
        self.shared_buffer = c("shared_store_buffer")
        self.copy_issue = c("tma_issue")
        self.copy_issue_slot = c("tma_instruction")
        self.multicast = c("multicast_latency")
        self.copy_out_read = c("tma_store_read_latency")
        self.copy_out_done = c("tma_store_latency")
        self.async_copy = c("cp_async_latency")
        self.atomic_shared = c("atomic_shared")
        self.atomic_global = c("atomic_global")
        self.atomic_latency = c("atomic_latency")
        self.peer = {
            "load": c("dsmem_load_latency"),
            "store": c("dsmem_store_latency"),
            "async": c("st_async_latency"),
            "bulk": c("dsmem_bulk_latency"),
            "clc": c("clc_latency"),
        }
        self.peer_bytes = c("dsmem_bytes")
        self.mma_latency = c("mma_latency")
        self._delays: dict[str, tuple[float, float]] = {}
        self._wgmma: dict[tuple[int, bool], float] = {}
        if self.arch == "sm_90a":
            self.wgmma_queue = c("wgmma_queue")
            self.wgmma_latency = c("wgmma_latency")
        else:
            self.tcgen05_issue = c("tcgen05_issue")
            self.tcgen05_commit = c("tcgen05_commit_latency")
            self.tmem_column = c("tmem_column")
            self.tmem_latency = c("tmem_latency")

    def pipe(self, name: str) -> tuple[str, float]:
        """The pipe of a count in ``Program.work``, and the cycles of one warp instruction."""
        return self.pipes[name]

    def delay(self, name: str) -> tuple[float, float]:
        """Issue cycles and latency of an operation with a constant cost."""
        found = self._delays.get(name)
        if found is None:
            value = self[name]
            found = (float(value["issue"]), float(value["latency"]))
            self._delays[name] = found
        return found

    def arrive(self, kind: str) -> float:
        """Issue cycles of an arrival (``mbarrier``, ``remote``, ``barrier``, ``cluster``)."""
        value = self[f"{kind}_arrive"]
        return float(value["issue"] if isinstance(value, dict) else value)

    def wgmma(self, n: int, registers: bool) -> float:
        """Cycles of one ``wgmma.mma_async.m64nNk16`` in steady state."""
        found = self._wgmma.get((n, registers))
        if found is None:
            found = interpolated(self["wgmma_rs" if registers else "wgmma_ss"], n)
            self._wgmma[n, registers] = found
        return found

    def mma(self, k: int) -> float:
        """Cycles of one ``mma.sync.m16n8kK`` of a warp."""
        return float(self["mma_m16n8k16"]) * k / 16

    def tcgen05_mma(self, m: int, n: int, group: int, in_tmem: bool) -> float:
        """Cycles of one k16 step of ``tcgen05.mma``."""
        del in_tmem
        return interpolated(self[f"tcgen05_mma_m{m}_group{group}"], n)

    def clock_at(self, tensor: float, l2: float, memory: float) -> float:
        """The clock (Hz) that the power limit leaves, where the tensor cores, L2's and device
        memory's bandwidth are in use for these parts.

        What is drawn beyond idling grows with the cube of the clock (the voltage grows with it).
        Where a GPU's powers are not known, ``clock_tensor`` is what it holds with tensor cores that
        are always busy, and nothing else counts.
        """
        if "power_limit" in self.constants:
            limit = float(self["power_limit"]) - float(self["power_idle"])
            drawn = (
                float(self["power_tensor"]) * tensor
                + float(self["power_l2"]) * min(1.0, l2)
                + float(self["power_hbm"]) * min(1.0, memory)
            )
        else:
            limit, drawn = (float(self["clock_tensor"]) / float(self["clock"])) ** 3, tensor
        return self.clock_hz * min(1.0, (limit / max(drawn, 1e-6)) ** (1 / 3))


def _check(record: Any) -> None:
    """Raise ``ValueError`` where a record is no file of constants, naming what is wrong with it."""
    if not isinstance(record, dict) or not {"name", "arch", "constants"} <= record.keys():
        raise ValueError("a file of constants holds name, arch and constants")
    if record["arch"] not in ("sm_90a", "sm_100a"):
        raise ValueError(f"arch is sm_90a or sm_100a, not {record['arch']!r}")
    constants, who = record["constants"], record["name"]
    if not isinstance(constants, dict):
        raise ValueError(f"constants of {who} is no table")
    for name, constant in constants.items():
        if not isinstance(constant, dict) or set(constant) != {"value", "unit", "source"}:
            raise ValueError(f"constant {name} of {who} needs value, unit and source")
        if constant["unit"] not in UNITS:
            raise ValueError(f"constant {name} of {who} has unit {constant['unit']!r}")
        if not constant["source"]:
            raise ValueError(f"constant {name} of {who} names no source")
        value = constant["value"]
        for number in value.values() if isinstance(value, dict) and value else (value,):
            _check_number(f"constant {name} of {who}", number, constant["unit"])
    usual = json.loads((_FOLDER / f"{default_gpu(record['arch'])}.json").read_text())["constants"]
    missing = [n for n in usual if n not in constants and not n.startswith("power_")]
    if missing:
        raise ValueError(f"the constants of {who} lack {', '.join(missing)}")
    for name in usual:
        if name in constants and isinstance(constants[name]["value"], dict) != isinstance(
            usual[name]["value"], dict
        ):
            raise ValueError(f"constant {name} of {who} is a table there, or a number here")
    powers = [n for n in usual if n.startswith("power_") and n in constants]
    if powers and constants["power_limit"]["value"] <= constants["power_idle"]["value"]:
        raise ValueError(f"power_limit of {who} is not above power_idle")


def _check_number(what: str, number: Any, unit: str) -> None:
    """Numbers are finite; but for times in cycles they are above 0."""
    if isinstance(number, bool) or not isinstance(number, (int, float)) or number != number:
        raise ValueError(f"{what} is no number: {number!r}")
    if abs(number) == float("inf") or (number <= 0 and unit != "cycles"):
        raise ValueError(f"{what} is {number!r} {unit}: it must be finite and above 0")


def interpolated(table: dict[str, float], at: float) -> float:
    """A table's value: linear between the entries beside it, that of the last entry beyond it."""
    known = sorted((float(k), float(v)) for k, v in table.items())
    if at <= known[0][0]:
        return known[0][1]
    for (a, x), (b, y) in itertools.pairwise(known):
        if at <= b:
            return x + (y - x) * (at - a) / (b - a)
    return known[-1][1]


def gpu_constants(name: str) -> Gpu:
    """The constants of a GPU by name (``h200``, ``b200``), or those of a file: one of constants, or
    what ``mlsys-gpu calibrate -o FILE.json`` has measured on another Hopper GPU.

    Raises ``ValueError`` for a name that has no file, naming those that have, and for a file that
    holds neither.
    """
    if name.endswith(".json"):
        return _of_file(Path(name))
    return _shipped(name.lower())


@lru_cache(maxsize=8)
def _shipped(name: str) -> Gpu:
    path = _FOLDER / f"{name}.json"
    if not name.isalnum() or not path.is_file():
        known = ", ".join(sorted(p.stem for p in _FOLDER.glob("*.json")))
        raise ValueError(
            f"no constants for the GPU {name!r}; there are {known}, and files of mlsys-gpu "
            "calibrate (FILE.json)"
        )
    return Gpu(json.loads(path.read_text()))


def _of_file(path: Path) -> Gpu:
    try:
        record = json.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from None
    if not isinstance(record, dict) or "constants" not in record:
        raise ValueError(f"{path} holds no constants: pass a file of mlsys-gpu calibrate")
    if "provenance" in record:
        from mlsys_gpu.calibration.constants import hopper

        record = hopper(record)
    _check(record)
    return Gpu(record)


def default_gpu(arch: str) -> str:
    """The GPU that stands for an architecture, as ``sm_90a``."""
    return DEFAULT[arch.rstrip("af")]
