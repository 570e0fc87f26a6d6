"""Decoding AVIF in a process of its own, in memory that is bounded by the size the file states.

The size in the header is not that of the stream in it: 4 kB can state 16 × 16 and hold 16,384 × 16,384, and Pillow's
decoder has no limit to set. The process, which runs this file, takes 0.1 s more than decoding here would.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from io import BytesIO
from pathlib import Path

_PIXEL_BYTES = 64  # decoding takes up to 40: planes of 16 bits, alpha, and three copies
_BASE_BYTES = 2**27
_CPU_S = 120  # several times what the largest image takes


def decode_avif(data: bytes, size_hw: tuple[int, int]) -> bytearray:
    """The pixels of an AVIF as it stores them, not turned: RGB, 3 × H × W bytes.

    Raises:
        ValueError: It is damaged, or takes more memory than its size needs.
    """
    import PIL

    height, width = size_hw
    most = _BASE_BYTES + _PIXEL_BYTES * height * width + 2 * len(data)
    done = subprocess.run(
        # Neither the environment nor the folder may bring other modules.
        [sys.executable, "-I", "-S", __file__, Path(PIL.__file__).parents[1], str(most)],
        input=data,
        capture_output=True,
    )
    if len(done.stdout) != 3 * height * width:
        raise ValueError(done.stderr.decode(errors="replace").strip() or "it takes too much memory or time")
    return bytearray(done.stdout)


def _main() -> None:
    """Decode standard input to standard output, or exit with the reason why not."""
    data = sys.stdin.buffer.read()
    sys.path[:0] = sys.argv[1:2]
    from PIL import AvifImagePlugin

    AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # a thread's stack, of any size, would count as memory
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = used + int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    try:
        pixels = AvifImagePlugin.AvifImageFile(BytesIO(data)).convert("RGB").tobytes()
    except Exception as error:
        sys.exit(str(error) or type(error).__name__)
    sys.stdout.buffer.write(pixels)


if __name__ == "__main__":
    _main()
