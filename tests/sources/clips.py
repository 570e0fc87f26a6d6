"""Pictures and videos that tests write, and damage done to videos."""

import contextlib
import os
from fractions import Fraction

import av
import cv2
import numpy as np

from maskjet.sources.frames import open_source

SOUND_RATE = 48_000
_OPEN = {"g": "12", "bf": "3", "x264-params": "open-gop=1"}
_X265 = "log-level=none:scenecut=0:bframes=4"
CLIPS = {  # of 60 moving pictures
    "closed.mp4": ("libx264", {"g": "12", "bf": "0"}),
    "b1.mp4": ("libx264", {"g": "12", "bf": "1"}),
    "b2.mov": ("libx264", {"g": "12", "bf": "2"}),
    "b3.mp4": ("libx264", {"g": "12", "bf": "3"}),
    "pyramid.mp4": ("libx264", {"g": "12", "bf": "7", "x264-params": "b-pyramid=normal:b-adapt=0"}),
    "open.mp4": ("libx264", _OPEN),
    "open-pyramid.mp4": ("libx264", {"g": "15", "bf": "7", "x264-params": "open-gop=1:b-adapt=0"}),
    "open.mkv": ("libx264", _OPEN),
    "open.ts": ("libx264", _OPEN),
    "b3.avi": ("libx264", {"g": "12", "bf": "3"}),
    "b3.flv": ("libx264", {"g": "12", "bf": "3"}),
    "hevc-open.mp4": ("libx265", {"g": "12", "x265-params": f"open-gop=1:{_X265}"}),
    "hevc-open.mkv": ("libx265", {"g": "12", "x265-params": f"open-gop=1:{_X265}"}),
    "hevc-radl.mp4": ("libx265", {"g": "12", "x265-params": f"open-gop=0:radl=2:{_X265}"}),
    "hevc-closed.mp4": ("libx265", {"g": "12", "x265-params": f"open-gop=0:{_X265}"}),
    "vp9.mp4": ("libvpx-vp9", {"g": "12", "deadline": "realtime", "cpu-used": "8"}),
    "vp9.webm": ("libvpx-vp9", {"g": "12", "deadline": "good", "cpu-used": "5", "lag-in-frames": "12"}),
    "av1.mp4": ("libsvtav1", {"g": "12", "preset": "12"}),
    "vp8.webm": ("libvpx", {"g": "12", "deadline": "good", "auto-alt-ref": "1", "lag-in-frames": "10", "threads": "1"}),
    "all-intra.mov": ("mjpeg", {}),
    "mpeg4-b.mp4": ("mpeg4", {"g": "9", "bf": "2"}),
    "mpeg2-b.ts": ("mpeg2video", {"g": "9", "bf": "2"}),
    "mpeg4.avi": ("mpeg4", {"g": "9", "bf": "0"}),
    "fragmented.mp4": ("libx264", _OPEN),
    "faststart.mp4": ("libx264", _OPEN),
    "interlaced.mp4": ("libx264", {"g": "12", "bf": "3", "flags": "+ildct+ilme", "x264-params": "tff=1"}),
    "endless.mp4": ("libx264", {"g": "1000", "bf": "3"}),
    "refresh.mp4": ("libx264", {"g": "12", "bf": "0", "intra-refresh": "1"}),
    "refresh.ts": ("libx264", {"g": "12", "bf": "0", "intra-refresh": "1"}),
    "raw.h264": ("libx264", {"g": "12", "bf": "0"}),
}
FRAGMENTED = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}
FASTSTART = {"movflags": "faststart"}


def picture(height=48, width=64, seed=0):
    """A gradient with a seed-dependent tint: survives lossy codecs."""
    y, x = np.mgrid[0:height, 0:width]
    tint = np.random.default_rng(seed).integers(0, 120, 3)
    return np.stack([y * 2 + tint[0], x + tint[1], (x + y) + tint[2]], axis=-1).clip(0, 255).astype(np.uint8)


def close_to(actual, expected):
    return np.abs(actual.astype(int) - expected.astype(int)).mean() < 6


def moving(index):
    """A picture that moves, so that a frame predicted from a wrong one differs."""
    y, x = np.mgrid[0:96, 0:128]
    image = np.stack([x + 3 * index, y * 2 + index, (x ^ y) + 5 * index], axis=-1) % 256
    image[20:40, (4 * index) % 100 : (4 * index) % 100 + 20] = (250, 240, 30)
    return image.astype(np.uint8)


def write_image(path, image):
    assert cv2.imwrite(str(path), image[..., ::-1] if image.ndim == 3 else image)
    return path


@contextlib.contextmanager
def _scheduled_as_before():
    """Undo what SVT-AV1 does as root: the thread that encodes becomes a real-time one, which starves all others."""
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, priority)


def encode(path, images, codec="libx264", options=None, **more):
    """Write a video.

    Args:
        path: Where, with a suffix that says in which container.
        images: Its pictures, uint8 RGB of one size.
        codec, options: The encoder.
        more: rate (frames/s), times (when pictures are shown, in frames), pix_fmt, sound (samples of 48 kHz, float32),
            sound_codec, container_options, and prepare (called with the stream before anything is encoded).
    """
    rate, times, sound = Fraction(more.get("rate", 10)), more.get("times"), more.get("sound", ())
    with _scheduled_as_before(), av.open(str(path), "w", options=more.get("container_options", {})) as container:
        stream = container.add_stream(codec, rate=rate, options=options or {})
        stream.height, stream.width = images[0].shape[:2]
        stream.pix_fmt = more.get("pix_fmt", "yuvj420p" if codec == "mjpeg" else "yuv420p")
        more.get("prepare", id)(stream)
        packets = []
        if len(sound):
            packets = _encode_sound(container, np.asarray(sound, np.float32), more.get("sound_codec", "aac"))
        for index, image in enumerate(images):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = times[index] if times else index, 1 / rate
            packets += stream.encode(frame)
        packets += stream.encode(None)
        for packet in sorted(packets, key=lambda packet: packet.dts * packet.time_base):
            container.mux(packet)
    return path


def _encode_sound(container, samples, codec):
    track = container.add_stream(codec, rate=SOUND_RATE, layout="mono", options={"strict": "-2"})
    context = track.codec_context
    resampler = av.AudioResampler(format=context.format, layout=context.layout, rate=SOUND_RATE, frame_size=0)
    packets = []
    for start in range(0, len(samples), 4800):
        heard = av.AudioFrame.from_ndarray(samples[None, start : start + 4800], format="flt", layout="mono")
        heard.sample_rate, heard.pts = SOUND_RATE, start
        packets += [packet for one in resampler.resample(heard) for packet in track.encode(one)]
    return packets + track.encode(None)


def write_video(path, frames=20, *, size=(48, 64), codec="libx264", gop=5, **more):
    options = {"g": str(gop), "bf": "0", "sc_threshold": "0"} if codec == "libx264" else {}
    return encode(path, [picture(*size, seed=index) for index in range(frames)], codec, options, **more)


def write_clip(path, *, scale=1, sound=()):
    """Write the one of CLIPS that the path's name says."""
    codec, options = CLIPS[path.name]
    if codec == "libx264":
        options = {"sc_threshold": "0"} | options
    container_options = {"fragmented": FRAGMENTED, "faststart": FASTSTART}.get(path.stem, {})
    images = [moving(index).repeat(scale, 0).repeat(scale, 1) for index in range(60)]
    return encode(path, images, codec, options, sound=sound, container_options=container_options)


def join(path, *parts):
    """Write streams of other files into one, in this order.

    Args:
        path: The new file.
        parts: Of each stream, at most three, the file it is from, "audio" or "video", and its disposition.
    """
    with contextlib.ExitStack() as stack:
        written = stack.enter_context(av.open(str(path), "w"))
        packets = []
        for language, (source, kind, disposition) in zip(("mis", "deu", "eng"), parts, strict=False):
            read = stack.enter_context(av.open(str(source)))
            (stream,) = read.streams.get({kind: 0})
            copy = written.add_stream_from_template(stream)
            copy.disposition, copy.metadata["language"] = disposition, language
            packets += [(copy, packet) for packet in read.demux(stream) if packet.size]
        for stream, packet in sorted(packets, key=lambda each: each[1].dts * each[1].time_base):
            packet.stream = stream
            written.mux(packet)
    return path


def remux(path, source, *, earlier=0, prepare=id):
    """Write a video's packets again, by some frames earlier: an MP4's edit list cuts away what is before zero."""
    with av.open(str(source)) as read, av.open(str(path), "w") as written:
        stream = written.add_stream_from_template(read.streams.video[0])
        prepare(stream)
        for packet in read.demux(video=0):
            if packet.dts is not None:
                packet.pts -= earlier * packet.duration
                packet.dts -= earlier * packet.duration
                packet.stream = stream
                written.mux(packet)
    return path


def packets_of(path, **stream):
    """(position, size) of each packet of a stream, by default the video, in the order of the file."""
    with av.open(str(path)) as container:
        return [(packet.pos, packet.size) for packet in container.demux(**stream or {"video": 0}) if packet.size]


def damage(path, *numbers):
    """Overwrite packets of a video, but for their heads, with noise."""
    packets, data = packets_of(path), bytearray(path.read_bytes())
    for position, size in (packets[number] for number in numbers):
        data[position + 5 : position + size] = np.random.default_rng(0).bytes(size - 5)
    path.write_bytes(data)


def read(path, **options):
    """The source of a video, read to its end, and its frames."""
    with open_source(path, **options) as source:
        frames = list(source)
    return source, frames


def assert_same(frames, others):
    """Check that there are frames, and that they are those of another source, bit for bit."""
    assert frames
    for frame, other in zip(frames, others, strict=True):
        assert (frame.index, frame.time_s, frame.name) == (other.index, other.time_s, other.name)
        np.testing.assert_array_equal(frame.image, other.image)
