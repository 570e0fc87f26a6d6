"""torchvision's Faster and Mask R-CNN: with fixed shapes, their layers joined, and their steps for the engine."""
