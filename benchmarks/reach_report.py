"""Measurements of the reach benchmark, and their tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from maskjet.host.measuring import MeasuredReport
from maskjet.host.tables import as_table, shown


@dataclass(frozen=True)
class VideoFile:
    """A video that is measured."""

    size: str
    """Name of its size."""
    size_hw: tuple[int, int]
    """(height, width) of its frames, in pixels."""
    frames: int
    """Frames of the file."""
    drawn: int
    """Frames until it begins anew."""
    mbit_s: float
    """Bit rate when it is played at 30 frames per second, in Mbit/s."""


@dataclass(frozen=True)
class Speed:
    """Frames in a span of time, and what they took of the host."""

    fps: float
    """Frames per second of all streams together."""
    frames: int
    """Frames in it."""
    seconds: float
    """Its length."""
    cpu_busy: float
    """Share of the machine's cores that this process kept busy, 0..1."""


@dataclass(frozen=True)
class DecodingSpeed:
    """Decoding alone: each stream is read by a thread of its own, which drops its frames."""

    size: str
    """Name of the videos' size."""
    streams: int
    """Videos side by side."""
    decoder: str
    """Decoder of all of them: cpu, or the GPU's name."""
    speed: Speed
    """Frames of all streams."""


@dataclass(frozen=True)
class StreamSpeed:
    """`Model.stream` from files, or from memory, to COCO RLE on the host, beside its floors."""

    size: str
    """Name of the frames' size."""
    streams: int
    """Sources side by side."""
    decoder: str
    """Decoder of all of them; "memory" for decoded frames in the host's memory."""
    depth: int
    """Batches in flight."""
    batch: int
    """Most frames in a batch."""
    speed: Speed
    """Frames of all sources."""
    detections: float
    """Detections per frame."""
    gpu_mib: float | None
    """GPU memory in use at the end, by whomever; None without a GPU."""
    graphs_fps: float | None
    """Frames per second of graph replays alone, as many in flight; None without graphs."""
    pcie_fps: float | None
    """Frames per second whose bytes PCIe can carry to the GPU; None without a GPU."""


@dataclass(frozen=True)
class Latency:
    """Delays of live streams, from the moment a frame's packet is sent to its detections."""

    size: str
    """Name of the frames' size."""
    streams: int
    """Streams side by side."""
    decoder: str
    """Decoder of all of them."""
    sent_fps: float
    """Frames per second of each stream."""
    speed: Speed
    """Results of all streams; the senders, which are other processes, are not in its share of the cores."""
    p50_ms: float
    """Median delay."""
    p99_ms: float
    """99th percentile of the delays."""
    most_ms: float
    """Longest delay."""
    drops: int
    """Frames that were replaced by newer ones."""
    lost: int
    """Frames that were sent between a stream's first and last result, and have neither a result nor been dropped."""
    late_p99_ms: float
    """99th percentile of the time that packets were sent behind their schedule."""
    gpu_mib: float | None
    """GPU memory in use at the end, by whomever; None without a GPU."""


@dataclass(frozen=True)
class PeerSpeed:
    """Another project's way from a video file to its masks."""

    name: str
    """Name of the way."""
    what: str
    """One line that describes it."""
    size: str
    """Name of the video's size."""
    speed: Speed
    """Frames of one file."""


@dataclass(frozen=True)
class ReachReport(MeasuredReport):
    """All measurements of a run."""

    measurements: Sequence[StreamSpeed]
    """Detecting on streams, in the order measured."""
    decoding: Sequence[DecodingSpeed] = ()
    """Decoding alone, in the order measured."""
    latencies: Sequence[Latency] = ()
    """Live streams."""
    peers: Sequence[PeerSpeed] = ()
    """Other projects."""
    videos: Sequence[VideoFile] = ()
    """The videos."""
    model: str = ""
    """Name of the model."""
    precision: str = ""
    """Precision of its network."""
    pcie_gb_s: float | None = None
    """Bandwidth of copies from page-locked memory to the GPU, in GB/s; None without a GPU."""
    seconds: float = 0.0
    """Time that the whole run has taken so far."""

    def decoding_fps(self, size: str, streams: int, decoder: str) -> float | None:
        """Frames per second of decoding alone; None if it was not measured."""
        same = (each for each in self.decoding if (each.size, each.streams, each.decoder) == (size, streams, decoder))
        return next((each.speed.fps for each in same), None)

    def rows(self) -> list[tuple[str, ...]]:
        """The table of detecting: its header, then one row per measurement, each with its floors."""
        header = ("workload", "decoder", "depth × batch", "frames/s", "CPU busy", "GPU MiB", "found")
        floors = ("decoding alone", "graphs alone", "PCIe", "of the lowest")
        return [(*header, *floors), *map(self._row, self.measurements)]

    def _row(self, m: StreamSpeed) -> tuple[str, ...]:
        floors = (self.decoding_fps(m.size, m.streams, m.decoder), m.graphs_fps, m.pcie_fps)
        known = [floor for floor in floors if floor is not None]
        return (
            *(f"{m.streams} × {m.size}", m.decoder, f"{m.depth} × {m.batch}", f"{m.speed.fps:.0f}"),
            *(f"{m.speed.cpu_busy:.0%}", shown(m.gpu_mib, 0), f"{m.detections:.1f}"),
            *(shown(floor, 0) for floor in floors),
            f"{m.speed.fps / min(known):.0%}" if known else "-",
        )

    def _decoding_rows(self) -> list[tuple[str, ...]]:
        """A row per size and number of streams, the decoders side by side."""
        decoders = list(dict.fromkeys(each.decoder for each in self.decoding))
        rows = [("decoding alone", *(text for name in decoders for text in (f"{name} frames/s", "CPU busy")))]
        for size, streams in sorted({(each.size, each.streams) for each in self.decoding}, key=_order):
            cells = [f"{streams} × {size}"]
            for decoder in decoders:
                same = [e for e in self.decoding if (e.size, e.streams, e.decoder) == (size, streams, decoder)]
                cells += [f"{same[0].speed.fps:.0f}", f"{same[0].speed.cpu_busy:.0%}"] if same else ["-", "-"]
            rows.append(tuple(cells))
        return rows

    def _latency_rows(self) -> list[tuple[str, ...]]:
        header = ("live", "decoder", "p50 ms", "p99 ms", "most ms", "drops", "lost", "frames/s", "CPU busy", "GPU MiB")
        return [
            (*header, "sent late, p99 ms"),
            *(
                (
                    *(f"{m.streams} × {m.size} at {m.sent_fps:g}/s", m.decoder, shown(m.p50_ms, 1), shown(m.p99_ms, 1)),
                    *(shown(m.most_ms, 1), str(m.drops), str(m.lost), f"{m.speed.fps:.0f}", f"{m.speed.cpu_busy:.0%}"),
                    *(shown(m.gpu_mib, 0), shown(m.late_p99_ms, 1)),
                )
                for m in self.latencies
            ),
        ]

    def _peer_rows(self) -> list[tuple[str, ...]]:
        return [
            ("peer", "size", "frames/s", "CPU busy", ""),
            *((m.name, m.size, shown(m.speed.fps, 1), f"{m.speed.cpu_busy:.0%}", m.what) for m in self.peers),
        ]

    def __str__(self) -> str:
        tables = [self.rows(), self._decoding_rows(), self._latency_rows(), self._peer_rows()]
        videos = [
            f"{v.size}: {v.frames} frames, the same {v.drawn} again and again, {v.mbit_s} Mbit/s" for v in self.videos
        ]
        pcie = [] if self.pcie_gb_s is None else [f"PCIe, from page-locked memory: {self.pcie_gb_s} GB/s"]
        facts = [f"{self.model}, {self.precision}; {self.seconds:.0f} s in all", *videos, *pcie, str(self.machine)]
        return "\n\n".join([*(as_table(rows) for rows in tables if rows[1:]), "\n".join([*facts, *self.notes])])


def _order(workload: tuple[str, int]) -> tuple[str, int]:
    """Sort by size, then by number of streams."""
    size, streams = workload
    return size.rjust(9), streams
