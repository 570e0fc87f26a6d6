"""Parts: whole or not there, found again, and what is damaged in one is told in one line."""

import errno
import io
import os
import random
import resource
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyarrow import parquet

from maskjet.errors import InputError, OutputError, SourceError
from maskjet.host.files import TemporaryFile
from maskjet.jobs import folders
from maskjet.jobs.folders import Folder
from maskjet.jobs.merging import merge
from maskjet.jobs.parts import FOLDER, Parts
from maskjet.jobs.segments import digest
from tests.jobs.making import SETTINGS, made_up, read_part, table_of, write_made_up, write_manifest

A = "ab" * 16


def files(out):
    return sorted(str(path.relative_to(out)) for path in Path(out).rglob("*") if path.is_file())


@pytest.fixture(autouse=True)
def file_store(monkeypatch):
    """Takes file:// for a store, whose objects lie in files."""
    monkeypatch.setattr(folders, "_ATOMIC", (*folders._ATOMIC, "file"))


@pytest.fixture(params=["local", "remote"])
def out(request, tmp_path):
    """The output of a job, as a path or in a store whose objects lie in files."""
    if request.param == "local":
        return str(tmp_path)
    for number in range(256):
        (tmp_path / "parts" / f"{number:02x}").mkdir(parents=True)  # stores have no folders
    return f"file://{tmp_path}"


def test_a_part_is_written_and_read(out, tmp_path):
    parts, table = Parts(out), table_of(*made_up())
    parts.write(A, table)
    assert parts.path_of(A) == f"{out}/parts/ab/{A}.parquet"
    path = tmp_path / f"parts/ab/{A}.parquet"
    first = path.read_bytes()
    parts.write(A, table)
    assert path.read_bytes() == first
    assert files(tmp_path) == [f"parts/ab/{A}.parquet"]
    assert read_part(out, A).equals(table, check_metadata=True)
    assert parquet.read_metadata(path).row_group(0).column(0).compression == "ZSTD"


def test_parts_are_found(out):
    parts, table = Parts(out), table_of(*made_up(count=1))
    with pytest.raises(SourceError, match=f"must be a whole Parquet file, '.*{A}.parquet' is not: "):
        read_part(out, A)
    names = [f"{number:032x}" for number in (1, 2, 2**120, 2**127)]
    for name in names:
        parts.write(name, table)
    missing = [f"{number:032x}" for number in (3, 2**121)]
    assert list(filter(parts.had, [*missing, *names[:3]])) == names[:3]


def test_each_folder_of_a_store_is_listed_once(tmp_path, monkeypatch):
    listed, names = [], Folder.names
    monkeypatch.setattr(Folder, "names", lambda folder, name: listed.append(name) or names(folder, name))
    parts, noise = Parts(f"file://{tmp_path}"), random.Random(0)
    for _ in range(20):
        for _ in range(256):
            parts.had(noise.randbytes(16).hex())
    assert len(listed) == len(set(listed)) == 256


@pytest.mark.parametrize("name", ["", "a" * 31, "A" * 32, "../" * 10 + "ab", "g" * 32, A + "\n"])
def test_what_is_no_digest_is_no_path(tmp_path, name):
    parts = Parts(str(tmp_path))
    for use in (parts.path_of, parts.had, lambda name: parts.write(name, None)):
        with pytest.raises(InputError, match="digest must be 32 hexadecimal digits, got"):
            use(name)


def test_a_full_disk_leaves_nothing(tmp_path):
    parts, table = Parts(str(tmp_path)), table_of(*made_up())
    parts.write("cd" * 16, table)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        with pytest.raises(OutputError, match=f"out must be writable, '.*{A}.parquet' is not: File too large"):
            parts.write(A, table)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert files(tmp_path) == [f"parts/cd/{'cd' * 16}.parquet"]


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_an_error_at_the_end_leaves_nothing(tmp_path, monkeypatch, fails):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(*((os, "fsync") if fails == "fsync" else (Path, "replace")), fail)
    with pytest.raises(OutputError, match="No space left on device"):
        Parts(str(tmp_path)).write(A, table_of(*made_up()))
    assert files(tmp_path) == []


def test_a_file_is_synced_before_it_gets_its_name(tmp_path, monkeypatch):
    happened, fsync, replace = [], os.fsync, Path.replace

    def sync(fd):
        happened.append(str(Path(f"/proc/self/fd/{fd}").resolve().relative_to(tmp_path)))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", lambda path, to: happened.append("renamed") or replace(path, to))
    Parts(str(tmp_path)).write(A, table_of(*made_up()))
    assert happened == [f"parts/ab/{A}.partial", "renamed"]


def test_a_store_that_breaks_leaves_nothing(tmp_path, monkeypatch):
    class Stream(io.FileIO):
        """Breaks in the middle, and keeps what it got."""

        def write(self, data):
            super().write(data[:100])
            raise OSError("the cable was pulled")

    (tmp_path / "parts/ab").mkdir(parents=True)
    parts = Parts(f"file://{tmp_path}")
    system = SimpleNamespace(open=Stream, rm_file=os.unlink)
    monkeypatch.setattr(parts._folder, "_system", system)
    with pytest.raises(OutputError, match=f"out must be reachable, 'file://.*{A}.parquet' is not: the cable was"):
        parts.write(A, table_of(*made_up()))
    assert files(tmp_path) == []


@pytest.mark.parametrize("how", ["fails", pytest.param("is killed", marks=pytest.mark.slow)])
def test_an_upload_that_breaks_off_in_the_middle_leaves_nothing(remote_out, monkeypatch, how):
    models = pytest.importorskip("moto.s3.models")
    exceptions, came, is_over = pytest.importorskip("moto.s3.exceptions"), threading.Event(), threading.Event()
    upload = models.S3Backend.upload_part

    def break_off(store, bucket, number, part_id, *more, **options):
        if part_id == 1:
            return upload(store, bucket, number, part_id, *more, **options)
        came.set()
        if how == "is killed":
            is_over.wait()
        raise exceptions.InvalidPart

    monkeypatch.setattr(models.S3Backend, "upload_part", break_off)
    place, size = f"parts/ab/{A}.parquet", 30 << 20  # three parts of a multipart upload
    if how == "fails":
        with pytest.raises(OutputError, match=r"out must be reachable, .* is not: .* InvalidPart"):
            Folder(remote_out).write(place, bytes(size))
    else:
        program = "import sys; from maskjet.jobs.folders import Folder; "
        program += "Folder(sys.argv[1]).write(sys.argv[2], bytes(int(sys.argv[3])))"
        with subprocess.Popen([sys.executable, "-c", program, remote_out, place, str(size)]) as process:
            assert came.wait(60)
            process.kill()
        is_over.set()
    assert not Parts(remote_out).had(A)


@pytest.mark.parametrize("out", ["hdfs://h/x", "SFTP://h/x", "memory://x", "https://h/x", "rtsp://h/x"])
def test_a_store_where_killed_uploads_leave_half_a_file_is_refused(out):
    with pytest.raises(InputError, match=r"out must be a path or a URL of abfs, .* s3, file, got [a-z]+: elsewhere"):
        Parts(out)


def test_what_a_killed_run_leaves_is_not_read_and_is_removed(tmp_path, monkeypatch):
    parts, table = Parts(str(tmp_path)), table_of(*made_up())
    with monkeypatch.context() as patch:  # killed where the file is written and not yet renamed
        patch.setattr(TemporaryFile, "finish", lambda _, **__: sys.exit())
        patch.setattr(TemporaryFile, "remove", lambda temporary: temporary.file.close())
        with pytest.raises(SystemExit):
            parts.write(A, table)
    assert files(tmp_path) == [f"parts/ab/{A}.partial"]
    assert not parts.had(A)
    parts.write(A, table)  # another name, as the first file may be in use
    (tmp_path / "parts" / "notes.partial").write_text("not ours")
    for folder in (tmp_path, tmp_path / "nowhere"):
        Folder(str(folder)).clean(FOLDER)
    assert files(tmp_path) == [f"parts/ab/{A}.parquet", "parts/notes.partial"]


class SoundPart:
    """A part with five frames."""

    def __init__(self, out):
        segment, frames = made_up(count=5)
        (self.name,) = write_made_up(out, [(segment, frames)])
        self.parts, self.table = Parts(str(out)), table_of(segment, frames)
        self.path = Path(self.parts.path_of(self.name))

    def reason(self):
        """What merging tells of it."""
        out = self.path.parents[2]
        with pytest.raises(SourceError) as raised:
            merge(str(out), jsonl=str(out / "merged.jsonl"))
        assert "\n" not in str(raised.value)
        return str(raised.value)


@pytest.fixture
def part(tmp_path):
    return SoundPart(tmp_path)


def test_a_truncated_part_is_told(part):
    whole = part.path.read_bytes()
    for length in (0, 1, 4, 100, len(whole) // 2, len(whole) - 8, len(whole) - 1):
        part.path.write_bytes(whole[:length])
        assert part.reason().startswith(f"part must be a whole Parquet file, {str(part.path)!r} is not: ")


def test_a_foreign_file_is_told(part):
    parquet.write_table(part.table.drop(["rle"]), part.path)
    assert part.reason()
    part.path.write_text("{}")
    assert "is not: Parquet" in part.reason()
    noise = random.Random(1)
    for length in (10, 1000, 100_000):
        part.path.write_bytes(b"PAR1" + noise.randbytes(length) + b"\xff\xff\x00\x00PAR1")
        assert part.reason()
    part.path.unlink()
    part.path.mkdir()
    assert "Is a directory" in part.reason()


def test_bytes_that_flip_are_told_or_change_nothing(part, tmp_path):
    """Never another exception, and never other rows that pass."""
    whole, lines, passed = part.path.read_bytes(), tmp_path / "merged.jsonl", 0
    merge(str(tmp_path), jsonl=str(lines))
    expected = lines.read_text()
    positions = random.Random(0).sample(range(len(whole)), 300)
    for position in positions:
        flipped = bytearray(whole)
        flipped[position] ^= 0x55
        part.path.write_bytes(flipped)
        with suppress(SourceError):
            merge(str(tmp_path), jsonl=str(lines))
            assert lines.read_text() == expected
            passed += 1
    assert passed < len(positions) / 2  # statistics and names of the writer, which nobody reads


def test_the_manifest(out, tmp_path):
    segments = [made_up("a.mp4", i, 5)[0] for i in (0, 5)]
    write_manifest(tmp_path, segments)
    assert list(Parts(out).manifest()) == [(digest(each, SETTINGS), each) for each in segments]
    for text in ("{", "[]\n", '{"part": "../x", "segment": {}}\n', '{"part": "' + A + '"}\n', "\xff"):
        (tmp_path / "segments.jsonl").write_bytes(text.encode("latin-1"))
        with pytest.raises((SourceError, InputError)):
            list(Parts(out).manifest())
    (tmp_path / "segments.jsonl").unlink()
    message = r"out must be a job's output, '.*segments.jsonl' can't be read: "
    with pytest.raises(SourceError, match=message):
        list(Parts(out).manifest())


def test_row_groups_bound_what_is_read_at_once(tmp_path):
    parts, (segment, frames) = Parts(str(tmp_path)), made_up(count=4)
    parts.write(A, table_of(segment, frames * 150))
    with parts.open(A) as file:
        assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [256, 256, 88]


def test_parts_in_s3(remote_out):
    parts, table = Parts(remote_out), table_of(*made_up())
    assert parts.path_of(A) == f"{remote_out}/parts/ab/{A}.parquet"
    name = digest(made_up()[0], SETTINGS)
    parts.write(name, table)
    parts.write(name, table)
    assert [Parts(remote_out).had(each) for each in (name, A)] == [True, False]
    assert read_part(remote_out, name).equals(table, check_metadata=True)
    Folder(remote_out).clean(FOLDER)  # nothing is left of others
    Folder("s3://bucket").write("a/b", b"1")
    assert Folder("s3://bucket/a").read("b") == b"1"
    with pytest.raises(OutputError, match=r"out must be reachable, 's3://nowhere/parts/ab/.*NO_SUCH_BUCKET"):
        Parts("s3://nowhere").write(A, table)
