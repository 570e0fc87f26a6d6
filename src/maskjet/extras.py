"""Optional packages: imported on first use, and asked for in one sentence where they are missing."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from maskjet.errors import MissingDependencyError, first_line


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import an optional package.

    Args:
        module: Its name in Python; with a dot for a submodule.
        extra: The extra of maskjet that brings it.
        purpose: What needs it, as the subject of the message.

    Raises:
        MissingDependencyError: It is not installed, or is and can't be imported.
    """
    try:
        return import_module(module)
    except ImportError as error:
        root = module.partition(".")[0]
        is_missing = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == root
        why = "" if is_missing else f", which is here but can't be imported ({first_line(error)})"
        package = root.replace("_", "-")
        raise MissingDependencyError(f'{purpose} needs {package}{why}: pip install "maskjet[{extra}]".') from error
