"""Training the demo model: targets, matching and losses say what they should, and a run resumes."""

import argparse
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from maskjet.networks.rfdetr import RFDETR
from maskjet.traffic import CLASSES
from tests.networks.test_network import TINY, assert_close
from tools.train_demo import losses, train
from tools.train_demo import scenes as drawing
from tools.train_demo.scenes import make_batch

SPEC = TINY.__class__(**{**vars(TINY), "class_logits": len(CLASSES), "class_names": dict(enumerate(CLASSES))})


@pytest.fixture(scope="module")
def scenes():
    with pytest.MonkeyPatch.context() as patch:  # a process would import PyTorch for two streets
        patch.setattr(drawing, "ProcessPoolExecutor", lambda workers, _: ThreadPoolExecutor(workers))
        return drawing.draw_scenes(2, first_seed=3, side=SPEC.input_size, empty=0.0, device="cpu", workers=1)


def a_batch(scenes, *, nothing=0.0, count=8):
    generator = torch.Generator().manual_seed(1)
    return make_batch(scenes, torch.arange(count) % len(scenes.images), SPEC, generator, nothing=nothing)


def perfect_outputs(batch):
    """What a network that has learnt everything would say: query k of an image is its k-th instance."""
    images, side = len(batch.inputs), batch.masks.shape[-1]
    most = int(torch.bincount(batch.image).max())
    logits = torch.full((images, most, SPEC.class_logits), -9.0)
    boxes, masks = torch.full((images, most, 4), 0.01), torch.full((images, most, side, side), -9.0)
    for image in range(images):
        mine = torch.nonzero(batch.image == image)[:, 0]
        logits[image, torch.arange(len(mine)), batch.classes[mine]] = 9.0
        boxes[image, : len(mine)] = batch.boxes[mine]
        masks[image, : len(mine)] = 18 * batch.masks[mine] - 9
    return logits, boxes, masks


def test_targets_follow_the_view(scenes):
    batch = a_batch(scenes)
    assert len(batch.classes) > 10
    side = SPEC.input_size
    for image, number, box, mask in zip(batch.image, batch.number, batch.boxes, batch.masks, strict=True):
        inside = batch.maps[image] == number
        rows, columns = torch.nonzero(inside.any(1)), torch.nonzero(inside.any(0))
        tight = torch.stack([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]) / side
        corners = torch.cat([box[:2] - box[2:] / 2, box[:2] + box[2:] / 2])
        torch.testing.assert_close(corners, tight, atol=2.5 / side, rtol=0)
        assert mask.sum() * SPEC.mask_stride**2 == inside.sum()
    nothing = a_batch(scenes, nothing=1.0)
    assert len(nothing.classes) == 0
    assert torch.isfinite(losses.loss([perfect_outputs(batch)] * 2, nothing, 1))


def test_perfect_outputs_are_matched_in_any_order(scenes):
    batch = a_batch(scenes)
    outputs = perfect_outputs(batch)
    order = torch.randperm(outputs[0].shape[1], generator=torch.Generator().manual_seed(2))
    for logits, boxes, masks in (outputs, [part[:, order] for part in outputs]):
        query, target, image = losses._match(logits, boxes, masks, batch, 1)
        assert torch.equal(target.sort().values, torch.arange(len(batch.classes)))
        assert torch.equal(batch.image[target], image)
        torch.testing.assert_close(boxes[image, query], batch.boxes[target])


def test_perfect_outputs_cost_little_and_each_mistake_more(scenes):
    batch = a_batch(scenes)
    logits, boxes, masks = perfect_outputs(batch)
    torch.manual_seed(0)
    best = losses.loss([(logits, boxes, masks)] * 2, batch, 1)
    random = losses.loss([(torch.randn_like(logits), torch.rand_like(boxes), torch.randn_like(masks))] * 2, batch, 1)
    assert best < 0.3 * random
    for worse in ((logits.flip(2), boxes, masks), (logits, boxes + 0.1, masks), (logits, boxes, -masks)):
        assert losses.loss([worse] * 2, batch, 1) > best + 0.5


def test_every_parameter_that_inference_uses_learns(scenes):
    network = RFDETR(SPEC)
    train.initialise(network)
    groups = losses.Groups(network, 2)
    batch = a_batch(scenes, count=4)
    losses.loss(losses.training_outputs(network, batch.inputs, groups), batch, 2).backward()
    still = [name for name, p in [*network.named_parameters(), *groups.named_parameters()] if p.grad is None]
    assert still == []


def test_training_sees_what_inference_says(scenes):
    network = RFDETR(SPEC).eval()
    train.initialise(network)
    inputs = a_batch(scenes, count=3).inputs
    with torch.no_grad():
        logits, boxes, masks = losses.training_outputs(network, inputs, losses.Groups(network, 1))[-1]
        expected = network(inputs)
    assert_close(logits, expected.logits)
    assert_close(boxes, expected.boxes_cxcywh)
    assert_close(masks, expected.mask_logits)


def test_a_run_resumes_where_it_stopped_and_its_weights_load(tmp_path, scenes, monkeypatch):
    monkeypatch.setattr(train, "SPEC", SPEC)
    args = argparse.Namespace(groups=2, rate=1e-3, warm_up=2, steps=4, batch=4, nothing=0.1, start=None)
    run = train.Run(args, torch.device("cpu"))
    before = run.network.class_embed.weight.detach().clone()
    for _ in range(2):
        assert torch.isfinite(run.step_once(scenes))
    run.save(tmp_path)
    saved = run.average["class_embed.weight"].half().float()
    resumed = train.Run(args, torch.device("cpu"))
    resumed.load(tmp_path)
    assert resumed.step == 2
    assert not torch.equal(before, resumed.network.class_embed.weight)
    for expected, actual in zip(run.parameters, resumed.parameters, strict=True):
        assert torch.equal(expected, actual)
    torch.manual_seed(5)
    expected = run.step_once(scenes)
    torch.manual_seed(5)
    torch.testing.assert_close(resumed.step_once(scenes), expected)

    started = train.Run(argparse.Namespace(**{**vars(args), "start": tmp_path / "weights.safetensors"}), run.device)
    assert torch.equal(started.network.class_embed.weight, saved)
