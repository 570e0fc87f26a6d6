"""What tests of scores share with those of parity."""

from tests.parity.conftest import network, no_machine

__all__ = ["network", "no_machine"]
