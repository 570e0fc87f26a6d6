"""`--track=two-pass` where a GPU decodes both passes."""

from pathlib import Path

import numpy as np
import pytest

from maskjet import traffic
from maskjet.sources.frames import open_source


@pytest.mark.gpu
def test_both_passes_are_those_of_frames_from_the_cpu(maskjet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    traffic.write_video("street.mp4", size_hw=(180, 320), frames=24)
    shown = []
    for decoder in ("cpu", "cuda"):
        line = f"run street.mp4 --track=two-pass --device cuda --decoder {decoder} -o {decoder}.jsonl -o {decoder}.mp4"
        code, _, stderr = maskjet(line)
        assert code == 0, stderr
        with open_source(f"{decoder}.mp4") as source:
            shown.append(np.stack([frame.image for frame in source]))
    assert Path("cuda.jsonl").read_bytes() == Path("cpu.jsonl").read_bytes()
    np.testing.assert_array_equal(*shown)
