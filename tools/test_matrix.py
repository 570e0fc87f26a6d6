"""Run the numeric tests as other processors would: with other kernels, threads and precisions of PyTorch's products.

    python -m tools.test_matrix [pytest's arguments]

Each setting prints one line when it is done, and what failed in it. The status is 1 if anything did.
"""

import itertools
import os
import subprocess
import sys
import time

THREADS = (1, 2)
INSTRUCTIONS = {  # the most that oneDNN and ATen may use; unset: all that the processor has
    "AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    "AVX2, SSE": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "default"},
    "AVX-512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "unset": {},
}
PRECISIONS = ("highest", "high")
TESTS = [
    *("tests/networks", "tests/engine", "tests/test_model.py", "tests/test_demo_model.py"),
    *("tests/ops/test_select.py", "tests/ops/test_roi_align.py", "tests/ops/test_preprocess.py"),
    *(
        "tests/ops/test_masks.py",
        "tests/parity",
        "tests/benchmarks/test_peers.py",
        "tests/tools/test_evaluate.py",
    ),
    *("tests/tools/test_train_demo.py", "tests/test_docs.py"),
]
"""All that compare what PyTorch's kernels compute on a CPU; Triton's interpreter knows none of the settings."""


def run(threads, instructions, precision, arguments):
    """Pytest's process, when it is done."""
    environment = {name: value for name, value in os.environ.items() if name not in INSTRUCTIONS["AVX2"]}
    environment |= INSTRUCTIONS[instructions]
    options = [f"--torch-threads={threads}", f"--matmul-precision={precision}", "-q", "-rfE", "--tb=short"]
    command = [sys.executable, "-m", "pytest", *options, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def main():
    arguments = sys.argv[1:]
    if not any(argument.startswith("tests") for argument in arguments):
        arguments += TESTS
    status = 0
    for threads, instructions, precision in itertools.product(THREADS, INSTRUCTIONS, PRECISIONS):
        started = time.monotonic()
        done = run(threads, instructions, precision, arguments)
        lines = (done.stdout + done.stderr).splitlines()
        is_complete = done.returncode in (0, 1)  # of pytest: all passed, or some failed
        summary = lines[-1].strip("= ") if is_complete else f"pytest ended with status {done.returncode}"
        seconds = time.monotonic() - started
        print(f"{threads} threads, {instructions:<9}, {precision:<7}: {summary} ({seconds:.0f} s)", flush=True)
        if done.returncode:
            status = 1
            print(*(line for line in lines if line.startswith(("FAILED", "ERROR", "E  "))), sep="\n", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
