"""Open videos, cameras and network streams with FFmpeg, and explain its errors."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import av
import av.error
from av.codec.hwaccel import HWAccel
from av.stream import Disposition

from maskjet import limits
from maskjet.errors import SourceError, explain, first_line, translate_errors
from maskjet.host.files import is_file_url
from maskjet.host.threads import in_background

_OPEN_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 10.0
"""Seconds without a packet after which a camera or network stream counts as silent."""
TIMED_OUT = (av.error.ExitError, av.error.TimeoutError)
"""Errors of a time-out: PyAV's own, and FFmpeg's."""
_CAMERA = re.compile(r"/dev/video\d+")
_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
_USER = re.compile(r"([^?]*@)?([^/?]*\?[^/]*@)?")  # even if a password contains an unescaped delimiter
_HARMLESS = re.compile(r"[\w.-]*=\d{1,3}|")  # query part that is safe to show
_PROTOCOLS = "http,https,httpproxy,tls,tcp,udp,rtp,srtp,rtsp,rtmp,rtmps,rtmpt,rtmpe,srt,ftp,mmsh,mmst,crypto,data"
_NAMING_OTHERS = {"concat", "dash", "hls", "image2", "imf", "lavfi", "mlv", "sdp", "vobsub", "webm_dash_manifest"}
"""Formats whose files name other files, or are read together with sibling files."""
_FORMATS = ",".join(sorted(av.formats_available - _NAMING_OTHERS))  # all other formats of FFmpeg

# Titles may be in any encoding; PyAV 19 reads such titles by itself and has no such argument.
_METADATA: Any = {"metadata_errors": "replace"} if int(av.__version__.partition(".")[0]) < 19 else {}
_T = TypeVar("_T")


def is_camera(name: str) -> bool:
    """Whether a source's name is a camera's device file."""
    return bool(_CAMERA.fullmatch(name))


def is_stream(text: str) -> bool:
    """Whether a source's name is a camera or a URL rather than a file's path."""
    return is_camera(text) or bool(_URL.match(text))


def stream_named(text: str) -> str | None:
    """Device file or URL named by a camera number, a device file or a URL; None for other sources."""
    if text.isdecimal():
        return f"/dev/video{text}"
    return text if is_stream(text) and not is_file_url(text) else None


def shown_name(name: str) -> str:
    """A source's name without secrets: a URL has no user, no password and no values in its query.

    Numbers of up to three digits stay in the query: as in "channel=1", they tell cameras of one host apart.
    """
    match = _URL.match(name)
    if match is None:
        return name
    path, *parts = re.split(r"([?&;#])", _USER.sub("", name[match.end() :], count=1))
    shown = [each if position % 2 == 0 else _shown_part(each) for position, each in enumerate(parts)]
    return match[0] + path + "".join(shown)


def _shown_part(part: str) -> str:
    """Redact the value in a part of a URL's query, unless it is a small number."""
    if _HARMLESS.fullmatch(part):
        return part
    name, _, value = part.partition("=")
    return f"{name}=…" if value.strip("=") else "…"  # a part without a value may be a token


def files_of(text: str) -> list[Path]:
    """The files that a video's name refers to; for nested URLs those in `file:` parts."""
    if is_stream(text):  # FFmpeg's protocols can be nested, as in async:file:///a.mp4
        return [Path(found) for found in re.findall(r"file:([^|]+)", text)]
    return [Path(text)]


@contextmanager
def translate_ffmpeg_errors(name: str) -> Iterator[None]:
    """Turn errors of FFmpeg and PyAV into a SourceError that names the video."""
    message = f"source must be an image, video or stream, {name!r} can't be read"
    with translate_errors(SourceError, message):
        try:
            yield
        except av.error.FFmpegError as error:
            raise SourceError(f"{message}: {reason(error)}.") from error


def reason(error: av.error.FFmpegError) -> str:
    """FFmpeg's reason for an error, as readable text."""
    if isinstance(error, TIMED_OUT):
        return f"nothing came for {READ_TIMEOUT_S:.0f} s"
    return explain(error)


def cause_of(error: Exception) -> str:
    """Why a source can't be read: FFmpeg's reason if there is one, without the source's name."""
    cause = error.__cause__
    return reason(cause) if isinstance(cause, av.error.FFmpegError) else first_line(cause or error).removesuffix(".")


def interruptible(name: str, work: Callable[[], _T]) -> _T:
    """Run blocking FFmpeg work so that Ctrl-C can interrupt it, since FFmpeg ignores signals.

    Raises:
        SourceError: A camera gave nothing for `READ_TIMEOUT_S`, where FFmpeg would wait for ever. The work goes on in a
            thread, and its result is dropped.
    """
    if is_camera(name):
        with translate_ffmpeg_errors(name):
            return _in_thread(work, READ_TIMEOUT_S)
    return _in_thread(work) if threading.current_thread() is threading.main_thread() else work()


def _in_thread(work: Callable[[], _T], patience_s: float | None = None) -> _T:
    done = in_background(work)
    if not wait([done], patience_s).done:
        raise TimeoutError(f"nothing came for {patience_s:.0f} s")
    return done.result()


def open_container(name: str, hwaccel: HWAccel | None = None) -> av.container.InputContainer:
    """Open a file, camera or URL with video; with `hwaccel`, a GPU decodes it if supported.

    Raises:
        SourceError: It can't be opened, has no video that FFmpeg decodes, or its frames are too large.
    """
    is_device, shown = is_camera(name), shown_name(name)
    options = {"max_pixels": str(limits.image_pixels), "format_whitelist": _FORMATS}
    if not is_device:
        options["protocol_whitelist"] = _PROTOCOLS if is_stream(name) else "file"
    read_timeout_s: float | None = READ_TIMEOUT_S
    if name.startswith(("rtsp:", "rtsps:")):
        # For PyAV's own timeout FFmpeg asks for the interpreter's lock many times per packet, a hundred times a frame.
        options |= {"rtsp_transport": "tcp", "timeout": str(round(1e6 * READ_TIMEOUT_S))}
        read_timeout_s = None
    location = name if is_stream(name) else f"file:{name}"  # else FFmpeg takes "12:00.mp4" for a URL
    with ExitStack() as undo, translate_ffmpeg_errors(shown):
        container: av.container.InputContainer = av.open(
            location,
            format="v4l2" if is_device else None,
            options=options,
            hwaccel=hwaccel,
            timeout=(_OPEN_TIMEOUT_S, read_timeout_s),
            **_METADATA,
        )
        undo.callback(container.close)
        _check(container, shown)
        if video_of(container).codec.canonical_name in ("h264", "hevc", "vvc"):
            container.flags &= ~1  # AVFMT_FLAG_GENPTS: where there are no presentation times, its guesses are wrong
        undo.pop_all()
    return container


def live_packets(container: av.container.InputContainer, stream: av.VideoStream) -> Iterator[av.Packet[Any]]:
    """The packets of a live source's video; FFmpegError if it breaks off or falls silent, even if its sound goes on."""
    came = time.monotonic()
    for packet in container.demux():
        if packet.stream is stream:
            yield packet
            came = time.monotonic()
        elif time.monotonic() - came > READ_TIMEOUT_S:
            raise av.error.ExitError(0, "the video is silent")  # the error of FFmpeg's own timeout


def video_of(container: av.container.InputContainer) -> av.VideoStream:
    """Choose the video stream to read as FFmpeg does: the one marked as default, then the one with the most bits."""
    best = container.streams.best("video")
    return best if best in (found := _videos(container)) else found[0]


def _videos(container: av.container.InputContainer) -> list[av.VideoStream]:
    """Video streams other than cover pictures; only decodable ones, if there are any."""
    videos = [each for each in container.streams.video if not each.disposition & Disposition.attached_pic]
    return [each for each in videos if each.codec_context is not None] or videos


def _check(container: av.container.InputContainer, name: str) -> None:
    """Raise if there is no decodable video or its frames are too large, before memory is allocated for one."""
    if not _videos(container):
        raise SourceError(f"source must contain video, {name!r} contains none.")
    context = video_of(container).codec_context
    if context is None:
        raise SourceError(f"source must be of a codec that FFmpeg decodes, {name!r} is of an unknown one.")
    limits.check("image_pixels", context.width * context.height, f"a frame of {name!r} has", SourceError)
    context.options = {"max_pixels": str(limits.image_pixels)}  # the size may change within a stream
    is_image = container.format.name.endswith("_pipe") or container.format.name in ("gif", "apng")
    if is_stream(name) and (is_image or container.metadata.get("major_brand") == "avif"):
        raise SourceError(f"source must be a video or camera if it is a URL, {name!r} is an image: download it first.")
