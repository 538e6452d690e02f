"""What a trainer holds, in words and as HTML: task, models, run, plan, last scores."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from loopwright.checkpoints.run_directory import Run
from loopwright.errors import LoopwrightError
from loopwright.fit.parts import Parts
from loopwright.runs import RunRecord
from loopwright.runs import number as finite
from loopwright.sinks import notebook_html
from loopwright.sinks.history import History
from loopwright.sinks.progress_text import Part, number
from loopwright.task import variables
from loopwright.task.task import class_name

_MOST_PARTS = 12


def words(parts: Parts, run: Run | None, history: History) -> str:
    """Return one line: the task, its steps, the run directory, the last numbers."""
    known = [class_name(parts.task), _steps(parts)]
    known += [] if run is None else [f"run_dir={str(run.directory)!r}"]
    known += [f"{name} {value}" for name, value in list(_last(history).items())[:_MOST_PARTS]]
    return f"Trainer({', '.join(known)})"


def html(parts: Parts, run: Run | None, history: History) -> str:
    """Return a table of what is known; nothing is built or read that may fail."""
    rows = [
        *(("model", path, text) for path, text in _models(parts.task)),
        *(("optimizer", path, text) for path, text in _optimizers(parts.task)),
        ("plan", "", str(parts.selector.plan)),
        *_run(run),
        *(("last", name, value) for name, value in list(_last(history).items())[:_MOST_PARTS]),
    ]
    title = [Part("Trainer", "bold"), Part(class_name(parts.task)), Part(_steps(parts))]
    shown = notebook_html.table(
        ("", "", ""), [_without_repeats(rows, at) for at in range(len(rows))]
    )
    return notebook_html.box(notebook_html.line(title), shown)


def _without_repeats(rows: list[tuple[str, str, str]], at: int) -> tuple[str, str, str]:
    """Return a row; its kind is named in the first row of that kind only."""
    kind, name, text = rows[at]
    return ("" if at and rows[at - 1][0] == kind else kind), name, text


def _steps(parts: Parts) -> str:
    count = int(parts.task.step_counter.read_value())
    return f"{count:,} {'step' if count == 1 else 'steps'}"


def _models(task: Any) -> Iterator[tuple[str, str]]:
    models = [part for part in variables.parts(task) if isinstance(part.value, keras.Model)]
    # A task around a Keras model holds it by a private name as well.
    found = [part for part in models if not part.path.startswith("_")] or models
    for part in found[:_MOST_PARTS]:
        name = type(part.value).__name__
        if not part.value.built:
            yield part.path, f"{name}, built by the first batch"
            continue
        total = part.value.count_params()
        trained = sum(int(v.shape.num_elements() or 0) for v in _trained(part.value))
        frozen = "" if trained == total else f", {trained:,} trained"
        yield part.path, f"{name}, {total:,} parameters{frozen}"


def _trained(model: Any) -> list[Any]:
    return [variable.value for variable in model.trainable_variables]


def _optimizers(task: Any) -> Iterator[tuple[str, str]]:
    kinds = keras.optimizers.Optimizer
    found = [part for part in variables.parts(task) if isinstance(part.value, kinds)]
    for part in found[:_MOST_PARTS]:
        text = type(part.value).__name__
        with contextlib.suppress(Exception):  # a schedule of the user's own
            text += f", learning rate {number(float(part.value.learning_rate))}"
        yield part.path, text


def _run(run: Run | None) -> Iterator[tuple[str, str, str]]:
    if run is None:
        yield "run", "", "in memory: no run_dir, nothing is written to disk"
        return
    yield "run", "directory", str(run.directory)
    try:
        status = RunRecord(run.directory).status
        step, best = finite(status.get("step")), run.best(run.best_rule())
        metric = run.best_rule().metric
    except LoopwrightError as error:
        yield "run", "state", str(error).partition("\n")[0]
        return
    place = "" if step is None else f" at step {step:,.0f}"
    yield "run", "state", f"{status.get('status', 'not started')}{place}"
    if best is not None:
        yield "run", "best", f"{metric} {number(best[0])} at step {best[1]:,}"


def _last(history: History) -> dict[str, str]:
    return {name: number(values[-1]) for name, values in history.history.items() if values}
