"""Exporting a network: traced, translated, written beside the final name, compared, renamed."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path

import onnx_ir as ir
import torch
from torch import nn

from maskjet.calls import Choices
from maskjet.errors import UnsupportedError
from maskjet.files import replacing
from maskjet.networks.exported.metadata import Metadata, Precision, Selecting
from maskjet.networks.rfdetr import RFDETR
from maskjet.runtimes.comparing import BATCHES, IMAGES, OUTPUTS, compare, runtime_name
from maskjet.runtimes.exported import ExportedFile, Postprocess
from maskjet.runtimes.operators import TRANSLATORS
from maskjet.runtimes.selecting import FIELDS, MASKS, SIZES, Select
from maskjet.runtimes.translation import OPSET, Translation
from maskjet.spec import ModelSpec
from maskjet.version import __version__

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


def export_network(network: RFDETR, out: Path, precision: Precision, postprocess: Postprocess | None) -> ExportedFile:
    """Export a network to a file.

    Args:
        network: The network in eval mode, float32, on the CPU; left as it is.
        out: The file.
        precision: Its precision.
        postprocess: Which detections it chooses; None for the network's outputs.

    Raises:
        InputError: `postprocess` does not go with the network.
        OutputError: The file can't be written.
        UnsupportedError: The network can't be exported, or the file is not equal to it.
    """
    select = None if postprocess is None else _make_select(network.spec, postprocess)
    dtype = _DTYPES[precision]
    cast = network if dtype == torch.float32 else copy.deepcopy(network).cast(dtype)
    with replacing(out) as part:
        model = build_model(cast, dtype, select)
        model.metadata_props.update(Metadata(network.spec, precision, _describe(select)).as_properties())
        data = ir.to_proto(model).SerializeToString()
        part.write(data)
        differences = compare(part.path, network, cast, dtype, select)
    ops = Counter(node.op_type for node in model.graph)
    return ExportedFile(str(out), len(data), OPSET, dict(ops.most_common()), runtime_name(), BATCHES, differences)


def build_model(network: RFDETR, dtype: torch.dtype, select: Select | None) -> ir.Model:
    """Translate a network, and select behind it if it is given, to an ONNX model.

    Args:
        network: The network, cast to its precision.
        dtype: That precision.
        select: Chooses detections.

    Raises:
        UnsupportedError: They have an operator that can't be exported.
    """
    spec = network.spec
    shape = (3, *spec.input_hw)
    translation = Translation(spec.name, TRANSLATORS)
    images = translation.add_input(IMAGES, dtype, shape)
    outputs = translation.translate(trace(network, _example(dtype, *shape)), [images], root="network")
    named = dict(zip(OUTPUTS, outputs, strict=False))  # two without masks
    if select is not None:
        for name, value in named.items():
            value.name = name
        sizes = translation.add_input(SIZES, torch.int32, (2,))
        masks = [_example(dtype, spec.queries, *spec.mask_hw)] * spec.has_masks
        examples = (
            _example(torch.float32, spec.queries, spec.class_logits),
            _example(torch.float32, spec.queries, 4),
            _example(torch.int32, 2),
            *masks,
        )
        program = trace(select, *examples)
        outputs = translation.translate(program, [*outputs[:2], sizes, *outputs[2:]], root="select")
        named = dict(zip((*FIELDS, MASKS), outputs, strict=False))
    model = translation.finish(named)
    model.producer_name, model.producer_version = "maskjet", __version__
    return model


def _example(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """An input to trace with; 0 and 1 images would be taken for constants."""
    return torch.zeros(2, *shape, dtype=dtype)


def trace(module: nn.Module, *examples: torch.Tensor) -> torch.export.ExportedProgram:
    """Record the operators that a module calls; the batch is free."""
    free = tuple({0: torch.export.Dim("batch")} for _ in examples)
    return torch.export.export(module, examples, dynamic_shapes=free, strict=False)


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
