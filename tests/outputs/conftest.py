"""What tests of outputs share with those of sources."""

from tests.sources.conftest import clips, in_folder

__all__ = ["clips", "in_folder"]
