"""The table of other tools in `docs/features.md`: `python -m docs.integration_table` rewrites it.

Every row names the test that runs the real package; the oldest version is that of its extra.
"""

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

from docs import tables

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "features.md"
_HEAD = "| package | extra | what works | shown by |\n|---|---|---|---|\n"


class Row(NamedTuple):
    """A package, what works with it, and the test that shows it with the real package."""

    package: str
    extra: str
    """The extra that installs it; `dev`: it is not needed by Loopwright."""
    works: str
    page: str
    test: str
    """`FILE::TEST` below `tests/`."""


ROWS = (
    Row(
        "ai-edge-litert",
        "litert",
        "exports, also quantized",
        "exporting.md",
        "export/test_litert_and_onnx.py::"
        "test_a_file_gives_the_outputs_of_the_model_for_every_batch_size",
    ),
    Row(
        "onnxruntime",
        "onnx",
        "exports by tf2onnx",
        "exporting.md",
        "export/test_litert_and_onnx.py::test_a_runtime_runs_without_tensorflow",
    ),
    Row(
        "mlflow-skinny",
        "mlflow",
        "each point once at a server",
        "trackers.md",
        "sinks/test_tracked_kills.py::test_killed_at_random_moments_a_tracker_has_each_point_once",
    ),
    Row(
        "mlflow",
        "dev",
        "sqlite and directories as stores; its Keras callback",
        "trackers.md",
        "sinks/test_tracked_kills.py::test_a_run_that_is_killed_once_is_one_tracked_run",
    ),
    Row(
        "wandb",
        "wandb",
        "every step in the newest offline file; its Keras callbacks",
        "trackers.md",
        "sinks/test_tracked_kills.py::test_killed_at_random_moments_a_tracker_has_each_point_once",
    ),
    Row(
        "optuna",
        "tune",
        "`loopwright tune`; its samplers, pruners and plots",
        "tuning.md",
        "search/test_tune_command.py::"
        "test_a_search_that_is_killed_gives_the_same_bits_and_keeps_finished_trials",
    ),
    Row(
        "tqdm",
        "dev",
        "its Keras callback",
        "callbacks.md",
        "fit/test_real_callbacks.py::test_a_callback_does_the_same_as_in_keras_fit",
    ),
    Row(
        "ipykernel",
        "dev",
        "live curves in notebooks; the stop button",
        "notebooks.md",
        "sinks/test_notebook.py::test_a_cell_has_one_output_that_is_replaced_and_stays",
    ),
    Row(
        "albumentations",
        "augment",
        "augmentation that resumes exactly",
        "examples/augment.md",
        "examples/test_augment.py::test_images_changed_at_random_resume_exactly",
    ),
)


def oldest_version(row: Row) -> str:
    """Return the oldest version of a package that its extra accepts."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = (
        line
        for line in project["optional-dependencies"][row.extra]
        if re.split(r"[<>=]", line)[0] == row.package
    )
    found = re.search(r"[>=]=([\d.]+)", wanted)
    return "" if found is None else found[1]


def rows() -> str:
    """Return the rows of the table."""
    return "".join(
        f"| {row.package} {oldest_version(row)} | "
        f"{'-' if row.extra == 'dev' else f'`loopwright[{row.extra}]`'} | "
        f"[{row.works}]({row.page}) | `tests/{row.test.partition('::')[0]}` |\n"
        for row in ROWS
    )


def rewritten(page: str) -> str:
    """Return the text of a page with its table of packages as it should be."""
    return tables.rewritten(page, _HEAD, rows())


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
