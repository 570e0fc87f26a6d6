"""What `import maskjet` offers and what it costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import maskjet
from maskjet import errors


def test_importing_loads_and_changes_nothing():
    program = (
        "import os, sys; before = dict(os.environ)\n"
        "import maskjet\n"
        "assert not {'torch', 'numpy', 'cv2', 'av', 'numba', 'typer', 'rich'} & set(sys.modules)\n"
        "assert {name for name, _ in os.environ.items() ^ before.items()} <= {'ONEDNN_MAX_CPU_ISA'}\n"
        "assert set(maskjet.__all__) <= set(dir(maskjet))\n"
        "from maskjet import *\n"
        "assert Model is maskjet.Model\n"
        "import torch\n"
        "assert (torch.get_default_dtype(), torch.is_grad_enabled()) == (torch.float32, True)\n"
        "assert not torch.cuda.is_initialized()\n"
        "extras = {'PIL', 'supervision', 'pycocotools', 'rfdetr', 'transformers', 'torchvision', 'onnx'}\n"
        "assert not extras & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_threads_are_the_users():
    program = "import torch; torch.set_num_threads(1); import maskjet.model; assert torch.get_num_threads() == 1"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_all_is_there_and_sorted():
    assert sorted(maskjet.__all__) == maskjet.__all__
    assert all(getattr(maskjet, name) is not None for name in maskjet.__all__)
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    ours = {value.__name__ for value in classes if issubclass(value, errors.MaskjetError)}
    assert ours <= set(maskjet.__all__)


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="module 'maskjet' has no attribute 'lod'"):
        maskjet.lod  # noqa: B018


def test_the_product_imports_no_laboratory():
    imported = set()
    for path in Path(maskjet.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            imported |= {(path.name, name) for name in names if name.split(".")[0] in ("benchmarks", "tests", "tools")}
    assert imported == set()
