"""Drawing and encoding in a thread: order, bounds and errors."""

import threading
from functools import partial

import pytest

from maskjet.drawing import Painter
from maskjet.errors import InputError
from maskjet.media.sinks import open_sinks
from maskjet.media.sinks.drawing_thread import DrawingThread
from tests.media.outputs import frames, names, write
from tests.test_detections import some_detections

pytestmark = pytest.mark.usefixtures("in_folder")


def test_work_is_done_in_order_in_another_thread_a_bounded_number_behind():
    behind, added, done, late, threads = DrawingThread(), [], [], [], set()

    def work(number):
        late.append(len(added) - len(done))
        done.append(number)
        threads.add(threading.get_ident())

    for number in range(200):
        behind.add(partial(work, number))
        added.append(number)
    assert behind.close() is None
    assert done == added
    assert threading.get_ident() not in threads
    assert max(late) <= 5


def test_whoever_adds_does_not_wait_for_the_work():
    behind, may_begin, done = DrawingThread(), threading.Event(), []
    for number in range(4):
        behind.add(lambda number=number: (may_begin.wait(60), done.append(number)))
    assert done == []
    may_begin.set()
    behind.close()
    assert done == [0, 1, 2, 3]


def test_an_error_is_raised_by_what_comes_next_or_told_at_the_end_and_ends_the_work():
    behind, done = DrawingThread(), []
    behind.add(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - whichever is next
        for _ in range(5):
            behind.add(lambda: done.append(1))
    assert isinstance(behind.close(), ZeroDivisionError)
    assert done == []
    with pytest.raises(InputError, match="The output is closed; open another sink"):
        behind.add(print)


@pytest.mark.parametrize("name", ["a.mp4", "shown"])
def test_outputs_are_drawn_in_threads_of_their_own(name, monkeypatch):
    threads, paint = set(), Painter.paint
    monkeypatch.setattr(Painter, "paint", lambda *given: (threads.add(threading.get_ident()), paint(*given))[1])
    write([name, "b.mp4"], frames(6))
    assert len(threads) == 2
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(("name", "count"), [("a.mp4", 1), ("a.mp4", 9), ("shown", 9)])
def test_an_error_of_drawing_reaches_the_caller(name, count):
    with pytest.raises(InputError, match=r"detections must be of the image's size \(48, 64\), got \(9, 9\)"):
        write([name, "b.jsonl"], frames(count), some_detections(1, size=(9, 9)))
    assert "a.mp4" not in names()


def test_a_video_whose_last_frame_fails_keeps_the_others_under_its_temporary_name():
    sinks = open_sinks(["a.mp4"])
    for frame in frames(12):
        sinks.write(frame, some_detections(1, size=(48, 64) if frame.index < 11 else (9, 9)))
    with pytest.raises(InputError, match="detections must be of the image's size"):
        sinks.close()
    assert names() == sinks.paths == ["a.partial.mp4"]
    sinks.close()
