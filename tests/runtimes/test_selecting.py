"""select in a file, on every case of the op's checks."""

from itertools import product

import onnx_ir as ir
import onnxruntime
import pytest
import torch

from maskjet import ops
from maskjet.calls import Postprocessing
from maskjet.runtimes.selecting import FIELDS, Select
from maskjet.runtimes.translation import translate
from tests.ops.cases import CHECKS

SELECT = CHECKS["select"]
CPU = torch.device("cpu")


def select_in_a_file(logits, boxes, image_sizes, *, threshold=0.5, class_map=None, max_detections=100, num_select=None):
    """`ops.select`, by a file that does nothing else; and how many rows the file has."""
    _, queries, classes = logits.shape
    thresholds = torch.full((classes,), threshold) if isinstance(threshold, float) else torch.tensor(threshold)
    mapping = torch.tensor(range(classes) if class_map is None else class_map, dtype=torch.int32)
    pairs = min(num_select or queries * classes, queries * classes)
    select = Select(Postprocessing(thresholds, mapping, max_detections), pairs)
    examples = {
        "logits": torch.zeros(2, queries, classes),
        "boxes": torch.zeros(2, queries, 4),
        "sizes": torch.zeros(2, 2, dtype=torch.int32),
    }
    model = translate(select, examples, FIELDS)
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    given = {"logits": logits.float(), "boxes": boxes, "sizes": torch.tensor(image_sizes, dtype=torch.int32)}
    found = session.run(list(FIELDS), {name: tensor.numpy() for name, tensor in given.items()})
    selection = ops.Selection.empty(len(logits), max_detections, CPU)
    selection.count.copy_(torch.from_numpy(found[0]))
    for name, values in zip(FIELDS[1:], found[1:], strict=True):
        getattr(selection, name)[:, : values.shape[1]] = torch.from_numpy(values)
    return selection, found[1].shape[1]


CASES = SELECT.cases.keys() - {"rounded", "letterboxes"}  # files neither round pixels nor undo letterboxes
QUICK = {"ties", "nan", "threshold per class", "batch"}


@pytest.mark.parametrize(
    "case", [*sorted(QUICK), *(pytest.param(case, marks=pytest.mark.slow) for case in sorted(CASES - QUICK))]
)
def test_a_file_selects_as_the_reference_does(case):
    inputs = SELECT.cases[case](CPU)
    expected = ops.select(**inputs, implementation="reference")
    assert SELECT.tolerance_used(inputs, expected, select_in_a_file(**inputs)[0]) <= 1


def test_odd_boxes_are_those_of_the_reference():
    inputs = SELECT.cases["all pass"](CPU)
    for query, (value, coordinate) in enumerate(product([torch.nan, torch.inf, -torch.inf, -0.5, 1e30], range(4))):
        inputs["boxes"][:, query, coordinate] = value
    expected = ops.select(**inputs, implementation="reference")
    assert int(expected.count[0]) == 20 * 7
    assert SELECT.tolerance_used(inputs, expected, select_in_a_file(**inputs)[0]) <= 1


def test_rows_are_no_more_than_the_pairs():
    inputs = SELECT.cases["limited"](CPU)
    assert select_in_a_file(**inputs)[1] == 10
    assert select_in_a_file(**(inputs | {"max_detections": 3}))[1] == 3
