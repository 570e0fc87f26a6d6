"""Folders and globs: the sources found in them, and an output for each."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from maskjet.errors import InputError, SourceError
from maskjet.sources.expansion import expand_sources
from maskjet.sources.frames import open_source
from maskjet.sources.source import UnopenedSource
from tests.sources.clips import picture, read, write_image, write_video

pytestmark = pytest.mark.usefixtures("tree")


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Images and videos in sub-folders, beside everything that is not to be read."""
    (tmp_path / "tree").mkdir()
    monkeypatch.chdir(tmp_path / "tree")
    for name in ("1.png", "b/1.png", "b/10.png", "b/2.png", ".hidden/1.png", "b/.DS_Store.png", "c.d/e/1.png"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        write_image(name, picture())
    for name in ("v10.mp4", "v2.mp4", "b/v2.mp4"):
        write_video(name, frames=2)
    Path("notes.txt").write_text("no image")
    os.mkfifo("fifo.png")


def names(source, **options):
    return [(one.name, list(map(str, one.files))) for one in expand_sources(source, **options)]


def test_a_folders_videos_are_sources_of_their_own_beside_its_images():
    assert names(".") == [(".", ["1.png"]), ("v2.mp4", ["v2.mp4"]), ("v10.mp4", ["v10.mp4"])]


def test_sub_folders_in_natural_order_and_nothing_hidden():
    assert names(".", recursive=True) == [
        (".", ["b/1.png", "b/2.png", "b/10.png", "c.d/e/1.png", "1.png"]),
        *((name, [name]) for name in ("b/v2.mp4", "v2.mp4", "v10.mp4")),
    ]
    source, frames = read(".", recursive=True)
    assert (source.length, source.root, len(frames)) == (5, Path(), 5)


def test_links_lead_into_no_loop_and_to_no_file_twice():
    Path("../outside").mkdir()
    write_image("../outside/o.png", picture())
    for link, to in {
        "../outside/back": "../tree",
        "a": "b",
        "b/loop": "..",
        "x": "../outside",
        "y": "../outside",
    }.items():
        Path(link).symlink_to(to)
    assert names(".", recursive=True)[0][1] == [*("b/1.png", "b/2.png", "b/10.png", "c.d/e/1.png", "x/o.png", "1.png")]


def test_a_glob():
    assert names("*.mp4") == [("v2.mp4", ["v2.mp4"]), ("v10.mp4", ["v10.mp4"])]
    found = [("**/*2*", ["b/2.png"]), ("b/v2.mp4", ["b/v2.mp4"]), ("v2.mp4", ["v2.mp4"])]
    assert names("**/*2*") == found
    assert names("b*") == [("b", ["b/1.png", "b/2.png", "b/10.png"]), ("b/v2.mp4", ["b/v2.mp4"])]


def test_nothing_is_opened_before_its_turn():
    Path("v2.mp4").write_bytes(b"no video")
    _, broken, good = expand_sources(".")
    with pytest.raises(SourceError, match=r"v2\.mp4' can't be read"):
        broken.open()
    with good.open(every=2) as source:
        assert [frame.index for frame in source] == [0]
    assert [frame.index for frame in open_source(good, start=1)] == [1]


def test_lists_are_expanded_item_by_item_and_images_stay_together():
    found = expand_sources([".", "v10.mp4", "rtsp://camera/1", 3])
    assert [one.name for one in found] == [".", "v2.mp4", "v10.mp4", "v10.mp4", "rtsp://camera/1", "/dev/video3"]
    (images,) = expand_sources(["1.png", Path("b/1.png")])
    assert len(images.files) == len(list(images.open())) == 2


def test_everything_else_is_one_source():
    for given in (open_source("v2.mp4"), picture(), "1.png", (image for image in [picture()]), "v2.mp4"):
        (found,) = expand_sources(given)
        assert isinstance(found, UnopenedSource)
        with found.open() as opened:
            assert next(iter(opened)).index == 0
    (found,) = expand_sources(expand_sources(picture())[0])
    np.testing.assert_array_equal(next(iter(found.open())).image, picture())


def test_nothing_to_read():
    Path("empty/deep").mkdir(parents=True)
    write_video("empty/deep/a.mp4", frames=1)
    with pytest.raises(SourceError, match=r"a folder with images, .* has none, but 1 video: open each that maskjet"):
        open_source("empty/deep")
    Path("empty/deep/a.mp4").unlink()
    for name in ("empty", "*.mov", "none.mp4"):
        for recursive in (False, True):
            with pytest.raises(SourceError, match=r"^source must .*" + re.escape(name)):
                expand_sources(name, recursive=recursive)
    for source in (open_source("v2.mp4"), iter([])):
        with pytest.raises(InputError, match=r"source must be given once, .* is given twice: open it twice"):
            expand_sources([source, source])


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_closed_sub_folder_is_named():
    Path("b").chmod(0)
    with pytest.raises(SourceError, match=r"source must be readable, '\./b' is not"):
        expand_sources(".", recursive=True)
    Path("b").chmod(0o700)
