"""Hide people and cars in a folder of pictures, for whoever publishes them, and list those to look at before.

    python examples/redact_folder.py pictures hidden

`hidden` gets a copy of each picture without a pixel of what was found in it. A picture is listed if something in it was
found that is too uncertain to hide, so that somebody decides; or if it could not be read, and so has no copy. Videos:
`maskjet run video.mp4 --track=two-pass --draw redact=person,car -o hidden.mp4`.
"""

import sys

import maskjet
from maskjet.drawing import Redaction

HIDDEN = ["person", "car", "truck", "bus", "motorcycle"]
SURE, DOUBTFUL = 0.2, 0.1  # least confidences: of what is hidden, and of what makes somebody look


def redact(folder: str, out: str) -> list[str]:
    """Write redacted copies; returns a line per picture that somebody should look at."""
    listed = []
    with (
        maskjet.load("demo", classes=HIDDEN) as model,  # or a checkpoint of your own
        maskjet.open_source(folder) as source,
        maskjet.check_outputs([f"{out}/"], [source], style=Redaction()).open() as sinks,
    ):
        for frame, found in model.stream(source, threshold=DOUBTFUL):
            sure = found[found.confidence >= SURE]
            sinks.write(frame, sure)
            if doubtful := len(found) - len(sure):
                listed.append(f"{frame.name}: {doubtful} not hidden, as uncertain")
    return listed + [f"not read: {reason}" for _, reason in source.bad_frames]


if __name__ == "__main__":
    print(*redact(*sys.argv[1:]), sep="\n")
