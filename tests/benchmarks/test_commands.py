"""The laboratory's commands: each can be started, and leaves the product's as they are."""

import importlib
import re

import pytest

from benchmarks.command import start
from maskjet.cli import app as product
from tests.cli.command_line import call

COMMANDS = (
    *("ablation", "cameras", "capture", "conversion", "host_time", "images", "jobs", "jpegs", "network", "onnx_files"),
    *("ops", "pictures", "probe", "reach", "replay", "resampling", "runtimes", "serve", "serve_soak", "soak", "study"),
    *("supervision_masks", "tensorrt.engines", "tiles", "tiles_streets", "tracking", "two_stage", "video"),
)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_helps_and_leaves_the_product_as_it_was(name, capsys):
    module, before = importlib.import_module(f"benchmarks.{name}"), product.app
    code, out, err = call(capsys, module.__name__, "--help", start=lambda: start(module.main))
    assert (code, err) == (0, "")
    assert re.sub(r"\s+", " ", module.main.__doc__.strip()) in re.sub(r"\s+", " ", out)
    assert product.app is before
