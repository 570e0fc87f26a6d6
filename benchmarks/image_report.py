"""The report of the benchmark of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.trend import Trend
from maskjet.host import measuring
from maskjet.host.tables import shown


@dataclass(frozen=True)
class ImageSpeed:
    """The speed of one way on one folder."""

    images: str
    """Name of the folder's images."""
    way: str
    """How images were read, decoded and detected on, or which part of that."""
    images_per_s: float
    """Median over the runs; of a job the rate while all its threads were busy."""
    runs: Sequence[float]
    """Images per second of each run."""
    cpu_cores: float
    """Cores busy on average: CPU time divided by time; median over the runs. Of a job, at its workers' busiest."""
    p50_ms: float | None = None
    """Median time of a call, of ways that take one image a call."""
    p99_ms: float | None = None
    """99th percentile of that."""


@dataclass(frozen=True)
class LongStream:
    """Memory over a long stream."""

    decoder: str
    """The decoder."""
    images: int
    """Images, of one folder again and again."""
    images_per_s: float
    """Images per second."""
    rss_mib: Trend
    """Memory of the process."""
    gpu_mib: Trend | None
    """GPU memory in use by anyone; None without a GPU."""

    def __str__(self) -> str:
        return (
            f"{self.images:,} images, decoder {self.decoder}, {self.images_per_s:,.0f}/s: memory {self.rss_mib} MiB; "
            f"GPU memory {self.gpu_mib} MiB"
        )


@dataclass(frozen=True)
class Folder:
    """A folder that was measured."""

    name: str
    """Name of its images."""
    files: int
    """Number of files."""
    mean_bytes: int
    """Mean bytes of a file."""
    sizes: int
    """Number of sizes."""


@dataclass(frozen=True)
class ImagesReport(measuring.MeasuredReport):
    """The speed of all ways; measurements are `ImageSpeed`."""

    model: str = ""
    """Name of the model."""
    masks: float = 0.0
    """Median number of masks per image."""
    folders: Sequence[Folder] = ()
    """What was measured."""
    long: Sequence[LongStream] = ()
    """Long streams."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per folder and way."""
        head = ("images", "way", "images/s", "cores busy", "p50, ms", "p99, ms")
        return [
            head,
            *(
                (
                    *(m.images, m.way, f"{m.images_per_s:,.0f}", f"{m.cpu_cores:.1f}"),
                    *(shown(m.p50_ms, 2), shown(m.p99_ms, 2)),
                )
                for m in self.measurements
            ),
        ]

    def __str__(self) -> str:
        folders = "; ".join(f"{each.files:,} of {each.name}, {each.mean_bytes / 1e3:.0f} kB" for each in self.folders)
        head = f"{self.model}, {self.masks:.0f} masks per image; {folders}"
        return "\n".join([head, super().__str__(), *map(str, self.long)])
