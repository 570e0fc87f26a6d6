"""Count the cars that cross a line in a video, for whoever wants a number per direction and a video to check it by.

    python examples/count_cars.py video.mp4 counted.mp4 0,200,640,200

The line goes from its first end to its second, x1,y1,x2,y2 in pixels: who crosses it to the left goes "in". Prints a
line per crossing, then the sums; the video shows the line, the tracks and the sums so far.
"""

import sys

import maskjet
from maskjet.tracking import Counting, Line


def count(video: str, out: str, line: Line) -> None:
    """Print the crossings of a line, and write an annotated video with the source's sound."""
    counting = Counting([line])
    with (
        maskjet.load("demo", classes=["car", "truck", "bus"]) as model,  # or a checkpoint of your own
        maskjet.open_source(video, decoder=model.decoding()) as source,
        maskjet.check_outputs([out], [source]).open() as sinks,
    ):
        for frame, found in model.stream(source, track=True):
            counted = counting.update(frame, found)
            sinks.write(counted, found)
            for event in counted.counts[0].events:
                print(f"{frame.time_s or 0:.2f} s: {event.class_name} #{event.track_id} goes {event.direction}")
    for way, by_class in ("in", counted.counts[0].in_by_class), ("out", counted.counts[0].out_by_class):
        print(f"{way}: {sum(by_class.values())}", dict(by_class))


if __name__ == "__main__":
    _, path, annotated, text = sys.argv
    x1, y1, x2, y2 = map(float, text.split(","))
    count(path, annotated, Line((x1, y1), (x2, y2)))
