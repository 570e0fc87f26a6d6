"""RF-DETR in exported files."""
