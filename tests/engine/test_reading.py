"""Readers: bounded, in order for each source, and gone when nobody listens."""

import threading
import time
from contextlib import closing

import numpy as np
import pytest
from PIL import Image

from maskjet.engine import reading as decoding
from maskjet.engine.reading import Readers
from maskjet.errors import InputError
from maskjet.sources.frames import ListSource
from tests.waiting import until


def count_up(limit, produced=None, shape=(2, 2, 3)):
    for value in range(limit):
        if produced is not None:
            produced.append(value)
        yield np.full(shape, value % 256, np.uint8)


def decoders():
    return [thread for thread in threading.enumerate() if thread.name == "maskjet-decode"]


def take_all(readers, most=1):
    taken = []
    while frames := readers.take(most, waits=True):
        taken += frames
    return taken


def test_reads_all_in_order_and_no_further_ahead_than_there_is_room():
    produced = []
    with closing(Readers([count_up(50, produced)], room=3)) as readers:
        (queue,) = readers._queues
        for taken, read in enumerate((4, 4, 6, 6, 8)):  # three waiting, one in the reader's hand; two at once
            until(lambda read=read: len(produced) >= read and queue.is_waiting)
            assert len(produced) == read
            assert [frame.index for frame in readers.take(1, waits=True)] == [taken]
        assert [frame.index for frame in take_all(readers, most=3)] == list(range(5, 50))
        readers.check()
    assert decoders() == []


def test_closing_waits_a_bounded_time_for_all_together(monkeypatch):
    monkeypatch.setattr(decoding, "_PATIENCE_S", 0.3)
    gate = threading.Event()

    def silent():
        gate.wait(20)
        yield from count_up(1)

    readers = Readers([silent() for _ in range(20)], room=1)
    before = time.monotonic()
    readers.close()
    assert time.monotonic() - before < 4  # they wait for 6 s one after the other
    gate.set()
    until(lambda: decoders() == [])


def test_frames_taken_together_are_of_one_kind():
    sources = [count_up(20), count_up(20, shape=(4, 4, 3)), count_up(20)]
    with closing(Readers(sources, room=3, kind_of=lambda frame: frame.size_hw)) as readers:
        seen, sizes = [], set()
        while frames := readers.take(4, waits=True):
            assert len({frame.image.shape for frame in frames}) == 1
            sizes.add(frames[0].image.shape)
            seen += [(frame.stream, frame.index) for frame in frames]
            if len(seen) == 30:
                assert len(sizes) == 2  # neither kind waits for the other's end
    assert len(sizes) == 2
    assert sorted(seen) == [(s, i) for s in range(3) for i in range(20)]


def breaks(after):
    yield from count_up(after)
    raise OSError("the cable was pulled")


def test_what_broke_a_source_is_told_after_all_frames(caplog):
    with closing(Readers([breaks(3)], room=4)) as readers:
        assert len(take_all(readers)) == 3
        with pytest.raises(OSError, match="the cable was pulled"):
            readers.check()
    with closing(Readers([count_up(20), breaks(2), breaks(5)], room=2)) as readers:
        assert len(take_all(readers)) == 27
        with pytest.raises(OSError, match="the cable was pulled") as caught:
            readers.check()
    assert caught.value.__notes__ == ["and another source: the cable was pulled"]
    assert "source 1 broke off, the others go on: the cable was pulled" in caplog.text


def test_late_frames_are_dropped_and_counted():
    produced = []
    source = ListSource(count_up(50, produced), "camera")
    with closing(Readers([source], room=1, drops_late=True)) as readers:
        until(lambda: not readers._queues[0].is_reading)
        assert [frame.index for frame in take_all(readers)] == [49]
        assert readers.dropped == source.frames_dropped == 49


def test_a_file_drops_nothing(tmp_path):
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "a.png")
    with closing(Readers([tmp_path / "a.png"], room=1, drops_late=True)) as readers:
        assert take_all(readers) == []
        with pytest.raises(InputError, match=r"drop_late must be False for '.*a\.png': it is a file"):
            readers.check()


def test_a_batch_is_left_until_it_is_as_full_as_it_can_be():
    go_on = threading.Event()

    def slow():
        for image in count_up(2):
            yield image
            go_on.wait(20)

    with closing(Readers([slow(), count_up(1)], room=2)) as readers:
        until(lambda: sum(len(queue.frames) for queue in readers._queues) == 2)
        assert readers.take(3, waits=False, fills=True) == []
        go_on.set()
        until(lambda: len(readers.take(3, waits=False, fills=True)) == 3)
    with closing(Readers([count_up(1), count_up(1)], room=2)) as readers:
        until(lambda: len(readers.take(8, waits=False, fills=True)) == 2)  # no more can come
