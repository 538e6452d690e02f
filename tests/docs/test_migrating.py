"""The migration guide: hand loops and tasks agree; Keras 3 raises the errors in the table."""

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

PAGE = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text()


LOOPS = (
    "A compiled step, and an augmentation in NumPy",
    "Epochs, two metrics, and losses of layers",
    "Random batches and a status line",
    "The whole loop in one compiled function",
    "A trainer class with checkpoints and TensorBoard",
)


def test_each_hand_loop_and_its_task_give_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # One program: as continued fences of the page, each would run all fences before it again.
    monkeypatch.chdir(tmp_path)
    before, section, _ = re.split("(## From a hand loop.*?)(?=### Line by line)", PAGE, flags=re.S)
    program = tmp_path / "migrating.py"
    program.write_text("\n" * before.count("\n") + only_code(section))
    ran = runpy.run_path(str(program))
    assert len(ran["by_hand"]["loss"]) == ran["EPOCHS"]


def test_every_hand_loop_is_followed_by_its_task_and_compared():
    for title in LOOPS:
        section = PAGE.split(f"### {title}\n")[1].split("\n### ")[0]
        by_hand, task = re.findall(r"```python notest\n(.*?)```", section, re.S)
        assert "apply_gradients" in by_hand
        assert "loopwright" not in by_hand
        assert "lw." not in by_hand
        assert "lw.Trainer(" in task
        assert "assert_same(history, by_hand)" in task


def only_code(page: str) -> str:
    """The code of all fences, each line where it is in the page."""
    lines, inside = [], False
    for line in page.splitlines():
        is_fence = line.startswith("```")
        lines.append(line if inside and not is_fence else "")
        inside = inside != is_fence
    return "\n".join(lines)


class NamedByPosition(keras.layers.Layer):
    def build(self, input_shape: Any) -> None:
        self.add_weight("kernel", shape=(input_shape[-1], 1))


class ShapesAsLists(keras.layers.Layer):
    def build(self, input_shape: Any) -> None:
        self.add_weight(name="kernel", shape=input_shape.as_list())


def model() -> Any:
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


KERAS_2: dict[str, tuple[Callable[[], Any], str]] = {
    "metric.reset_states()": (
        lambda: keras.metrics.Mean().reset_states(),
        "'Mean' object has no attribute 'reset_states'",
    ),
    'layer.add_weight("kernel", ...)': (
        lambda: NamedByPosition().build((1, 3)),
        "`name` must be passed as a keyword argument",
    ),
    'metric.add_weight("total", ...)': (
        lambda: keras.metrics.Metric().add_weight("total", initializer="zeros"),
        "Cannot convert 'total' to a shape",
    ),
    "InputLayer(5)": (lambda: keras.layers.InputLayer(5), "Cannot convert '5' to a shape"),
    "shape.as_list()": (
        lambda: ShapesAsLists().build((1, 3)),
        "'tuple' object has no attribute 'as_list'",
    ),
    "regularizers.l2(l=0.05)": (
        lambda: keras.regularizers.l2(l=0.05),
        "unexpected keyword argument 'l'",
    ),
    "Adam(lr=1e-3)": (
        lambda: keras.optimizers.Adam(lr=1e-3),
        "Argument(s) not recognized",
    ),
    "optimizer.lr": (
        lambda: keras.optimizers.Adam().lr,
        "'Adam' object has no attribute 'lr'",
    ),
    "optimizer.minimize(loss, variables)": (
        lambda: keras.optimizers.Adam().minimize,
        "'Adam' object has no attribute 'minimize'",
    ),
    "keras.optimizers.legacy.Adam": (
        lambda: keras.optimizers.legacy.Adam(0.1),
        "`keras.optimizers.legacy` is not supported in Keras 3",
    ),
    "tf.square(keras.Input(...))": (
        lambda: tf.square(keras.Input((3,))),
        "A KerasTensor cannot be used as input to a TensorFlow function",
    ),
    "keras.backend.mean": (
        lambda: keras.backend.mean,
        "module 'keras.backend' has no attribute 'mean'",
    ),
    "model.fit_generator(...)": (
        lambda: model().fit_generator,
        "object has no attribute 'fit_generator'",
    ),
    'model.save("directory")': (
        lambda: model().save("directory"),
        "Invalid filepath extension for saving",
    ),
    'model.save_weights("name")': (
        lambda: model().save_weights("name"),
        "The filename must end in `.weights.h5`",
    ),
    "load_model(saved_model)": (
        lambda: keras.models.load_model(Path(__file__).parent),
        "the legacy SavedModel format is not supported",
    ),
}


@pytest.mark.parametrize("idiom", KERAS_2)
def test_keras_3_refuses_an_idiom_of_keras_2_in_the_words_of_the_page(idiom: str):
    old, words = KERAS_2[idiom]
    assert any(
        line.startswith(f"| `{idiom}`") and f" | {words} | " in line for line in PAGE.splitlines()
    )
    with pytest.raises((AttributeError, ImportError, TypeError, ValueError)) as caught:
        old()
    assert words in str(caught.value)


def test_the_page_lists_no_other_idiom():
    section = PAGE.split("## From Keras 2")[1].split("The same parts")[0]
    assert section.count("\n| `") == len(KERAS_2)


def test_what_changes_without_an_error_does():
    with pytest.warns(UserWarning, match="decay"):
        keras.optimizers.Adam(decay=1e-3)
    assert isinstance(keras.optimizers.Adam().iterations.value, tf.Variable)
