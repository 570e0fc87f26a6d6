"""Open a video where it is decoded: on the CPU, or on a GPU if that can decode it bit for bit."""

from __future__ import annotations

from dataclasses import dataclass

import av

from maskjet.errors import SourceError, UnsupportedError
from maskjet.sources.containers import TIMED_OUT, cause_of, is_camera, is_stream, open_container, video_of
from maskjet.sources.conversion import PictureConverter
from maskjet.sources.decoding import ON_CPU, Decoding, why_not_decoded


@dataclass(eq=False)
class OpenedVideo:
    """An opened container, its video stream, and where that is decoded."""

    url: str
    """Path, device file or URL."""
    container: av.container.InputContainer
    """The container."""
    stream: av.VideoStream
    """The video stream to decode."""
    decoding: Decoding
    """Device that decodes: `ON_CPU`, or a GPU."""
    converter: PictureConverter
    """Converter of the decoder's pictures."""
    fallback: str | None
    """Why the CPU decodes although the GPU was to do it; None if it does not."""

    @property
    def is_live(self) -> bool:
        """Whether frames arrive in real time."""
        return is_camera(self.url) or (is_stream(self.url) and self.container.duration is None)

    def close(self) -> None:
        """Close the container and drop the reference to its stream, which keeps the decoder; may be called twice."""
        self.container.close()
        vars(self).pop("stream", None)


def open_video(url: str, decoding: Decoding = ON_CPU) -> OpenedVideo:
    """Open a video on the device that is to decode it, a file for a GPU twice; raises as `open_container`."""
    if decoding.device == "cpu":
        return _open_on_cpu(url)
    if is_stream(url):
        return _open_on_gpu(url, decoding) if decoding.is_worth_it() else _open_on_cpu(url)
    video = _open_on_cpu(url)
    context = video.stream.codec_context
    if decoding.is_worth_it(context.width, context.height):
        video.fallback = why_not_decoded(context)
        if video.fallback is None:
            video.close()
            return _open_on_gpu(url, decoding)
    return video


def _open_on_cpu(url: str, fallback: str | None = None) -> OpenedVideo:
    container = open_container(url)
    return OpenedVideo(url, container, video_of(container), ON_CPU, PictureConverter("cpu"), fallback)


def _open_on_gpu(url: str, decoding: Decoding) -> OpenedVideo:
    """Open a video for a GPU, or for the CPU if the GPU can't decode it; raises SourceError after a time-out."""
    try:
        with decoding.accelerated() as hwaccel:
            converter = PictureConverter(decoding.device)
            container = open_container(url, hwaccel)
    except (SourceError, UnsupportedError, RuntimeError) as error:
        if isinstance(error.__cause__, TIMED_OUT):  # a time-out, which would only be waited for again
            raise
        return _open_on_cpu(url, f"the GPU's decoder can't be opened: {cause_of(error)}")
    stream = video_of(container)
    why_not = why_not_decoded(stream.codec_context)
    if why_not is not None:
        container.close()
        return _open_on_cpu(url, why_not)
    stream.codec_context.thread_count = 1
    return OpenedVideo(url, container, stream, decoding, converter, None)
