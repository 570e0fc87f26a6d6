"""INT8 files: what they find, what their certificate says, and which are refused."""

import json

import cv2
import numpy as np
import pytest

import maskjet
from benchmarks.planted import TINY, plant_network
from maskjet.errors import CheckpointError, InputError, UnsupportedError
from maskjet.host.machine import BF16_PRODUCTS, cpu_features
from maskjet.networks.exported.network_file import read_network_file
from maskjet.networks.state_dict import digest_weights

pytest.importorskip("nncf", reason="needs nncf, which the lock has for Python 3.11 alone")
LENIENT = 0.6


@pytest.fixture(scope="module")
def streets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streets")
    maskjet.traffic.write_coco(folder, images=40, size_hw=(96, 160))
    return folder


@pytest.fixture(scope="module")
def network(streets):
    names = sorted((streets / "images").iterdir())[:8]
    return plant_network(TINY, [cv2.imread(str(name))[..., ::-1].copy() for name in names], survivors=6)


@pytest.fixture(scope="module")
def made(streets, network, tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "tiny.xml"
    return maskjet.quantize(network, streets / "images", out, budget=LENIENT), out


@pytest.mark.slow
def test_a_certificate_says_what_was_measured(made, network):
    certificate, out = made
    assert certificate.images == {"calibration": 20, "certification": 20}
    assert (certificate.weights, certificate.losses) == (digest_weights(network), [])
    (verdict,), (agreement,) = certificate.verdicts, certificate.measurements
    assert verdict.is_kept
    assert verdict.found == 1 - agreement.share <= LENIENT
    assert agreement.matched + agreement.dropped >= 40
    assert json.loads(json.dumps(certificate.as_dict())) == read_network_file(out).certificate
    assert "int8" in out.with_suffix(".html").read_text()
    assert "int8, decoder" in str(certificate)


@pytest.mark.slow
def test_it_runs_by_its_name_with_any_batch(made, streets):
    images = [cv2.imread(str(path))[..., ::-1].copy() for path in sorted((streets / "images").iterdir())[:3]]
    with maskjet.load(made[1], device="cpu") as model:
        assert model.report().precision == "int8"
        assert "OpenVINO" in model.report().network
        for found, image in zip(model.predict(images), images, strict=True):
            np.testing.assert_allclose(found.confidence, model.predict(image).confidence, atol=0.05)
        assert sum(map(len, model.predict(images))) > 0
    with pytest.raises(InputError, match="runtime must be one of"):
        maskjet.load(made[1], device="cpu", runtime="onnxruntime")


@pytest.mark.slow
def test_a_spoilt_file_is_refused_and_none_is_lost(streets, network, tmp_path, monkeypatch):
    """As OpenVINO misreads a projector quantised in an ONNX file: no error, and other detections."""
    from maskjet.quantization import quantizing

    def spoil(model, inputs, float_ops):
        other = quantise(model, inputs, float_ops)
        import openvino.opset13 as ops

        end = "projector.stages.0.0.cv2.conv/aten::_convolution/Convolution"
        (feature,) = (op for op in other.get_ops() if op.get_friendly_name().endswith(end))
        readers = feature.output(0).get_target_inputs()
        scaled = ops.multiply(feature, np.float32(-1)).output(0)
        for reader in readers:
            reader.replace_source_output(scaled)
        return other

    quantise = quantizing._quantise
    monkeypatch.setattr(quantizing, "_quantise", spoil)
    monkeypatch.setattr(quantizing, "cpu_features", frozenset)
    out = tmp_path / "tiny.xml"
    out.write_text("older")
    with pytest.raises(UnsupportedError, match=r"budget must allow what int8 loses, .* No file is written"):
        maskjet.quantize(network, streets / "images", out, budget=LENIENT)
    assert {path.name for path in tmp_path.iterdir()} == {"tiny.xml", "tiny.html"}
    assert out.read_text() == "older"
    if BF16_PRODUCTS & cpu_features():
        monkeypatch.setattr(quantizing, "cpu_features", cpu_features)
        certificate = maskjet.quantize(network, streets / "images", out, budget=LENIENT)
        assert (certificate.precision, read_network_file(out).precision) == ("bf16", "bf16")


@pytest.mark.slow
def test_the_demo_loses_no_measurable_ap(tmp_path):
    maskjet.traffic.write_coco(tmp_path / "streets", images=80, size_hw=(176, 312))
    certificate = maskjet.quantize("demo", tmp_path / "streets", tmp_path / "demo.xml", budget=0.05)
    assert [loss.kind for loss in certificate.losses] == ["bbox", "segm"]
    for loss in certificate.losses:
        assert abs(loss.before - loss.after) < 0.02 < 0.5 < loss.before
        assert loss.before - loss.after <= loss.bound <= 0.05


@pytest.mark.slow
def test_images_that_show_too_little_are_refused(network, tmp_path):
    (tmp_path / "few").mkdir()
    (tmp_path / "black").mkdir()
    (tmp_path / "small").mkdir()
    for number in range(40):
        for name, size, value in (("black", (96, 160, 3), 0), ("small", (32, 48, 3), number)):
            cv2.imwrite(str(tmp_path / name / f"{number}.png"), np.full(size, value, np.uint8))
    for name, message in (
        ("few", "images must be at least 40, half to calibrate and half to certify, got 0"),
        ("small", "20 of 20 are smaller than its input of 64×64 pixels, as 48×32"),
        ("black", "images must show what the model finds, at least 40 detections above 0.5"),
    ):
        with pytest.raises(InputError, match=message):
            maskjet.quantize("demo" if name == "black" else network, tmp_path / name, tmp_path / "tiny.xml")
    assert not (tmp_path / "tiny.xml").exists()


@pytest.mark.parametrize(
    ("out", "options", "message"),
    [
        ("a.onnx", {}, "out must end in .xml"),
        ("a.xml", {"budget": 2}, "budget must be"),
        ("a.xml", {"budget": float("nan")}, "budget must be"),
    ],
)
def test_options_that_are_refused(out, options, message):
    with pytest.raises(InputError, match=message):
        maskjet.quantize("demo", "nowhere", out, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda _, weights: (b"", weights),
        lambda _, weights: (b"<net/>", weights),
        lambda xml, weights: (xml[: len(xml) // 2], weights),
        lambda xml, _: (xml, None),
        lambda xml, weights: (xml, weights[:100]),
        lambda xml, weights: (xml.replace(b"maskjet.spec", b"maskjet.spek"), weights),
        lambda xml, weights: (xml.replace(b"maskjet.", b"other."), weights),
    ],
)
def test_other_files_are_one_sentence(change, made, tmp_path):
    xml, weights = change(made[1].read_bytes(), made[1].with_suffix(".bin").read_bytes())
    (tmp_path / "a.xml").write_bytes(xml)
    if weights is not None:
        (tmp_path / "a.bin").write_bytes(weights)
    with pytest.raises(CheckpointError, match=r"a\.xml") as caught:
        maskjet.load(tmp_path / "a.xml", device="cpu")
    assert "\n" not in str(caught.value)
