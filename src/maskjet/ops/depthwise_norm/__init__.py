"""A depthwise 3 × 3 convolution with the norm behind it."""
