"""Folders and globs: the sources found in them, and an output for each."""

import os

import numpy as np
import pytest

from maskjet.errors import InputError, SourceError
from maskjet.media.expansion import expand_sources
from maskjet.media.frames import open_source
from maskjet.media.source import UnopenedSource
from tests.media.test_frames import picture, write_image, write_video


@pytest.fixture
def tree(tmp_path):
    """Images and videos in sub-folders, beside everything that is not to be read."""
    root = tmp_path / "tree"
    for name in ("1.png", "b/1.png", "b/10.png", "b/2.png", ".hidden/1.png", "b/.DS_Store.png", "c.d/e/1.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        write_image(root / name, picture())
    for name in ("v10.mp4", "v2.mp4", "b/v2.mp4"):
        write_video(root / name, frames=2)
    (root / "notes.txt").write_text("no image")
    os.mkfifo(root / "fifo.png")
    return root


def names(found, root):
    return [(one.name.removeprefix(f"{root}/"), [str(path.relative_to(root)) for path in one.files]) for one in found]


def test_a_folders_videos_are_sources_of_their_own_beside_its_images(tree):
    assert names(expand_sources(tree), tree) == [
        (str(tree), ["1.png"]),
        ("v2.mp4", ["v2.mp4"]),
        ("v10.mp4", ["v10.mp4"]),
    ]


def test_sub_folders_in_natural_order_and_nothing_hidden(tree):
    assert names(expand_sources(str(tree), recursive=True), tree) == [
        (str(tree), ["b/1.png", "b/2.png", "b/10.png", "c.d/e/1.png", "1.png"]),
        ("b/v2.mp4", ["b/v2.mp4"]),
        ("v2.mp4", ["v2.mp4"]),
        ("v10.mp4", ["v10.mp4"]),
    ]
    with open_source(tree, recursive=True) as source:
        assert (source.length, source.root, len(list(source))) == (5, tree, 5)


def test_links_lead_into_no_loop_and_to_no_file_twice(tree, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    write_image(outside / "o.png", picture())
    (outside / "back").symlink_to(tree)
    (tree / "a").symlink_to(tree / "b")
    (tree / "b" / "loop").symlink_to(tree)
    (tree / "x").symlink_to(outside)
    (tree / "y").symlink_to(outside)
    (images, *_) = expand_sources(tree, recursive=True)
    assert [str(path.relative_to(tree)) for path in images.files] == [
        *("b/1.png", "b/2.png", "b/10.png", "c.d/e/1.png", "x/o.png", "1.png")
    ]


def test_a_glob(tree):
    assert names(expand_sources(f"{tree}/*.mp4"), tree) == [("v2.mp4", ["v2.mp4"]), ("v10.mp4", ["v10.mp4"])]
    assert names(expand_sources(f"{tree}/**/*2*"), tree) == [
        ("**/*2*", ["b/2.png"]),
        ("b/v2.mp4", ["b/v2.mp4"]),
        ("v2.mp4", ["v2.mp4"]),
    ]
    assert names(expand_sources(f"{tree}/b*"), tree) == [
        ("b", ["b/1.png", "b/2.png", "b/10.png"]),
        ("b/v2.mp4", ["b/v2.mp4"]),
    ]


def test_nothing_is_opened_before_its_turn(tree):
    (tree / "v2.mp4").write_bytes(b"no video")
    _, broken, good = expand_sources(tree)
    with pytest.raises(SourceError, match=r"v2\.mp4' can't be read"):
        broken.open()
    with good.open(every=2) as source:
        assert [frame.index for frame in source] == [0]
    with open_source(good, start=1) as source:
        assert [frame.index for frame in source] == [1]


def test_lists_are_expanded_item_by_item_and_images_stay_together(tree):
    found = expand_sources([str(tree), str(tree / "v10.mp4"), "rtsp://camera/1", 3])
    assert [one.name.removeprefix(f"{tree}/") for one in found] == [
        *(str(tree), "v2.mp4", "v10.mp4", "v10.mp4", "rtsp://camera/1", "/dev/video3")
    ]
    (images,) = expand_sources([str(tree / "1.png"), tree / "b" / "1.png"])
    assert len(images.files) == len(list(images.open())) == 2


def test_everything_else_is_one_source(tree):
    source = open_source(tree / "v2.mp4")
    for given in (source, picture(), str(tree / "1.png"), (image for image in [picture()]), str(tree / "v2.mp4")):
        (found,) = expand_sources(given)
        assert isinstance(found, UnopenedSource)
        with found.open() as opened:
            assert next(iter(opened)).index == 0
    (found,) = expand_sources(expand_sources(picture())[0])
    np.testing.assert_array_equal(next(iter(found.open())).image, picture())


def test_nothing_to_read(tree, tmp_path):
    (tmp_path / "empty" / "deep").mkdir(parents=True)
    with pytest.raises(
        SourceError, match=r"must be a folder with images or videos, .* its sub-folders are searched only"
    ):
        expand_sources(tmp_path / "empty")
    with pytest.raises(SourceError, match=r"must be a folder with images or videos, '.*empty' has none\.$"):
        expand_sources(tmp_path / "empty", recursive=True)
    with pytest.raises(SourceError, match="must be a glob that matches files"):
        expand_sources(f"{tree}/*.mov")
    with pytest.raises(SourceError, match="source must exist"):
        expand_sources(f"{tree}/none.mp4")


def test_a_folder_with_videos_alone_is_no_source_in_python(tmp_path):
    write_video(tmp_path / "a.mp4", frames=1)
    with pytest.raises(SourceError, match=r"a folder with images, .* has none, but 1 video: open each that maskjet"):
        open_source(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_closed_sub_folder_is_named(tree):
    (tree / "b").chmod(0)
    with pytest.raises(SourceError, match=r"source must be readable, '.*/b' is not"):
        expand_sources(tree, recursive=True)
    (tree / "b").chmod(0o700)


def test_a_source_given_twice(tree):
    source = open_source(tree / "v2.mp4")
    with pytest.raises(InputError, match="source must be given once"):
        expand_sources([source, source])
