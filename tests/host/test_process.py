"""Processors that announce what they can't do, OpenMP's waiting, and the garbage collector: settings of a process."""

import gc
import os
import platform
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from maskjet.host import process

FLAGS = "fpu sse2 avx2 avx512f avx512bw avx512_vnni avx512_bf16 avx512_fp16 amx_bf16 amx_tile amx_int8"
LEVEL = "ONEDNN_MAX_CPU_ISA"


def cpuinfo(flags=FLAGS, level="28"):
    """As /proc/cpuinfo describes two cores."""
    core = f"processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Processor\ncpuid level\t: {level}\nflags\t\t: {flags}\n\n"
    return core + core.replace("processor\t: 0", "processor\t: 1")


@pytest.mark.parametrize(
    ("text", "level"),
    [
        (cpuinfo(), "AVX512_CORE_FP16"),
        (cpuinfo("avx2 amx_tile"), "AVX512_CORE_FP16"),
        (cpuinfo(level="29"), None),  # the leaf of the tiles is there
        (cpuinfo("fpu sse2 avx2 avx512f avx512bw avx512_fp16"), None),  # no AMX
        (cpuinfo(level="unknown"), None),
        ("processor\t: 0\nFeatures\t: fp asimd sve\n", None),  # Arm
        (None, None),  # not Linux
    ],
)
@pytest.mark.parametrize("users", [None, "AVX2"])
def test_tiles_without_their_leaf_are_not_used(text, level, users, tmp_path, monkeypatch):
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(os, "environ", {} if users is None else {LEVEL: users})
    monkeypatch.setattr(process, "_notes", [])
    process.avoid_broken_amx(tmp_path / "cpuinfo")
    assert os.environ.get(LEVEL) == (users or level)
    assert bool(process.notes()) == (level is not None)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"GOMP_SPINCOUNT": "10000"}),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
    ],
)
def test_openmp_spins_for_less_unless_the_user_chose(given, expected, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(given))
    process.shorten_spinning()
    assert os.environ == expected


def test_importing_maskjet_chooses_how_openmp_waits_without_loading_pytorch():
    program = "import maskjet, os, sys; print(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)"
    environment = {name: value for name, value in WITH_MASKJET.items() if name not in process.SPINNING}
    assert subprocess.check_output([sys.executable, "-c", program], env=environment) == b"10000 False\n"


@pytest.mark.parametrize(("turn_s", "expected_turn_s"), [(0.005, 0.0002), (0.01, 0.01)])
def test_programs_choose_how_threads_take_turns(turn_s, expected_turn_s, monkeypatch):
    before = sys.getswitchinterval()
    monkeypatch.setattr(os, "environ", {})
    try:
        sys.setswitchinterval(turn_s)
        process.suit_program()
        assert os.environ.pop("PYTHONSAFEPATH") == "1"
        assert sys.getswitchinterval() == pytest.approx(expected_turn_s)
        monkeypatch.setattr(sys, "path", [str(Path(process.__file__).parents[2])])
        process.suit_program()
        assert "PYTHONSAFEPATH" not in os.environ  # as maskjet itself is in the current folder
    finally:
        sys.setswitchinterval(before)


WITH_MASKJET = {**os.environ, "PYTHONPATH": str(Path(process.__file__).parents[2])}
CHILDREN = """
import multiprocessing, subprocess, sys
from maskjet import process

if __name__ == "__main__":
    process.suit_program()
    subprocess.run([sys.executable, "-m", "maskjet.version"], check=True)
    child = multiprocessing.get_context("spawn").Process(target=process.notes)
    child.start()
    child.join()
    assert child.exitcode == 0
"""


def test_child_processes_import_nothing_from_the_current_folder(tmp_path):
    (script := tmp_path / "bin" / "program.py").parent.mkdir()
    script.write_text(CHILDREN)
    for name in ("importlib", "json", "pickle", "runpy", "maskjet"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('planted')")
    subprocess.run([sys.executable, script], cwd=tmp_path, env=WITH_MASKJET, check=True)


def printed_by(program, *arguments):
    return subprocess.check_output([sys.executable, "-c", program, *arguments], env=WITH_MASKJET)


FRAMES = """
import resource, sys
import numpy as np
from maskjet import process

if sys.argv[1] == "kept":
    process.keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    frames = [np.full((480, 640, 3), 7, np.uint8) for _ in range(9)]
    del frames
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif("glibc" not in platform.libc_ver(), reason="of glibc")
def test_memory_of_frames_is_used_again_without_page_faults():
    kept, plain = (int(printed_by(FRAMES, which)) for which in ("kept", "plain"))
    assert kept < plain / 5


GAPS = """
import ctypes, os
from pathlib import Path
from maskjet import process

def held_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
pieces = [ctypes.c_void_p(libc.malloc(60_000)) for _ in range(1_000)]
for piece in pieces:
    ctypes.memset(piece, 1, 60_000)
for piece in pieces[::2]:
    libc.free(piece)
before = held_bytes()
process.return_freed_memory()
print(before - held_bytes())
"""


@pytest.mark.skipif("glibc" not in platform.libc_ver(), reason="of glibc")
def test_memory_that_lies_free_between_pieces_in_use_is_returned():
    assert int(printed_by(GAPS)) > 20_000_000


class Knot:
    """Refers to itself, so that only the collector can free it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.slow
def test_what_is_alive_is_left_alone_until_the_end() -> None:
    knot = Knot()
    known = weakref.ref(knot)
    with process.garbage_frozen():
        assert gc.get_freeze_count() > 0
        del knot
        gc.collect()
        assert known() is not None
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert known() is None


def test_what_comes_later_is_collected_and_an_error_ends_it_as_well() -> None:
    with process.garbage_frozen():
        known = weakref.ref(Knot())
        gc.collect()
        assert known() is None
    with pytest.raises(KeyError), process.garbage_frozen():
        {}["nothing"]
    assert gc.get_freeze_count() == 0
