"""The benchmark of TensorRT's engines, with a program that runs the ONNX file in place of bench.cpp."""

import json
import sys
from types import SimpleNamespace

import pytest

from benchmarks.study_parts import StudyPart
from benchmarks.tensorrt import engines
from benchmarks.variants import DetectorVariant
from maskjet.config import EngineConfig
from maskjet.errors import UnsupportedError
from tests.networks.test_network import tiny_network

PROGRAM = f"""#!{sys.executable}
import json, shutil, sys
import numpy as np, onnxruntime
mode, *words = sys.argv[1:]
if mode == "build":
    if words[3] == "5":
        sys.exit("[TensorRT] first\\nConcat_2: error while computing output extent")
    shutil.copy(words[0], words[1])
    print(json.dumps(dict(tensorrt="8.6.0", build_s=1.0, mb=2.0)))
elif mode == "time":
    print(json.dumps(dict(p5_ms=1.0, p50_ms=1.5, p95_ms=2.0, nodes=3)))
else:
    session = onnxruntime.InferenceSession(words[0])
    (given,) = session.get_inputs()
    names = sorted(each.name for each in session.get_outputs())
    while data := sys.stdin.buffer.read(4 * int(np.prod(given.shape))):
        images = np.frombuffer(data, np.float32).reshape(given.shape)
        for name, found in zip(names, session.run(names, {{given.name: images}})):
            is_lost = name == "logits" and "-4-" in words[0]
            sys.stdout.buffer.write((found - np.float32(9) if is_lost else found).tobytes())
        sys.stdout.buffer.flush()
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """The stand-in, whose engines of level 4 find nothing, and the tiny network as a part of the study, on the CPU."""
    path = tmp_path / "bench"
    path.write_text(PROGRAM)
    path.chmod(0o755)
    config = EngineConfig(device="cpu", precision="fp32", engine="eager", runtime="torch", compile=False)
    variant = DetectorVariant("fp32", config, threshold=0.01)
    network = tiny_network()
    part = StudyPart("tiny", "tiny", lambda _: network, (variant, variant, variant), (), False)
    monkeypatch.setattr(engines, "PARTS", {"tiny": part})
    monkeypatch.setattr(engines, "_IMAGES", 3)
    costs = [SimpleNamespace(runtime="fused", ms=0.5), SimpleNamespace(runtime="compiled", ms=1.0)]
    monkeypatch.setattr(engines.network, "run", lambda **_: SimpleNamespace(measurements=costs))
    return path


@pytest.mark.slow
def test_an_engine_is_measured_beside_the_network(program, tmp_path):
    engine = engines.Engine("tiny", 2, 3, "fp16")
    engine.build(program, tmp_path)
    cost = engines.measure(engine, program, tmp_path, runs=5)
    assert (cost.found.share, cost.found.dropped, cost.found.added) == (1.0, 0, 0)
    assert cost.found.matched > 3
    assert cost.found.mean_mask_iou > 0.999
    assert cost.fused_found.matched == cost.found.matched
    report = engines.EngineReport(machine=engines.describe_machine(), measurements=[cost])
    assert "TensorRT 8.6.0, level 3, fp16" in str(report)
    stated = json.loads(json.dumps(report.as_dict()))["measurements"][0]
    assert stated["maskjet_ms"] == {"fused": 0.5, "compiled": 1.0}
    assert [each["p50_ms"] for each in stated["times"]] == [1.5, 1.5]


@pytest.mark.slow
def test_an_engine_that_finds_nothing_matches_nothing(program, tmp_path):
    engine = engines.Engine("tiny", 2, 4, "fp16")
    engine.build(program, tmp_path)
    found = engines.measure(engine, program, tmp_path, runs=5).found
    assert (found.matched, found.added) == (0, 0)
    assert found.dropped > 3


@pytest.mark.slow
def test_a_file_that_is_refused_is_named_with_its_reason(program, tmp_path):
    engine = engines.Engine("tiny", 1, 5, "fp16", is_free=True)
    with pytest.raises(UnsupportedError, match=r"must build the engine: .*first \| Concat_2: error"):
        engine.build(program, tmp_path)
    assert not engine.path(tmp_path).with_suffix(".json").exists()
