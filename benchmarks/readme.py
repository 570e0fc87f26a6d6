"""Write README's table of speeds, and the chart of all of them, from the committed results.

    python -m benchmarks.readme

rewrites README.md and results/video_h200.png; `tests/benchmarks/test_readme.py` fails if the table is out of date.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.chart import draw_videos

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RESULTS = Path(__file__).resolve().parent / "results"
_NAMES = ("video", "sizes", "pictures_files", "network", "serve", "images_peers", "reach")
_PEERS = ("rfdetr", "rfdetr_fp16", "rfdetr_inductor", "inference_models", "inference_models_fp16")
_HEAD = (
    "Per second, on one NVIDIA H200 with 16 cores",
    "maskjet",
    "the best other, to RLE",
    "the best other, dense masks",
    "limit",
)
_CLIENTS = 32  # of the service
_Row = tuple[float, float, float | None, float | None]  # ours, the best other to RLE and to dense masks, the limit
_MARKS = re.compile(r"(<!-- speed: .*? -->\n).*?(<!-- end of speed -->)", re.DOTALL)


def speed_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Make a Markdown table of what users have: ours, the best other project, and the hardware's limit where known.

    Args:
        results: Reports by name: of `benchmarks.video`, `sizes`, `pictures`, `network`, `serve`, `images` and `reach`.
    """
    video, sizes, files, networks, serving, folders, _ = (results[name]["measurements"] for name in _NAMES)
    reach = results["reach"]
    batches = {each["batch"]: each["batch"] / each["ms"] * 1000 for each in networks if each["runtime"] == "fused"}

    def in_video(hw: tuple[int, int], rung: str, limit: float | None = None) -> _Row:
        def rate(name: str) -> Any:
            return next((m["memory_fps"] for m in video if m["name"] == name and tuple(m["size_hw"]) == hw), None)

        return rate(rung), _best(rate, ""), _best(rate, ", masks"), limit

    def in_sizes(way: str) -> Any:
        return next(m["images_per_s"]["many sizes"] for m in sizes if m["way"] == way)

    def in_files(way: str) -> Any:
        return next(m["fps"] for m in files if m["way"] == f"1080p: {way}")

    def in_folder(words: str) -> Any:
        return max(m["images_per_s"] for m in folders if m["images"] == "720p" and words in m["way"])

    def of_file(rows: Sequence[Mapping[str, Any]]) -> Any:
        chosen = ("1080p", 1, "cuda:0")
        return next(m["speed"]["fps"] for m in rows if (m["size"], m["streams"], m["decoder"]) == chosen)

    def by_others(output: str) -> Any:
        return max(m["speed"]["fps"] for m in reach["peers"] if m["name"].endswith(output))

    def in_serving(server: str) -> Any:
        chosen = (m for m in serving if m["server"] == server and m["size_hw"] == [720, 1280])
        return next(m["per_second"] for m in chosen if m["clients"] == _CLIENTS)

    rows: dict[str, _Row] = {
        "frames of 1280 × 720 in memory, one at a time": in_video((720, 1280), "fused", batches[1]),
        "the same, four in flight": in_video((720, 1280), "depth 4"),
        "frames of 312 × 176, 16 videos side by side": in_video((176, 312), "16 sources", batches[16]),
        "images of 200 sizes, four in flight": (
            in_sizes("stream, depth 4"),
            in_sizes("rfdetr_inductor, RLE"),
            in_sizes("rfdetr_inductor, masks"),
            None,
        ),
        "a folder of JPEGs of 1280 × 720, as a job": (in_folder("job"), in_folder(", RLE"), in_folder(", masks"), None),
        "frames of a 1080p file": (
            of_file(reach["measurements"]),
            by_others(", RLE"),
            by_others(", masks"),
            of_file(reach["decoding"]),
        ),
        "frames of a 1080p file to annotated MP4": (
            in_files("annotated MP4"),
            in_files("MP4 by supervision, compact masks"),
            in_files("MP4 by supervision, dense masks"),
            in_files("decoding and x264 alone"),
        ),
        f"JPEGs of 1280 × 720 by HTTP, {_CLIENTS} clients": (
            in_serving("maskjet serve"),
            in_serving("LitServe + rfdetr"),
            None,
            None,
        ),
    }
    lines = [_HEAD, ["---"] * len(_HEAD), *([words, *_cells(*numbers)] for words, numbers in rows.items())]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _best(rate: Callable[[str], float | None], output: str) -> float:
    """The highest rate of a peer whose output is RLE, "", or dense, ", masks"."""
    return max(found for peer in _PEERS if (found := rate(f"{peer}{output}")) is not None)


def _cells(ours: float, encoded: float, dense: float | None, limit: float | None) -> list[str]:
    others = ["" if other is None else f"{other:,.0f} ({ours / other:.0f}×)" for other in (encoded, dense)]
    return [f"**{ours:,.0f}**", *others, "" if limit is None else f"{limit:,.0f}"]


def render(text: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """Replace the table in README's text."""
    table = speed_table(results)
    found, count = _MARKS.subn(lambda marks: f"{marks[1]}{table}{marks[2]}", text)
    assert count == 1, "README.md must have one table between its speed marks."
    return found


def read_results() -> dict[str, dict[str, Any]]:
    """Read the committed reports by name, those of videos as one."""

    def read(name: str) -> dict[str, Any]:
        return dict(json.loads((RESULTS / f"{name}_h200.json").read_text()))

    videos = [read(f"video_{size}") for size in ("312", "720p", "1080p")]  # a piece of benchmarks.all each
    video = {**videos[0], "measurements": [each for report in videos for each in report["measurements"]]}
    return {"video": video, **{name: read(name) for name in _NAMES[1:]}}


if __name__ == "__main__":
    found = read_results()
    README.write_text(render(README.read_text(), found))
    draw_videos(found["video"], RESULTS / "video_h200.png")
