"""Random weights in rfdetr's layout."""

from maskjet.bench.planted import randomise

__all__ = ["randomise"]
