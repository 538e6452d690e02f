"""A missing extra is named with the command that installs it, and nothing else is imported."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loopwright import extras
from loopwright.config.export_formats import require_installed
from loopwright.errors import ConfigurationError
from loopwright.search.optuna_study import require_optuna
from loopwright.sinks import figures
from loopwright.sinks.mlflow import MLflow
from loopwright.sinks.wandb import WandB

USES: dict[str, tuple[Callable[[], Any], str]] = {
    "plot": (lambda: figures.new("A plot of curves"), "A plot of curves"),
    "litert": (lambda: require_installed("litert"), "An export for LiteRT"),
    "onnx": (lambda: require_installed("onnx"), "An export for ONNX Runtime"),
    "mlflow": (MLflow, "The sink MLflow"),
    "wandb": (WandB, "The sink WandB"),
    "tune": (require_optuna, "A search"),
}


@pytest.mark.parametrize("extra", USES)
def test_what_needs_a_missing_extra_says_how_to_install_it(
    extra: extras.Extra, monkeypatch: pytest.MonkeyPatch
):
    for module in extras.MODULES[extra]:
        monkeypatch.setitem(sys.modules, module, None)
    use, what = USES[extra]
    with pytest.raises(ConfigurationError) as caught:
        use()
    first, expected, received, do = str(caught.value).splitlines()
    assert first == f"{what} needs a package that is not installed."
    assert expected == f"  expected: pip install 'loopwright[{extra}]'"
    assert received == f"  received: no module named {', '.join(extras.MODULES[extra])}"
    assert do.startswith("  do: install it, or ")


def test_formats_of_tensorflow_need_no_extra():
    require_installed("saved_model")
    require_installed("keras")


def test_every_extra_of_the_table_is_used_here():
    assert set(USES) == set(extras.MODULES)


def test_a_directory_that_a_package_leaves_behind_is_not_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "wandb" / "offline-run-1").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(ConfigurationError, match="no module named wandb"):
        WandB()


def put_package(name: str, text: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path / name).mkdir()
    (path / name / "__init__.py").write_text(text)
    monkeypatch.setattr(sys, "path", [str(path), *sys.path])
    monkeypatch.delitem(sys.modules, name, raising=False)


def test_a_package_whose_own_dependency_is_missing_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    put_package("optuna", "import not_there_at_all", tmp_path, monkeypatch)
    with pytest.raises(ConfigurationError, match="received: No module named 'not_there_at_all'"):
        require_optuna()


def test_warnings_of_a_package_while_it_is_imported_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    put_package("wandb", "import warnings; warnings.warn('old')", tmp_path, monkeypatch)
    assert extras.imported("wandb", "A test", instead="").__file__ == str(
        tmp_path / "wandb" / "__init__.py"
    )
    monkeypatch.delitem(sys.modules, "wandb")
