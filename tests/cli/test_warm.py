"""The command maskjet warm: what it compiles, and where it says that it is."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import maskjet
from maskjet import jit
from maskjet.cli.main import main
from maskjet.model import Model

LISTED = """
from importlib import import_module
from maskjet import jit
from maskjet.cli.warm import COMPILED
for name in COMPILED:
    import_module(f"maskjet.{name}")
print(*{f"{each.__module__}.{each.__name__}" for each in jit._made})
"""


def compiled_in_the_sources():
    root = Path(maskjet.__file__).parent
    for path in root.rglob("*.py"):
        module = ".".join(["maskjet", *path.relative_to(root).with_suffix("").parts])
        for node in ast.parse(path.read_text()).body:
            decorators = [ast.unparse(each) for each in getattr(node, "decorator_list", ())]
            if any(each.startswith("compiled(") for each in decorators):
                yield f"{module}.{node.name}"


def test_all_compiled_functions_are_imported():
    found = subprocess.run(
        [sys.executable, "-c", LISTED], check=True, timeout=120, stdout=subprocess.PIPE, text=True
    ).stdout.split()
    assert sorted(found) == sorted(compiled_in_the_sources())


@pytest.mark.slow
def test_a_model_is_prepared_for_all_batches(monkeypatch, capsys, tmp_path):
    prepared, compiled = [], []
    monkeypatch.setenv("MASKJET_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(Model, "prepare", lambda _, batch: prepared.append(batch))
    monkeypatch.setattr(jit, "compile_all", lambda: compiled.append(True))
    for form, batches in (("", [1, 2, 4, 8]), ("--json --batch 3", [1, 2])):
        prepared.clear()
        monkeypatch.setattr(sys, "argv", ["maskjet", "warm", "demo", "--device", "cpu", *form.split()])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        assert (prepared, compiled.pop()) == (batches, True)
        out, err = capsys.readouterr()
        assert str(tmp_path) in (json.loads(out)["folder"] if form else out + err)
