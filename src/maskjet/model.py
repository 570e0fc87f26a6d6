"""Load a model, run it on images and streams, and ask for its report."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

import torch

from maskjet.checks import Detect, check_count, check_detect, check_whole
from maskjet.config import (
    Comparison,
    Decoder,
    Driver,
    EngineConfig,
    Implementation,
    Placing,
    Precision,
    Resample,
    Resizing,
    RuntimeName,
    Step,
)
from maskjet.detections import Detections
from maskjet.engine import pipeline
from maskjet.engine.engine import Engine
from maskjet.engine.isolation import isolated
from maskjet.errors import InputError, UnsupportedError
from maskjet.host import process
from maskjet.networks import Network, find_family, read_network
from maskjet.networks.state_dict import digest_weights
from maskjet.ops.compilers import compilers
from maskjet.ops.gpu import on_device
from maskjet.postprocessing import Choices, Postprocessing, Threshold, fill_thresholds
from maskjet.report import Report, make_report
from maskjet.sources.ahead import is_encoded, load_ahead, read_encoded
from maskjet.sources.containers import shown_name
from maskjet.sources.decoding import choose_decoding, choose_for_call
from maskjet.sources.frames import Frame, Source, kind_of_source, open_images, split_sources
from maskjet.sources.images import ImageLike, ImageReference, split_images, to_pixels
from maskjet.spec import ClassNames, ModelSpec, name_classes
from maskjet.tiling.layout import TileSize, Tiling, cut_tiles

if TYPE_CHECKING:
    from maskjet.engine.deadlines import Deadlines
    from maskjet.sources.decoding import Decoding
    from maskjet.tracking import Tracker, TrackerLike

__all__ = ["ImageLike", "Model", "Report", "Threshold", "load", "open_model", "read_network"]


class _PredictOptions(TypedDict, total=False):
    """Options of `Model.predict`."""

    threshold: Threshold | None
    classes: Sequence[str] | None
    max_detections: int | None
    nms: float | None
    decoder: Literal["cpu", "cuda"]
    tile: TileSize | None
    overlap: float
    full: bool
    weak: bool


class Model:
    """A network with its pre- and postprocessing, ready to run; `load` makes it. May be called from several threads.

    A pickle or copy of it is loaded anew, with the same arguments; relative paths are kept.

    Args:
        network: The network in eval mode, on the CPU; owned by the model, which moves and converts it.
        config: How to run it.
        threshold: A confidence must exceed it, 0..1; None is the network's own.
        classes: Names of the classes to report; None for all.

    Examples:
        >>> import maskjet
        >>> maskjet.load("demo", device="cpu")
        Model(demo: RF-DETR of 240×240 with masks, 5 classes, fp32 on cpu)
        >>> with maskjet.load("demo") as model:
        ...     found = model(maskjet.traffic.sample(seed=3).image, threshold=0.6, classes=["car", "bus"])
        >>> set(found.class_name) <= {"car", "bus"}
        True
    """

    @isolated(inference=False)
    def __init__(
        self,
        network: Network,
        config: EngineConfig,
        *,
        threshold: Threshold | None = None,
        classes: Sequence[str] | None = None,
    ) -> None:
        self.spec = network.spec
        self.config = config
        self.weights_digest: str | None = None
        """Digest of the weights as they were loaded; None unless `open_model` was asked for it."""
        self._load_again: Callable[[], Model] | None = None
        common = self.spec.threshold if threshold is None else threshold
        self._choices = Choices(self.spec, common, classes, config)
        with on_device(config.resolve_device()):
            self._engine = Engine(find_family(network).make_steps(network, config, self._choices.as_loaded))

    @overload
    def predict(self, images: ImageLike, **options: Unpack[_PredictOptions]) -> Detections: ...  # type: ignore[overload-overlap] # a str is a sequence
    @overload
    def predict(self, images: Sequence[ImageLike], **options: Unpack[_PredictOptions]) -> list[Detections]: ...

    def predict(
        self,
        images: ImageLike | Sequence[ImageLike],
        *,
        threshold: Threshold | None = None,
        classes: Sequence[str] | None = None,
        max_detections: int | None = None,
        nms: float | None = None,
        decoder: Literal["cpu", "cuda"] = "cpu",
        tile: TileSize | None = None,
        overlap: float = 0.2,
        full: bool = True,
        weak: bool = False,
    ) -> Detections | list[Detections]:
        """Detect instances on one image or several; `model(images)` is the same.

        Floating tensors become bytes: × 255, rounded, halves to even. Checking that their values are in 0..1 waits for
        the GPU if they are there; bytes on the GPU are taken without a wait.

        Args:
            images: uint8 [H, W, 3] RGB array or tensor; floating tensor [3, H, W] in 0..1; path or `file:` URL of an
                image, or its file's content as `bytes`; or PIL image. Or several: a list of these, of any sizes, a
                batch [N, H, W, 3] or a floating one [N, 3, H, W]. Tensors may be on a GPU, and of any library that has
                `__dlpack__`. Files and contents in a list are read and decoded ahead, by all cores.
            threshold: A confidence must exceed it, 0..1; or one by class name, where others keep theirs. This and the
                three below are for this call alone; None is what the model was loaded with.
            classes: Names of the classes to report.
            max_detections: Most detections per image, the most confident ones, up to what the model was loaded with.
            nms: Of detections that overlap more, an intersection over union 0..1, the most confident one stays; 1 keeps
                all.
            decoder: What decodes JPEGs given as files or contents: "cpu", or "cuda", the model's GPU, which is faster
                and at most 1 off in few pixels. JPEGs that it does not take go to the CPU, and `report()` counts them.
            tile: For small instances in large images, the size of overlapping tiles to detect on: a side of 32 pixels
                or more; (height, width); or "auto": the network's input, enlarged until there are at most 64 tiles.
            overlap: Least overlap of tiles, 0..0.9 of their sides; larger than most instances.
            full: Whether to detect on the whole image, too, for instances larger than tiles.
            weak: Whether detections for a `Tracker` come, too, behind those that exceed the threshold: all above 0.1
                of the classes with the lowest threshold, up to the most detections that the model was loaded with.

        Returns:
            The detections, most confident first; for a list or a batch a list, one per image in its order. Type
            checkers take an array for one image: `list(batch)` is the same as `batch`, and they know it.

        Raises:
            InputError: An argument is not as above, or an image would have more than 256 tiles.
            SourceError: A file can't be read.
            UnsupportedError: The model is closed, or belongs to another process; or its device decodes no JPEGs.
            MissingDependencyError: decoder="cuda" needs `pip install "maskjet[gpu]"`.
            DeviceError: The device failed.

        Examples:
            >>> import maskjet
            >>> model = maskjet.load("demo")
            >>> image = maskjet.traffic.sample(seed=3).image
            >>> few = model.predict(image, threshold=0.8)
            >>> len(few) <= len(model.predict(image))
            True
        """
        tiling = None if tile is None else Tiling(tile, overlap, full)
        _, postprocessing, pieces = self._choose((threshold, classes, max_detections, nms), tiling, is_weak=weak)
        decoding = choose_for_call(decoder, self.config)
        several = images if isinstance(images, list | tuple) else split_images(images, "images")
        given: Sequence[Any] = [images] if several is None else several
        with closing(_load_all(given, several is None, decoding, self._engine.note_decoding)) as loaded:
            every = pipeline.predict(
                self._engine,
                lambda _: next(loaded),
                len(given),
                postprocessing,
                all_cores=several is None or not any(map(is_encoded, given)),
                **pieces,
            )
        is_batch = several is not None and several is not images
        for number, found in enumerate(every):
            found.remember(ImageReference(images, number) if is_batch else ImageReference(given[number]))
        return every[0] if several is None else every

    __call__ = predict

    def stream(
        self,
        source: Any,
        *,
        depth: int = 2,
        batch: int | None = None,
        drop_late: bool = False,
        deadlines: Deadlines | None = None,
        whole_batches: bool = False,
        stop: threading.Event | None = None,
        threshold: Threshold | None = None,
        classes: Sequence[str] | None = None,
        max_detections: int | None = None,
        nms: float | None = None,
        track: bool | TrackerLike = False,
        tile: TileSize | None = None,
        overlap: float = 0.2,
        full: bool = True,
        weak: bool = False,
        detect: Detect = 1,
        delay: Literal[0] | None = None,
        covers: bool = False,
    ) -> Generator[tuple[Frame, Detections]]:
        """Detect instances frame by frame.

        Each source is decoded in a thread of its own, a bounded number of frames ahead, so that decoding and detecting
        overlap and a slow consumer holds decoding back; image files are decoded by all cores, or the GPU. On a GPU up
        to `depth` batches are in flight, and while the consumer works on results the next ones are made; on a CPU
        frames are decoded that far ahead.

        Args:
            source: Whatever `maskjet.open_source` takes, or a source it returned: an image, folder, glob,
                video, camera, URL, array, or a list of images. A list of other things (videos, cameras, URLs, folders,
                sources) runs side by side; `Frame.stream` is the position in the list. A camera or endless stream that
                breaks off is opened again, and no other source waits for it; see `reconnect_for` of `open_source`.
            depth: Batches in flight, 1 to 8.
            batch: Largest number of frames that the network sees at once. They have one size and come from all sources
                in turn; a batch waits to be filled only while others are in flight. None is the number of sources, up
                to `EngineConfig.batch`; for one folder, glob or list of images on a GPU, which RF-DETR takes in batches
                of any sizes, it is `EngineConfig.batch` with `whole_batches`. Of tiles it is that on a GPU, 1 on a CPU.
            drop_late: Whether a live source's waiting frames are dropped when a newer one comes. The drops are counted
                in `Source.frames_dropped` and `report()`. Else all frames wait in line.
            deadlines: A promise of how late results of live sources are, and what gives way; None for no promise.
            whole_batches: Whether a batch always waits until it is full, or the next frame has another size, or the
                source has ended. The same frames then share a batch whatever the timing, and results are the same bit
                for bit, run after run. For one source that is not live.
            stop: Once it is set, the stream ends after the frames in flight, even if no frame comes.
            threshold: As in `predict`, for this stream alone; so are the three below.
            classes: Names of the classes to report.
            max_detections: Most detections per frame.
            nms: Largest intersection over union of two detections.
            track: Whether detections get a `track_id`; they stay the same ones. A tracker of yours, for one source,
                takes the place of a `maskjet.tracking.Tracker` per source. It gets weak detections, too; see `weak`.
            tile: As in `predict`; so are the two below. Batches take tiles of several frames.
            overlap: Least overlap of tiles, 0..0.9 of their sides.
            full: Whether to detect on whole frames, too.
            weak: As in `predict`; without it they go once frames are tracked.
            detect: Distance of the frames that the network sees, 1 to 64; on those between, masks and boxes are moved
                by the motion in the images, and `Detections.moved` says how far. A cut is detected on, too. "realtime":
                whenever the network has caught up with a live source. On a GPU detecting every frame costs less.
            delay: Frames of a file wait for the next one that is detected, and get what agrees with both. With 0, and
                of live sources, they don't: what appears is found at the next detected frame.
            covers: Whether instances that only one of two detected frames has are on all frames between them, and masks
                of both are united, as hiding people needs.

        Yields:
            Each frame with its detections, those of a source in order. A frame that can't be decoded is left out and
            recorded in the source's `bad_frames`.

        Raises:
            InputError: An argument is not as above, or an opened source is given twice or is read already.
            UnsupportedError: The model is closed, or belongs to another process.
            SourceError: A named file does not exist, before work starts; or a source can't be opened or breaks. With
                several sources the others go on, and the error is raised at the end.
            FrameError: A live source could not be opened again within `reconnect_for`. With several, as above.
            DeviceError: The device failed on a frame; the frames before it were yielded.

        Examples:
            >>> import maskjet
            >>> model = maskjet.load("demo")
            >>> images = [maskjet.traffic.sample(seed=seed).image for seed in range(2)]
            >>> [frame.index for frame, found in model.stream(images)]
            [0, 1]
        """
        sources = split_sources(source)
        if batch is None:
            batch = min(len(sources), self.config.batch)
            if tile is not None:
                batch = self.config.batch if self._engine.steps.device.type == "cuda" else 1
            is_paced = drop_late or deadlines is not None
            if self._engine.steps.device.type == "cuda" and isinstance(self.spec, ModelSpec) and not is_paced:
                opened = open_images(sources[0], self.decoding()) if len(sources) == 1 else None
                if opened is not None:
                    sources, batch, whole_batches = [opened], self.config.batch, True
        check_whole("depth", depth, (1, 8))
        check_count("batch", batch)
        if deadlines is not None:
            if len(deadlines.priorities) not in (0, len(sources)):
                given = f"{len(deadlines.priorities)} priorities for {len(sources)} sources"
                raise InputError(f"deadlines must have a priority for each source, or none, got {given}.")
            if tile is not None or detect != 1 or whole_batches:
                raise InputError("deadlines must be None with tile, detect or whole_batches.")
        if whole_batches and (drop_late or len(sources) != 1):
            given = "drop_late" if drop_late else f"{len(sources)} sources"
            raise InputError(f"whole_batches must be False with {given}: it is for one source that is not live.")
        is_tracked, tiling = track is not False, None if tile is None else Tiling(tile, overlap, full)
        reported, postprocessing, pieces = self._choose(
            (threshold, classes, max_detections, nms), tiling, is_weak=is_tracked or weak
        )
        if detect != 1 or type(detect) is not int:
            from maskjet.propagation.schedule import Propagation

            check_detect(detect)
            if delay not in (None, 0):
                raise InputError(f"delay must be 0, or left out to wait for the next detected frame, got {delay!r}.")
            if self._engine.steps.device.type == "cuda":
                self._engine.steps.fallbacks[
                    "detect: on a GPU detecting a frame costs less than moving masks to it"
                ] += 1
            is_live = any(map(_is_live, sources))
            if detect == "realtime" and not is_live:
                raise InputError("detect must be a number for files, which wait, got 'realtime'.")
            is_delayed = delay is None and not is_live
            if covers and not is_delayed:
                raise InputError("covers must be False unless frames wait for the next detected one: leave out delay.")
            made = Propagation(
                len(sources), detect, is_delayed=is_delayed, covers=covers, note=self._engine.note, **pieces
            )
            pieces = {"propagation": made}
        self._engine.check()
        with isolated(), on_device(self._engine.steps.device):
            self._engine.steps.prepare(batch)  # now, as it would delay the first frame
        results = pipeline.stream(
            self._engine,
            sources,
            depth=depth,
            batch=batch,
            drops_late=drop_late,
            deadlines=deadlines,
            whole_batches=whole_batches,
            stop=stop,
            postprocessing=postprocessing,
            **pieces,
        )
        if is_tracked:
            from maskjet.tracking import track as track_results

            lowest, note = reported.lowest, self._engine.note
            results = track_results(results, track, sources=len(sources), threshold=lowest, note=note)
        return self._drop_weak(results, reported) if is_tracked and not weak else results

    def _choose(
        self,
        options: tuple[Threshold | None, Sequence[str] | None, int | None, float | None],
        tiling: Tiling | None,
        *,
        is_weak: bool,
    ) -> tuple[Postprocessing, Postprocessing, dict[str, Any]]:
        """Choose a call's postprocessing, as reported and as computed, and the functions that cut and merge tiles."""
        reported = self._choices.choose(*options)
        computed = self._choices.with_weak(reported) if is_weak else reported
        if tiling is None:
            return reported, computed, {}
        from maskjet.tiling.frames import Tiles

        tiles = Tiles(self._engine, tiling, computed, reported.lowest if is_weak else None)
        computed = self._choices.choose(*options[:2], nms=1.0)
        computed = self._choices.with_weak(computed) if is_weak else computed
        return reported, computed, {"cut": tiles.cut, "finish": tiles.finish}

    def _drop_weak(
        self, results: Generator[tuple[Frame, Detections]], reported: Postprocessing
    ) -> Generator[tuple[Frame, Detections]]:
        """Drop the weaker detections behind those that are reported, and from the count of detections."""
        with closing(results):
            for frame, found in results:
                kept = found[: reported.count(found.confidence)]
                self._engine.note(detections=len(kept) - len(found))
                yield frame, kept

    def prepare(self, batch: int = 1) -> None:
        """Compile what batches of so many images need, before the first one comes; `maskjet warm` does so for all.

        On a GPU kernels are compiled for RGB and NV12 in processes of their own, into the cache. On a CPU, and where
        PyTorch runs the network uncompiled, there is nothing to do.

        Raises:
            InputError: batch is not a whole number from 1 to the model's own `batch`.
        """
        check_whole("batch", batch, (1, self.config.batch))
        self._engine.check()
        self._engine.prepare(batch)

    def tracker(self, threshold: Threshold | None = None, classes: Sequence[str] | None = None) -> Tracker:
        """A new tracker for detections of `predict`, frame by frame; of a lower threshold, it loses fewer instances.

        It begins tracks of what `predict` returns with this threshold and classes; None are what the model was loaded
        with.

        Examples:
            >>> import maskjet
            >>> model = maskjet.load("demo", device="cpu")
            >>> street, tracker = maskjet.traffic.Street(seed=3, size_hw=(360, 640)), model.tracker()
            >>> images = [street.frame(index).image for index in range(2)]
            >>> found = [tracker.update(model.predict(image), index / 30) for index, image in enumerate(images)]
            >>> len(set(found[0].track_id) & set(found[1].track_id)) > 2
            True
        """
        from maskjet.tracking import Tracker

        return Tracker(threshold=self._choices.choose(threshold, classes).lowest)

    def decoding(self, streams: int = 1) -> Decoding:
        """Where the model's videos and JPEGs are decoded, for sources that are opened by hand: see `decoder` of `load`.

        Args:
            streams: Videos that will be decoded side by side, at least 1.

        Examples:
            >>> import maskjet
            >>> maskjet.load("demo", device="cpu").decoding(streams=8).device
            'cpu'
        """
        return choose_decoding(self.config, streams)

    @property
    def thresholds(self) -> dict[str, float]:
        """The confidence that detections must exceed, by name of each class that is reported by default.

        Examples:
            >>> import maskjet
            >>> maskjet.load("demo", threshold={"car": 0.75}, classes=["car", "bus"]).thresholds
            {'car': 0.75, 'bus': 0.5}
        """
        return self._choices.thresholds()

    def count_tiles(self, size_hw: tuple[int, int], tiling: Tiling, most: int) -> int:
        """Number of tiles of a frame of this size, without the whole frame; raises InputError for more than `most`."""
        input_hw = self._engine.steps.input_hw(size_hw)
        return len(cut_tiles(size_hw, tiling.tile or size_hw, tiling.overlap, input_hw, full=False, most=most))

    def report(self) -> Report:
        """The implementation of each step and why it was chosen, and counts of the work so far."""
        return make_report(self.spec.name, self._engine)

    def close(self) -> None:
        """Refuse new work, wait until the device is idle, and free it; may be called twice.

        Frames that a stream has in flight are still delivered on request; then the stream raises
        UnsupportedError.
        """
        self._engine.close()

    def __repr__(self) -> str:
        spec, steps = self.spec, self._engine.steps
        return f"Model({spec.name}: {spec.kind}, {len(spec.class_names)} classes, {steps.precision} on {steps.device})"

    def __reduce__(self) -> tuple[Callable[[], Model], tuple[()]]:
        if self._load_again is None:
            what = "loaded by a name or a path to be pickled or copied, got one made of a module"
            raise UnsupportedError(f"model must be {what}: send its weights, and load it where it runs.")
        return self._load_again, ()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_model(
    model: str | os.PathLike[str] | torch.nn.Module,
    weights: str | os.PathLike[str] | None,
    config: EngineConfig,
    *,
    threshold: Threshold | None = None,
    class_thresholds: Mapping[str, float] | None = None,
    classes: Sequence[str] | None = None,
    class_names: ClassNames | None = None,
    is_most_own: bool = False,
    has_digest: bool = False,
) -> Model:
    """Load a model whose options are in a config; arguments and errors are otherwise those of `load`.

    `class_thresholds` are those of single classes by name, the others have `threshold`. With `is_most_own` the
    network's own most detections replace the config's, and with `has_digest` the model knows its weights' digest.
    """
    with isolated(inference=False):
        if config.resolve_device().type == "cuda":
            compilers.start_early()  # needed where nothing was compiled for this GPU yet
        network: Any = find_family(model).load(model, weights, config.input_size)
        network.spec = name_classes(network.spec, class_names)
        if is_most_own:
            config = replace(config, max_detections=network.spec.max_detections)
        if class_thresholds:
            common: Any = threshold
            threshold = fill_thresholds(network.spec, common, class_thresholds)
        digest = digest_weights(network) if has_digest else None  # before the weights are moved and cast
        made = Model(network, config, threshold=threshold, classes=classes)
        made.weights_digest = digest
        return made


def load(
    model: str | os.PathLike[str] | torch.nn.Module,
    *,
    weights: str | os.PathLike[str] | None = None,
    class_names: ClassNames | None = None,
    threshold: Threshold | None = None,
    classes: Sequence[str] | None = None,
    max_detections: int | None = None,
    nms: float = 1.0,
    nms_by: Comparison = "mask",
    nms_across_classes: bool = False,
    device: str | int | torch.device = "auto",
    precision: Precision = "auto",
    runtime: RuntimeName = "auto",
    engine: Driver = "auto",
    compile: bool | None = None,  # noqa: A002 - PyTorch's word
    implementation: Implementation | Mapping[Step, Implementation] = "auto",
    resample: Resample = "auto",
    input_size: tuple[int, int] | None = None,
    resize: Resizing = "auto",
    letterbox_color: str = "auto",
    letterbox_place: Placing = "auto",
    decoder: Decoder = "auto",
    batch: int = 8,
    nvtx: bool = False,
) -> Model:
    """Load a model.

    The options from `max_detections` on are fields of `EngineConfig`, which describes them in full.

    Args:
        model: "demo" for the embedded one; a named size such as "rf-detr-seg-nano", with `weights`; the path of a
            checkpoint, whose size is then recognised, or of a folder to which transformers saved an RF-DETR; an
            exported file (.onnx), of `maskjet.export` or of rfdetr; or torchvision's Faster or Mask R-CNN, which is
            copied, or its builder's name with `weights`, as "torchvision:maskrcnn_resnet50_fpn". A plain one is first
            rewritten by `maskjet.rewrites.optimize`, which takes class names, too.
        weights: Path of a named model's checkpoint: rfdetr's .pt or .pth, torchvision's state dict, or safetensors;
            fine-tuned ones bring their classes along.
        class_names: Names of the classes, for weights that bring none: by id, as a list in the order of the ids from 0,
            or as a text file's path with one per line. An empty name is none.
        threshold: A confidence must exceed it, 0..1; or one by class name. None is 0.5, or a torchvision
            detector's own. `predict` and `stream` take others for one call; so with `classes`, `max_detections` and
            `nms`.
        classes: Names of the classes to report; None for all.
        max_detections: Most detections per image, the most confident ones. None is 100, or a torchvision detector's
            own.
        nms: Of detections of a class that overlap more, intersection over union 0..1, the most confident one stays; 1
            keeps all.
        nms_by: Whether to compare masks, if there are any, or boxes.
        nms_across_classes: Whether to compare detections of different classes, too.
        device: "auto", "cpu", "cuda", or "cuda:N", or N for short.
        precision: Type of weights and activations.
        runtime: What runs the network.
        engine: Whether a frame is one CUDA graph.
        compile: Whether to use `torch.compile`.
        implementation: Code of the steps around the network, for all or by step, as in {"preprocess": "reference"}.
        resample: How pixels are weighted where frames are resized.
        input_size: (height, width) that RF-DETR sees frames in; multiples of the patch size × windows.
        resize: Whether frames fill RF-DETR's input or keep their aspect ratio.
        letterbox_color: Colour of a letterbox's margin, "#rrggbb".
        letterbox_place: Where frames lie in a letterbox.
        decoder: Where `stream` decodes the videos and JPEGs that it opens.
        batch: Most images of one batch.
        nvtx: Whether to mark the host's work with NVTX ranges.

    Returns:
        The model, ready to run.

    Raises:
        InputError: An argument is not as above.
        CheckpointError: The weights are missing, truncated, foreign or of another size.
        UnsupportedError: The device or precision is not available here, the torchvision detector is built in an
            unsupported way, or the process was forked from one where PyTorch's threads ran.

    Examples:
        >>> import maskjet
        >>> model = maskjet.load("demo")
        >>> len(model.predict(maskjet.traffic.sample(seed=3).image)) > 0
        True
    """
    given = locals()
    process.check_fork()
    chosen = {each.name: given[each.name] for each in fields(EngineConfig) if each.name != "max_detections"}
    if max_detections is not None:
        chosen["max_detections"] = max_detections
    config = EngineConfig(**chosen)
    names: Any = {"class_names": class_names, "threshold": threshold, "classes": classes}
    made = open_model(model, weights, config, is_most_own=max_detections is None, **names)
    made._load_again = None if isinstance(model, torch.nn.Module) else functools.partial(load, **given)
    return made


def _is_live(source: Any) -> bool:
    """Whether frames of a source may come as time passes: of a camera or a URL."""
    if isinstance(source, Source):
        return source.is_live
    return (kind_of_source(source) or "").endswith("camera")


def _load_all(
    images: Sequence[Any], is_alone: bool, decoding: Decoding, on_fallback: Callable[[str], object]
) -> Generator[torch.Tensor]:
    """Each image as a tensor uint8 [H, W, 3]; files of several, or for the GPU's decoder, are loaded ahead."""
    names = ["image"] if is_alone else list(map("images[{}]".format, range(len(images))))
    is_ahead = [is_encoded(image) and (decoding.device != "cpu" or not is_alone) for image in images]
    if not any(is_ahead):  # loading ahead would double the time of frames in memory
        yield from map(_to_tensor, images, names)
        return
    reads = (partial(read_encoded, images[number], names[number]) for number, is_so in enumerate(is_ahead) if is_so)
    with closing(load_ahead(reads, decoding, on_fallback)) as ahead:
        for image, name, is_so in zip(images, names, is_ahead, strict=True):
            loaded = next(ahead) if is_so else None
            if isinstance(loaded, InputError):
                raise _with_advice(loaded, image)
            yield _to_tensor(image, name) if loaded is None else pipeline.tensor_of(loaded)


def _with_advice(error: InputError, image: Any) -> InputError:
    """The error of an image, which names `stream` if that takes what was given."""
    kind = kind_of_source(image)
    if kind is None:
        return error
    given = shown_name(image) if isinstance(image, str) else image
    return type(error)(f"{error} To detect in {kind}, use model.stream({given!r}).")


def _to_tensor(image: ImageLike, name: str) -> torch.Tensor:
    """Convert an image to uint8 [H, W, 3], sharing its memory if possible."""
    try:
        return pipeline.tensor_of(to_pixels(image, name))
    except InputError as error:
        raise _with_advice(error, image) from error.__cause__
