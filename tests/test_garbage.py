import gc
import weakref

import pytest

from maskjet import process


class Knot:
    """Refers to itself, so that only the collector can free it."""

    def __init__(self) -> None:
        self.itself = self


def test_what_is_alive_is_left_alone_until_the_end() -> None:
    knot = Knot()
    known = weakref.ref(knot)
    with process.garbage_frozen():
        assert gc.get_freeze_count() > 0
        del knot
        gc.collect()
        assert known() is not None
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert known() is None


def test_what_comes_later_is_collected() -> None:
    with process.garbage_frozen():
        known = weakref.ref(Knot())
        gc.collect()
        assert known() is None


def test_an_error_ends_it_as_well() -> None:
    with pytest.raises(KeyError), process.garbage_frozen():
        {}["nothing"]
    assert gc.get_freeze_count() == 0
