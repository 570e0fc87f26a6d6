"""Export a network: trace, translate, write to a temporary file, compare, rename."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path

import onnx_ir as ir
import torch

from maskjet.engine.isolation import isolated
from maskjet.export.comparing import BATCHES, IMAGES, OUTPUTS, RUNTIME, compare
from maskjet.export.exported import ExportedFile
from maskjet.export.translation import OPSET, translate
from maskjet.host.files import replacing
from maskjet.networks.exported.metadata import Metadata, Precision
from maskjet.networks.rfdetr import RFDETR
from maskjet.version import __version__

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


@isolated(inference=False)
def export_network(network: RFDETR, out: Path, precision: Precision) -> ExportedFile:
    """Export a network in eval mode, float32, on the CPU, without changing it; raises as `export`."""
    dtype = _DTYPES[precision]
    cast = network if dtype == torch.float32 else copy.deepcopy(network).cast(dtype)
    with replacing(out) as temporary:
        model = build_model(cast, dtype)
        model.metadata_props.update(Metadata(network.spec, precision).as_properties())
        data = ir.to_proto(model).SerializeToString()
        temporary.write(data)
        differences = compare(temporary.path, network, cast, dtype)
    ops = Counter(node.op_type for node in model.graph)
    return ExportedFile(str(out), len(data), OPSET, dict(ops.most_common()), RUNTIME, BATCHES, differences)


def build_model(network: RFDETR, dtype: torch.dtype) -> ir.Model:
    """Translate a network, cast to its precision, to an ONNX model; raises as `translate`."""
    spec = network.spec
    examples = {IMAGES: torch.zeros(2, 3, *spec.input_hw, dtype=dtype, device="cpu")}
    with network.register_forward_hook(lambda _, __, output: [each for each in output if each is not None]):
        model = translate(network, examples, OUTPUTS[: 2 + spec.has_masks])
    model.graph.name = spec.name
    model.producer_name, model.producer_version = "maskjet", __version__
    return model
