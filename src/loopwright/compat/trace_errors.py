"""What TensorFlow and Keras raise about misuse inside a step, as sentences about the step."""

import re

from loopwright.errors import message


def _whole_training(found: re.Match[str], step: str, place: str, code: str, _: str) -> str:
    return message(
        f"{step} calls model.{found[1]}{place}.",
        expected="the model as a function inside a step: self.model(x, training=True)",
        received=code or f"model.{found[1]}(...)",
        do=f"call the model instead; {found[1]} runs loops of its own, outside the step",
    )


def _tape_used_twice(_: re.Match[str], step: str, place: str, code: str, __: str) -> str:
    return message(
        f"{step} asks one GradientTape for gradients twice{place}.",
        expected="one minimize or tape.gradient for each tape",
        received=code or "a second tape.gradient",
        do="open the tape with tf.GradientTape(persistent=True), or one tape for each loss",
    )


def _new_variable(_: re.Match[str], step: str, place: str, code: str, __: str) -> str:
    return message(
        f"{step} creates a variable, a layer or an optimizer{place}.",
        expected="variables, layers and optimizers that are made once and kept",
        received=code or "a new variable in the step",
        do="create it in __init__ as an attribute of self, and use it in the step",
    )


def _swapped_pairs(_: re.Match[str], step: str, place: str, code: str, __: str) -> str | None:
    if "apply" not in code:
        return None
    return message(
        f"{step} passes variables for gradients to the optimizer{place}.",
        expected="pairs of a gradient and its variable, in this order",
        received=code,
        do="write optimizer.apply_gradients(zip(gradients, variables)), or self.minimize(loss, "
        "model, optimizer, tape)",
    )


SENTENCES = (
    (r"the step calls model\.(\w+)", _whole_training),
    (r"A non-persistent GradientTape can only be used to compute one set", _tape_used_twice),
    (r"tf\.function only supports singleton tf\.Variables", _new_variable),
    (r"could not be lifted out of a `tf\.function`", _new_variable),
    (r"SymbolicTensor' object has no attribute '_unique_id'", _swapped_pairs),
)
"""Patterns of error texts, each with the function that makes its sentence."""
