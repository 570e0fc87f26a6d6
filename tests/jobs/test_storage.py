"""Files in stores: what a URL may be, copies on this machine, and files that changed since they were planned."""

import errno
import fcntl
import functools
import io
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pyarrow.fs import FileInfo, FileType

from maskjet.errors import InputError, MissingDependencyError, OutputError, SourceError
from maskjet.jobs import storage
from maskjet.jobs.places import Store
from maskjet.jobs.segments import SourceFile
from tests.jobs.making import put


@pytest.fixture
def copies(monkeypatch, tmp_path):
    """Copies go to a folder of this test, which is returned."""
    monkeypatch.setattr(storage.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(storage, "_COPIES", storage._Copies())
    return tmp_path


def planned(url):
    return storage.as_file(url, storage.look(url))


def kept(folder):
    return sorted(path.read_bytes() for path in folder.glob("copies-of-*/*") if path.name != "lock")


class TestUrls:
    def test_a_path_and_a_url(self):
        assert storage.is_remote("s3://bucket/a.mp4")
        assert storage.is_remote("file:///a.mp4")
        assert not storage.is_remote("/a/s3://bucket")
        assert not storage.is_remote("a:b/c.mp4")

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ("S3://Bucket/my videos/é#.mp4".replace("#", "%23"), "s3://Bucket/my%20videos/%C3%A9%23.mp4"),
            ("s3://b/100%.jpg", "s3://b/100%25.jpg"),
            ("s3://b/a%2Ab", "s3://b/a*b"),
            ("s3://b/a\nb", "s3://b/a%0Ab"),
            ("s3://b/%FF", "s3://b/%FF"),
            ("s3://b", "s3://b"),
            ("https://h/a%2Fb c", "https://h/a%2Fb%20c"),
            ("abfs://container@account/x", "abfs://container@account/x"),
            ("s3://b/x?region=eu-west-1&scheme=http", "s3://b/x?region=eu-west-1&scheme=http"),
        ],
    )
    def test_an_object_has_one_url(self, given, expected):
        assert str(storage.parse(given)) == expected
        assert str(storage.parse(expected)) == expected

    @pytest.mark.parametrize("name", ["a b", "%20", "#?%&", "é\udcff", "new\nline", "[1]*", "+"])
    def test_a_name_comes_back_from_its_url(self, name):
        child = storage.parse("s3://b/folder/?region=x").child(name)
        assert storage.parse(str(child)) == child
        assert storage.decode(child.path) == f"/folder/{name}"

    def test_secrets_are_refused_and_not_shown(self):
        credentials = "s3://KEY:SECRET@bucket/a s3://SECRET@bucket/a https://SECRET@host/a sftp://me:SECRET@host/a "
        credentials += "abfs://account:SECRET@container/a"
        parameters = "abfs://c@a/x?client_secret=SECRET abfs://c@a/x?sig=SECRET s3://b/x?secret_key=SECRET "
        parameters += "https://h/a.mp4?token=SECRET memory://x?region=SECRET s3://b/x?endpoint_override=a:SECRET@h"
        for message, urls in (
            (r"without credentials, got '.*' with them", credentials),
            ("whose parameters hold no secret, got", parameters),
        ):
            for url in urls.split():
                with pytest.raises(InputError, match=f"source must be a URL {message}") as caught:
                    storage.parse(url)
                assert "SECRET" not in str(caught.value)

    @pytest.mark.parametrize(
        ("url", "message"),
        [
            ("s3://b/a#b", "source must be a URL without a fragment, got .*: write # as %23"),
            ("zip://a::s3://b/c.zip", "source must be a URL of one store, .* chains several"),
            ("s3://b/a\0b", "source must be a URL without NUL characters"),
            ("rtsp://camera", "source must have an end, 'rtsp://camera' is a camera or a live stream: use `maskjet"),
            ("/a/b", "source must be a URL, got '/a/b'"),
        ],
    )
    def test_other_urls_that_are_refused(self, url, message):
        with pytest.raises(InputError, match=message):
            storage.parse(url)

    def test_an_unknown_scheme_and_packages_that_are_not_installed(self, monkeypatch):
        with pytest.raises(InputError, match=r"must be .* a known scheme, got 'abc'; known: abfs, .* s3, .*sftp"):
            storage.resolve("abc://x/y")
        storage._system_at.cache_clear()
        monkeypatch.setitem(sys.modules, "paramiko", None)
        with pytest.raises(MissingDependencyError, match=r"A source at sftp:// needs another package: .*paramiko"):
            storage.resolve("sftp://h/y")
        monkeypatch.setitem(sys.modules, "fsspec", None)
        with pytest.raises(MissingDependencyError, match=r"memory:// needs fsspec.*pip install \"maskjet\[jobs\]\""):
            storage.resolve("memory://x/y")

    def test_the_name_and_error_of_an_output(self):
        with pytest.raises(InputError, match="out must be a URL without credentials"):
            storage.resolve("s3://a:b@c", "out", OutputError)
        message = r"out must be reachable, 's3://b/%FF\?region=…' is not: .*surrogates not"
        with pytest.raises(OutputError, match=message):
            storage.resolve("s3://b/%FF?region=x", "out", OutputError)


class TestResolving:
    def test_objects_of_s3(self, s3):
        bucket, query = s3
        for name in ("plain.jpg", "a b/é#?%.jpg", "x[1]*.jpg"):  # moto refuses lines
            put(bucket, f"bucket/{name}", b"123")
            address = storage.parse(f"s3://bucket?{query}")
            for part in name.split("/"):
                address = address.child(part)
            system, path = storage.resolve(str(address))
            assert path == f"bucket/{name}"
            with system.open_input_stream(path) as stream:
                assert stream.read() == b"123"
            file = planned(str(address))
            assert (file.path, file.size) == (str(address), 3)
            assert file.modified_ns > 1_700_000_000 * 10**9
            assert file.modified_ns % 10**9 == 0

    def test_a_store_that_refuses(self, s3):
        _, query = s3
        with pytest.raises(SourceError, match=r"source must be reachable, 's3://other/a\?.*' is not: .*NO_SUCH_BUCKET"):
            Store().list(f"s3://other/a?{query}")

    @pytest.mark.usefixtures("copies")
    def test_a_file_on_the_web(self, tmp_path):
        (tmp_path / "a b%.mp4").write_bytes(b"123")
        handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, args=[0.01]).start()
            try:
                host = f"http://127.0.0.1:{server.server_port}"
                file = planned(str(storage.parse(f"{host}/a b%25.mp4")))
                assert file == SourceFile(f"{host}/a%20b%25.mp4", 3, 0)
                with storage.local_copy(file) as path:
                    assert Path(path).read_bytes() == b"123"
                with pytest.raises(SourceError, match=r"source must exist, '.*/none\.mp4' does not"):
                    storage.check_unchanged(SourceFile(f"{host}/none.mp4", 3, 0))
            finally:
                server.shutdown()

    def test_an_object_without_a_size(self):
        message = r"source must have a size, the store of 'https://h/live' states none\. If"
        with pytest.raises(SourceError, match=message):
            storage.as_file("https://h/live", FileInfo("x", FileType.File))


class TestUnchanged:
    def test_a_local_file(self, tmp_path):
        path = tmp_path / "a.jpg"
        path.write_bytes(b"123")
        file = storage.stat_file(str(path))
        storage.check_unchanged(file)
        os.utime(path, ns=(0, file.modified_ns + 1))
        with pytest.raises(SourceError, match=r"a\.jpg' has changed since the job was planned: run it again"):
            storage.check_unchanged(file)
        path.write_bytes(b"1234")
        os.utime(path, ns=(0, file.modified_ns))
        with pytest.raises(SourceError, match="has changed since the job was planned"):
            storage.check_unchanged(file)
        path.unlink()
        with pytest.raises(SourceError, match=r"source must exist, '.*a\.jpg' does not"):
            storage.check_unchanged(file)
        path.symlink_to(path)
        with pytest.raises(SourceError, match=r"source must be readable, '.*a\.jpg' is not: Too many levels"):
            storage.check_unchanged(file)

    def test_an_object(self, s3):
        bucket, query = s3
        put(bucket, "bucket/u.jpg", b"123")
        file = planned(f"s3://bucket/u.jpg?{query}")
        storage.check_unchanged(file)
        with pytest.raises(SourceError, match="has changed since the job was planned"):
            storage.check_unchanged(replace(file, modified_ns=file.modified_ns - 10**9))
        put(bucket, "bucket/u.jpg", b"1234")
        with pytest.raises(SourceError, match="has changed since the job was planned"):
            storage.check_unchanged(file)
        bucket.delete_file("bucket/u.jpg")
        with pytest.raises(SourceError, match=r"source must exist, 's3://bucket/u\.jpg\?.*' does not"):
            storage.check_unchanged(file)


class TestCopies:
    def test_a_local_file_is_given_as_it_is_and_an_object_is_copied_once_and_kept(self, s3, copies, monkeypatch):
        with storage.local_copy(SourceFile("/a.mp4", 0, 0)) as local:
            assert local == "/a.mp4"
        assert not list(copies.iterdir())
        bucket, query = s3
        put(bucket, "bucket/v 1.mp4", b"v" * 1000)
        file = planned(f"s3://bucket/v%201.mp4?{query}")
        with storage.local_copy(file) as local:
            assert (Path(local).read_bytes(), Path(local).suffix) == (b"v" * 1000, ".mp4")
        monkeypatch.setattr(storage, "_fetch", None)
        with storage.local_copy(file) as again, storage.local_copy(file) as once_more:
            assert local == again == once_more

    @pytest.mark.usefixtures("copies")
    def test_threads_that_ask_for_one_object_copy_it_once(self, memory, monkeypatch):
        memory.pipe("/a.mp4", b"123")
        file = planned("memory://a.mp4")
        fetch, fetched, all_there = storage._fetch, [], threading.Barrier(8)

        def counting(file, path):
            fetched.append(path)
            fetch(file, path)

        def ask(_):
            all_there.wait()
            with storage.local_copy(file) as path:
                return path, Path(path).read_bytes()

        monkeypatch.setattr(storage, "_fetch", counting)
        with ThreadPoolExecutor(8) as pool:
            found = set(pool.map(ask, range(8)))
        assert found == {(str(fetched[0]), b"123")}
        assert len(fetched) == 1

    def test_the_ones_not_used_for_longest_go_first(self, memory, copies, monkeypatch):
        monkeypatch.setattr(storage, "KEPT_BYTES", 250)
        for name in "abcd":
            memory.pipe(f"/{name}", name.encode() * 100)
        a, b, c, d = (planned(f"memory://{name}") for name in "abcd")
        for file in (a, b, a, c):
            with storage.local_copy(file):
                pass
        assert kept(copies) == [b"a" * 100, b"c" * 100]
        with storage.local_copy(a) as first, storage.local_copy(b), storage.local_copy(d):
            assert kept(copies) == [b"a" * 100, b"b" * 100, b"d" * 100]  # all are in use
            assert Path(first).read_bytes() == b"a" * 100
        assert len(kept(copies)) == 2
        monkeypatch.setattr(storage, "KEPT_BYTES", 10)
        with storage.local_copy(c) as path:  # larger than all that may be kept
            assert Path(path).read_bytes() == b"c" * 100
        assert kept(copies) == []

    @pytest.mark.parametrize("size", [2, 4, 10**12])
    def test_an_object_of_another_size_than_planned(self, memory, copies, size):
        memory.pipe("/a", b"123")
        file = SourceFile("memory://a", size, 0)
        changed = "'memory://a' has changed since the job was planned"
        with pytest.raises(SourceError, match=changed), storage.local_copy(file):
            pass
        assert kept(copies) == []
        with storage.local_copy(replace(file, size=3)) as path:  # nothing of the failure is left
            assert Path(path).read_bytes() == b"123"

    def test_an_object_that_is_gone(self, s3, copies):
        gone = r"source must be reachable, 's3://bucket/gone\?.*' is not: .*not exist"
        with pytest.raises(SourceError, match=gone), storage.local_copy(SourceFile(f"s3://bucket/gone?{s3[1]}", 3, 0)):
            pass
        assert kept(copies) == []

    @pytest.mark.parametrize("name", ["a.mp4/../../b", "a." + "x" * 300, "a.j\npg"])
    def test_no_name_leads_out_of_the_folder(self, copies, name, monkeypatch):
        monkeypatch.setattr(storage, "_fetch", lambda _, path: path.write_bytes(b"1"))
        file = SourceFile(str(storage.parse("memory://x").child(name)), 1, 0)
        with storage.local_copy(file) as path:
            assert Path(path).parent.parent == copies

    def test_a_full_disk(self, memory, copies, monkeypatch):
        class Full(io.FileIO):
            def write(self, _):
                raise OSError(errno.ENOSPC, "No space left on device")

        memory.pipe("/a", b"123")
        file = planned("memory://a")
        monkeypatch.setattr(Path, "open", lambda path, mode: Full(path, mode))
        message = "folder of temporary files must have room .* can't be written: No space left on device. Set TMPDIR"
        with pytest.raises(OutputError, match=message), storage.local_copy(file):
            pass
        assert kept(copies) == []

    def test_no_folder_for_copies(self, memory, copies, monkeypatch):
        memory.pipe("/a", b"123")
        file = planned("memory://a")
        monkeypatch.setattr(storage.tempfile, "tempdir", str(copies / "nowhere"))
        message = r"folder of temporary files must have room .*nowhere' can't be written"
        with pytest.raises(OutputError, match=message), storage.local_copy(file):
            pass


def test_copies_of_processes_that_ended_are_removed(memory, copies):
    """Their locks are free."""
    memory.pipe("/a", b"123")
    for name in ("ended", "alive", "strange"):
        (copies / f"copies-of-{name}").mkdir()
    (copies / "copies-of-ended" / "lock").touch()
    with (copies / "copies-of-alive" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with storage.local_copy(planned("memory://a")) as path:
            assert {each.name for each in copies.iterdir()} == {
                *("copies-of-alive", "copies-of-strange", Path(path).parent.name)
            }


PROGRAM = """
import sys
from maskjet.jobs import storage

url = sys.argv[1]
with storage.local_copy(storage.as_file(url, storage.look(url))) as path:
    print(path, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.slow
def test_copies_end_with_their_process_even_if_it_is_killed(s3, copies):
    bucket, query = s3
    put(bucket, "bucket/p.jpg", b"123")
    url, pipe = f"s3://bucket/p.jpg?{query}", subprocess.PIPE
    command, environment = [sys.executable, "-W", "error", "-c", PROGRAM, url], {**os.environ, "TMPDIR": str(copies)}
    killed, ends = (
        subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(2)
    )
    of_killed, of_other = (Path(each.stdout.readline().strip()) for each in (killed, ends))
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert of_killed.exists()
    with storage.local_copy(planned(url)) as path:
        assert Path(path).read_bytes() == of_other.read_bytes() == b"123"
        assert not of_killed.parent.exists()
        assert ends.communicate("\n") == ("", "")  # in peace, though it used S3
        assert ends.returncode == 0
        assert list(copies.iterdir()) == [Path(path).parent]
