"""Detections of many files as a Ray dataset."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from maskjet import limits
from maskjet.jobs import cluster
from maskjet.jobs.planning import plan
from maskjet.jobs.processing import process
from maskjet.jobs.segments import Segment, Settings
from maskjet.jobs.work import open_model
from maskjet.process import suit_program

if TYPE_CHECKING:
    import pyarrow
    import ray.data


def ray_dataset(
    sources: Any,
    *,
    model: str = "demo",
    workers: int | None = None,
    recursive: bool = False,
    seconds: float = 10.0,
    images: int = 128,
    **settings: Any,
) -> ray.data.Dataset:
    """Detect on many files as a Ray dataset, for a pipeline of your own; writes no files.

    Runs on the cluster that the process is connected to, or else on the one that `ray.init()` connects to. Each segment
    is a row of the input, and its results are rows of the output, in the columns of the parts (see docs/jobs.md). As
    always with Ray Data, work begins when the rows are asked for, and blocks of different segments come in any order
    unless `DataContext.execution_options.preserve_order` is set. The plan is held in memory, 1 kB for each segment. A
    file that can't be read ends the pipeline, unless `DataContext.max_errored_blocks` allows for some.

    Args:
        sources: Files, folders, globs, lists and URLs, as `plan` takes them; each node must reach them.
        model: A model of `maskjet.load`; a file, as that of `weights`, must be at the same path on each node.
        workers: Number of actors with the model; None is one per GPU of the cluster, or else one per node.
        recursive: Whether sub-folders are searched.
        seconds: Shortest length of a video's segment.
        images: Most images of a segment.
        **settings: Other fields of `Settings`, as weights, threshold, classes, rows, every and config.

    Raises:
        InputError: An argument is out of range.
        SourceError: A source does not exist.
        UnsupportedError: The cluster has no room for the workers, or the connection is a Ray client's (ray://).
        MissingDependencyError: Ray is not installed.

    Examples:
        >>> import maskjet.jobs
        >>> from ray.data.expressions import col  # doctest: +SKIP
        >>> found = maskjet.jobs.ray_dataset("videos", rows="detection", workers=8)  # doctest: +SKIP
        >>> found.filter(expr=col("class_name") == "car").write_parquet("cars")  # doctest: +SKIP
    """
    ray = cluster.import_ray("ray_dataset")
    chosen = Settings(model=model, **settings)
    segments = [
        {"segment": json.dumps(each.as_dict())}
        for each in plan(sources, recursive=recursive, seconds=seconds, images=images)
    ]
    if not ray.is_initialized():
        ray.init()
    cluster.check_connection(ray)
    pool = cluster.fit(cluster.nodes_of(ray), chosen.config.device, workers)
    chosen = replace(chosen.with_absolute_paths(), config=replace(chosen.config, device=pool.device))
    rows = ray.data.from_items(segments, override_num_blocks=len(segments))
    return rows.map_batches(  # type: ignore[no-any-return]
        _Detector,
        batch_size=1,
        batch_format="pyarrow",
        fn_constructor_kwargs={"settings": chosen.as_dict()},
        **pool.options(ray),
    )


class _Detector:
    """Ray actor that detects on one segment per call."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        suit_program()
        limits.read_environment()
        self._settings = Settings.from_dict(settings)
        self._model = open_model(self._settings, self._settings.config)

    def __call__(self, batch: pyarrow.Table) -> pyarrow.Table:
        segment = Segment.from_dict(json.loads(batch["segment"][0].as_py()))
        return process(segment, self._model, **self._settings.processing())
