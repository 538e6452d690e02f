"""The extras of Loopwright: optional packages, and the command that installs a missing one."""

import importlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final, Literal

from loopwright.errors import ConfigurationError

Extra = Literal["plot", "litert", "onnx", "mlflow", "wandb", "tune"]

MODULES: Final[Mapping[Extra, Sequence[str]]] = {
    "plot": ("matplotlib",),
    "litert": ("ai_edge_litert",),
    "onnx": ("onnx", "onnxruntime", "tf2onnx"),
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
    "tune": ("optuna",),
}
"""What must be importable; the first module is the one that `imported` returns."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra.

    >>> install_command("onnx")
    "pip install 'loopwright[onnx]'"
    """
    return f"pip install 'loopwright[{extra}]'"


def require_extra(extra: Extra, what: str, *, instead: str) -> None:
    """Raise if a module of an extra is missing; `what` needs it. Nothing is imported."""
    missing = [name for name in MODULES[extra] if not is_installed(name)]
    if missing:
        raise _missing(extra, what, f"no module named {', '.join(missing)}", instead)


def imported(extra: Extra, what: str, *, instead: str) -> Any:
    """Import an extra, without the warnings of its dependencies; raise if it is missing."""
    require_extra(extra, what, instead=instead)
    name = MODULES[extra][0]
    if name in sys.modules:  # filters of warnings are shared by all threads: leave them alone
        return importlib.import_module(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ImportError as error:  # a package that it needs itself is missing
            raise _missing(extra, what, str(error), instead) from error


def is_installed(module: str) -> bool:
    """Return whether a module can be imported.

    A directory without `__init__.py` is not one: W&B creates a `wandb` where training starts.

    >>> is_installed("json"), is_installed("jsn")
    (True, False)
    """
    found = find_spec(module)
    return found is not None and found.origin is not None


def _missing(extra: Extra, what: str, received: str, instead: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what} needs a package that is not installed.",
        expected=install_command(extra),
        received=received,
        do=f"install it, or {instead}",
    )
