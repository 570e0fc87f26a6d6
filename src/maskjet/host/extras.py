"""Optional packages, imported on first use; a missing one is an error that says how to install it."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from maskjet.errors import MissingDependencyError, first_line


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import an optional package or its submodule, or raise MissingDependencyError.

    `extra` is the one of maskjet that installs it; `purpose` is the subject of the message.
    """
    try:
        return import_module(module)
    except ImportError as error:
        root = module.partition(".")[0]
        is_missing = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == root
        why = "" if is_missing else first_line(error)
        raise missing(root.replace("_", "-"), extra=extra, purpose=purpose, why=why) from error


def missing(package: str, *, extra: str, purpose: str, why: str = "") -> MissingDependencyError:
    """Error for a missing package; `why` is the reason if it is installed but can't be loaded."""
    broken = f", which is here but can't be imported ({why})" if why else ""
    return MissingDependencyError(f'{purpose} needs {package}{broken}: pip install "maskjet[{extra}]".')
