"""maskjet export."""

import json

import pytest

from maskjet import runtimes
from tests.cli.command_line import call


def test_a_file_is_written_and_reported(tmp_path, capsys):
    out = tmp_path / "demo.onnx"
    chosen = ("--postprocess", "--threshold", "0.6,car=0.7", "--classes", "car,bus", "--max-detections", "7")
    code, printed, errors = call(capsys, "maskjet", "export", "demo", "--out", out, *chosen, "--json")
    assert (code, errors) == (0, "")
    report = json.loads(printed)
    assert report["path"] == str(out)
    assert report["differences"]["mask_logits"]["difference"] <= report["differences"]["mask_logits"]["limit"]
    found = runtimes.read_metadata(out)
    assert found.selecting.rows == 7
    ids = {name: class_id for class_id, name in found.spec.class_names.items()}
    stated = {class_id: value for class_id, value in enumerate(found.selecting.thresholds) if value is not None}
    assert stated == {ids["car"]: 0.7, ids["bus"]: 0.6}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("demo", "-o", "a.pt"), 2, "--out must end in .onnx, .engine or .plan, got 'a.pt'."),
        (("demo", "-o", "a.onnx", "--precision", "int8"), 2, "--precision must be one of fp32, fp16, got 'int8'"),
        (("demo", "-o", "a.onnx", "--input-size", "240"), 2, "--input-size must be WIDTHxHEIGHT, as in 640x384, got"),
        (("demo", "-o", "a.onnx", "--input-size", "241x120"), 2, "--input-size must be a multiple of"),
        (("a.engine", "-o", "a.onnx"), 2, "model must be weights to be exported, got 'a.engine', which is exported"),
        (("demo", "-o", "a.onnx", "--threshold", "0.3"), 2, "--threshold must be left out, or --postprocess be given"),
        (("demo", "-o", "a.onnx", "--classes", "car"), 2, "--classes must be left out, or --postprocess be given"),
        (("demo", "-o", "a.onnx", "--max-detections", "3"), 2, "--max-detections must be left out, or --postprocess"),
        (
            ("demo", "-o", "a.onnx", "--postprocess", "--threshold", "x"),
            2,
            "--threshold must be a number or CLASS=NUMBER",
        ),
        (("demo", "-o", "a.onnx", "--postprocess", "--classes", "cart"), 2, "--classes must name classes of demo"),
        (
            ("demo", "-o", "a.onnx", "--postprocess", "--max-detections", "0"),
            2,
            "--max-detections must be a whole number",
        ),
        (("torchvision:maskrcnn_resnet50_fpn", "-o", "a.onnx"), 2, "maskjet.rewrites.optimize_onnx"),
        (("a.pt", "-o", "a.onnx"), 2, "model must be a name or a checkpoint's path, got 'a.pt'"),
        (("rf-detr-nano", "--weights", "a.pt", "-o", "a.onnx"), 3, "--weights must be a file, got 'a.pt'"),
        (("demo", "-o", "/dev/null/a.onnx"), 4, "--out must be writable, '/dev/null/a.onnx' is not"),
    ],
)
def test_errors_name_flags(arguments, code, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ended, printed, errors = call(capsys, "maskjet", "export", *arguments)
    assert (ended, printed) == (code, "")
    assert message in errors
    assert errors.count("\n") == 1
    assert not [*tmp_path.iterdir()]


def test_a_file_runs_by_its_name_and_a_dump_says_in_what(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    size = ("--input-size", "240x120")
    code, _, errors = call(capsys, "maskjet", "export", "demo", "--out", "wide.onnx", *size)
    assert (code, errors[:15]) == (0, "wrote wide.onnx")
    assert runtimes.read_metadata("wide.onnx").spec.input_hw == (120, 240)
    code, printed, _ = call(
        capsys, "maskjet", "info", "--model", "wide.onnx", "--runtime", "openvino", "--device", "cpu"
    )
    assert code == 0
    assert "network       OpenVINO " in printed
    images = ("--count", "2", "--device", "cpu")
    code, _, errors = call(capsys, "maskjet", "parity", "dump", "torch.npz", *images, *size)
    assert code == 0
    for runtime in ("onnxruntime", "openvino"):
        model = ("--model", "wide.onnx", "--runtime", runtime)
        code, _, errors = call(capsys, "maskjet", "parity", "dump", f"{runtime}.npz", *images, *model)
        assert code == 0
        limits = ("--max-unmatched", "0", "--max-dconf", "0.001")
        code, _, errors = call(capsys, "maskjet", "parity", "gate", "torch.npz", f"{runtime}.npz", *limits)
        assert code == 0, errors
    code, _, errors = call(capsys, "maskjet", "info", "--model", "wide.onnx", "--runtime", "torch", "--device", "cpu")
    assert (code, errors.count("\n")) == (2, 1)
    assert errors.startswith(
        "maskjet: --runtime must be one of auto, onnxruntime, openvino, tensorrt for 'wide.onnx', got 'torch'"
    )
