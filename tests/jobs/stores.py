"""Stores for tests, on this machine."""

import os
from contextlib import contextmanager

import pytest
from pyarrow import fs

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "not-to-be-shown",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def s3_server():
    """An S3 server on loopback with a bucket; gives the bucket's file system and the parameters of its URLs.

    The environment must have `CREDENTIALS`.
    """
    assert os.environ.keys() >= CREDENTIALS.keys()
    moto = pytest.importorskip("moto.server", reason="the store is moto's S3 server, which is not installed")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        query = f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
        system, _ = fs.FileSystem.from_uri(f"s3://bucket/?{query}&allow_bucket_creation=true")
        system.create_dir("bucket")
        yield system, query
        system.delete_dir_contents("bucket")  # all servers of a process have the same buckets
    finally:
        server.stop()


def put(system, path, data=b"1"):
    """Write an object."""
    with system.open_output_stream(path) as stream:
        stream.write(data)
