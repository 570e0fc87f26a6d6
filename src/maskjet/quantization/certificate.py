"""Compare a quantised network with the float32 one on images, in the runtime that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from maskjet.errors import InputError
from maskjet.evaluation import scoring
from maskjet.host.machine import cpu_features
from maskjet.host.measuring import MeasuredReport
from maskjet.host.tables import shown
from maskjet.model import Model
from maskjet.outputs.lines import digest
from maskjet.parity import check, coco
from maskjet.parity.gate import Verdict
from maskjet.parity.page import write_page
from maskjet.parity.record import ImageRecord, Record, describe_model
from maskjet.quantization.images import Images
from maskjet.sources.images import to_image

BUDGET_AP, BUDGET_UNMATCHED = 0.01, 0.02
"""Default budgets: with annotations the loss of AP, without them the share of detections without a counterpart."""
_FEWEST = 40  # detections of the network that show what is lost


@dataclass(frozen=True)
class Loss:
    """AP of a kind, before and after."""

    kind: str
    """Boxes, "bbox", or masks, "segm"."""
    before: float
    """AP of the float32 network, 0..1."""
    after: float
    """AP of the quantised file, 0..1."""
    bound: float
    """Upper bound of the loss: of the 95 % interval of a paired bootstrap over the images."""


@dataclass(frozen=True, kw_only=True)
class Certificate(MeasuredReport):
    """Comparison of a quantised file with its network; `measurements` has one `check.Agreement`."""

    path: str
    """Path of the file."""
    precision: str
    """Its precision, `metadata.FilePrecision`."""
    weights: str
    """Digest of the network's weights."""
    cpu_features: Sequence[str]
    """Features of the CPU that measured, in LLVM's names."""
    kept: Sequence[str]
    """Layers that are float32 besides the decoder and the heads for classes and boxes."""
    images: Mapping[str, int]
    """Number of images for calibration and for certification."""
    losses: Sequence[Loss]
    """AP by kind; empty without annotations."""
    verdicts: Sequence[Verdict]
    """Budget and measured values."""

    @property
    def is_kept(self) -> bool:
        """Whether the file keeps its budget."""
        return all(verdict.is_kept for verdict in self.verdicts)

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row."""
        (m,) = self.measurements
        header = ("matched", "missing", "extra", "Δconf mean", "max", "mask IoU mean", "min")
        overlaps = [shown(value, 4) for value in (m.mean_mask_iou, m.min_mask_iou)]
        spread = [shown(value, 4) for value in (m.confidence_difference.mean, m.confidence_difference.max)]
        return [header, (*map(str, (m.matched, m.dropped, m.added)), *spread, *overlaps)]

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        return {**asdict(self), "verdicts": [verdict.as_dict() for verdict in self.verdicts]}

    def __str__(self) -> str:
        lines = [f"{each.kind} AP {each.before:.4f} → {each.after:.4f}" for each in self.losses]
        kept = f" and {len(self.kept)} layers" if self.kept else ""
        title = f"{self.path}: {self.precision}, decoder{kept} in float32"
        return "\n".join([title, super().__str__(), *lines, *map(str, self.verdicts)])


class Certifier:
    """Compares quantised files with the float32 network, `model`, which runs once on all images that certify.

    `weights` is the digest of its weights; `budget` and `on_progress` are as for `quantize`. Raises InputError if the
    images show nothing, or the annotations have none of the model's classes.
    """

    def __init__(
        self, model: Model, weights: str, images: Images, budget: float | None, on_progress: Callable[[], object]
    ) -> None:
        self._images, self._on_progress = images, on_progress
        self._task = None if images.annotated is None else scoring.prepare(images.annotated, model, {})
        self._budget = budget if budget is not None else BUDGET_UNMATCHED if self._task is None else BUDGET_AP
        self._weights = weights
        self._threshold = model.spec.threshold
        self._expected = self._run(model, "float32")
        self._shown: tuple[check.CheckReport, Record, Record]
        found = sum(len(image.found) for image in self._reported(self._expected).images)
        if found < _FEWEST:
            raise InputError(
                f"images must show what the model finds, at least {_FEWEST} detections above {self._threshold:g} on "
                f"those that certify, got {found} on {len(images.certification)}: give more, or others."
            )

    def certify(self, quantised: Model, kept: Sequence[str], out: Path) -> Certificate:
        """Compare an opened file, which is to be written to `out`, with the network."""
        precision = quantised.report().precision
        actual = self._run(quantised, precision)
        records = self._reported(self._expected), self._reported(actual)
        comparison = check.check(*records)
        self._shown = comparison, *records
        losses = [] if self._task is None else self._score(actual)
        verdicts = [Verdict(f"loss of {each.kind} mAP", each.bound, self._budget) for each in losses]
        if not losses:
            share = 1 - comparison.measurements[0].share
            verdicts = [Verdict("share of detections without a counterpart", share, self._budget)]
        task_notes = [] if self._task is None else self._task.notes
        return Certificate(
            machine=comparison.machine,
            measurements=comparison.measurements,
            notes=[*task_notes, *([self._images.note] if self._images.note else [])],
            path=str(out),
            precision=precision,
            weights=self._weights,
            cpu_features=sorted(cpu_features()),
            kept=kept,
            images={"calibration": len(self._images.calibration), "certification": len(self._images.certification)},
            losses=losses,
            verdicts=verdicts,
        )

    def write_page(self, certificate: Certificate, path: Path) -> None:
        """Write the page of the last comparison; raises OutputError."""
        comparison, *records = self._shown
        worst = (to_image(self._images.certification[each.number], "images") for each in comparison.worst)
        write_page(path, comparison, certificate.verdicts, (records[0], records[1]), worst)

    def _run(self, model: Model, name: str) -> Record:
        """Run a model on the images that certify, down to the confidence that AP needs."""
        found = []
        for number, path in enumerate(self._images.certification):
            image = to_image(path, "images")
            detections = model.predict(image, threshold=scoring.LOWEST)
            found.append(ImageRecord(number, str(path), digest(image), detections))
            self._on_progress()
        about = describe_model(model, threshold=dict.fromkeys(model.thresholds, self._threshold), name=name)
        versions = {package: version(package) for package in ("openvino", "nncf")}
        return Record(about | {"versions": versions}, found)

    def _reported(self, record: Record) -> Record:
        """A record of the detections above the network's threshold."""
        images = [
            ImageRecord(each.index, each.name, each.digest, each.found[each.found.confidence > self._threshold])
            for each in record.images
        ]
        return Record(record.about, images)

    def _score(self, actual: Record) -> list[Loss]:
        assert self._task is not None
        folder = self._task.images.images
        names = {path.relative_to(folder).as_posix() for path in self._images.certification}
        images = [image for image in self._task.truth["images"] if image["file_name"] in names]
        ids = {image["id"] for image in images}
        annotations = [entry for entry in self._task.truth["annotations"] if entry["image_id"] in ids]
        truth = {**self._task.truth, "images": images, "annotations": annotations}
        losses = []
        for kind in self._task.kinds:
            before, after = (
                coco.Scores.of(truth, record.to_annotations(truth), kind) for record in (self._expected, actual)
            )
            ap, ap_after = (scores.metrics()["ap"] or 0.0 for scores in (before, after))
            losses.append(Loss(kind, ap, ap_after, coco.bound_loss(before, after)))
        return losses
