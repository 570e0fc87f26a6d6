"""Processes that compile kernels: what they write is what their caller reads; where they fail it compiles itself."""

import importlib.util
import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from maskjet.ops import compilers

# As on a Hopper, on a machine without one. Which kernel comes first must not matter to the other one's key.
PROGRAM = """
import importlib, os, sys
from pathlib import Path
import torch
import triton
from triton.backends.compiler import GPUTarget
from maskjet.ops import compilers

triton.runtime.driver.set_active(compilers._Driver(GPUTarget("cuda", 90, 32)))
kernels = [importlib.import_module(f"maskjet.ops.{name}.kernels") for name in ("rank_tokens", "resize_pixels")]
kernels = [kernels[0].rank_tokens_kernel, kernels[1].resize_pixels_kernel]
for kernel in kernels[::int(sys.argv[1])]:
    compilers.settle_keys(kernel)
print(*(kernel.cache_key for kernel in kernels))
"""
COMPILES = """
from maskjet.ops.trial_kernel import fill_kernel

def warm():
    for dtype in (torch.int32, torch.float32):
        assert bool(fill_kernel.warmup(dtype, 7, grid=(1,), enable_fp_fusion=True)) is not is_described

found, is_described = [], True
with compilers.specializing(found):
    warm()
assert len(found) == 2 and not Path(os.environ["TRITON_CACHE_DIR"]).exists(), found
Path(os.environ["TRITON_CACHE_DIR"]).mkdir()
compilers.compilers.compile(found)
before = {path: path.stat().st_mtime_ns for path in Path(os.environ["TRITON_CACHE_DIR"]).rglob("*")}
assert sum(path.suffix == ".cubin" for path in before) == 2, before
is_described = False
warm()
compilers.compilers.compile(found[::-1])
compilers.compilers.compile(found[1:])
assert {path: path.stat().st_mtime_ns for path in Path(os.environ["TRITON_CACHE_DIR"]).rglob("*")} == before
"""


needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton, which PyTorch for CPUs lacks"
)


def run(text, *arguments, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", text, *arguments]
    done = subprocess.run(
        command, env=environment | variables, check=True, timeout=300, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


@pytest.mark.slow
@needs_triton
def test_they_write_what_the_caller_reads_in_whatever_order_kernels_come(tmp_path):
    keys = run(PROGRAM, "1")
    assert run(PROGRAM + COMPILES, "-1", TRITON_CACHE_DIR=str(tmp_path / "kernels")) == keys


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    monkeypatch.setattr(compilers, "_folder", lambda: tmp_path)
    monkeypatch.setattr(compilers, "_target", lambda: ("cuda", 90, 32))
    return [compilers.Specialization("maskjet.ops.trial_kernel", "nothing", "{}", "abc", 3)]


@needs_triton
def test_where_they_fail_there_is_no_error_and_they_are_asked_again(kernels, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "maskjet")
    ours = compilers.Compilers()
    monkeypatch.setattr(compilers, "_PATIENCE_S", 60.0)
    ours.compile(kernels)
    assert "the processes for it failed: AttributeError" in caplog.text
    monkeypatch.setattr(compilers.runner, "start", lambda *_, **__: exec('raise OSError("no process")'))
    ours.compile(kernels)
    assert "the processes for it failed: no process" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["maskjet.lock"]


@needs_triton
def test_one_process_compiles_while_others_wait_for_its_kernels(kernels, monkeypatch):
    monkeypatch.setattr(compilers.runner, "start", lambda *_, **__: pytest.fail("compiled twice"))
    with ThreadPoolExecutor(1) as pool, compilers._locked():
        other = pool.submit(compilers.Compilers().compile, kernels)
        with pytest.raises(TimeoutError):
            other.result(0.3)
        for mark in compilers._list_missing(kernels):
            mark.touch()
    assert other.result(30) is None


@pytest.mark.parametrize("is_there", [True, False])
def test_a_cache_that_can_not_be_written_is_copied(is_there, tmp_path, monkeypatch):
    shipped = tmp_path / "triton"
    if is_there:
        shipped.mkdir()
        (shipped / "kernel").write_text("code")
        monkeypatch.setattr(compilers.os, "access", lambda *_: False)
    monkeypatch.setenv("MASKJET_CACHE_DIR", str(tmp_path if is_there else "/dev/null/cache"))
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    monkeypatch.delenv("TRITON_CACHE_DIR")
    compilers.choose_cache.__wrapped__()
    chosen = Path(os.environ["TRITON_CACHE_DIR"])
    assert chosen.parent != tmp_path
    assert [path.name for path in chosen.iterdir()] == ["kernel"] * is_there
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    compilers.choose_cache.__wrapped__()
    assert os.environ["TRITON_CACHE_DIR"] == "elsewhere"


def test_a_cache_that_can_be_written_is_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("MASKJET_CACHE_DIR", str(tmp_path / "new"))
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    monkeypatch.delenv("TRITON_CACHE_DIR")
    compilers.choose_cache.__wrapped__()
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "new" / "triton")
