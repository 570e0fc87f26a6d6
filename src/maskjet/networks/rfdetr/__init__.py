"""RF-DETR and RF-DETR-Seg in plain PyTorch: inference only, capturable, with rfdetr's parameter names."""

from maskjet.networks.rfdetr.checkpoint import Checkpoint, read_checkpoint
from maskjet.networks.rfdetr.network import RFDETR, NetworkOutput

__all__ = ["RFDETR", "Checkpoint", "NetworkOutput", "read_checkpoint"]
