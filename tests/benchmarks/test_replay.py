"""Capture and replay: what was saved is what was called, and a difference is found."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks import capture, replay
from maskjet import ops, traffic
from maskjet.model import read_network
from maskjet.sources.frames import open_source

OPS = ["preprocess", "select", "encode_masks"]
pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "street.mp4"
    traffic.write_video(path, size_hw=(176, 312), frames=3, seed=3)
    return path


@pytest.fixture(scope="module")
def captured(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("captured") / "street"
    assert capture.write(source, folder, frames=2, device="cpu") == 2
    return folder


@pytest.fixture
def tampered(captured, tmp_path):
    """A copy of a capture, and what edits a tensor of its first frame."""
    folder = shutil.copytree(captured, tmp_path / "tampered")
    path = folder / "000000.safetensors"

    def edit(name, change):
        tensors = load_file(path)
        save_file({**tensors, name: change(tensors[name])}, path)

    return folder, edit


def test_calls_are_read_as_they_were_made(source, captured):
    manifest = capture.read_manifest(captured)
    network = read_network("demo")
    with open_source(source) as frames, torch.inference_mode():
        for index, frame in zip(range(manifest["frames"]), frames, strict=False):
            preprocess, select, encode = capture.read_calls(captured, manifest, index)
            assert [call.op for call in (preprocess, select, encode)] == OPS
            np.testing.assert_array_equal(preprocess.inputs["frames"].numpy(), frame.image)
            output = network(preprocess.expected)
            assert torch.equal(select.inputs["logits"], output.logits)
            assert torch.equal(select.inputs["boxes"], output.boxes_cxcywh)
            (rows,) = encode.inputs["query"].queries()
            assert len(rows) == len(encode.expected[0]) > 2
            rows = rows.long()
            assert torch.equal(encode.inputs["mask_logits"][0, rows], output.mask_logits[0, rows])
            assert encode.inputs["mask_logits"].shape == output.mask_logits.shape


def test_replaying_finds_everything_equal(captured, tmp_path):
    path = tmp_path / "replay.json"
    again = shutil.copytree(captured, tmp_path / "again")
    report = replay.run([captured, again], path, runs=2, device="cpu")
    assert report.is_equal
    assert json.loads(path.read_text()) == json.loads(json.dumps(report.as_dict()))
    serving = [
        (op, name)
        for op in OPS
        for name, variant in ops.RECORDS[op].variants.items()
        if variant.refuse(torch.empty(0, dtype=torch.uint8 if op == "preprocess" else torch.float32)) is None
    ]
    assert [(m.op, m.implementation) for m in report.measurements] == 2 * serving
    assert [m.capture for m in report.measurements] == ["street"] * len(serving) + ["again"] * len(serving)
    for m in report.measurements:
        assert (m.calls, m.different) == (2, 0)
        assert m.equal + m.within_tolerance == 2
        assert m.implementation != "reference" or m.equal == 2
        assert 0 < m.p50_ms <= m.p90_ms <= m.p99_ms


@pytest.mark.parametrize(
    ("op", "name", "change"),
    [
        ("preprocess", "preprocess.out", lambda values: values * float("nan")),
        ("select", "select.confidence", lambda values: values + 1e-6),
        ("encode_masks", "encode_masks.strings", lambda values: values + 1),
        ("encode_masks", "encode_masks.lengths", lambda values: values[1:].contiguous()),
    ],
)
def test_a_tampered_capture_is_reported_as_different(op, name, change, tampered):
    folder, edit = tampered
    edit(name, change)
    report = replay.run([folder], implementation="reference", runs=1, device="cpu")
    assert not report.is_equal
    assert {m.op: (m.equal + m.within_tolerance, m.different) for m in report.measurements} == {
        other: (1, 1) if other == op else (2, 0) for other in OPS
    }


@pytest.mark.gpu
def test_on_a_gpu_every_implementation_agrees(source, tmp_path):
    capture.write(source, tmp_path / "street", frames=2, device="cuda")
    report = replay.run([tmp_path / "street"], runs=2, device="cuda")
    assert report.is_equal, str(report)
    assert {(m.op, m.implementation) for m in report.measurements} >= {(op, "triton") for op in OPS}
