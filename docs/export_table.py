"""The table of what converts in `docs/exporting.md`: `python -m docs.export_table` rewrites it.

Every model is converted, run by its runtime in a new process and compared, as `trainer.export`
does. That takes minutes; `python -m docs.export_table LABEL` prints one row.
"""

import importlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from loopwright import components
from loopwright.config.export_formats import Format, Target
from loopwright.data.adapter import training_data
from loopwright.errors import LoopwrightError
from loopwright.export import child, writers
from loopwright.export.comparison import compare, expected_outputs
from loopwright.export.signatures import EXAMPLES, first_examples, signatures

PAGE = Path(__file__).parent / "exporting.md"
_EXAMPLES = Path(__file__).parents[1] / "examples"
_FILES = {path.stem for path in _EXAMPLES.glob("*.py")} - {"figures"}
sys.path.append(str(_EXAMPLES))
FORMATS: tuple[Format, ...] = ("litert", "onnx")
_HEAD = "| model | LiteRT | ONNX |\n|---|---|---|\n"

Case = Callable[[], tuple[Mapping[str, keras.Model], Any]]
"""Makes one model by its signature, and a batch of data that it may accept."""


def _example(name: str, signature: str) -> Case:
    def made() -> tuple[Mapping[str, keras.Model], Any]:
        example = importlib.import_module("loopwright.digits" if name == "digits" else name)
        experiment = example.experiment(quick=True)
        keras.utils.set_random_seed(0)
        task, fit = example.make_task(), experiment.fit
        data, _ = training_data(fit.get("x"), fit.get("y"), None, None, None, 0.0, None)
        batch: Any = None
        if name == "imputation":  # the step makes the inputs of its models
            batch = keras.random.normal((EXAMPLES, example.HOURS, 10), seed=0)
        elif data is not None:
            batch = first_examples(data.one_pass(steps=EXAMPLES).dataset(), EXAMPLES)
        model = task.exports()[signature]
        if batch is not None and not model.built:
            model(batch[0] if isinstance(batch, tuple) else batch, training=False)
        return {signature: model}, batch

    return made


def _layers(*layers: Any, shape: tuple[int | None, ...] = (4,), dtype: str = "float32") -> Case:
    def made() -> tuple[Mapping[str, keras.Model], Any]:
        keras.utils.set_random_seed(0)
        made = [layer() for layer in layers]
        return {"serve": keras.Sequential([keras.Input(shape, dtype=dtype), *made])}, None

    return made


def _model(make: Callable[[], Any], columns: int) -> Case:
    def made() -> tuple[Mapping[str, keras.Model], Any]:
        keras.utils.set_random_seed(0)
        model, x = make(), np.random.default_rng(0).normal(size=(8, columns)).astype("float32")
        model(x)
        return {"serve": model}, keras.ops.convert_to_tensor(x)

    return made


def _quotients() -> keras.Model:
    inputs = [keras.Input((2,), name="numerator"), keras.Input((2,), name="denominator")]
    return keras.Model(inputs, components.SumProductQuotient()(inputs))


def _several() -> keras.Model:
    image = keras.Input((8, 8, 1), name="image")
    years = keras.Input((1,), dtype="int32", name="age")
    inputs = {"image": image, "age": years}
    flat = keras.layers.Flatten()(image)
    age = keras.layers.Flatten()(keras.layers.Embedding(100, 4)(years))
    joined = keras.layers.Concatenate()([flat, age])
    outputs = {"label": keras.layers.Dense(3)(joined), "price": keras.layers.Dense(1)(joined)}
    return keras.Model(inputs, outputs)


def _functional(make: Callable[[], keras.Model]) -> Case:
    return lambda: ({"serve": make()}, None)


_OF_KERAS: dict[str, Case] = {
    "convolutions, batch normalization, pooling": _layers(
        lambda: keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.BatchNormalization,
        keras.layers.MaxPooling2D,
        keras.layers.Flatten,
        lambda: keras.layers.Dense(3, activation="softmax"),
        shape=(8, 8, 1),
    ),
    "images of any height and width": _layers(
        lambda: keras.layers.Conv2D(4, 3),
        keras.layers.GlobalAveragePooling2D,
        shape=(None, None, 3),
    ),
    "`LSTM`": _layers(lambda: keras.layers.LSTM(4), shape=(6, 4)),
    "`GRU`, sequences of any length": _layers(lambda: keras.layers.GRU(4), shape=(None, 4)),
    "`Bidirectional(LSTM)`": _layers(
        lambda: keras.layers.Bidirectional(keras.layers.LSTM(4)), shape=(6, 4)
    ),
    "self-attention, layer normalization": _functional(
        lambda: _attention(keras.Input((6, 4), name="tokens"))
    ),
    "integers: `Embedding`": _layers(
        lambda: keras.layers.Embedding(10, 4),
        keras.layers.GlobalAveragePooling1D,
        shape=(6,),
        dtype="int32",
    ),
    "strings: `StringLookup`": _layers(
        lambda: keras.layers.StringLookup(vocabulary=["1", "2", "3"], output_mode="one_hot"),
        shape=(1,),
        dtype="string",
    ),
    "strings: `TextVectorization`": _layers(
        lambda: keras.layers.TextVectorization(vocabulary=["1", "2"], output_sequence_length=3),
        shape=(1,),
        dtype="string",
    ),
    "preprocessing: `Normalization`, `Rescaling`, `Resizing`": _layers(
        lambda: keras.layers.Normalization(mean=1.0, variance=2.0),
        lambda: keras.layers.Rescaling(1 / 255),
        lambda: keras.layers.Resizing(4, 4),
        shape=(8, 8, 3),
    ),
    "several inputs and outputs, floats and integers": _functional(_several),
    "`mixed_float16`": _layers(lambda: keras.layers.Dense(3, dtype="mixed_float16")),
    "`mixed_bfloat16`": _layers(lambda: keras.layers.Dense(3, dtype="mixed_bfloat16")),
    "`mixed_bfloat16`, outputs in float32": _layers(
        lambda: keras.layers.Dense(3, dtype="mixed_bfloat16"),
        lambda: keras.layers.Dense(3, dtype="float32"),
    ),
}


def _attention(tokens: Any) -> keras.Model:
    seen = keras.layers.MultiHeadAttention(2, 4)(tokens, tokens)
    return keras.Model(tokens, keras.layers.LayerNormalization()(tokens + seen))


_OF_COMPONENTS: dict[str, Case] = {
    "`Exponential`": _layers(components.Exponential),
    "`Dense`": _layers(lambda: components.Dense(3, "tanh")),
    "`SumProductQuotient`": _functional(_quotients),
    "`TrainingNoise`": _layers(lambda: components.TrainingNoise(0.1)),
    "`ResidualBlock`": _layers(lambda: components.ResidualBlock(2, 4)),
    "`ResidualRegressor`": _model(lambda: components.ResidualRegressor(1), 4),
    "`ReconstructionRegressor`": _model(lambda: components.ReconstructionRegressor(1), 4),
}


_SIGNATURES = {"augment": "layers", "imputation": "mixed", "swissroll": "rebuilding"}
_SIGNATURES |= {"wide_and_deep": "both"}
"""Of examples with several models, the one of the table: the others have the same layers."""


def cases() -> dict[str, Case]:
    """Return the models of the table by the first cell of their rows; none is made yet."""
    found = dict[str, Case]()
    for name in sorted({*_FILES, "digits"}):
        signature = _SIGNATURES.get(name, "serve")
        label = f"example `{name}`" + ("" if signature == "serve" else f", `{signature}`")
        found[label] = _example(name, signature)
    found |= {f"`lw.components`: {name}": case for name, case in _OF_COMPONENTS.items()}
    return found | _OF_KERAS


def row(label: str, case: Case) -> str:
    """Return a row of the table: what happens when this model is exported."""
    models, batch = case()
    return f"| {' | '.join([label, *(_cell(models, batch, format) for format in FORMATS)])} |\n"


def _cell(models: Mapping[str, keras.Model], batch: Any, format: Format) -> str:
    first = _refusal(models, batch, Target(format=format))
    if not first:
        return "yes"
    if not _refusal(models, batch, Target(format=format, batch_size=1)):
        return "with `batch_size=1`"
    # The names of nodes count the models of a process.
    return re.sub(r" in node \(.*?\)", "", f"no: {first}")


def _refusal(models: Mapping[str, keras.Model], batch: Any, target: Target) -> str:
    """Convert, run and compare in a temporary directory; return why that is refused.

    As `trainer.export` does, but converted in this process: importing TensorFlow takes longer.
    """
    with tempfile.TemporaryDirectory(prefix="loopwright-") as name:
        directory = Path(name)
        given = signatures(models, None, batch, target.batch_size)
        written = directory / f"model{target.kind.suffix}"
        writers.write_order(given, target, directory)
        code, printed = _converted(directory)
        if reason := writers.refusal(target, code, printed):
            return reason.replace("|", "\\|")
        try:
            compare(given, expected_outputs(given), target, written, directory)
        except LoopwrightError as error:
            lines = str(error).splitlines()
            reason = next(line for line in lines if line.startswith("  received: "))
            return reason.removeprefix("  received: ").replace("|", "\\|")
    return ""


def _converted(directory: Path) -> tuple[int, str]:
    """Run the converter; return an exit code, and what it printed."""
    before = os.dup(2)
    with tempfile.TemporaryFile("w+b") as file:
        os.dup2(file.fileno(), 2)
        try:
            child.convert(directory)
            code, said = 0, ""
        except (Exception, SystemExit) as error:
            code, said = 1, f"{type(error).__name__}: {error}"
        finally:
            os.dup2(before, 2)
            os.close(before)
        file.seek(0)
        return code, f"{file.read().decode(errors='replace')}\n{said}"


def _rows() -> Iterator[str]:
    for label, case in cases().items():
        yield row(label, case)
        print(label, flush=True)


def rows_of(page: str) -> list[str]:
    """Return the rows of the table in a page."""
    after = page.split(_HEAD)[1].splitlines(keepends=True)
    end = next((index for index, line in enumerate(after) if not line.startswith("|")), len(after))
    return after[:end]


def rewritten(page: str, rows: list[str]) -> str:
    """Return the text of a page with these rows in its table."""
    return page.replace(_HEAD + "".join(rows_of(page)), _HEAD + "".join(rows))


if __name__ == "__main__":
    if wanted := sys.argv[1:]:
        print(row(wanted[0], cases()[wanted[0]]), end="")
    else:
        PAGE.write_text(rewritten(PAGE.read_text(), list(_rows())))
