"""Drawing and encoding in threads: order, bounds and errors."""

import threading
import time
from functools import partial

import pytest

from maskjet.drawing import Painter
from maskjet.errors import InputError
from maskjet.outputs.drawing_threads import DrawingThreads
from maskjet.outputs.opening import open_sinks
from tests.detections.test_detections import some_detections
from tests.outputs.outputs import frames, names, write

pytestmark = pytest.mark.usefixtures("in_folder")


@pytest.mark.parametrize("count", [1, 3])
def test_work_begins_and_ends_in_order_in_other_threads_a_bounded_number_behind(count):
    behind, added, begun, done, late, threads = DrawingThreads(count), [], [], [], [], set()

    def work(number):
        begun.append(number)
        yield
        threads.add(threading.get_ident())
        time.sleep(number % 3 / 1000)
        yield
        late.append(len(added) - len(done))
        done.append(number)

    for number in range(200):
        behind.add(partial(work, number))
        added.append(number)
    assert behind.close() is None
    assert begun == done == added
    assert len(threads) == count
    assert threading.get_ident() not in threads
    assert max(late) <= count + 4


def test_no_thread_waits_for_a_slow_frame():
    behind, may_go_on, all_drawn, drawn, done = DrawingThreads(2), threading.Event(), threading.Event(), [], []

    def work(number):
        yield
        if number == 0:
            assert may_go_on.wait(60)
        drawn.append(number)
        if len(drawn) == 4:
            all_drawn.set()
        yield
        done.append(number)

    for number in range(5):
        behind.add(partial(work, number))
    assert all_drawn.wait(60)
    assert (drawn, done) == ([1, 2, 3, 4], [])
    may_go_on.set()
    assert behind.close() is None
    assert done == list(range(5))


@pytest.mark.parametrize("section", [0, 1, 2])
@pytest.mark.parametrize("count", [1, 3])
def test_an_error_is_raised_by_what_comes_next_or_told_at_the_end_and_ends_the_work(count, section):
    behind, done = DrawingThreads(count), []

    def work(number):
        for at in range(3):
            if number == 2 and at == section:
                raise ZeroDivisionError
            if number == 1 and at == 1:
                time.sleep(0.01)  # the later frame fails first
            if at == 2:
                done.append(number)
            yield

    for number in range(3):
        behind.add(partial(work, number))
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - whichever is next
        for number in range(3, 13):
            behind.add(partial(work, number))
    assert isinstance(behind.close(), ZeroDivisionError)
    assert done == [0, 1]
    with pytest.raises(InputError, match="The output is closed; open another sink"):
        behind.add(partial(work, 0))


@pytest.mark.parametrize("name", ["a.mp4", "shown"])
def test_outputs_are_drawn_in_threads_of_their_own(name, monkeypatch):
    threads, draw = set(), Painter._draw
    monkeypatch.setattr(Painter, "_draw", lambda *given: (threads.add(threading.get_ident()), draw(*given))[1])
    write([name, "b.mp4"], frames(6))
    assert len(threads) >= 2
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
