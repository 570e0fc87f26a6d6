"""Compare two checkpoints on annotated images, class by class, for whoever has trained again and must choose.

    pip install '.[coco]'
    python examples/compare_checkpoints.py before.pth after.pth dataset scores

Prints the AP and the best F1 with its threshold, of masks, or of boxes if one has no masks, for classes that both have;
`scores/before/page.html` and `scores/after/page.html` show curves and the worst images. The data is in COCO's or YOLO's
layout. Without annotations, `maskjet run --record` and `maskjet parity gate` tell what has changed, not what is better.
"""

import sys
from pathlib import Path

import maskjet


def score(weights: str, data: str, out: Path) -> dict[tuple[str, str], tuple[float, float, float]]:
    """AP, best F1 and its threshold by kind ("bbox", then "segm") and class; "all" are the means over classes."""
    with maskjet.load(weights) as model:
        report = maskjet.evaluate(model, data, out=out)
    return {
        (each.kind, each.class_name or "all"): (
            each.metrics["ap"] or 0.0,
            each.best.f1 or 0.0,
            each.best.threshold or 0.0,
        )
        for each in report.measurements
    }


if __name__ == "__main__":
    _, before, after, images, folder = sys.argv
    one, other = score(before, images, Path(folder, "before")), score(after, images, Path(folder, "after"))
    shared = [key for key in one if key in other]
    print(f"{shared[-1][0]:12}{'AP':>16}{'best F1':>17}{'at threshold':>17}")
    for kind, name in shared:
        if kind == shared[-1][0]:
            pairs = zip(one[kind, name], other[kind, name], strict=True)
            print(f"{name:12}" + "".join(f"   {a:.3f} → {b:.3f}" for a, b in pairs))
