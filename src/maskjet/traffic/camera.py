"""A camera on a mast: projection from metres on the street to pixels.

World axes: x to the right across the road, y along it away from the camera, z up. The origin is on the ground in the
middle of the road, level with the mast.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
SUBPIXEL_BITS = 4
"""Fractional bits of the integer coordinates that OpenCV draws with."""
NEAR_M = 1.0
"""Near plane in metres: nothing closer along the view is drawn."""


@dataclass(frozen=True)
class Camera:
    """A pinhole camera."""

    size_hw: tuple[int, int]
    """(height, width) of the image in pixels."""
    height_m: float
    """Height above the road in metres."""
    x_m: float
    """Distance to the right of the road's middle in metres."""
    pitch: float
    """Downward tilt from level, in radians."""
    yaw: float
    """Turn to the right from the road's direction, in radians."""
    field_of_view: float
    """Vertical field of view, in radians."""

    @property
    def focal_px(self) -> float:
        """Focal length in pixels."""
        return self.size_hw[0] / 2 / float(np.tan(self.field_of_view / 2))

    @cached_property
    def position(self) -> Points:
        """World position [3] in metres."""
        return np.array([self.x_m, 0.0, self.height_m])

    @cached_property
    def axes(self) -> Points:
        """Rows: the image's right, down and forward directions in the world."""
        sin_pitch, cos_pitch = np.sin(self.pitch), np.cos(self.pitch)
        sin_yaw, cos_yaw = np.sin(self.yaw), np.cos(self.yaw)
        forward = np.array([sin_yaw * cos_pitch, cos_yaw * cos_pitch, -sin_pitch])
        right = np.array([cos_yaw, -sin_yaw, 0.0])
        return np.stack([right, np.cross(forward, right), forward])

    def may_see(self, x_m: float, y_m: float, radius_m: float) -> bool:
        """Whether anything within a radius of a point on the ground can be in the image."""
        view = self.axes @ (np.array([x_m, y_m, 0.0]) - self.position)
        slack = radius_m * self.focal_px
        reach = max(float(view[2]), NEAR_M)
        limits = [(side / 2) * reach + slack for side in self.size_hw[::-1]]
        return bool(
            view[2] > -radius_m and abs(view[0]) * self.focal_px < limits[0] and view[1] * -self.focal_px < limits[1]
        )

    def project(self, points: Points) -> tuple[Points, Points]:
        """Project points [..., 3].

        Returns:
            Pixel coordinates [..., 2] (x, y; the first pixel's centre is 0, 0), and depth along the view [...] in
            metres; points at a depth below NEAR_M are not in the image.
        """
        view = self.to_view(points)
        return self.to_pixels(view), view[..., 2]

    def to_view(self, points: Points) -> Points:
        """Transform points [..., 3] to metres to the right of, below and in front of the camera."""
        return (points - self.position) @ self.axes.T

    def to_pixels(self, view: Points) -> Points:
        """Pixel coordinates [..., 2] of points from `to_view`; depths below NEAR_M are raised to it."""
        centre = (np.array(self.size_hw[::-1]) - 1) / 2
        return view[..., :2] / np.maximum(view[..., 2:], NEAR_M) * self.focal_px + centre

    def ground(self) -> tuple[Points, Points]:
        """World x and y [H, W], in metres, where each pixel's ray meets the road; infinite above the horizon."""
        height, width = self.size_hw
        columns = (np.arange(width) - (width - 1) / 2) / self.focal_px
        rows = (np.arange(height) - (height - 1) / 2) / self.focal_px
        right, down, forward = self.axes
        rays = forward + columns[None, :, None] * right + rows[:, None, None] * down
        with np.errstate(divide="ignore", invalid="ignore"):
            reach = np.where(rays[..., 2] < -1e-6, -self.height_m / rays[..., 2], np.inf)
            x, y = self.x_m + rays[..., 0] * reach, rays[..., 1] * reach
        return x, y


def to_fixed_point(pixels: Points) -> NDArray[np.int32]:
    """Convert pixel coordinates, clipped to ±8000, to OpenCV's integers with SUBPIXEL_BITS of fraction."""
    return np.rint(np.clip(pixels, -8000, 8000) * (1 << SUBPIXEL_BITS)).astype(np.int32)
