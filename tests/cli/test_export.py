"""maskjet export."""

import json
from types import SimpleNamespace

import pytest


def test_options_reach_the_file(monkeypatch, maskjet):
    def made(model, out, **options):
        given.append((model, str(out), options))
        return SimpleNamespace(as_dict=lambda: {"path": "demo.onnx"})

    given = []
    monkeypatch.setattr("maskjet.export.export", made)
    code, printed, errors = maskjet(
        "export demo -o demo.onnx --input-size 60x120 --precision fp16 --batch 4 --antialias --json"
    )
    assert (code, errors, json.loads(printed)) == (0, "", {"path": "demo.onnx"})
    options = {"weights": None, "input_size": (120, 60), "precision": "fp16", "batch": 4, "antialias": True}
    assert given == [("demo", "demo.onnx", options)]


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("demo -o a.pt", 2, "--out must end in .onnx, got 'a.pt'."),
        ("demo -o a.onnx --precision int8", 2, "--precision must be one of ('fp32', 'fp16'), got 'int8'"),
        ("demo -o a.onnx --input-size 240", 2, "--input-size must be WIDTHxHEIGHT, as in 640x384, got"),
        ("demo -o a.onnx --input-size 241x120", 2, "--input-size must be a multiple of"),
        ("a.onnx -o b.onnx", 2, "model must be weights to be exported, got 'a.onnx', which is exported"),
        ("torchvision:maskrcnn_resnet50_fpn -o a.onnx", 2, "maskjet.rewrites.optimize_onnx"),
        ("a.pt -o a.onnx", 3, "model must be a file, got 'a.pt', which does not exist"),
        ("rf-detr-nano --weights a.pt -o a.onnx", 3, "--weights must be a file, got 'a.pt'"),
        ("demo -o /dev/null/a.onnx", 4, "--out must be writable, '/dev/null/a.onnx' is not"),
    ],
)
def test_errors_name_flags(line, code, message, tmp_path, monkeypatch, maskjet):
    monkeypatch.chdir(tmp_path)
    ended, printed, errors = maskjet(f"export {line}")
    assert (ended, printed) == (code, "")
    assert message in errors
    assert errors.count("\n") == 1
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_a_file_runs_by_its_name_and_finds_the_same(tmp_path, maskjet, monkeypatch):
    monkeypatch.chdir(tmp_path)
    size = "--input-size 160x80"
    code, printed, errors = maskjet(f"export demo --out wide.onnx {size} --json")
    assert (code, errors, json.loads(printed)["path"]) == (0, "", "wide.onnx")
    code, printed, _ = maskjet("info --model wide.onnx --runtime openvino --device cpu")
    assert code == 0
    assert "input: 160×80 pixels" in printed
    assert "network       OpenVINO " in printed
    assert maskjet("traffic coco set --images 2 --size 312")[0] == 0
    run = "run set/images --record --device cpu --threshold 0.05"
    assert maskjet(f"{run} -o torch.jsonl {size}")[0] == 0
    for runtime in ("onnxruntime", "openvino"):
        assert maskjet(f"{run} -o {runtime}.jsonl --model wide.onnx --runtime {runtime}")[0] == 0
        code, _, errors = maskjet(f"parity gate torch.jsonl {runtime}.jsonl --max-unmatched 0 --max-dconf 0.001")
        assert code == 0, errors
