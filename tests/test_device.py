"""Facts about GPUs, with a driver made for the test where this machine has none."""

import enum

import pytest

from mlsys_gpu import device
from mlsys_gpu.device import Device

A100 = Device(
    0, "NVIDIA A100", "sm_80", (8, 0), 108, 80_000_000_000, 41_943_040, 166_912, 1_410_000
)


@pytest.mark.parametrize(
    ("capability", "arch", "family"),
    [
        ((8, 0), "sm_80", None),
        ((9, 0), "sm_90a", "hopper"),
        ((10, 0), "sm_100a", "blackwell"),
        ((10, 3), "sm_103a", None),
        ((12, 0), "sm_120a", None),
    ],
)
def test_architectures(capability, arch, family):
    assert device.arch_of_capability(*capability) == arch
    assert device.family_of(arch) == family


def test_peak_of_an_h200(h200):
    # NVIDIA's data sheet says 989 TFLOP/s at 1830 MHz: 132 SMs of 4096 operations a clock
    at_boost = Device(**{**h200.__dict__, "clock_khz": 1_830_000})
    assert at_boost.peak_tflops == pytest.approx(989, abs=1)
    assert A100.peak_tflops is None


def test_other_architectures_are_refused_with_the_way_to_simulate(h200):
    device.refuse_other_architecture("gemm_hopper_step1", "sm_90a", h200)
    with pytest.raises(device.ArchitectureMismatch) as caught:
        device.refuse_other_architecture("gemm_blackwell_step1", "sm_100a", h200)
    text = str(caught.value)
    for part in (
        "gemm_blackwell_step1",
        "sm_100a",
        "B200",
        "NVIDIA H200",
        "mg.simulate",
        "--on sim",
    ):
        assert part in text


def test_require_names_what_is_needed_and_what_is_there(monkeypatch, h200):
    monkeypatch.setattr(device, "current", lambda: None)
    monkeypatch.setattr(device, "driver_problem", lambda: "no NVIDIA driver is installed")
    with pytest.raises(device.NeedsGpu, match=r"measuring needs .*sm_90a.*H200.*no NVIDIA driver"):
        device.require("sm_90a", "measuring")
    monkeypatch.setattr(device, "current", lambda: A100)
    with pytest.raises(device.ArchitectureMismatch, match=r"sm_90a.*NVIDIA A100, sm_80"):
        device.require("sm_90a", "measuring")
    monkeypatch.setattr(device, "current", lambda: h200)
    assert device.require("sm_90a", "measuring") is h200


class _Status(enum.Enum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NO_DEVICE = 100


class _Driver:
    """Answers like cuda-python: a status, then values."""

    CUresult = _Status

    class CUdevice_attribute:
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 9
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 0
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 132
        CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 62_914_560
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 232_448
        CU_DEVICE_ATTRIBUTE_CLOCK_RATE = 1_980_000

    def __init__(self, count):
        self.count = count

    def cuDeviceGetCount(self):
        return _Status.CUDA_SUCCESS, self.count

    def cuDeviceGet(self, index):
        return _Status.CUDA_SUCCESS, index

    def cuDeviceGetAttribute(self, attribute, handle):
        return _Status.CUDA_SUCCESS, attribute

    def cuDeviceGetName(self, length, handle):
        return _Status.CUDA_SUCCESS, b"NVIDIA H200" + bytes(length - 11)

    def cuDeviceTotalMem(self, handle):
        return _Status.CUDA_SUCCESS, 150_000_000_000

    def cuDriverGetVersion(self):
        return _Status.CUDA_SUCCESS, 13010


@pytest.fixture
def driver(monkeypatch):
    """Installs a driver for one test."""

    def install(count):
        device.devices.cache_clear()
        monkeypatch.setattr(device, "_initialised_driver", lambda: (_Driver(count), None))

    yield install
    device.devices.cache_clear()


def test_facts_are_read_from_the_driver(driver, h200):
    driver(2)
    found = device.devices()
    assert found == (h200, Device(**{**h200.__dict__, "index": 1}))
    assert device.driver_problem() is None
    assert device.driver_cuda_version() == "13.1"
    assert found[0].to_dict()["family"] == "hopper"


def test_a_driver_without_gpus_is_no_error(driver):
    driver(0)
    assert device.devices() == ()
    assert device.current() is None
    assert device.driver_problem() == "the NVIDIA driver sees no GPU"


def test_without_a_driver_everything_answers(monkeypatch):
    device.devices.cache_clear()
    monkeypatch.setattr(
        device, "_initialised_driver", lambda: (None, "cuda-python is not installed")
    )
    assert device.devices() == ()
    assert device.current() is None
    assert device.driver_cuda_version() is None
    assert device.driver_problem() == "cuda-python is not installed"
    device.devices.cache_clear()


def test_a_failing_call_is_named(driver):
    driver(1)
    fake, _ = device._initialised_driver()
    with pytest.raises(RuntimeError, match="CUDA_ERROR_NO_DEVICE"):
        device._value(fake, (_Status.CUDA_ERROR_NO_DEVICE, None))


@pytest.mark.gpu
def test_this_machines_gpu_agrees_with_torch():
    torch = pytest.importorskip("torch")
    here = device.current()
    assert here is not None
    theirs = torch.cuda.get_device_properties(here.index)
    assert here.name == theirs.name
    assert here.compute_capability == (theirs.major, theirs.minor)
    assert here.multiprocessors == theirs.multi_processor_count
