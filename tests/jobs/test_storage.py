"""Files in stores: what a URL may be, copies on this machine, and files that changed since they were planned."""

import functools
import os
import resource
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from maskjet.errors import InputError, MissingDependencyError, OutputError, SourceError
from maskjet.jobs import storage
from maskjet.jobs.segments import SourceFile
from maskjet.jobs.storage import describe
from tests.jobs.making import put


@pytest.fixture
def copies(monkeypatch, tmp_path):
    """Copies go to a folder of this test, which is returned; none is kept from other tests."""
    monkeypatch.setattr(storage.tempfile, "tempdir", str(tmp_path))
    storage._kept.clear()
    yield tmp_path
    storage._kept.clear()


def held(folder):
    """The files without a name that this process has open in a folder: all that takes room there."""
    count = 0
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed by a thread meanwhile
            count += path.readlink().parent == folder
    return count


class TestUrls:
    def test_a_path_and_a_url(self):
        assert storage.is_remote("s3://bucket/a.mp4")
        assert storage.is_remote("file:///a.mp4")
        assert not storage.is_remote("/a/s3://bucket")
        assert not storage.is_remote("a:b/c.mp4")

    @pytest.mark.parametrize(
        ("url", "parts"),
        [
            ("S3://Bucket/my videos/é#%20?.mp4", ("s3://Bucket", "/my videos/é#%20?.mp4")),
            ("s3://b", ("s3://b", "")),
            ("https://h:80/a%2Fb c", ("https://h:80", "/a%2Fb c")),
            ("abfs://container@account/a\nb", ("abfs://container@account", "/a\nb")),
        ],
    )
    def test_a_name_is_as_it_is(self, url, parts):
        assert storage.split_url(url) == parts

    def test_secrets_are_refused_and_not_shown(self):
        credentials = "s3://KEY:SECRET@bucket/a s3://SECRET@bucket/a https://SECRET@host/a sftp://me:SECRET@host/a "
        credentials += "abfs://account:SECRET@container/a https://h/a.mp4?token=SECRET s3://b?secret_key=SECRET"
        for url in credentials.split():
            with pytest.raises(InputError, match="source must be a URL without credentials and parameters") as caught:
                storage.split_url(url)
            assert "SECRET" not in str(caught.value)

    @pytest.mark.parametrize(
        ("url", "message"),
        [
            ("zip://a::s3://b/c.zip", "source must be a URL of one store, .* chains several"),
            ("memory://a/b::zip://c", "source must be a URL of one store, .* chains several"),
            ("rtsp://camera", "source must have an end, 'rtsp://camera' is a camera or a live stream: use `maskjet"),
            ("abc://x/y", r"source must be .* a known scheme, got 'abc'; known: abfs, .* s3, sftp"),
            ("filecache://x/y", "source must be .* a known scheme, got 'filecache'"),
        ],
    )
    def test_other_urls_that_are_refused(self, url, message):
        with pytest.raises(InputError, match=message):
            storage.resolve(url)

    @pytest.mark.parametrize(
        ("url", "module"), [("sftp://h/y", "paramiko"), ("memory://none/y", "fsspec"), ("s3://b/y", "pyarrow.fs")]
    )
    def test_packages_that_are_not_installed(self, monkeypatch, url, module):
        storage._system_at.cache_clear()
        monkeypatch.setitem(sys.modules, module, None)
        message = f"A file at [a-z0-9]+:// needs another package: .*{module}.*pip install .maskjet.jobs."
        with pytest.raises(MissingDependencyError, match=message):
            storage.resolve(url)

    def test_the_name_and_error_of_an_output(self):
        with pytest.raises(InputError, match="out must be a URL without credentials"):
            storage.resolve("s3://a:b@c", "out", OutputError)
        with pytest.raises(OutputError, match=r"out must be reachable, 'memory://b/.udcff' is not: .*surrogates not"):
            storage.resolve("memory://b/\udcff", "out", OutputError)


class TestResolving:
    def test_objects_of_s3(self, s3):
        for name in ("plain.jpg", "a b/é#?%20.jpg", "x[1]*.jpg"):  # moto refuses lines
            put(s3, f"bucket/{name}", b"123")
            url = f"s3://bucket/{name}"
            system, path = storage.resolve(url)
            assert system.cat_file(path) == b"123"
            file = describe(url)
            assert (file.path, file.size) == (url, 3)
            assert file.modified_ns > 1_700_000_000 * 10**9
            assert file.modified_ns % 10**9 == 0
            assert storage.list_folder(url.rpartition("/")[0])[0][url.rpartition("/")[2]] == file

    def test_listings_are_not_cached(self, s3):  # noqa: ARG002 - it must be there
        for url in ("s3://bucket", "memory://bucket", "https://host"):
            assert not storage.resolve(url)[0].dircache.use_listings_cache

    @pytest.mark.usefixtures("s3")
    def test_a_store_that_refuses(self):
        with pytest.raises(SourceError, match=r"source must be reachable, 's3://other/a' is not: .*NO_SUCH_BUCKET"):
            storage.list_folder("s3://other/a")

    @pytest.mark.usefixtures("copies")
    def test_a_file_on_the_web(self, tmp_path):
        (tmp_path / "a b%.mp4").write_bytes(b"123")
        handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, args=[0.01]).start()
            try:
                host = f"http://127.0.0.1:{server.server_port}"
                file = describe(f"{host}/a b%25.mp4")
                assert file == SourceFile(f"{host}/a b%25.mp4", 3, 0)
                with storage.local_copy(file) as path:
                    assert Path(path).read_bytes() == b"123"
                assert describe(f"{host}/none.mp4") is None
            finally:
                server.shutdown()

    def test_an_object_without_a_size(self, memory, monkeypatch):
        monkeypatch.setattr(type(memory), "info", lambda *_: {"name": "/a", "type": "file", "size": None})
        with pytest.raises(SourceError, match=r"source must have a size, the store of 'memory://a' states none\."):
            describe("memory://a")


class TestUnchanged:
    def test_a_local_file(self, tmp_path):
        path = tmp_path / "a.jpg"
        path.write_bytes(b"123")
        file = describe(str(path))
        storage.check_unchanged(file)
        os.utime(path, ns=(0, file.modified_ns + 1))
        with pytest.raises(SourceError, match=r"a\.jpg' is gone or has changed since the job was pl.*: run it"):
            storage.check_unchanged(file)
        path.write_bytes(b"1234")
        os.utime(path, ns=(0, file.modified_ns))
        with pytest.raises(SourceError, match="has changed since the job was planned"):
            storage.check_unchanged(file)
        path.unlink()
        with pytest.raises(SourceError, match=r"a\.jpg' is gone or has changed since"):
            storage.check_unchanged(file)
        path.symlink_to(path)
        with pytest.raises(SourceError, match=r"source must be readable, '.*a\.jpg' is not: Too many levels"):
            storage.check_unchanged(file)

    def test_an_object(self, s3):
        put(s3, "bucket/u.jpg", b"123")
        file = describe("s3://bucket/u.jpg")
        storage.check_unchanged(file)
        with pytest.raises(SourceError, match="has changed since the job was planned"):
            storage.check_unchanged(replace(file, modified_ns=file.modified_ns - 10**9))
        put(s3, "bucket/u.jpg", b"1234")
        with pytest.raises(SourceError, match="has changed since the job was planned"):
            storage.check_unchanged(file)
        s3.delete_file("bucket/u.jpg")
        with pytest.raises(SourceError, match=r"'s3://bucket/u\.jpg' is gone or has changed"):
            storage.check_unchanged(file)


class TestCopies:
    def test_a_local_file_is_given_as_it_is_and_an_object_is_copied_once_and_kept(self, s3, copies):
        with storage.local_copy(SourceFile("/a.mp4", 0, 0)) as local:
            assert local == "/a.mp4"
        put(s3, "bucket/v 1.mp4", b"v" * 1000)
        file = describe("s3://bucket/v 1.mp4")
        with storage.local_copy(file) as local:
            assert Path(local).read_bytes() == b"v" * 1000
        s3.delete_file("bucket/v 1.mp4")
        with storage.local_copy(file) as again, storage.local_copy(file) as once_more:
            assert local == again == once_more
            assert Path(local).read_bytes() == b"v" * 1000
        assert list(copies.iterdir()) == []  # nothing is there for others to remove
        assert held(copies) == 1

    def test_threads_that_ask_for_one_object_copy_it_once(self, memory, copies, monkeypatch):
        memory.pipe("/a.mp4", b"123")
        file = describe("memory://a.mp4")
        fill, filled, all_there = storage._Copy.fill, [], threading.Barrier(8)

        def counting(copy, file):
            filled.append(file)
            fill(copy, file)

        def ask(_):
            all_there.wait()
            with storage.local_copy(file) as path:
                return path, Path(path).read_bytes()

        monkeypatch.setattr(storage._Copy, "fill", counting)
        with ThreadPoolExecutor(8) as pool:
            ((_, data),) = set(pool.map(ask, range(8)))
        assert (data, len(filled), held(copies)) == (b"123", 1, 1)

    @pytest.mark.parametrize(("limit", "count"), [("KEPT_BYTES", 250), ("KEPT_COPIES", 2)])
    def test_the_ones_not_used_for_longest_go_first(self, memory, copies, monkeypatch, limit, count):
        monkeypatch.setattr(storage, limit, count)
        for name in "abcd":
            memory.pipe(f"/{name}", name.encode() * 100)
        a, b, c, d = (describe(f"memory://{name}") for name in "abcd")
        for file in (a, b, a, c):
            with storage.local_copy(file):
                pass
        assert list(storage._kept) == [a, c]
        assert held(copies) == 2
        with storage.local_copy(a) as first, storage.local_copy(b), storage.local_copy(d):
            assert list(storage._kept) == [b, d]
            assert held(copies) == 3  # all are in use
            with storage.local_copy(a) as again:  # by others, too
                assert first == again
            assert Path(first).read_bytes() == b"a" * 100
        assert held(copies) == 2

    def test_one_larger_than_all_that_may_be_kept(self, memory, copies, monkeypatch):
        monkeypatch.setattr(storage, "KEPT_BYTES", 2)
        memory.pipe("/a", b"123")
        with storage.local_copy(describe("memory://a")) as path:
            assert Path(path).read_bytes() == b"123"
        assert held(copies) == 0

    @pytest.mark.parametrize("size", [2, 4, 10**12])
    def test_an_object_of_another_size_than_planned(self, memory, copies, size):
        memory.pipe("/a", b"123")
        file = SourceFile("memory://a", size, 0)
        changed = "'memory://a' is gone or has changed since the job was planned"
        with pytest.raises(SourceError, match=changed), storage.local_copy(file):
            pass
        assert held(copies) == 0
        with storage.local_copy(replace(file, size=3)) as path:
            assert Path(path).read_bytes() == b"123"

    @pytest.mark.usefixtures("s3")
    def test_an_object_that_is_gone(self, copies):
        gone = r"source must be reachable, 's3://bucket/gone' is not: .*not exist"
        with pytest.raises(SourceError, match=gone), storage.local_copy(SourceFile("s3://bucket/gone", 3, 0)):
            pass
        assert held(copies) == 0

    def test_a_disk_that_gets_full_is_named_and_the_copy_is_tried_again(self, memory, copies):
        memory.pipe("/a", b"123" * 1000)
        file, limits = describe("memory://a"), resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # the first write is cut there, the next fails
        try:
            message = f"TMPDIR must be writable, '{copies}' is not: File too large"
            with pytest.raises(OutputError, match=message), storage.local_copy(file):
                pass
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert held(copies) == 0
        with storage.local_copy(file) as path:
            assert Path(path).read_bytes() == b"123" * 1000

    def test_no_folder_for_copies(self, memory, copies, monkeypatch):
        memory.pipe("/a", b"123")
        file = describe("memory://a")
        monkeypatch.setattr(storage.tempfile, "tempdir", str(copies / "nowhere"))
        message = "TMPDIR must be writable, '.*nowhere' is not: No such file"
        with pytest.raises(OutputError, match=message), storage.local_copy(file):
            pass


PROGRAM = """
import sys
from pathlib import Path
from maskjet.jobs import storage

with storage.local_copy(storage.describe(sys.argv[1])) as path:
    print(Path(path).read_text(), flush=True)
    sys.stdin.readline()
"""


@pytest.mark.slow
def test_copies_end_with_their_process_even_if_it_is_killed(s3, copies):
    put(s3, "bucket/p.jpg", b"123")
    command, pipe = [sys.executable, "-W", "error", "-c", PROGRAM, "s3://bucket/p.jpg"], subprocess.PIPE
    environment = {**os.environ, "TMPDIR": str(copies)}
    killed, ends = (
        subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(2)
    )
    assert killed.stdout.readline() == ends.stdout.readline() == "123\n"
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert ends.communicate("\n") == ("", "")  # in peace, though it used S3
    assert ends.returncode == 0
    assert list(copies.iterdir()) == []
