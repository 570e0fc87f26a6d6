"""Processors that announce what they can't do, OpenMP's waiting, and the garbage collector: settings of a process."""

import gc
import os
import platform
import re
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from maskjet import process
from maskjet.process import level_without_amx

FLAGS = "fpu sse2 avx2 avx512f avx512bw avx512_vnni avx512_bf16 avx512_fp16 amx_bf16 amx_tile amx_int8"
LEVEL = "ONEDNN_MAX_CPU_ISA"
THIS_PROCESSOR = Path("/proc/cpuinfo").read_text()


def cpuinfo(flags=FLAGS, level="28"):
    """As /proc/cpuinfo describes two cores."""
    core = f"processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Processor\ncpuid level\t: {level}\nflags\t\t: {flags}\n\n"
    return core + core.replace("processor\t: 0", "processor\t: 1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (cpuinfo(), "AVX512_CORE_FP16"),
        (cpuinfo(FLAGS.replace("avx512_fp16 ", "")), "AVX512_CORE_BF16"),
        (cpuinfo(FLAGS.replace("avx512_bf16 avx512_fp16 ", "")), "AVX512_CORE_VNNI"),
        (cpuinfo("avx2 avx512f avx512bw amx_tile"), "AVX512_CORE"),
        (cpuinfo("avx2 amx_tile"), "AVX2"),
        (cpuinfo(level="29"), None),  # the leaf of the tiles is there
        (cpuinfo(level="36"), None),
        (cpuinfo("fpu sse2 avx2 avx512f avx512bw avx512_fp16"), None),  # no AMX
        (cpuinfo(level="unknown"), None),
        ("processor\t: 0\nFeatures\t: fp asimd sve\n", None),  # Arm
        ("", None),
    ],
)
def test_only_tiles_without_their_leaf_are_broken(text, expected):
    assert level_without_amx(text) == expected


def python(program, *arguments, **environment):
    """The stdout of a program in a process without our settings, but those given."""
    names = (LEVEL, "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-W", "error", "-c", program, *map(str, arguments)]
    done = subprocess.run(command, env=inherited | environment, check=True, capture_output=True, text=True, timeout=120)
    return done.stdout


AVOID = "import os, sys; from pathlib import Path; from maskjet import process\n"
AVOID += "process.avoid_broken_amx(Path(sys.argv[1])); print(os.environ.get('ONEDNN_MAX_CPU_ISA'), *process.notes())"


def test_a_broken_processor_is_held_below_amx(tmp_path):
    (tmp_path / "cpuinfo").write_text(cpuinfo())
    assert python(AVOID, tmp_path / "cpuinfo") == (
        "AVX512_CORE_FP16 AMX is broken, oneDNN is held to AVX512_CORE_FP16\n"
    )


def test_the_users_level_stays(tmp_path):
    (tmp_path / "cpuinfo").write_text(cpuinfo())
    said = python(AVOID, tmp_path / "cpuinfo", **{LEVEL: "AVX2"})
    assert said == f"AVX2 AMX is broken, oneDNN's level is the user's: {LEVEL}=AVX2\n"


@pytest.mark.parametrize("text", [cpuinfo(level="36"), None])
def test_nothing_is_set_elsewhere(text, tmp_path):
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert python(AVOID, tmp_path / "cpuinfo") == "None\n"


def test_torch_may_be_imported_before_it_is_used(tmp_path):
    (tmp_path / "cpuinfo").write_text(cpuinfo())
    said = python(f"import torch\n{AVOID}", tmp_path / "cpuinfo")
    assert said == "AVX512_CORE_FP16 AMX is broken, oneDNN is held to AVX512_CORE_FP16\n"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="these levels are of x86")
def test_the_level_is_read_when_onednn_is_first_used():
    level = f"import torch, os; os.environ['{LEVEL}'] = 'AVX2'; from maskjet import process\n"
    level += "print(process._onednn_level())"
    assert re.search(r",cpu,isa:.*AVX2", python(level))


@pytest.mark.skipif(
    "amx_tile" not in THIS_PROCESSOR or level_without_amx(THIS_PROCESSOR) is not None,
    reason="needs a processor whose AMX is whole",
)
def test_too_late_is_said_once(tmp_path):
    (tmp_path / "cpuinfo").write_text(cpuinfo())
    used = "import torch, warnings\ntorch.zeros(4, 4).to_mkldnn().to_dense()\n"
    program = used + "from maskjet import process; import sys; from pathlib import Path\n"
    program += "with warnings.catch_warnings(record=True) as caught:\n    warnings.simplefilter('always')\n"
    program += "    process.avoid_broken_amx(Path(sys.argv[1]))\nprint('between')\n"
    program += "print(*(warning.message for warning in caught), process.notes())"
    said = python(program, tmp_path / "cpuinfo").splitlines()
    assert said == [
        "between",
        "The processor's AMX is broken, and PyTorch uses it: import maskjet first, or set "
        f"{LEVEL}=AVX512_CORE_FP16. ('AMX is broken, and PyTorch uses it: it ran before maskjet was imported',)",
    ]


def test_what_others_print_meanwhile_is_passed_on():
    program = "import os; os.write(1, b'before\\n'); from maskjet import process\n"
    program += "import ctypes; ctypes.CDLL(None).printf(b'held back by C\\n'); level = process._onednn_level()\n"
    program += "os.write(1, b'after\\n')"
    assert python(program) == "before\nheld back by C\nafter\n"


def test_programs_choose_how_threads_wait():
    program = "from maskjet import process; import os, sys; process.suit_program()\n"
    program += "print(os.environ.get('GOMP_SPINCOUNT'), os.environ.get('OMP_WAIT_POLICY'))"
    assert python(program) == "10000 None\n"
    assert python(f"{program}; print(round(sys.getswitchinterval(), 6))") == "10000 None\n0.0002\n"
    others = f"import sys; sys.setswitchinterval(0.01); {program}; print(round(sys.getswitchinterval(), 6))"
    assert python(others) == "10000 None\n0.01\n"
    assert python(program, OMP_WAIT_POLICY="active") == "None active\n"
    assert python(program, GOMP_SPINCOUNT="7") == "7 None\n"


class Knot:
    """Refers to itself, so that only the collector can free it."""

    def __init__(self) -> None:
        self.itself = self


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


def test_what_comes_later_is_collected() -> None:
    with process.garbage_frozen():
        known = weakref.ref(Knot())
        gc.collect()
        assert known() is None


def test_an_error_ends_it_as_well() -> None:
    with pytest.raises(KeyError), process.garbage_frozen():
        {}["nothing"]
    assert gc.get_freeze_count() == 0
