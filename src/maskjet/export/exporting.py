"""Export a network: trace, translate, write to a temporary file, compare, rename."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime
import torch
from torch import Tensor

from maskjet.engine.isolation import isolated
from maskjet.errors import UnsupportedError, translate_errors
from maskjet.export.exported import ExportedFile
from maskjet.export.translation import OPSET, translate
from maskjet.host.files import replacing
from maskjet.networks.exported.comparing import BATCHES, TOKEN_LOGITS, TOKENS, Run, compare
from maskjet.networks.exported.metadata import IMAGES, OUTPUTS, Metadata, Precision
from maskjet.networks.rfdetr import RFDETR
from maskjet.version import __version__

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
_RUNTIME = f"ONNX Runtime {onnxruntime.__version__}"


@isolated(inference=False)
def export_network(network: RFDETR, out: Path, precision: Precision, batch: int | None) -> ExportedFile:
    """Export a network in eval mode, float32, on the CPU, without changing it; raises as `export`."""
    dtype = _DTYPES[precision]
    cast = network if dtype == torch.float32 else copy.deepcopy(network).cast(dtype)
    with replacing(out) as temporary:
        model = build_model(cast, dtype, batch)
        model.metadata_props.update(Metadata(network.spec, precision).as_properties())
        data = ir.to_proto(model).SerializeToString()
        temporary.write(data)
        batches = BATCHES if batch is None else (batch,)
        differences = compare(_open(temporary.path), _RUNTIME, network, cast, dtype, batches)
    ops = Counter(node.op_type for node in model.graph)
    return ExportedFile(str(out), len(data), OPSET, dict(ops.most_common()), _RUNTIME, batches, differences)


def build_model(network: RFDETR, dtype: torch.dtype, batch: int | None = None) -> ir.Model:
    """Translate a network, cast to its precision, to an ONNX model of a batch size, None for any; see `translate`."""
    spec = network.spec
    examples = {IMAGES: torch.zeros(batch or 2, 3, *spec.input_hw, dtype=dtype, device="cpu")}
    with network.register_forward_hook(lambda _, __, output: [each for each in output if each is not None]):
        model = translate(network, examples, OUTPUTS[: 2 + spec.has_masks], is_fixed=batch is not None)
    model.graph.name = spec.name
    model.producer_name, model.producer_version = "maskjet", __version__
    return model


def _open(path: Path) -> Run:
    problem = f"out must run in {_RUNTIME}, it does not"
    with translate_errors(UnsupportedError, problem):
        model = onnx.load(path)
        (top,) = [node for node in model.graph.node if node.op_type == "TopK"]
        compared = {top.input[0]: TOKEN_LOGITS, top.output[1]: TOKENS}
        for name in compared:
            model.graph.output.append(onnx.ValueInfoProto(name=name))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        providers = ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    names = [each.name for each in session.get_outputs()]

    def run(images: Tensor) -> dict[str, Tensor]:
        with translate_errors(UnsupportedError, problem):
            outputs = session.run(names, {IMAGES: images.numpy()})
        return {compared.get(name, name): torch.from_numpy(each) for name, each in zip(names, outputs, strict=True)}

    return run
