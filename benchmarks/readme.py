"""Write README's table of speeds, and the chart of all of them, from the committed results.

    python -m benchmarks.readme

rewrites README.md and results/video_h200.png; `tests/benchmarks/test_readme.py` fails if the table is out of date.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.chart import draw_videos

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RESULTS = Path(__file__).resolve().parent / "results"
_FILES = ("video_h200.json", "video_1080p_h200.json")
_SIZES = ((176, 312), (720, 1280), (1080, 1920))
_PEERS = ("rfdetr", "rfdetr_fp16", "rfdetr_inductor", "inference_models", "inference_models_fp16")
_ROWS: Mapping[str, str] = {
    "maskjet, one frame at a time": "fused",
    "maskjet, four frames in flight": "depth 4",
    "maskjet, 16 videos side by side": "16 sources",
}
"""Names of contenders of `benchmarks.video`, by their label in README."""
_MARKS = re.compile(r"(<!-- speed: .*? -->\n).*?(<!-- end of speed -->)", re.DOTALL)


def speed_table(measurements: Iterable[Mapping[str, Any]]) -> str:
    """Make a Markdown table of frames per second from memory, by frame size: the best other project's, then ours."""
    fps: dict[tuple[str, tuple[int, int]], float] = {
        (m["name"], (m["size_hw"][0], m["size_hw"][1])): m["memory_fps"] for m in measurements
    }
    best = _best(fps, "")
    slow = "" if ("rfdetr_inductor", _SIZES[0]) in fps else ", without inductor"
    header = ["Frames per second", *(f"{width} × {height}" for height, width in _SIZES)]
    rows = [[f"best of rfdetr and inference-models{slow}", *(f"{best[size]:,.0f}" for size in _SIZES)]]
    if dense := _best(fps, ", masks"):
        rows.append(["the same, dense masks instead of RLE", *(f"{dense[size]:,.0f}" for size in _SIZES)])
    for words, name in _ROWS.items():
        rows.append([words, *(_beside(fps[name, size], best[size]) for size in _SIZES)])
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _best(fps: Mapping[tuple[str, tuple[int, int]], float], output: str) -> dict[tuple[int, int], float]:
    """The highest rate of a peer by size; empty if not all sizes have one."""
    found = {
        size: [fps[f"{peer}{output}", size] for peer in _PEERS if (f"{peer}{output}", size) in fps] for size in _SIZES
    }
    return {size: max(rates) for size, rates in found.items()} if all(found.values()) else {}


def _beside(fps: float, peer: float) -> str:
    return f"**{fps:,.0f}** ({fps / peer:.0f}×)"


def render(text: str, measurements: Iterable[Mapping[str, Any]]) -> str:
    """Replace the table in README's text."""
    table = speed_table(measurements)
    found, count = _MARKS.subn(lambda marks: f"{marks[1]}{table}{marks[2]}", text)
    assert count == 1, "README.md must have one table between its speed marks."
    return found


def read_results() -> dict[str, Any]:
    """Read the first report of `benchmarks.video`, with the measurements of all."""
    reports: list[dict[str, Any]] = [json.loads((RESULTS / name).read_text()) for name in _FILES]
    return reports[0] | {"measurements": [each for report in reports for each in report["measurements"]]}


if __name__ == "__main__":
    found = read_results()
    README.write_text(render(README.read_text(), found["measurements"]))
    draw_videos(found, RESULTS / "video_h200.png")
