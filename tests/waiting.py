"""Waiting in tests."""

import time


def until(check, within_s=60):
    """Wait until a check gives something that is true, and return it."""
    deadline = time.monotonic() + within_s
    while not (found := check()):
        assert time.monotonic() < deadline, "It did not come true in time."
        time.sleep(0.02)
    return found
