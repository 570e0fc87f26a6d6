"""Shift a trained model's scores so that at the default threshold it sees nothing in 999 of 1,000 images of nothing.

    python -m tools.train_demo.calibrate --weights RUN/weights.safetensors --out demo.safetensors

One number is taken from the bias of all classes, so that the order of the scores, and with it AP, stays. The images are
not those of the evaluation.
"""

import argparse
import math
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch

import maskjet
from tools.train_demo.evaluate import images_of_nothing

SEEDS = (8_000_000, 8_100_000, 8_200_000)
QUANTILE = 0.999  # the very strongest would cost a quarter of what is really there
MARGIN = 0.04  # in logits, for the next such image


def strongest_ghost(model):
    """The score that QUANTILE of the images of nothing stay at or below; 0 if that is the model's threshold or less."""
    images = [image for seed in SEEDS for kind in images_of_nothing(seed).values() for image in kind]
    scores = [float(model.predict(image).confidence.max(initial=0)) for image in images]
    return float(np.quantile(scores, QUANTILE, method="lower"))


def shift_scores(weights, out, score):
    """Write weights whose scores are lower, such that what was `score` is just below one half."""
    tensors = safetensors.torch.load_file(weights)
    with safetensors.safe_open(weights, "pt") as file:
        metadata = file.metadata()
    shift = max(math.log(score / (1 - score)), 0) + MARGIN
    tensors["class_embed.bias"] = (tensors["class_embed.bias"].float() - shift).half()
    safetensors.torch.save_file(tensors, out, metadata=metadata)
    return shift


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with maskjet.load(args.weights, threshold=0.4) as model:
        score = strongest_ghost(model)
    if score == 0:
        raise SystemExit("Nothing scores above 0.4 where there is nothing: there is nothing to shift.")
    print(f"strongest ghost {score:.3f}, logits shifted by -{shift_scores(args.weights, args.out, score):.3f}")


if __name__ == "__main__":
    main()
