"""Drawing and encoding in a thread: order, bounds and errors."""

import threading

import pytest

from maskjet.errors import InputError, OutputError
from maskjet.media.drawing import Painter
from maskjet.media.sinks import open_sinks
from maskjet.media.sinks.behind import Behind
from tests.media.test_hostile_outputs import frames, write
from tests.test_detections import some_detections


def test_work_is_done_in_order_in_another_thread_a_bounded_number_behind():
    behind, added, done, late = Behind(), 0, [], []

    def work(number):
        late.append(added - len(done))
        done.append((number, threading.get_ident()))

    for number in range(200):
        behind.add(lambda number=number: work(number))
        added += 1
    assert behind.close() is None
    assert [number for number, _ in done] == list(range(200))
    assert {thread for _, thread in done}.isdisjoint({threading.get_ident()})
    assert max(late) <= 5


def test_whoever_adds_does_not_wait_for_the_work():
    behind, may_begin, done = Behind(), threading.Event(), []
    for number in range(4):
        behind.add(lambda number=number: (may_begin.wait(60), done.append(number)))
    assert done == []
    may_begin.set()
    behind.close()
    assert done == [0, 1, 2, 3]


def add_often(behind, work):
    for _ in range(5):
        behind.add(work)


def test_an_error_is_raised_by_what_comes_next_and_ends_the_work():
    behind, done = Behind(), []

    def fail():
        raise OutputError("The disk is full.")

    behind.add(fail)
    with pytest.raises(OutputError, match="The disk is full"):
        add_often(behind, lambda: done.append(1))
    error = behind.close()
    assert isinstance(error, OutputError)
    assert done == []


def test_an_error_of_the_last_work_is_told_at_the_end():
    behind = Behind()
    behind.add(lambda: 1 / 0)
    assert isinstance(behind.close(), ZeroDivisionError)
    with pytest.raises(InputError, match="The output is closed; open another sink"):
        behind.add(print)


@pytest.mark.parametrize("name", ["a.mp4", "shown"])
def test_outputs_are_drawn_in_threads_of_their_own(name, tmp_path, monkeypatch):
    threads, paint = set(), Painter.paint
    monkeypatch.setattr(Painter, "paint", lambda *given: (threads.add(threading.get_ident()), paint(*given))[1])
    with open_sinks([str(tmp_path / name), str(tmp_path / "b.mp4")]) as sinks:
        for frame in frames(6):
            sinks.write(frame, some_detections(1))
    assert len(threads) == 2
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("name", ["a.mp4", "shown"])
@pytest.mark.parametrize("count", [1, 9])
def test_an_error_of_drawing_reaches_the_caller(name, count, tmp_path):
    outs = [tmp_path / name, tmp_path / "b.jsonl"]
    with pytest.raises(InputError, match=r"detections must be of the image's size \(48, 64\), got \(9, 9\)"):
        write(outs, frames(count), some_detections(1, size=(9, 9)))
    assert not (tmp_path / "a.mp4").exists()


def test_a_video_whose_last_frame_fails_keeps_the_others_under_its_temporary_name(tmp_path):
    sinks = open_sinks([str(tmp_path / "a.mp4")])
    for frame in frames(12):
        sinks.write(frame, some_detections(1, size=(48, 64) if frame.index < 11 else (9, 9)))
    with pytest.raises(InputError, match="detections must be of the image's size"):
        sinks.close()
    assert sinks.paths == [str(tmp_path / "a.partial.mp4")]
    assert [path.name for path in tmp_path.iterdir()] == ["a.partial.mp4"]
    sinks.close()
