"""Imports of the package: they run down through its rooms, and in no circle; type-only and lazy ones count, too."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src"
# From the ground up: a file imports from its own room and those before it.
ROOMS = [
    *[
        "version",
        "errors",
        "limits",
        "host",
        "checks",
        "jit",
        "spec",
        "config",
        "postprocessing",
        "masks",
        "traffic",
        "ops",
    ],
    *["sources", "drawing", "detections", "tracking", "propagation", "outputs", "engine", "networks", "tiling"],
    *["report", "model"],
    *["export", "parity", "evaluation", "quantization", "jobs", "serve", "cli", "__main__", ""],
]


def imported(tree):
    """The full names of what a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.fixture(scope="module")
def names():
    """Each file below `maskjet`, as "jobs.driver" ("" for the package itself), to the full names that it imports."""
    found = {}
    for path in SOURCES.rglob("*.py"):
        parts = path.relative_to(SOURCES / "maskjet").with_suffix("").parts
        file = ".".join(parts).removesuffix("__init__").removesuffix(".")
        found[file] = set(imported(ast.parse(path.read_text())))
    return found


@pytest.fixture(scope="module")
def arrows(names):
    """Each file to the files that it imports."""

    def home(name):
        while name not in names:
            name = name.rpartition(".")[0]
        return name

    ours = {file: {name for name in some if name.split(".")[0] == "maskjet"} for file, some in names.items()}
    return {file: {home(name.partition(".")[2]) for name in some} - {file} for file, some in ours.items()}


def test_no_import_runs_up(arrows):
    up = [
        f"maskjet.{file} imports maskjet.{other}"
        for file, others in arrows.items()
        for other in others
        if ROOMS.index(other.partition(".")[0]) > ROOMS.index(file.partition(".")[0])
    ]
    assert up == []


def test_no_import_runs_in_a_circle(arrows):
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        pytest.fail(f"files import each other: {' <- '.join(error.args[1])}")


def test_the_product_imports_no_laboratory(names):
    assert not {name.split(".")[0] for some in names.values() for name in some} & {"benchmarks", "tests", "tools"}
