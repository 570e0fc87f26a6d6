"""torchvision's Faster and Mask R-CNN: fixed shapes, joined layers, and their steps for the engine."""
