"""The commands maskjet bench ...: what it costs, after a check that it is right."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maskjet.cli.options import (
    BenchDeviceOption,
    ModelOption,
    ReportOption,
    SizeOption,
    WeightsOption,
    parse_size,
    print_result,
    progress,
)
from maskjet.config import EngineConfig

bench_app = typer.Typer(no_args_is_help=True, help="What it costs, after a check that it is right.")
_EXIT_DIFFERENT = 1


@bench_app.command("ops")
def bench_ops(
    out: ReportOption = None,
    only: Annotated[list[str] | None, typer.Option(help="An op's name; may be repeated.")] = None,
    runs: Annotated[int, typer.Option(help="Timed calls per implementation and workload.")] = 30,
    device: BenchDeviceOption = "auto",
) -> None:
    """Compare, then time every implementation of every op, beside pycocotools where it is installed."""
    from benchmarks import ops

    print_result(ops.run(out, runs=runs, only=only or (), device=device), to_stdout=True)


@bench_app.command("ablation")
def bench_ablation(
    out: Annotated[Path | None, typer.Option(help="A folder for the CSV, the JSON and the chart.")] = None,
    size: Annotated[list[str] | None, typer.Option(help="As for traffic video; may be repeated.")] = None,
    survivors: Annotated[list[int] | None, typer.Option(help="Detections, 0 to 100; may be repeated.")] = None,
    runs: Annotated[int, typer.Option(help="Timed calls per rung and case; slow rungs get fewer.")] = 50,
    only: Annotated[list[str] | None, typer.Option(help="A rung's or peer's name; may be repeated.")] = None,
    nvtx: Annotated[bool, typer.Option("--nvtx", help="NVTX ranges, for Nsight (GPU).")] = False,
    device: BenchDeviceOption = "auto",
) -> None:
    """Can torch.compile match the kernels? Compare, then time one postprocess rung by rung, beside its peers."""
    from benchmarks import ablation
    from maskjet.traffic import SIZES_HW

    sizes_hw = [parse_size(text) for text in size or SIZES_HW]
    counts = survivors or ablation.SURVIVORS
    cases = len(set(sizes_hw)) * len(set(counts)) * ablation.passes(device)
    with progress("measuring", cases) as advance:
        report = ablation.run(
            out,
            sizes_hw=sizes_hw,
            survivors=counts,
            runs=runs,
            only=only or (),
            device=device,
            marks_ranges=nvtx,
            on_progress=advance,
        )
    print_result(report, to_stdout=True)


@bench_app.command("capture")
def bench_capture(
    source: Annotated[str, typer.Argument(help="Image, folder, glob, video, camera number or URL.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    model: ModelOption = "demo",
    frames: Annotated[int, typer.Option(help="How many to save, fewer if the source ends.")] = 100,
    device: BenchDeviceOption = "auto",
) -> None:
    """Save the ops' calls of a run, with the references' results, for maskjet bench replay."""
    from benchmarks import capture

    with progress("capturing", frames) as advance:
        saved = capture.write(source, out, model=model, frames=frames, device=device, on_progress=advance)
    print_result(f"wrote {saved} frames to {out}")


@bench_app.command("replay")
def bench_replay(
    captures: Annotated[list[Path], typer.Argument(help="Folders that maskjet bench capture wrote.")],
    out: ReportOption = None,
    implementation: Annotated[
        str | None, typer.Option(help="auto, reference, triton or cpu; all that can, if not given.")
    ] = None,
    runs: Annotated[int, typer.Option(help="Timed repeats of each call.")] = 5,
    device: BenchDeviceOption = "auto",
) -> None:
    """Make captured calls again, check each result against the saved one, and time them; exit with 1 if one differs."""
    from benchmarks import replay
    from benchmarks.capture import read_manifest

    frames = sum(read_manifest(folder)["frames"] for folder in captures)
    with progress("replaying", frames) as advance:
        report = replay.run(captures, out, implementation=implementation, runs=runs, device=device, on_progress=advance)
    print_result(report, to_stdout=True)
    if not report.is_equal:
        raise typer.Exit(_EXIT_DIFFERENT)


@bench_app.command("video")
def bench_video(
    out: ReportOption = None,
    model: ModelOption = "demo",
    weights: WeightsOption = None,
    size: Annotated[list[str] | None, typer.Option(help="As for traffic video; may be repeated.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    precision: Annotated[str | None, typer.Option(help="auto, fp32, fp16 or bf16.")] = None,
    frames: Annotated[int, typer.Option(help="Of each video.")] = 538,
    runs: Annotated[int, typer.Option(help="Of each video; the median counts.")] = 3,
    only: Annotated[list[str] | None, typer.Option(help="A rung's or peer's name; may be repeated.")] = None,
    videos: Annotated[Path | None, typer.Option(help="A folder to keep the videos in, and find them again.")] = None,
    chart: Annotated[Path | None, typer.Option(help="A .png or .svg of the frames per second.")] = None,
) -> None:
    """Run street videos through every rung of the engine and its peers, decoding to RLE."""
    from benchmarks import video
    from benchmarks.chart import check, draw_videos

    sizes_hw = [parse_size(text) for text in size or ("720p",)]
    if chart is not None:
        check()  # before anything is measured
    with progress("measuring", len(sizes_hw)) as advance:
        report = video.run(
            out,
            model=model,
            weights=weights,
            sizes_hw=sizes_hw,
            config=EngineConfig.from_env(device=device, precision=precision),
            frames=frames,
            runs=runs,
            only=only or (),
            videos=videos,
            on_progress=advance,
        )
    if chart is not None:
        draw_videos(report.as_dict(), chart)
    print_result(report, to_stdout=True)


@bench_app.command("rewrites")
def bench_rewrites(
    out: ReportOption = None,
    model: Annotated[str, typer.Option(help="torchvision's builder.")] = "maskrcnn_resnet50_fpn",
    size: SizeOption = "1333x800",
    setting: Annotated[list[str] | None, typer.Option(help="default or stress; may be repeated.")] = None,
    runs: Annotated[int, typer.Option(help="Timed images of each contender; slow ones get fewer.")] = 30,
    only: Annotated[list[str] | None, typer.Option(help="A contender's name; may be repeated.")] = None,
    device: BenchDeviceOption = "auto",
    tf32: Annotated[bool, typer.Option(help="Let convolutions in float32 round to TF32, as PyTorch does.")] = True,
) -> None:
    """Run a torchvision detector as it is, compiled, with each rewrite, and in the engine."""
    from benchmarks import rewrites
    from benchmarks.rewrites_contest import CONTENDERS

    settings = setting or rewrites.SETTINGS
    with progress("preparing", len(settings) * len(only or CONTENDERS)) as advance:
        report = rewrites.run(
            out,
            model=model,
            size_hw=parse_size(size),
            settings=settings,
            runs=runs,
            only=only or (),
            device=device,
            uses_tf32=tf32,
            on_progress=advance,
        )
    print_result(report, to_stdout=True)


@bench_app.command("rewrites-onnx")
def bench_rewrites_onnx(
    model: Annotated[Path, typer.Argument(help="An export of a torchvision detector, for images of that size.")],
    out: ReportOption = None,
    size: SizeOption = "320x256",
    runs: Annotated[int, typer.Option(help="Timed images of each variant.")] = 9,
    threads: Annotated[int, typer.Option(help="Of ONNX Runtime.")] = 2,
) -> None:
    """Run an exported detector in ONNX Runtime as it is, with each rewrite, and with all."""
    from benchmarks import rewrites_onnx

    with progress("comparing", len(rewrites_onnx.VARIANTS)) as advance:
        report = rewrites_onnx.run(
            model, out, size_hw=parse_size(size), runs=runs, threads=threads, on_progress=advance
        )
    print_result(report, to_stdout=True)
