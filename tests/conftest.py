"""What every test shares: which machine it may need, how many threads it may take, and how exact its products are."""

import importlib
import os
import signal
import tempfile

# Threads of OpenMP spin for a while after their work, which keeps the cores from other tests and from programs that
# tests start. To be set before PyTorch loads OpenMP.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import hypothesis
import pytest
import torch

from maskjet.host import cache
from tests.interpreter import speed_up_interpreter
from tests.ops.network import OPS

# Networks that the user has converted to OpenVINO would run in place of PyTorch's.
if (folder := cache.folder()) is not None and (folder / "converted").exists():
    os.environ["MASKJET_CACHE_DIR"] = f"{tempfile.gettempdir()}/maskjet-tests-{os.getuid()}"

# In the background of a shell Ctrl-C is ignored, also by the programs that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # so it is under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The same examples each time: what fails in CI fails here.
hypothesis.settings.register_profile("seeded", derandomize=True, deadline=None)
hypothesis.settings.load_profile("seeded")

# Without a GPU kernels are interpreted, which is decided where they are defined. It takes seconds where the others take
# milliseconds, so that only the tests of the ops ask for it.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    speed_up_interpreter()
for name in (name for name, op in OPS.items() if "triton" in op.variants):
    importlib.import_module(f"maskjet.ops.{name}.kernels")
os.environ.pop("TRITON_INTERPRET", None)


@pytest.fixture(autouse=True)
def _children_find_the_tests():
    """A command that runs in this process keeps its children from the current folder, and would keep later tests'."""
    yield
    os.environ.pop("PYTHONSAFEPATH", None)


@pytest.fixture(scope="module")
def two_threads():
    """For comparisons with PyTorch's bilinear resize on a CPU."""
    # With a single thread F.interpolate takes another kernel, which rounds source positions otherwise: at 1080p its
    # result differs from its own on two threads by up to 3e-5 (torch 2.15). The references are the latter.
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def exact_products():
    """For comparisons with an oracle: neither side may round the factors of float32 products."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def pytest_addoption(parser):
    parser.addoption("--torch-threads", type=int, help="PyTorch's threads; by default 1 in each of several workers")
    parser.addoption(
        "--matmul-precision",
        choices=["highest", "high", "medium"],
        default=torch.get_float32_matmul_precision(),
        help="PyTorch's precision of float32 products in each test that does not choose one",
    )


def pytest_configure(config):
    threads = config.getoption("--torch-threads")
    if threads is None and hasattr(config, "workerinput"):  # several workers share the cores
        threads = 1
    if threads is not None:
        torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(config.getoption("--matmul-precision"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    # Importing rfdetr sets "high" for the whole process, and may happen while tests are collected or in any of them.
    torch.set_float32_matmul_precision(item.config.getoption("--matmul-precision"))


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available() or os.environ.get("MASKJET_REQUIRE_GPU"):
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU; set MASKJET_REQUIRE_GPU=1 to fail instead"))
