"""Training scenes: drawn by all cores, kept on the GPU, varied there."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import cv2
import numpy as np
import torch
import torch.nn.functional as F

from maskjet.traffic import Street

MOST = 64  # instances of a scene that are kept, the largest
FRAMES_PER_STREET = 4
SOURCES = {  # (height, width) of the frames that the network shall know, and their shares
    (176, 312): 0.3,
    (216, 384): 0.25,
    (360, 640): 0.2,
    (480, 640): 0.05,
    (720, 1280): 0.15,
    (1080, 1920): 0.05,
}


@dataclass
class Scenes:
    """N scenes on one device, at the network's size."""

    images: torch.Tensor  # uint8 [N, S, S, 3]
    maps: torch.Tensor  # uint8 [N, S, S]: 0 ground, k the k-th instance
    classes: torch.Tensor  # int64 [N, MOST], -1 beyond the scene's instances
    boxes: torch.Tensor  # float32 [N, MOST, 4] xyxy, 0..1


def _draw(seed, side, empty):
    cv2.setNumThreads(1)
    random = np.random.default_rng([seed, 17])
    size_hw = list(SOURCES)[random.choice(len(SOURCES), p=list(SOURCES.values()))]
    density = 0.0 if random.random() < empty else float(random.uniform(0.3, 1.6))
    street = Street(seed, size_hw, density=density)
    return [_pack(street.frame(int(index)), side) for index in random.integers(0, 100_000, FRAMES_PER_STREET)]


def _pack(frame, side):
    """Image and map as the network will sample them, classes and boxes of the MOST largest instances."""
    height, width = frame.instance_map.shape
    areas = np.bincount(frame.instance_map.ravel(), minlength=len(frame.class_id) + 1)[1:]
    kept = np.argsort(-areas, kind="stable")[:MOST]
    renumber = np.zeros(256, np.uint8)
    renumber[kept + 1] = np.arange(1, len(kept) + 1)
    classes = np.full(MOST, -1, np.int8)
    classes[: len(kept)] = frame.class_id[kept]
    boxes = np.zeros((MOST, 4), np.float32)
    boxes[: len(kept)] = frame.xyxy()[kept] / (width, height, width, height)
    image = cv2.resize(frame.image, (side, side), interpolation=cv2.INTER_LINEAR)
    instances = cv2.resize(renumber[frame.instance_map], (side, side), interpolation=cv2.INTER_NEAREST_EXACT)
    return image, instances, classes, boxes


def draw_scenes(streets, *, first_seed, side, empty, device, workers):
    """Draw FRAMES_PER_STREET scenes of each street, in processes; `empty` is the share of streets without anything."""
    seeds = range(first_seed, first_seed + streets)
    # Not forked: a child of a process that has torch's threads may wait for them for ever.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        packed = [one for many in pool.map(partial(_draw, side=side, empty=empty), seeds, chunksize=8) for one in many]
    images, maps, classes, boxes = (torch.from_numpy(np.stack(part)) for part in zip(*packed, strict=True))
    return Scenes(images.to(device), maps.to(device), classes.long().to(device), boxes.to(device))


@dataclass
class Batch:
    """What one training step sees."""

    inputs: torch.Tensor  # [B, 3, S, S], normalised
    maps: torch.Tensor  # [B, S, S]: 0 ground, else an instance's number
    number: torch.Tensor  # [n]: in the map of its image
    masks: torch.Tensor  # [n, m, m]: share of each mask cell that is inside; for the matching
    classes: torch.Tensor  # [n]
    boxes: torch.Tensor  # [n, 4] cxcywh, 0..1
    image: torch.Tensor  # [n]: which image of the batch


def make_batch(scenes, picks, spec, generator, *, nothing):
    """Crop, mirror, recolour, blur and normalise scenes; targets follow, and are dropped where little is left.

    A share of `nothing` becomes noise without targets.
    """
    device, count = scenes.images.device, len(picks)
    random = partial(torch.rand, generator=generator, device=device)
    # One affine map per image, from output to scene, both in -1..1: half see all of the scene, half a part of it.
    is_whole = random(count, 1) < 0.5
    zoom = torch.where(is_whole, 1.0, (0.6 + 0.4 * random(count, 1)) * (0.85 + 0.15 * random(count, 2)))
    shift = (2 * random(count, 2) - 1) * (1 - zoom)
    scale = zoom.clone()
    scale[:, 0] *= torch.where(random(count) < 0.5, -1.0, 1.0)  # mirrored
    theta = torch.cat([torch.diag_embed(scale), shift[:, :, None]], dim=2)
    size = spec.input_size
    grid = F.affine_grid(theta, (count, 3, size, size), align_corners=False)
    images = scenes.images[picks].permute(0, 3, 1, 2).float() / 255
    images = F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    maps = F.grid_sample(scenes.maps[picks][:, None].float(), grid, mode="nearest", align_corners=False)
    classes = scenes.classes[picks]
    is_noise = random(count) < nothing
    images = torch.where(is_noise.view(-1, 1, 1, 1), _noise(images.shape, random), images)
    classes = torch.where(is_noise[:, None], -1, classes)
    images = _recolour(images, random)
    corners = (2 * scenes.boxes[picks].unflatten(2, (2, 2)) - 1 - shift[:, None, None]) / scale[:, None, None]
    boxes = torch.cat([corners.amin(2), corners.amax(2)], dim=2) / 2 + 0.5
    mean, std = (torch.tensor(values, device=device).view(1, 3, 1, 1) for values in (spec.mean, spec.std))
    return _targets(maps[:, 0].round().long(), classes, boxes, (images - mean) / std, spec)


def _noise(shape, random):
    """Images of nothing: single colours, patches as large as a car or as a person, and noise on them or alone."""
    count, _, *size = shape
    patches = torch.stack(
        [F.interpolate(random(count, 3, n, n), size=size, mode="bilinear") for n in (1, 3, 6, 12, 24)]
    )
    coarse = patches[(random(count) * len(patches)).long(), torch.arange(count, device=patches.device)]
    share = (2 * random(count, 1, 1, 1) - 1).clamp(min=0)
    return torch.lerp(coarse, random(*shape), share)


def _recolour(images, random):
    """Brightness, contrast, saturation, hue by channel gains, noise and blur."""
    count = len(images)
    gain = (0.5 + random(count, 1, 1, 1)) * (0.9 + 0.2 * random(count, 3, 1, 1))
    images = images * gain
    grey = images.mean(dim=(1, 2, 3), keepdim=True)
    images = grey + (images - grey) * (0.7 + 0.6 * random(count, 1, 1, 1))
    luma = images.mean(dim=1, keepdim=True)
    images = luma + (images - luma) * (0.5 + random(count, 1, 1, 1))
    blurred = F.avg_pool2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), 3, 1)
    images = torch.lerp(images, blurred, (random(count, 1, 1, 1) - 0.6).clamp(min=0) * 2.5)
    noise = (random(*images.shape) - 0.5) * (0.25 * (random(count, 1, 1, 1) - 0.4).clamp(min=0))
    return (images + noise).clamp(0, 1)


def _targets(maps, classes, boxes, inputs, spec, *, least_pixels=9):
    """Masks, boxes and classes of what is left of each instance in the maps [B, S, S] of the network's inputs.

    An instance that the view cuts has the box of what is left; any other keeps the exact one.
    """
    device, side, stride = maps.device, spec.input_size, spec.mask_stride
    present = F.one_hot(maps.flatten(1), MOST + 1).sum(1)[:, 1:]
    image, number = torch.nonzero((present >= least_pixels) & (classes >= 0), as_tuple=True)
    inside = maps[image] == (number + 1)[:, None, None]
    position = torch.arange(side, device=device)
    low, high = [], []
    for profile in (inside.any(1), inside.any(2)):
        low.append(torch.where(profile, position, side).amin(1))
        high.append(torch.where(profile, position, -1).amax(1) + 1)
    seen = torch.stack([*low, *high], dim=1) / side
    exact = boxes[image, number]
    is_inside = ((exact > -1e-4) & (exact < 1 + 1e-4)).all(1, keepdim=True)
    xyxy = torch.where(is_inside, exact, seen)
    cxcywh = torch.cat([(xyxy[:, :2] + xyxy[:, 2:]) / 2, xyxy[:, 2:] - xyxy[:, :2]], dim=1)
    masks = F.avg_pool2d(inside[:, None].float(), stride)[:, 0]
    return Batch(inputs, maps, number + 1, masks, classes[image, number], cxcywh, image)
