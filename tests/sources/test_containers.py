"""Names of sources: which are cameras and URLs, and what is shown of them."""

import pytest

from maskjet.errors import SourceError
from maskjet.sources.containers import shown_name, stream_named
from maskjet.sources.expansion import expand_sources
from maskjet.sources.frames import open_source
from tests.sources.rtsp import RtspCamera


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("rtsp://user:hunter2@gate:554/live", "rtsp://gate:554/live"),
        ("rtsp://user:hun/ter@2@gate/live", "rtsp://gate/live"),
        ("rtsp://user:hun;ter&2@gate/live", "rtsp://gate/live"),
        ("rtsp://user:hun?ter#2@gate/live", "rtsp://gate/live"),
        ("rtsp://user:hunter2@gate?key=hunter2", "rtsp://gate?key=…"),
        ("http://gate/v?mail=me@home", "http://gate/v?mail=…"),
        ("rtsp://gate/cam?channel=1&subtype=0", "rtsp://gate/cam?channel=1&subtype=0"),
        ("http://gate/v?user=me&pin=1234&channel=12#hunter2", "http://gate/v?user=…&pin=…&channel=12#…"),
        ("http://gate/v?hunter2", "http://gate/v?…"),
        ("http://gate/v?aHVudGVy==", "http://gate/v?…"),
        ("http://gate/v?", "http://gate/v?"),
        ("videos/me@home?key=a.mp4", "videos/me@home?key=a.mp4"),
        ("/dev/video0", "/dev/video0"),
    ],
)
def test_urls_are_shown_without_secrets(name, shown):
    assert shown_name(name) == shown


def test_secrets_are_in_no_error_and_no_name():
    secret = "rtsp://user:hunter2@127.0.0.1:9/live?key=hunter2"
    with pytest.raises(
        SourceError, match=r"'rtsp://127\.0\.0\.1:9/live\?key=…' can't be read: Connection refused"
    ) as caught:
        open_source(secret)
    assert "hunter" not in str(caught.value)
    (unopened,) = expand_sources(secret)
    assert "hunter" not in unopened.name


def test_secrets_open_the_stream():
    with RtspCamera() as camera:
        secret = camera.url.replace("//", "//user:hunter2@") + "?key=hunter2"
        with open_source(secret, limit=1) as source:
            (frame,) = source
    assert "hunter" not in f"{frame.name}{frame.source}{source.name}"


def test_what_names_a_camera_or_url():
    streams = {"0": "/dev/video0", "/dev/video3": "/dev/video3", "rtsp://a": "rtsp://a"}
    for text in (*streams, "a.mp4", "file:///a.mp4", "0.mp4"):
        assert stream_named(text) == streams.get(text)
