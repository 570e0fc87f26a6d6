"""Clips that several tests read, each made once."""

import functools
from pathlib import Path

import numpy as np
import pytest

from tests.sources.clips import SOUND_RATE, write_clip


@pytest.fixture(scope="session")
def clips(tmp_path_factory):
    """Paths of CLIPS by name, each made when it is first asked for; some have sound."""
    folder, sounds = tmp_path_factory.mktemp("clips"), dict.fromkeys(["b3.mp4", "open.ts"], np.zeros(6 * SOUND_RATE))
    return functools.cache(lambda name: write_clip(folder / name, sound=sounds.get(name, ())))


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    """Names of files are those in the test's folder."""
    monkeypatch.chdir(tmp_path)
    return Path()
