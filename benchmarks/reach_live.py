"""Delays of live streams: processes that send them in real time, and the delay of each result."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from benchmarks import live_sender
from benchmarks.reach_report import Latency
from benchmarks.reach_speed import Stopwatch, gpu_mib, open_all
from maskjet.errors import MaskjetError
from maskjet.host.timing import percentile
from maskjet.model import Model
from maskjet.sources.source import Source

_PROCESSES = 4  # that send; a thread for each stream in them
_LONGEST_S = 120.0  # of a connection
_PATIENCE_S = 60.0  # for the first frame of each


@contextmanager
def sending(
    video: Path, streams: int, fps: float, *, longest_s: float = _LONGEST_S, protocol: str = "http", troubled: int = 0
) -> Iterator[tuple[list[str], NDArray[np.float64]]]:
    """Send a video over loopback, in processes of their own, until the context ends.

    Args:
        video: What is sent, as `reach_videos.write_live` makes it.
        streams: Number of streams that are sent whole.
        fps: Frames per second of each stream.
        longest_s: Seconds after which a connection ends.
        protocol: http or rtsp.
        troubled: Further streams, which fall silent, come back broken and can't be reached, in turns.

    Yields:
        A URL for each stream, first of those that are sent whole; and the times at which their frames were sent, by the
        monotonic clock, float64 [streams, frames], zero for those that were not.
    """
    capacity = round(longest_s * fps)
    with TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "stamps.bin"
        stamps = np.memmap(path, np.float64, "w+", shape=(streams, capacity))
        command = [sys.executable, "-P", live_sender.__file__, str(video), str(path), f"--capacity={capacity}"]
        command += [f"--fps={fps}", f"--troubled-from={streams}"]
        ports = []
        for _ in range(min(_PROCESSES, streams)):
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            stack.callback(process.terminate)
            assert process.stdout is not None
            ports.append(int(process.stdout.readline()))
        yield [f"{protocol}://127.0.0.1:{ports[n % len(ports)]}/{n}" for n in range(streams + troubled)], stamps


def measure_latency(
    model: Model,
    video: Path,
    size: str,
    *,
    streams: int,
    decoder: str,
    fps: float,
    depth: int,
    batch: int,
    settle_s: float,
    seconds: float,
) -> Latency:
    """Detect on live streams, and time each result from the moment before its frame was sent.

    Args:
        model: The model.
        video: What is sent, as `reach_videos.write_live` makes it.
        size: Name of its size.
        streams: Streams side by side.
        decoder: Decoder of `open_source`.
        fps: Frames per second of each stream.
        depth: Batches in flight.
        batch: Most frames in a batch.
        settle_s: Time after the first result of each stream that does not count: FFmpeg has probed the streams, and
            works off the frames that came meanwhile.
        seconds: Time that counts.
    """
    delays_ms: list[float] = []
    with sending(video, streams, fps) as (urls, stamps), ExitStack() as stack:
        sources = [stack.enter_context(source) for source in open_all(urls, decoder)]
        first, seen, dropped = [-1] * streams, [-1] * streams, 0  # numbers of frames
        watch: Stopwatch | None = None
        settled, patience = math.inf, time.monotonic() + _PATIENCE_S
        with closing(model.stream(sources, depth=depth, batch=batch, drop_late=True)) as results:
            for frame, _ in results:
                now = time.monotonic()
                number = round((frame.time_s or 0.0) * fps)
                seen[frame.stream] = number
                if watch is not None:
                    delays_ms.append(1000 * (now - float(stamps[frame.stream, number])))
                    if now > settled + seconds:
                        break
                elif now > settled:
                    watch, first, dropped = Stopwatch(), list(seen), _dropped(sources)
                elif settled == math.inf and min(seen) >= 0:
                    settled = now + settle_s
                elif settled == math.inf and now > patience:
                    raise MaskjetError(f"stream {seen.index(-1)} has given no frame for {_PATIENCE_S:.0f} s.")
            if watch is None or not delays_ms:
                raise MaskjetError("the live streams ended before the time began.")
            speed, drops, memory = watch.stop(len(delays_ms)), _dropped(sources) - dropped, gpu_mib(model)
        sent = sum(last - begin for last, begin in zip(seen, first, strict=True))
        late_ms = _late_ms(stamps, first, seen, fps)
    return Latency(
        size=size,
        streams=streams,
        decoder=decoder,
        sent_fps=fps,
        speed=speed,
        p50_ms=round(percentile(delays_ms, 0.5), 2),
        p99_ms=round(percentile(delays_ms, 0.99), 2),
        most_ms=round(max(delays_ms), 2),
        drops=drops,
        lost=max(sent - len(delays_ms) - drops, 0),
        late_p99_ms=round(percentile(late_ms, 0.99), 2),
        gpu_mib=memory,
    )


def _dropped(sources: list[Source]) -> int:
    return sum(source.frames_dropped for source in sources)


def _late_ms(stamps: NDArray[np.float64], first: list[int], last: list[int], fps: float) -> list[float]:
    """How far behind its schedule each frame was sent, which the first frame of its stream began."""
    late: list[float] = []
    for row, begin, end in zip(stamps, first, last, strict=True):
        numbers = np.arange(begin, end + 1)
        late += (1000 * (row[numbers] - row[0] - numbers / fps)).tolist()
    return late
