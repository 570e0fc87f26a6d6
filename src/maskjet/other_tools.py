"""Other tools' words for maskjet's commands, options and attributes; errors name maskjet's own."""

from __future__ import annotations

from collections.abc import Mapping

COMMANDS: Mapping[str, str] = {
    **dict.fromkeys(("predict", "detect", "segment", "infer", "track"), "run"),
    **dict.fromkeys(("eval", "evaluate", "validate"), "val"),
}
OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(("conf", "confidence", "score_threshold"), "threshold"),
    **dict.fromkeys(("output", "save", "project"), "out"),
    **dict.fromkeys(("imgsz", "img_size", "resolution"), "input_size"),
    **dict.fromkeys(("half", "fp16", "dtype"), "precision"),
    **dict.fromkeys(("max_det", "max_dets"), "max_detections"),
    **dict.fromkeys(("checkpoint", "ckpt"), "weights"),
    **dict.fromkeys(("vid_stride", "stride"), "every"),
    "gpu": "device",
    "batch_size": "batch",
}
"""By name in Python; the flag `--max-det` is `max_det` here."""
ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "Detections": {
        **dict.fromkeys(("boxes", "bbox", "bboxes"), "xyxy"),
        **dict.fromkeys(("conf", "scores"), "confidence"),
        **dict.fromkeys(("cls", "labels"), "class_id"),
        **dict.fromkeys(("id", "tracker_id"), "track_id"),
        **dict.fromkeys(("plot", "show", "annotate"), "draw()"),
        "mask": "masks()",
        "names": "class_names",
        "orig_shape": "image_size",
    },
    "Model": {
        "track": "stream(source, track=True)",
        "names": "spec.class_names",
        "to": "maskjet.load(..., device=...)",
        "export": "maskjet.export",
        "val": "maskjet.evaluate",
    },
}
"""By class, what stands for an attribute or method of this name."""
