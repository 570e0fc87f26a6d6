"""The HTTP service behind `maskjet serve`.

`create_app` makes the ASGI application of loaded models, and `server.run` runs it with uvicorn. A request passes
`guard` (authentication and limits), a route (`v1`), `bodies` (decoding in threads) and `dispatcher` (batches).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maskjet.host.extras import require
from maskjet.serve.settings import Settings

if TYPE_CHECKING:
    from maskjet.serve.app import create_app

__all__ = ["Settings", "check_extra", "create_app"]

_PACKAGES = (
    *("fastapi", "uvicorn", "httpx", "httptools"),
    *("python_multipart", "prometheus_client", "websockets"),
)


def check_extra() -> None:
    """Raise MissingDependencyError if a package of the extra is not installed."""
    for module in _PACKAGES:
        require(module, extra="serve", purpose="maskjet serve")


def __getattr__(name: str) -> Any:
    """Import the application on first use (PEP 562)."""
    if name == "create_app":
        check_extra()
        from maskjet.serve.app import create_app

        return create_app
    raise AttributeError(f"module 'maskjet.serve' has no attribute {name!r}")
