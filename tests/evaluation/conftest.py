"""What tests of scores share with those of parity."""

from tests.parity.conftest import no_machine

__all__ = ["no_machine"]
