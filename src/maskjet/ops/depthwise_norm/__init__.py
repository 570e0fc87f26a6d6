"""A depthwise 3 × 3 convolution fused with the layer norm that follows it."""
