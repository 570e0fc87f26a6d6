"""Exporting a network: traced, translated, written beside the final name, compared, renamed."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path

import onnx_ir as ir
import torch
from torch import Tensor, nn

from maskjet.calls import Choices
from maskjet.engine.isolation import isolated
from maskjet.errors import UnsupportedError
from maskjet.files import replacing
from maskjet.networks.exported.metadata import Metadata, Precision, Selecting
from maskjet.networks.rfdetr import RFDETR
from maskjet.runtimes.comparing import BATCHES, IMAGES, OUTPUTS, compare, runtime_name
from maskjet.runtimes.exported import ExportedFile, Postprocess
from maskjet.runtimes.selecting import FIELDS, MASKS, SIZES, Select
from maskjet.runtimes.translation import OPSET, translate
from maskjet.spec import ModelSpec
from maskjet.version import __version__

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


@isolated(inference=False)
def export_network(network: RFDETR, out: Path, precision: Precision, postprocess: Postprocess | None) -> ExportedFile:
    """Export a network, in eval mode, float32, on the CPU, to a file; it is left as it is.

    Raises:
        InputError: `postprocess` does not go with the network.
        OutputError: The file can't be written.
        UnsupportedError: The network can't be exported, or the file is not equal to it.
    """
    select = None if postprocess is None else _make_select(network.spec, postprocess)
    dtype = _DTYPES[precision]
    cast = network if dtype == torch.float32 else copy.deepcopy(network).cast(dtype)
    with replacing(out) as temporary:
        model = build_model(cast, dtype, select)
        model.metadata_props.update(Metadata(network.spec, precision, _describe(select)).as_properties())
        data = ir.to_proto(model).SerializeToString()
        temporary.write(data)
        differences = compare(temporary.path, network, cast, dtype, select)
    ops = Counter(node.op_type for node in model.graph)
    return ExportedFile(str(out), len(data), OPSET, dict(ops.most_common()), runtime_name(), BATCHES, differences)


def build_model(network: RFDETR, dtype: torch.dtype, select: Select | None) -> ir.Model:
    """Translate a network, cast to its precision, and select behind it if it is given, to an ONNX model.

    Raises:
        UnsupportedError: They have an operator that can't be exported.
    """
    spec = network.spec
    found, chosen = OUTPUTS[: 2 + spec.has_masks], (*FIELDS, MASKS)[: len(FIELDS) + spec.has_masks]
    examples = {
        IMAGES: torch.zeros(2, 3, *spec.input_hw, dtype=dtype, device="cpu"),
        SIZES: torch.zeros(2, 2, dtype=torch.int32, device="cpu"),
    }
    if select is None:
        del examples[SIZES]
        chosen = ()
    model = translate(_Chain(network, select), examples, (*found, *chosen))
    for _ in found if chosen else ():
        model.graph.outputs.pop(0)
    model.graph.name = spec.name
    model.producer_name, model.producer_version = "maskjet", __version__
    return model


class _Chain(nn.Module):
    """A network and, behind it, what chooses detections; gives the outputs of both."""

    def __init__(self, network: RFDETR, select: Select | None) -> None:
        super().__init__()
        self.network, self.select = network, select

    def forward(self, images: Tensor, sizes: Tensor | None = None) -> list[Tensor]:
        found = [each for each in self.network(images) if each is not None]
        return found if self.select is None else [*found, *self.select(*found[:2], sizes, *found[2:])]


def _make_select(spec: ModelSpec, postprocess: Postprocess) -> Select:
    if spec.resize != "stretch":
        raise UnsupportedError("postprocess must be None for a network with letterboxes, which it does not undo.")
    choices = Choices(spec, postprocess.threshold, postprocess.classes, postprocess.max_detections)
    chosen = choices.choose(postprocess.class_thresholds or None, None, None)
    return Select(chosen, min(spec.selected_pairs, spec.queries * spec.class_logits))


def _describe(select: Select | None) -> Selecting | None:
    if select is None:
        return None
    classes = zip(select.thresholds.numpy(), select.class_map.tolist(), strict=True)
    # Without the digits that only the conversion to float64 adds.
    thresholds = tuple(None if class_id < 0 else float(str(value)) for value, class_id in classes)
    return Selecting(thresholds, select.rows)
