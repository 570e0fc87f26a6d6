"""Decoding ahead: bounded, in order, and gone when nobody listens."""

import threading
import time

import numpy as np
import pytest

from maskjet.engine.decoding import decode_ahead


def count_up(limit, produced):
    for value in range(limit):
        produced.append(value)
        yield np.full((2, 2, 3), value, np.uint8)


def decoders():
    return [thread for thread in threading.enumerate() if thread.name == "maskjet-decode"]


def wait_until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_all_frames_in_order():
    frames = list(decode_ahead(count_up(50, []), depth=4))
    assert [int(frame.image[0, 0, 0]) for frame in frames] == list(range(50))
    assert decoders() == []


def test_reads_no_further_ahead_than_asked():
    produced = []
    frames = decode_ahead(count_up(50, produced), depth=3)
    next(frames)
    wait_until(lambda: len(produced) >= 5)  # one consumed, three queued, one in the reader's hand
    time.sleep(0.05)
    assert len(produced) == 5
    frames.close()


def test_closing_stops_the_reader():
    produced = []
    frames = decode_ahead(count_up(10_000, produced), depth=2)
    next(frames)
    frames.close()
    assert decoders() == []
    assert len(produced) < 10


def test_an_error_arrives_in_its_place():
    def breaks():
        yield np.zeros((2, 2, 3), np.uint8)
        raise OSError("the cable was pulled")

    frames = decode_ahead(breaks(), depth=4)
    assert next(frames).index == 0
    with pytest.raises(OSError, match="the cable was pulled"):
        next(frames)
    assert decoders() == []
