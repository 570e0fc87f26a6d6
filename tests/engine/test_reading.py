"""Readers: bounded, in order for each source, and gone when nobody listens."""

import threading
import time
from contextlib import closing

import numpy as np
import pytest

from maskjet.engine import reading as decoding
from maskjet.engine.reading import Readers
from maskjet.errors import InputError
from maskjet.media.frames import ListSource


def count_up(limit, produced=None, shape=(2, 2, 3)):
    for value in range(limit):
        if produced is not None:
            produced.append(value)
        yield np.full(shape, value % 256, np.uint8)


def decoders():
    return [thread for thread in threading.enumerate() if thread.name == "maskjet-decode"]


def wait_until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def take_all(readers, most=1):
    taken = []
    while frames := readers.take(most, waits=True):
        taken += frames
    return taken


def test_all_frames_in_order():
    with closing(Readers([count_up(50)], room=4)) as readers:
        assert [frame.index for frame in take_all(readers, most=3)] == list(range(50))
        readers.check()
    assert decoders() == []


def test_reads_no_further_ahead_than_there_is_room():
    produced = []
    with closing(Readers([count_up(50, produced)], room=3)) as readers:
        (lane,) = readers._lanes

        def wait_for(read):
            wait_until(lambda: len(produced) >= read and lane.is_waiting)

        wait_for(4)  # three waiting, one in the reader's hand
        for taken, read in [(1, 4), (2, 6), (3, 6), (4, 8)]:  # a reader wakes when no more than one waits
            assert len(readers.take(1, waits=True)) == 1
            wait_for(read)
            time.sleep(0.05)
            assert len(produced) == read <= taken + 4


def test_closing_stops_the_readers():
    produced = []
    readers = Readers([count_up(10_000, produced), count_up(10_000, produced)], room=2)
    readers.take(1, waits=True)
    readers.close()
    readers.close()
    assert decoders() == []
    assert len(produced) < 20


def test_closing_waits_a_bounded_time_for_all_together(monkeypatch):
    monkeypatch.setattr(decoding, "_PATIENCE_S", 1.0)
    gate = threading.Event()

    def silent():
        gate.wait(20)
        yield from count_up(1)

    readers = Readers([silent() for _ in range(5)], room=1)
    before = time.monotonic()
    readers.close()
    assert time.monotonic() - before < 4  # five, one after the other
    gate.set()
    wait_until(lambda: decoders() == [])


def test_each_source_in_its_order_and_all_in_turn():
    with closing(Readers([count_up(30), count_up(7), count_up(30)], room=2)) as readers:
        wait_until(lambda: all(len(lane.frames) == 2 for lane in readers._lanes))
        first = readers.take(6, waits=False)
        assert sorted((frame.stream, frame.index) for frame in first) == [(s, i) for s in range(3) for i in range(2)]
        rest = first + take_all(readers, most=4)
    for stream, length in enumerate((30, 7, 30)):
        assert [frame.index for frame in rest if frame.stream == stream] == list(range(length))


def test_frames_taken_together_are_of_one_size():
    sources = [count_up(20), count_up(20, shape=(4, 4, 3)), count_up(20)]
    with closing(Readers(sources, room=3)) as readers:
        seen, sizes = [], set()
        while frames := readers.take(4, waits=True):
            assert len({frame.image.shape for frame in frames}) == 1
            sizes.add(frames[0].image.shape)
            seen += [(frame.stream, frame.index) for frame in frames]
            if len(seen) == 30:
                assert len(sizes) == 2  # neither size waits for the other's end
    assert len(sizes) == 2
    assert sorted(seen) == [(s, i) for s in range(3) for i in range(20)]


def test_nothing_is_waited_for_unless_asked():
    gate = threading.Event()

    def late():
        gate.wait(10)
        yield from count_up(1)

    with closing(Readers([late()], room=1)) as readers:
        assert readers.take(1, waits=False) == []
        gate.set()
        assert len(readers.take(1, waits=True)) == 1


def breaks(after):
    yield from count_up(after)
    raise OSError("the cable was pulled")


def test_what_broke_a_source_is_told_after_its_frames():
    with closing(Readers([breaks(3)], room=4)) as readers:
        assert len(take_all(readers)) == 3
        with pytest.raises(OSError, match="the cable was pulled"):
            readers.check()
    assert decoders() == []


def test_the_others_go_on_when_one_breaks(caplog):
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
        wait_until(lambda: not readers._lanes[0].runs)
        assert [frame.index for frame in take_all(readers)] == [49]
        assert readers.dropped == source.frames_dropped == 49


def test_a_file_drops_nothing(tmp_path):
    cv2 = pytest.importorskip("cv2")
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((4, 4, 3), np.uint8))
    with closing(Readers([tmp_path / "a.png"], room=1, drops_late=True)) as readers:
        assert take_all(readers) == []
        with pytest.raises(InputError, match=r"drop_late must be False for '.*a\.png': it is a file"):
            readers.check()


def test_a_batch_is_left_until_it_is_full():
    go_on = threading.Event()

    def slow():
        for image in count_up(2):
            yield image
            go_on.wait(20)

    with closing(Readers([slow(), count_up(1)], room=2)) as readers:
        wait_until(lambda: sum(len(lane.frames) for lane in readers._lanes) == 2)
        assert readers.take(3, waits=False, fills=True) == []
        go_on.set()
        wait_until(lambda: len(readers.take(3, waits=False, fills=True)) == 3)


def test_a_batch_is_as_full_as_it_can_be():
    with closing(Readers([count_up(1), count_up(1)], room=2)) as readers:
        wait_until(lambda: len(readers.take(8, waits=False, fills=True)) == 2)  # no more can come
