"""Which segments sources are cut into."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskjet.errors import InputError, SourceError
from maskjet.jobs import finding, planning, storage
from maskjet.jobs.planning import plan
from maskjet.jobs.segments import Segment, SourceFile, digest
from maskjet.sources import keyframes
from maskjet.sources.keyframes import Entry, VideoPart
from tests.jobs.making import CREDENTIALS, put

ENTRY = Entry(250, 12_500, 251)
PEAKS = """
import json, sys, tracemalloc
from maskjet.jobs import plan

def peak_of(folder):
    tracemalloc.start()
    count = sum(len(segment.files) for segment in plan(folder, recursive=True))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return count, peak

few, many = sys.argv[1:]
peak_of(few)  # what is imported and cached on first use
print(json.dumps([peak_of(few), peak_of(many)]))
"""


@pytest.fixture(autouse=True)
def cuts(monkeypatch):
    """Videos are cut in two, but for those whose content is "broken"; gives the names that were cut, and into what."""
    asked = []

    def cut_video(name, *, seconds):
        asked.append((name, seconds))
        if Path(name).read_bytes() == b"broken":
            raise SourceError("source must be a video, it is not.")
        return [VideoPart(0, 250, None), VideoPart(250, None, ENTRY)]

    monkeypatch.setattr(keyframes, "cut_video", cut_video)
    return asked


@pytest.fixture
def tree(tmp_path):
    """Images and videos in sub-folders, beside everything that is not to be read."""
    root = tmp_path / "tree"
    for name in (
        *("1.png", "a10.jpg", "a2.jpg", "v10.mp4", "v2.mp4", "notes.md", ".hidden.jpg", ".hidden/1.png"),
        *("b/1.png", "b/10.png", "b/2.png", "b/v.mp4", "c.d/e/1.png"),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    os.mkfifo(root / "fifo.png")
    return root


def files(segments, root=""):
    """Names of the files, each once, in the plan's order."""
    names = [file.path for segment in segments for file in segment.files]
    return list(dict.fromkeys(name.removeprefix(f"{root}/") if root else name for name in names))


def images_of(root, count, name="image{}.jpg"):
    """Makes images, and returns the folder."""
    root.mkdir(exist_ok=True)
    for number in range(count):
        (root / name.format(number)).write_bytes(b"1")
    return root


def images_in(*sources, **options):
    """The one segment with images."""
    (images,) = (each for each in plan(*sources, **options) if not each.is_video)
    return [images]


def digests(segments):
    return [digest(segment, {}) for segment in segments]


class TestFolders:
    def test_images_then_videos_in_natural_order_as_they_are(self, tree):
        os.utime(tree / "v2.mp4", ns=(0, 1_234_567_890_123_456_789))
        videos = [each for each in plan(tree) if each.is_video]
        assert files(videos, tree) == ["v2.mp4", "v10.mp4"]
        assert videos[0].files == (SourceFile(f"{tree}/v2.mp4", 6, 1_234_567_890_123_456_789),)
        assert files(images_in(str(tree)), tree) == ["a2.jpg", "a10.jpg", "1.png"]

    def test_sub_folders_are_searched_and_links_lead_into_no_loop_and_to_no_file_twice(self, tree, tmp_path):
        names = [*("a2.jpg", "a10.jpg", "1.png", "b/1.png", "b/2.png", "b/10.png", "c.d/e/1.png")]
        assert files(images_in(tree, recursive=True), tree) == names
        outside = images_of(tmp_path / "outside", 1, "o.png")
        (outside / "back").symlink_to(tree)
        (tree / "a").symlink_to(tree / "b")
        (tree / "b" / "loop").symlink_to(tree)
        (tree / "x").symlink_to(outside)
        (tree / "y").symlink_to(outside)
        assert files(images_in(tree, recursive=True), tree) == [*names, "x/o.png"]

    def test_paths_are_made_absolute_and_links_stay(self, tree, tmp_path, monkeypatch):
        (tmp_path / "link").symlink_to(tree)
        monkeypatch.chdir(tmp_path)
        (segment,) = plan("link/b/*.png")
        assert files([segment]) == [f"{tmp_path}/link/b/{name}" for name in ("1.png", "2.png", "10.png")]

    def test_a_link_to_nothing_and_one_in_a_circle_are_segments_of_their_own(self, tmp_path):
        folder = images_of(tmp_path / "f", 3)
        (folder / "image1a.jpg").symlink_to("nowhere")
        (folder / "image1b.jpg").symlink_to("image1b.jpg")
        (folder / "v.mp4").symlink_to("nowhere")
        missing = [SourceFile(f"{folder}/{name}", 0, 0) for name in ("image1a.jpg", "image1b.jpg", "v.mp4")]
        *alone, rest = plan(folder)
        assert alone == [Segment((file,), file.path.endswith("mp4")) for file in missing]
        assert files([rest], folder) == ["image0.jpg", "image1.jpg", "image2.jpg"]

    def test_names_that_differ_in_zeros_alone_have_an_order(self, tmp_path):
        folder = images_of(tmp_path / "f", 0)
        for name in ("a1.jpg", "a001.jpg", "a01.jpg", "a2.jpg"):
            (folder / name).write_bytes(b"1")
        assert files(plan(folder), folder) == ["a001.jpg", "a01.jpg", "a1.jpg", "a2.jpg"]

    @pytest.mark.parametrize("name", ["2024", "[a]*"])
    def test_a_folder_whose_name_is_a_number_or_a_pattern(self, tmp_path, monkeypatch, name):
        monkeypatch.chdir(tmp_path)
        images_of(tmp_path / name, 1)
        assert files(plan(name), tmp_path) == [f"{name}/image0.jpg"]


class TestVideos:
    def test_a_video_is_cut_in_its_turn_where_it_may_be_entered(self, tree, cuts):
        path = str(tree / "v2.mp4")
        segments = plan([path, tree / "v10.mp4"], seconds=7)
        file = next(segments).files
        assert cuts == [(path, 7)]
        assert list(plan(path)) == [Segment(file, True, 0, 250), Segment(file, True, 250, None, ENTRY)]
        assert cuts[1:] == [(path, 10.0)]
        assert all(each.is_video for each in plan(tree / "notes.md"))  # given by name, a file may have any suffix

    def test_one_that_can_not_be_cut_or_has_no_part_is_one_segment(self, tree, monkeypatch):
        (tree / "v2.mp4").write_bytes(b"broken")
        segments = [each for each in plan(tree) if each.is_video]
        assert [(files([each], tree), each.count, each.entry) for each in segments] == [
            *((["v2.mp4"], None, None), (["v10.mp4"], 250, None), (["v10.mp4"], None, ENTRY))
        ]
        monkeypatch.setattr(keyframes, "cut_video", lambda *_, **__: [])
        (segment,) = plan(tree / "v10.mp4")
        assert (segment.is_video, segment.first, segment.count) == (True, 0, None)


class TestImages:
    @pytest.mark.parametrize("most", [1, 3, 64])
    def test_all_are_there_in_order_and_at_most_so_many_together(self, tmp_path, most):
        folder = images_of(tmp_path / "f", 300)
        segments = list(plan(folder, images=most))
        assert files(segments, folder) == [f"image{number}.jpg" for number in range(300)]
        lengths = [len(each.files) for each in segments]
        assert max(lengths) <= most
        assert min(lengths[:-1]) >= max(1, most // 4)
        assert list(plan(folder, images=most)) == segments
        assert len(set(digests(segments))) == len(segments)

    def test_those_of_small_folders_go_together(self, tmp_path):
        for number in range(20):
            images_of(tmp_path / f"f{number}", 1)
            (tmp_path / f"f{number}" / "v.mp4").write_bytes(b"1")
        assert files(images_in(tmp_path, recursive=True), tmp_path) == [f"f{number}/image0.jpg" for number in range(20)]

    def test_one_image_more_or_less_hardly_changes_other_segments(self, tmp_path, monkeypatch):
        # The same segments each time, wherever the folder lies.
        monkeypatch.setattr(planning, "hash_path", lambda path: finding.hash_path(Path(path).name))
        folder = images_of(tmp_path / "f", 1000)
        all_before, changes = digests(plan(folder)), []
        before = set(all_before)
        for number in range(50, 950, 36):
            added = folder / f"image{number}a.jpg"
            added.write_bytes(b"1")
            after = set(digests(plan(folder)))
            added.unlink()
            changes.append(max(len(before - after), len(after - before)))
        assert len(changes) == 25
        assert max(changes) <= 4  # of 24
        assert sum(change <= 2 for change in changes) >= 23
        (folder / "image250.jpg").write_bytes(b"12")
        assert sum(one != other for one, other in zip(all_before, digests(plan(folder)), strict=True)) == 1

    @pytest.mark.slow
    def test_memory_is_that_of_one_folder(self, tmp_path):
        for tree, count in (("few", 1), ("many", 10)):
            (tmp_path / tree).mkdir()
            for number in range(count):
                images_of(tmp_path / tree / f"f{number}", 1000)
        # Other tests may have left threads, whose memory would be counted.
        command = [sys.executable, "-c", PEAKS, tmp_path / "few", tmp_path / "many"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        (few, peak_of_few), (many, peak_of_many) = json.loads(done.stdout)
        assert (few, many) == (1000, 10_000)
        # All files held would take 10 times as much; two folders' names at a time take twice as much.
        assert peak_of_many < 3 * peak_of_few


class TestGlobs:
    @pytest.mark.parametrize(
        ("pattern", "expected"),
        [
            ("*.mp4", ["v2.mp4", "v10.mp4"]),
            ("*/*[12].png", ["b/1.png", "b/2.png"]),
            ("**/1.png", ["1.png", "b/1.png", "c.d/e/1.png"]),
            ("**/**/e/*", ["c.d/e/1.png"]),
            ("*.d", ["c.d/e/1.png"]),
            ("*/e", ["c.d/e/1.png"]),
            ("c*/e/1.png", ["c.d/e/1.png"]),
            (".h*.jpg", [".hidden.jpg"]),
            (".hidden/*", [".hidden/1.png"]),
            ("b/**", ["b/v.mp4", "b/1.png", "b/2.png", "b/10.png"]),
            ("[!abcv]*", ["notes.md", "1.png"]),
        ],
    )
    def test_what_matches(self, tree, pattern, expected):
        assert files(plan(f"{tree}/{pattern}", recursive=True), tree) == expected

    def test_a_folder_that_matches_is_searched_as_deep_as_any_folder(self, tree):
        with pytest.raises(SourceError, match=r"source must be a glob that matches files, '.*/\*\.d' has none"):
            next(plan(f"{tree}/*.d"))


class TestLists:
    def test_paths_globs_and_urls(self, tree):
        (tree / "b c%20").mkdir()
        (tree / "b c%20" / "#1.jpg").write_bytes(b"1")
        lines = (
            "\ufeff# a comment\r\n\r\n   \r\n",
            f"v2.mp4\nb/*0.png\n{tree}/b/../a2.jpg\r\nfile://{tree}/b%20c%2520/%231.jpg\nc.d/e\nb c%20/#1.jpg\n./1.png",
        )
        (tree / "list.TXT").write_text("".join(lines), newline="")
        assert files(plan(tree / "list.TXT"), tree) == [
            *("v2.mp4", "b/10.png", "b/../a2.jpg", "b c%20/#1.jpg", "c.d/e/1.png", "1.png")
        ]

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            (b"none.jpg", "source must exist, '.*none.jpg' does not"),
            (b"rtsp://user:SECRET@camera/1", "source must have an end, 'rtsp://camera/1' is a camera or a live stream"),
            (b"0", "source must have an end, '0' is a camera"),
            (b"s3://a:SECRET@b/c", "source must be a URL without credentials"),
            (b"abc://x", "source must be a path or a URL of a known scheme"),
            (b"other.txt", "source must be no list in a list"),
            (b"x" * 70_000, "source must be a line of at most 65536 bytes"),
            (b"x" * 300, "source must be readable, .* File name too long"),
            ("a.jpg".encode("utf-16"), "source must be a path or URL without NUL characters"),
        ],
    )
    def test_a_bad_line_is_named_before_anything_begins(self, tree, cuts, line, message):
        (tree / "other.txt").write_text("a2.jpg")
        (tree / "l.txt").write_bytes(b"# first\nv2.mp4\n" + line + b"\na2.jpg\n")
        with pytest.raises(InputError, match=rf"^Line 3 of '.*l\.txt': ({message})") as caught:
            next(plan([tree / "v10.mp4", tree / "l.txt"]))
        assert "SECRET" not in str(caught.value)
        assert not cuts


class TestNothingTwice:
    def test_one_name_in_several_ways(self, tree, tmp_path, monkeypatch):
        (tmp_path / "link.jpg").symlink_to(tree / "a2.jpg")
        (tree / "l.txt").write_text("a2.jpg\na2.jpg\n1.png\n")
        monkeypatch.chdir(tree)
        given = ["a2.jpg", tree / "a2.jpg", f"file://{tree}/a2.jpg", "b/../a2.jpg", tmp_path / "link.jpg", "l.txt"]
        assert files(plan(given)) == [f"{tree}/a2.jpg", f"{tree}/1.png"]

    def test_a_file_given_by_name_and_in_its_folder(self, tree):
        given = [tree / "b", tree / "b" / "2.png"]
        assert files(plan(given), tree) == ["b/v.mp4", "b/1.png", "b/2.png", "b/10.png"]
        assert files(plan(given[::-1]), tree) == ["b/v.mp4", "b/2.png", "b/1.png", "b/10.png"]
        assert ".hidden.jpg" in files(plan([tree, tree / ".hidden.jpg"]), tree)
        assert len(files(plan([tree / "c.d" / "e" / "1.png", tree / "c.d" / "e"]))) == 1  # a folder that is not empty

    def test_folders_within_folders_globs_and_links(self, tree, tmp_path):
        (tmp_path / "link").symlink_to(tree / "b")
        given = [tree / "b", tree, f"{tree}/**/*.png", tree, tmp_path / "link", f"{tmp_path}/*/b/1*"]
        found = [file.path for each in plan(given, recursive=True) if not each.is_video for file in each.files]
        names = [*("b/1.png", "b/2.png", "b/10.png", "a2.jpg", "a10.jpg", "1.png", "c.d/e/1.png")]
        assert found == [f"{tree}/{name}" for name in names]


class TestNames:
    NAMES = (
        *(b"new\nline.jpg", b"tab\t.jpg", b"caf\xc3\xa9.jpg", b"broken\xff\xfe.jpg", b"quo\"te'.jpg"),
        b"\x01\x7f.jpg",
    )

    def test_any_name_is_planned_written_as_json_and_read_from_a_list(self, tmp_path):
        for name in self.NAMES:
            Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(b"1")
        (segment,) = plan(tmp_path)
        line = json.dumps(asdict(segment))
        assert "\n" not in line
        assert line.isascii()
        again = Segment.from_dict(json.loads(line))
        assert again == segment
        assert len(digest(again, {})) == 32
        assert {os.fsencode(file.path).rpartition(b"/")[2] for file in again.files} == set(self.NAMES)
        for file in again.files:
            storage.check_unchanged(file)
        names = [name for name in self.NAMES if b"\n" not in name]
        (tmp_path / "l.txt").write_bytes(b"\n".join(names))
        (segment,) = plan(tmp_path / "l.txt")
        assert [os.fsencode(file.path).rpartition(b"/")[2] for file in segment.files] == names

    @settings(max_examples=30)
    @given(st.text())
    def test_no_text_breaks_it(self, text):
        with pytest.raises(InputError):  # there is no such file
            next(plan(f"/nowhere/{text}"))


class TestErrors:
    def test_missing_and_empty_sources_before_anything_begins(self, tree, cuts, tmp_path):
        (tmp_path / "empty" / "deep").mkdir(parents=True)
        (tree / "l.txt").write_text("# nothing\n\n")
        for source, message in (
            (tree / "none.mp4", r"source must exist, '.*none\.mp4' does not"),
            (tree / "none.txt", r"source must exist, '.*none\.txt' does not"),
            (tree / "1.png" / "a.jpg", "source must exist"),
            (f"{tree}/*.mov", r"source must be a glob that matches files, '.*/\*\.mov' has none"),
            (f"{tree}/*.d", "source must be a glob that matches files"),  # its files lie deeper
            (tree / "l.txt", r"source must be a list of files, '.*l\.txt' names none"),
            (tmp_path / "empty", "source must be a folder with images or videos, .* its sub-folders are searched only"),
            (tree / "fifo.png", r"source must be a file or a folder, '.*fifo\.png' is a FIFO, socket or device"),
            ("/dev/video0", "source must have an end, '/dev/video0' is a camera or a live stream: use `maskjet run`"),
            ("rtsp://me:SECRET@gate/1", "source must have an end, 'rtsp://gate/1' is a camera or a live stream"),
            (0, "source must have an end, 'camera 0' is a camera"),
            ("file://other/a.jpg", "source must be a file of this machine, .* names 'other'"),
            ("", "source must be a path or URL"),
            ("a\0b.jpg", "source must be a path or URL without NUL characters"),
            ("/nowhere/\ud800.jpg", r"source must be readable|surrogates not allowed"),
        ):
            with pytest.raises(SourceError, match=message) as caught:
                next(plan([tree / "v2.mp4", source]))
            assert "SECRET" not in str(caught.value)
        with pytest.raises(SourceError, match=r"source must be a folder with images or videos, '.*empty' has none\.$"):
            next(plan(tmp_path / "empty", recursive=True))
        assert not cuts

    def test_arguments_of_another_type(self, tree):
        for sources, message in (
            ([], "sources must be at least one, got none"),
            (None, "sources must be a path, a URL or a list of these, got NoneType"),
            (b"a.jpg", "sources must be a path, a URL or a list of these, got bytes"),
            ([b"a.jpg"], "sources must be paths or URLs, got bytes"),
            ([True], "sources must be paths or URLs, got bool"),
        ):
            with pytest.raises(InputError, match=message):
                plan(sources)
        for seconds in (0, -1, float("inf"), float("nan"), True, "10"):
            with pytest.raises(InputError, match="seconds must be a number above 0, got"):
                plan(tree, seconds=seconds)
        for images in (0, -1, 1.5, True, "64"):
            with pytest.raises(InputError, match="images must be a whole number of at least 1, got"):
                plan(tree, images=images)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
    def test_a_closed_sub_folder_is_named(self, tree):
        (tree / "b").chmod(0)
        with pytest.raises(SourceError, match=r"source must be readable, '.*/b' is not: Permission denied"):
            list(plan(tree, recursive=True))
        (tree / "b").chmod(0o700)


OBJECTS = {
    **dict.fromkeys(["x/a 10.jpg", "x/a 2.jpg", "x/é#?%.jpg", "x/.hidden.jpg", "x/notes.md", "x/v.mp4"], b"1"),
    **dict.fromkeys(["x/sub/b.mp4", "x/sub/c.png"], b"1"),
    "lists/l.txt": b"# list\n../x/a 2.jpg\n/x/*.mp4\ngone.jpg\n",
    "lists/bad.txt": b"a.jpg\nrtsp://camera\n",
}


@pytest.fixture(params=["s3", "memory"])
def bucket(request):
    """The URL of a bucket that has `OBJECTS`."""
    system = request.getfixturevalue(request.param)
    for name, data in OBJECTS.items():
        (partial(put, system) if request.param == "s3" else system.pipe)(f"bucket/{name}", data)
    return f"{request.param}://bucket"


class TestStores:
    IMAGES = ("x/a 2.jpg", "x/a 10.jpg", "x/é#?%.jpg")

    def test_a_folder(self, bucket):
        segments = list(plan(f"{bucket}/x/"))
        assert files(segments, bucket) == ["x/v.mp4", *self.IMAGES]
        for segment in segments:
            for file in segment.files:
                assert file.size == 1
                storage.check_unchanged(file)
        assert [segment.count for segment in segments if segment.is_video] == [250, None]
        assert list(plan(f"{bucket}/x/")) == segments
        assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in json.dumps([asdict(segment) for segment in segments])

    def test_a_whole_bucket_globs_and_nothing_twice(self, bucket):
        assert files(plan(bucket, recursive=True), bucket) == [*("x/v.mp4", "x/sub/b.mp4", *self.IMAGES, "x/sub/c.png")]
        for paths, expected in (
            (["/x/*.mp4"], ["x/v.mp4"]),
            (["/**/*.mp4"], ["x/v.mp4", "x/sub/b.mp4"]),
            (["/x/a [0-9].jpg", "/x/?.mp4"], ["x/v.mp4", "x/a 2.jpg"]),
            (["/*/s*"], ["x/sub/b.mp4", "x/sub/c.png"]),
            (["/x/a 2.jpg", "/x/a 2.jpg", "/x", "/x/v.mp4", "/x/*.jpg"], ["x/v.mp4", *self.IMAGES]),
        ):
            assert files(plan(bucket + path for path in paths), bucket) == expected

    def test_a_list_and_a_name_in_it_that_is_gone(self, bucket):
        segments = list(plan(f"{bucket}/lists/l.txt"))
        assert files(segments, bucket) == ["x/v.mp4", "lists/gone.jpg", "x/a 2.jpg"]
        assert [file.size for segment in segments for file in segment.files] == [1, 1, 0, 1]

    def test_missing_and_empty_sources(self, bucket):
        for path, message in (
            ("/none", "source must exist, .*none.* does not"),
            ("/none.txt", "source must exist, .*none.* does not"),
            ("/lists", "source must be a folder with images or videos, .*lists.* has none; its sub-folders"),
            ("/x/*.mov", "source must be a glob that matches files, .* has none"),
            ("/lists/bad.txt", r"^Line 2 of '.*://bucket/lists/bad\.txt.*': source must have an end"),
        ):
            with pytest.raises(SourceError, match=message):
                next(plan(bucket + path))
