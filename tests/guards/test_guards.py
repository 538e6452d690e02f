"""What is wrong with a step is said before it runs, in words; what is right is let through."""

import math
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import loopwright as lw

random = np.random.default_rng(5)
X = random.normal(size=(16, 4)).astype("float32")
Y = X @ np.array([[1.0], [-2.0], [0.5], [0.0]], "float32")
WORDS = np.array([["a", "b", "c", "d"]] * 16)


def mlp(*sizes: int, inputs: int = 4, regularizer: Any = None) -> keras.Model:
    dense = [layers.Dense(size, kernel_regularizer=regularizer) for size in sizes]
    return keras.Sequential([keras.Input((inputs,)), *dense])


class Regression(lw.Task):
    """A step by hand whose only secret is its loss."""

    def __init__(self, loss: Callable[..., Any] | None = None, model: keras.Model | None = None):
        super().__init__()
        self.model = mlp(3, 1) if model is None else model
        self.optimizer = keras.optimizers.SGD(0.01)
        self.loss = loss or squared_error

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = self.loss(self.model, x, y)
        self.minimize(loss, self.model, self.optimizer, tape)
        return {"loss": loss}


def squared_error(model, x, y):
    return tf.reduce_mean(tf.square(y - model(x, training=True)))  # line: squared error


def fit(task: lw.Task, *data: Any, plan: str = "graph") -> lw.History:
    batch_size = 8 if isinstance(data[0], np.ndarray | dict | tuple) else None
    return lw.Trainer(task, plan=plan).fit(*data, batch_size=batch_size, verbose=0)


def message_of(caught: pytest.ExceptionInfo[BaseException]) -> str:
    """What a person reads: one stack, that of the error itself, and no other above it."""
    shown = "".join(traceback.format_exception(caught.value))
    assert shown.count("Traceback (most recent call last)") == 1
    assert "\x1b" not in str(caught.value)
    return str(caught.value)


def refused(task: lw.Task, *data: Any, plan: str = "graph") -> str:
    """The message with which `fit` refuses to start."""
    with pytest.raises(lw.StepError) as caught:
        fit(task, *data, plan=plan)
    assert int(task.step) == 0
    return message_of(caught)


def warned(task: lw.Task, *data: Any) -> str:
    """The one warning of a `fit` that goes on all the same."""
    with pytest.warns(lw.StepWarning) as caught:
        fit(task, *data)
    assert int(task.step) == 2
    texts = {str(warning.message) for warning in caught}
    assert len(texts) == 1
    return without_id(texts.pop())


def without_id(text: str) -> str:
    """A warning without its last line, which tells how to silence it."""
    text, silence = text.rsplit("\n", 1)
    assert silence.startswith('  silence: Trainer(..., silence=["')
    return text


def place(marker: str) -> str:
    """File, number and text of the line of this file that ends with `# line: marker`."""
    lines = Path(__file__).read_text().splitlines()
    number, code = next((i, c) for i, c in enumerate(lines, 1) if c.endswith(f"# line: {marker}"))
    return f'(file "test_guards.py", line {number}: {code.strip()})'


both_plans = pytest.mark.parametrize("plan", ["graph", "eager"])


# --- what a step returns ----------------------------------------------------------------------


class Returning(Regression):
    def __init__(self, returned: Callable[[Any], Any]):
        super().__init__()
        self.returned = returned

    def train_step(self, batch):
        super().train_step(batch)
        return self.returned(batch[1])


@both_plans
@pytest.mark.parametrize(
    ("returned", "received"),
    [
        (lambda y: None, "nothing (no return statement?)"),
        (tf.reduce_mean, "a tensor: float32 ()"),
        (lambda y: (1.0, 2.0), "(1.0, 2.0) (tuple)"),
    ],
)
def test_a_step_that_returns_no_dict_is_refused(returned: Any, received: str, plan: str):
    assert refused(Returning(returned), X, Y, plan=plan) == (
        "Returning.train_step must return a dict of scalars.\n"
        '  expected: return {"loss": loss}\n'
        f"  received: {received}\n"
        "  do: return the numbers to report, by name"
    )


@both_plans
@pytest.mark.parametrize("rows", [None, 8])
def test_a_step_that_returns_one_number_per_example_is_refused(rows: int | None, plan: str):
    task = Returning(lambda y: {"loss": tf.ensure_shape(y, (rows, 1))})

    seen = 8 if plan == "eager" else rows
    assert refused(task, X, Y, plan=plan) == (
        "Returning.train_step returned 'loss', which is not a scalar number.\n"
        "  expected: one number per name\n"
        f"  received: a tensor: float32 ({seen}, 1)\n"
        "  do: reduce it first, for instance with tf.reduce_mean"
    )


# --- what a step reads ------------------------------------------------------------------------


# --- gradients --------------------------------------------------------------------------------


@both_plans
def test_a_loss_outside_the_tape_is_refused_with_the_names_of_the_variables(plan: str):
    class Outside(Regression):
        def train_step(self, batch):
            loss = self.loss(self.model, *batch)
            with tf.GradientTape() as tape:
                loss = 2.0 * loss
            self.minimize(loss, self.model, self.optimizer, tape)
            return {"loss": loss}

    task = Outside()

    what, expected, received, do = refused(task, X, Y, plan=plan).splitlines()

    assert what == "No variable has a gradient: the loss does not depend on any of them."
    assert expected == "  expected: a loss computed from these variables, inside the GradientTape"
    names = ", ".join(variable.path for variable in task.model.trainable_variables)
    assert received == f"  received: None for every one of: {names}"
    assert do.startswith("  do: compute predictions and loss inside `with tf.GradientTape()")


def test_an_error_of_ours_comes_out_of_a_compiled_step_as_it_is():
    class Compiled(Regression):
        @tf.function
        def train_step(self, batch):
            return super().train_step(batch)

    text = refused(Compiled(lambda model, x, y: tf.reduce_mean(y)), X, Y)

    assert text.startswith("No variable has a gradient: the loss does not depend on any of them.\n")


def test_variables_without_a_gradient_are_named_and_the_others_trained():
    class Half(Regression):
        def __init__(self):
            super().__init__()
            self.unused = mlp(2)

        def train_step(self, batch):
            with tf.GradientTape() as tape:
                loss = self.loss(self.model, *batch)
            self.minimize(loss, [self.model, self.unused], self.optimizer, tape)
            return {"loss": loss}

    task = Half()
    before = task.model.get_weights()

    text = warned(task, X, Y)

    kernel, bias = (variable.path for variable in task.unused.trainable_variables)
    assert text.startswith(
        f"2 of 6 variables have no gradient, and are not updated: {kernel}, {bias}.\n"
        "  do: leave them out of minimize if that is intended; otherwise check that the loss uses"
    )
    assert not np.array_equal(before[0], task.model.get_weights()[0])


@both_plans
@pytest.mark.parametrize("by_hand", [True, False])
def test_a_model_without_trainable_variables_is_refused(by_hand: bool, plan: str):
    model = mlp(1)
    model.trainable = False
    task = Regression(model=model) if by_hand else lw.Supervised(model, "mse", "sgd")

    assert refused(task, X, Y, plan=plan) == (
        f"The model {model.name!r} has nothing to train.\n"
        "  expected: at least one trainable variable\n"
        "  received: none: no weights, not built, or trainable=False everywhere\n"
        "  do: call the model inside the tape before minimize, or set .trainable = True"
    )


# --- model losses -----------------------------------------------------------------------------


@pytest.mark.parametrize(("sizes", "count"), [((1,), "1 loss"), ((3, 1), "2 losses")])
def test_model_losses_that_the_step_did_not_use_are_counted(sizes: tuple[int, ...], count: str):
    model = mlp(*sizes, regularizer="l2")

    assert warned(Regression(model=model), X, Y) == (
        f"The model {model.name!r} has {count} of its own (regularisation, add_loss) that the "
        "step did not use.\n"
        "  do: add them inside the tape: loss += sum(model.losses)"
    )


def test_only_the_losses_of_layers_never_asked_are_counted():
    model = mlp(3, 1, regularizer="l2")

    def with_first(model, x, y):
        return squared_error(model, x, y) + sum(model.layers[0].losses)

    assert f"The model {model.name!r} has 1 loss of its own" in warned(
        Regression(with_first, model), X, Y
    )


# --- labels and predictions -------------------------------------------------------------------


def own_squared_error(y, predictions):
    return tf.reduce_mean(tf.square(y - predictions), axis=-1)


class OwnSquaredError(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return own_squared_error(y_true, y_pred)


KERAS_LOSSES = {
    "name": "mse",
    "object": keras.losses.MeanSquaredError(),
    "function": keras.losses.mean_squared_error,
}
OWN_LOSSES = {"own function": own_squared_error, "own class": OwnSquaredError()}


def each(losses: dict[str, Any]) -> Any:
    return pytest.mark.parametrize("loss", list(losses.values()), ids=list(losses))


@each(KERAS_LOSSES | OWN_LOSSES)
@pytest.mark.parametrize("labels", [Y, Y[:, 0]], ids=["(n, 1)", "(n,)"])
def test_labels_that_only_fit_by_broadcasting_are_refused(labels: np.ndarray, loss: Any):
    shape = "(None,)" if labels.ndim == 1 else "(None, 1)"

    assert refused(lw.Supervised(mlp(10), loss, "sgd"), X, labels) == (
        "Labels and predictions only fit by broadcasting to a larger shape.\n"
        "  expected: labels and predictions of the same shape\n"
        f"  received: labels {shape}, predictions (None, 10)\n"
        "  do: reshape the labels (for instance y[:, None]) or the model's last layer; for class "
        "numbers as labels use a sparse loss"
    )


def allowing_for_flat_labels(y, predictions):
    return tf.square(y - predictions[:, 0])


@each(OWN_LOSSES | {"own function for flat labels": allowing_for_flat_labels})
def test_a_missing_last_axis_before_a_loss_of_ones_own_is_refused(loss: Any):
    assert refused(lw.Supervised(mlp(1), loss, "sgd"), X, Y[:, 0]) == (
        "Labels and predictions only fit by broadcasting to (n, n).\n"
        "  expected: labels and predictions of the same shape\n"
        "  received: labels (None,), predictions (None, 1)\n"
        "  do: reshape the labels (for instance y[:, None]) or the model's last layer"
    )


@each(KERAS_LOSSES)
def test_keras_losses_put_a_missing_last_axis_right(loss: Any):
    first, second = mlp(1), mlp(1)
    second.set_weights(first.get_weights())

    flat = fit(lw.Supervised(first, loss, "sgd"), X, Y[:, 0]).history["loss"]
    column = fit(lw.Supervised(second, loss, "sgd"), X, Y).history["loss"]

    assert flat == column


def test_the_output_whose_labels_do_not_fit_is_named():
    inputs = keras.Input((4,))
    outputs = {"price": layers.Dense(1)(inputs), "kind": layers.Dense(10)(inputs)}
    task = lw.Supervised(keras.Model(inputs, outputs), {"price": "mse", "kind": "mse"}, "sgd")

    text = refused(task, X, {"price": Y, "kind": Y})

    assert "Labels and predictions of output 'kind' only fit by broadcasting" in text


def flat_labels(model, x, y):
    return tf.reduce_mean(tf.square(y[:, 0] - model(x)))  # line: flat labels


def in_batches(drop_remainder: bool) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(8, drop_remainder=drop_remainder)


@pytest.mark.parametrize(
    ("drop_remainder", "size"), [(False, "None"), (True, "8")], ids=["open size", "fixed size"]
)
def test_labels_that_spread_over_predictions_by_hand_are_warned_of_with_their_line(
    drop_remainder: bool, size: str
):
    assert warned(Regression(flat_labels), in_batches(drop_remainder)) == (
        f"Regression.train_step combines shapes ({size},) and ({size}, 1), which broadcasts to "
        f"(n, n) {place('flat labels')}.\n"
        "  do: give both the same shape, for instance labels[:, None] or "
        "tf.squeeze(predictions, -1); if this is intended, use both axes: a[:, None] and b[None, :]"
    )


# --- what TensorFlow and Keras say while the step is traced -----------------------------------


def numpy_mean(model, x, y):
    return np.mean(tf.square(y - model(x)))  # line: numpy mean


def numpy_where(model, x, y):
    return tf.reduce_mean(np.where(y > 0, y, model(x)))  # line: numpy where


def numpy_noise(model, x, y):
    return tf.reduce_mean(np.random.normal(y) - model(x))  # line: numpy noise


def numpy_norm(model, x, y):
    return np.linalg.norm(y - model(x))  # line: numpy norm


def numpy_cast(model, x, y):
    return tf.reduce_mean(np.float32(y) - model(x))  # line: numpy cast


def tensor_to_numpy(model, x, y):
    return tf.reduce_mean(y - model(x).numpy())  # line: tensor to numpy


@pytest.mark.parametrize(
    ("loss", "called", "use"),
    [
        (numpy_mean, "np.mean", "use tf.reduce_mean"),
        (numpy_where, "np.where", "use tf.where"),
        (
            numpy_noise,
            "np.random.normal",
            "use keras.random.normal with a keras.random.SeedGenerator",
        ),
        (numpy_norm, "np.linalg.norm", "use tf.linalg.norm"),
        (numpy_cast, "np.float32", "use tf.cast(..., tf.float32)"),
        (
            tensor_to_numpy,
            ".numpy()",
            "leave it out: TensorFlow functions take the tensor as it is",
        ),
    ],
)
def test_numpy_on_a_symbolic_tensor_is_named_with_its_line_and_what_to_use(
    loss: Any, called: str, use: str
):
    where = place(loss.__name__.replace("_", " "))
    code = where.partition(": ")[2].removesuffix(")")

    assert refused(Regression(loss), X, Y) == (
        f"Regression.train_step calls {called} on a symbolic tensor {where}.\n"
        "  expected: TensorFlow functions inside a step, which is compiled before it runs\n"
        f"  received: {code}\n"
        f'  do: {use}; to look at values while debugging, Trainer(..., plan="eager")'
    )


def square_root(model, x, y):
    return math.sqrt(squared_error(model, x, y))  # line: square root


def to_text(model, x, y):
    loss = squared_error(model, x, y)
    print(f"{loss:.3f}")  # line: to text
    return loss


def looped_over(model, x, y):
    return sum(tf.reduce_mean(row) for row in model(x))  # line: looped over


@pytest.mark.parametrize("loss", [square_root, to_text, looped_over])
def test_a_tensor_used_as_a_python_value_is_named_with_its_line(loss: Any):
    where = place(loss.__name__.replace("_", " "))

    text = refused(Regression(loss), X, Y)

    assert text.startswith(
        f"Regression.train_step uses a symbolic tensor as a Python value {where}.\n"
        "  expected: TensorFlow functions inside a step, which is compiled before it runs\n"
    )
    assert "do: keep it a tensor: tf.cast instead of float() and int(), tf.print instead" in text


def open_noise(model, x, y):
    noise = np.random.uniform(size=y.shape)  # line: open noise
    return squared_error(model, x, y + noise)


def open_loop(model, x, y):
    return sum(model(x)[i, 0] for i in range(x.shape[0]))  # line: open loop


@pytest.mark.parametrize(
    ("loss", "also"),
    [
        (
            open_noise,
            ", and np.random.uniform by keras.random.uniform with a keras.random.SeedGenerator",
        ),
        (open_loop, ""),
    ],
)
def test_a_size_that_is_open_while_tracing_is_named_with_its_line(loss: Any, also: str):
    where = place(loss.__name__.replace("_", " "))
    code = where.partition(": ")[2].removesuffix(")")

    assert refused(Regression(loss), X, Y) == (
        f"Regression.train_step takes a size from .shape that is open while the step is traced "
        f"{where}.\n"
        "  expected: tf.shape(x)[0], which is the size of each batch as it comes\n"
        f"  received: {code}, with batch[0]: float32 (None, 4), batch[1]: float32 (None, 1)\n"
        f"  do: replace x.shape[0] by tf.shape(x)[0]{also}"
    )


def divided(model, x, y):
    return squared_error(model, x, y) / tf.shape(x)[0]  # line: divided


def test_a_number_divided_by_a_count_is_named_with_its_line():
    text = refused(Regression(divided), X, Y)

    assert text.startswith(
        f"Regression.train_step combines tensors of dtypes int32 and float32 {place('divided')}."
    )


def test_two_dtypes_that_meet_are_named_with_their_line():
    assert refused(Regression(), X, Y.astype("int32")) == (
        "Regression.train_step combines tensors of dtypes int32 and float32 "
        f"{place('squared error')}.\n"
        "  expected: the same dtype on both sides\n"
        "  received: batch[0]: float32 (None, 4), batch[1]: int32 (None, 1)\n"
        "  do: cast one of them, for instance tf.cast(labels, tf.float32)"
    )


def one_input(size: int = 4) -> keras.Model:
    inputs = keras.Input((size,))
    return keras.Model(inputs, layers.Dense(1)(inputs))


def two_inputs() -> keras.Model:
    a, b = keras.Input((4,), name="a"), keras.Input((2,), name="b")
    return keras.Model({"a": a, "b": b}, layers.Dense(1)(layers.Concatenate()([a, b])))


@pytest.mark.parametrize(
    ("model", "x", "expected", "received"),
    [
        (
            lambda: one_input(5),
            X,
            "expected shape=(None, 5), found shape=(None, 4)",
            "batch[0]: float32 (None, 4), batch[1]: float32 (None, 1)",
        ),
        (
            lambda: mlp(1, inputs=5),
            X,
            "expected axis -1 of input shape to have value 5",
            "batch[0]: float32 (None, 4), batch[1]: float32 (None, 1)",
        ),
        (
            one_input,
            X[:, None],
            "expected shape=(None, 4), found shape=(None, 1, 4)",
            "batch[0]: float32 (None, 1, 4), batch[1]: float32 (None, 1)",
        ),
        (
            two_inputs,
            {"a": X},
            'Missing data for input "b"',
            "batch[0]['a']: float32 (None, 4), batch[1]: float32 (None, 1)",
        ),
        (
            one_input,
            (X, X),
            "expects 1 named input(s)",
            "batch[0][0]: float32 (None, 4), batch[0][1]: float32 (None, 4), "
            "batch[1]: float32 (None, 1)",
        ),
    ],
    ids=["functional", "sequential", "rank", "missing key", "one input too many"],
)
def test_a_batch_that_does_not_fit_the_model_is_described(
    model: Any, x: Any, expected: str, received: str
):
    what, wanted, got, do = refused(lw.Supervised(model(), "mse", "sgd"), x, Y).splitlines()

    assert what == "The batch does not fit the model."
    assert wanted.startswith("  expected: ")
    assert expected in wanted
    assert got == f"  received: {received}"
    assert do == "  do: compare the shapes and dtypes above with the model's first layer"


def test_a_single_example_in_place_of_a_batch_raises_the_question_of_batching():
    dataset = tf.data.Dataset.from_tensor_slices((X[:, :1], Y))  # both of length 1: not seen before
    convolution = keras.Sequential([layers.Conv1D(1, 1), layers.Flatten(), layers.Dense(1)])

    text = refused(lw.Supervised(convolution, "mse", "sgd"), dataset)

    assert "expected min_ndim=3, found ndim=1" in text
    assert text.endswith("with the model's first layer (is the data batched?)")


class OwnDense(keras.Model):
    def __init__(self):
        super().__init__()
        self.kernel = self.add_weight(shape=(5, 1))

    def call(self, inputs):
        return tf.matmul(inputs, self.kernel)  # line: own dense


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_batch_that_does_not_fit_a_model_by_hand_is_named_with_the_line(by_hand: bool):
    model = OwnDense()
    task = Regression(model=model) if by_hand else lw.Supervised(model, "mse", "sgd")

    assert refused(task, X, Y) == (
        f"{type(task).__name__}.train_step combines shapes that do not fit {place('own dense')}.\n"
        "  expected: equal sizes, not 4 and 5 with input shapes: [?,4], [5,1].\n"
        "  received: batch[0]: float32 (None, 4), batch[1]: float32 (None, 1)\n"
        "  do: compare the batch with the weights or tensors in that line"
    )


@pytest.mark.parametrize("built", [True, False])
def test_strings_for_a_layer_of_numbers_are_refused(built: bool):
    model = mlp(1) if built else keras.Sequential([layers.Dense(1)])

    assert refused(lw.Supervised(model, "mse", "sgd"), WORDS, Y) == (
        "Supervised.train_step takes strings for numbers.\n"
        "  expected: numbers\n"
        "  received: a tensor: string (None, 4)\n"
        "  do: turn text into numbers first: keras.layers.StringLookup or TextVectorization, "
        "tf.strings.to_number for digits"
    )


def test_strings_for_numbers_in_a_step_by_hand_are_named_with_their_line():
    text = refused(Regression(), WORDS, Y)

    assert f"Regression.train_step takes strings for numbers {place('squared error')}." in text


def test_strings_in_an_operation_on_numbers_are_refused():
    text = refused(Regression(model=OwnDense()), WORDS, Y)

    assert f"Regression.train_step takes strings for numbers {place('own dense')}." in text
    assert "received: batch[0]: string (None, 4), batch[1]: float32 (None, 1)" in text


def test_an_optimizer_that_is_given_other_variables_than_before_is_named_with_the_line():
    class OneForTwo(Regression):
        def __init__(self):
            super().__init__()
            self.second = mlp(1)

        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape(persistent=True) as tape:
                first, second = squared_error(self.model, x, y), squared_error(self.second, x, y)
            self.minimize(first, self.model, self.optimizer, tape)
            self.minimize(second, self.second, self.optimizer, tape)  # line: one for two
            return {"loss": first + second}

    task = OneForTwo()

    assert refused(task, X, Y) == (
        "OneForTwo.train_step gives an optimizer a variable that it was not built for "
        f"{place('one for two')}.\n"
        "  expected: the same variables for an optimizer in every update\n"
        f"  received: {task.second.layers[0].kernel.path}\n"
        "  do: make an optimizer of its own for each set of variables, or pass all of them in one "
        "minimize; after layers were unfrozen, make a new optimizer"
    )


class Mine(ValueError):
    pass


@both_plans
def test_an_error_of_the_step_itself_passes_unchanged(plan: str):
    error, cause = Mine("this layer got a string, dtype unknown"), KeyError("mine")

    def raising(model, x, y):
        raise error from cause  # line: raising

    with pytest.raises(Mine) as caught:
        fit(Regression(raising), X, Y, plan=plan)

    assert caught.value is error
    assert str(error) == "this layer got a string, dtype unknown"
    assert error.__cause__ is cause
    lines = "".join(traceback.format_exception(error))
    assert "raise error from cause  # line: raising" in lines
    assert plan == "eager" or lines.endswith(f"raised in the step {place('raising')}\n")


# --- the other steps --------------------------------------------------------------------------


class Scoring(Regression):
    def test_step(self, batch):
        return {"loss": np.mean(batch[1])}  # line: scoring

    def predict_step(self, batch):
        return np.exp(batch)  # line: predicting


def test_errors_in_test_step_are_explained():
    with pytest.raises(lw.StepError) as caught:
        lw.Trainer(Scoring()).evaluate(X, Y)

    text = message_of(caught)
    assert f"Scoring.test_step calls np.mean on a symbolic tensor {place('scoring')}." in text
    assert "do: use tf.reduce_mean" in text


def test_errors_in_predict_step_are_explained():
    with pytest.raises(lw.StepError) as caught:
        lw.Trainer(Scoring()).predict(X)

    text = message_of(caught)
    assert f"Scoring.predict_step calls np.exp on a symbolic tensor {place('predicting')}." in text
    assert "do: use tf.exp" in text


@pytest.mark.parametrize("use", ["evaluate", "predict"])
def test_a_batch_that_does_not_fit_is_described_when_scoring_and_predicting(use: str):
    trainer = lw.Trainer(lw.Supervised(one_input(5), "mse", "sgd"))

    with pytest.raises(lw.StepError) as caught:
        getattr(trainer, use)(X)

    text = message_of(caught)
    assert text.startswith("The batch does not fit the model.\n")
    assert "received: batch: float32 (None, 4)" in text


def test_a_compiled_model_that_the_batch_does_not_fit_is_explained_too():
    model = one_input(5)
    model.compile("sgd", "mse")

    with pytest.raises(lw.StepError) as caught:
        lw.Trainer(model).fit(X, Y, verbose=0)

    assert message_of(caught).startswith("The batch does not fit the model.\n")


# --- retraces ---------------------------------------------------------------------------------


def test_a_retrace_is_explained_once_with_what_changed_and_what_to_do():
    def batches():
        for length in (4, 4, 6, 8, 6):
            yield np.ones((2, length), "float32"), np.ones((2, 1), "float32")

    class Pooling(Regression):
        def train_step(self, batch):
            x, y = batch
            return super().train_step((tf.reduce_mean(x, 1, keepdims=True), y))

    task = Pooling(model=mlp(1, inputs=1))

    with pytest.warns(lw.RetraceWarning) as caught:
        fit(task, batches())

    assert int(task.step) == 5
    assert [str(warning.message) for warning in caught] == [
        "The step is traced again: batch[0]: float32 (None, 4) became (2, 6).\n"
        "  do: give all batches the same shape (pad or bucket them); each new shape costs a "
        "trace, after which that axis is left open"
    ]


# --- what is right is let through -------------------------------------------------------------


def classes(count: int = 3, **options: Any) -> Any:
    """Class numbers as labels, for a loss that takes them."""
    return lambda: (lw.Supervised(mlp(count), optimizer="sgd", **options), X, np.arange(16) % count)


def self_choosing_loss() -> Any:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, activation="softmax")])
    return lw.Supervised(model, "crossentropy", "sgd"), X, np.arange(16) % 3


def robust_loss() -> Any:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, activation="softmax")])
    loss = keras.losses.CategoricalGeneralizedCrossEntropy()
    return lw.Supervised(model, loss, "sgd"), X, np.arange(16) % 3


def binary_labels() -> Any:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1, activation="sigmoid")])
    return lw.Supervised(model, "binary_crossentropy", "sgd", ["accuracy"]), X, np.arange(16) % 2


def own_sparse_loss() -> Any:
    def negative_log_likelihood(y, scores):
        chosen = tf.gather(tf.nn.log_softmax(scores), tf.cast(y, tf.int32), batch_dims=1)
        return -chosen

    return classes(loss=negative_log_likelihood)()


def own_weighted_loss() -> Any:
    """Weights that follow from the labels spread over all classes, and are meant to."""

    def by_class(y, scores):
        weights = tf.gather([1.0, 2.0, 3.0], tf.cast(y, tf.int32))
        return tf.reduce_mean(weights * tf.square(scores), axis=-1)

    return lw.Supervised(mlp(3), by_class, "sgd"), X, (np.arange(16) % 3)[:, None]


def two_outputs() -> Any:
    inputs = keras.Input((4,))
    outputs = {"price": layers.Dense(1)(inputs), "kind": layers.Dense(3)(inputs)}
    sparse = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    task = lw.Supervised(keras.Model(inputs, outputs), {"price": "mse", "kind": sparse}, "sgd")
    return task, X, {"price": Y[:, 0], "kind": np.arange(16) % 3}


def contrastive(fixed_size: bool) -> Any:
    """Every example against every other, with both axes written out."""

    def loss(model, x, y):
        a, b = model(x)[:, 0], y[:, 0]
        return tf.reduce_mean(tf.square(a[:, None] - b[None, :]))

    return Regression(loss), in_batches(drop_remainder=fixed_size)


def bias_vectors() -> Any:
    """A vector of a variable, as long as the batch, beside a column."""

    class Biased(Regression):
        def __init__(self):
            super().__init__()
            self.bias = keras.Variable(np.zeros(8, "float32"))

        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - self.model(x) - self.bias))
            self.minimize(loss, [*self.model.trainable_variables, self.bias], self.optimizer, tape)
            return {"loss": loss}

    return Biased(), in_batches(drop_remainder=True)


def causal_mask() -> Any:
    """Positions against positions: sizes come from the batch, values do not."""

    def loss(model, x, y):
        position = tf.range(tf.shape(x)[0])
        mask = tf.cast(position[:, None] >= position, tf.float32)
        return tf.reduce_mean(tf.square(mask @ (y - model(x))))

    return Regression(loss), X, Y


def normalised() -> Any:
    def loss(model, x, y):
        x = (x - tf.reduce_mean(x, axis=0)) / (1e-3 + tf.norm(x, axis=1, keepdims=True))
        return squared_error(model, x, y)

    return Regression(loss), X, Y


def used_model_losses() -> Any:
    def loss(model, x, y):
        return squared_error(model, x, y) + tf.add_n(model.losses)

    return Regression(loss, mlp(3, 1, regularizer="l2")), X, Y


def losses_of_each_part() -> Any:
    class Parts(Regression):
        def __init__(self):
            self.encoder, self.decoder = mlp(3, regularizer="l2"), mlp(1, inputs=3)
            super().__init__(model=keras.Sequential([self.encoder, self.decoder]))
            self.loss = lambda model, x, y: (
                squared_error(model, x, y) + sum(self.encoder.losses) + sum(self.decoder.losses)
            )

    return Parts(), X, Y


def supervised_with_regularizer() -> Any:
    return lw.Supervised(mlp(3, 1, regularizer="l2"), "mse", "sgd"), X, Y


def teacher() -> Any:
    class Distilling(Regression):
        def __init__(self):
            super().__init__()
            self.teacher = mlp(1, regularizer="l2")
            self.loss = lambda model, x, y: squared_error(model, x, self.teacher(x))

    return Distilling(), X, Y


def gan() -> Any:
    class GAN(lw.Task):
        def __init__(self):
            super().__init__()
            self.generator, self.discriminator = mlp(4, inputs=2), mlp(1)
            self.optimizers = [keras.optimizers.Adam(), keras.optimizers.Adam()]
            self.cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)
            self.seed = keras.random.SeedGenerator(0)

        def train_step(self, batch):
            noise = keras.random.normal((tf.shape(batch)[0], 2), seed=self.seed)
            with tf.GradientTape(persistent=True) as tape:
                real, fake = self.discriminator(batch), self.discriminator(self.generator(noise))
                d_loss = self.cross_entropy(tf.ones_like(real), real)
                d_loss += self.cross_entropy(tf.zeros_like(fake), fake)
                g_loss = self.cross_entropy(tf.ones_like(fake), fake)
            self.minimize(d_loss, self.discriminator, self.optimizers[0], tape)
            self.minimize(g_loss, self.generator, self.optimizers[1], tape)
            return {"d_loss": d_loss, "g_loss": g_loss}

    return GAN(), X


def embedding() -> Any:
    model = keras.Sequential([layers.Embedding(5, 2), layers.Flatten(), layers.Dense(1)])
    return Regression(model=model), (np.arange(64) % 5).reshape(16, 4), Y


def recurrent() -> Any:
    model = keras.Sequential([keras.Input((4, 1)), layers.LSTM(3), layers.Dense(1)])
    return Regression(model=model), X[..., None], Y


def mixed_precision() -> Any:
    inputs = keras.Input((4,))
    outputs = layers.Dense(1, dtype="mixed_float16")(inputs)
    model = keras.Model(inputs, layers.Activation("linear", dtype="float32")(outputs))
    return (
        lw.Supervised(model, "mse", keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())),
        X,
        Y,
    )


def python_numbers() -> Any:
    """AutoGraph turns float() into a cast, and a branch into a condition."""

    def loss(model, x, y):
        loss = squared_error(model, x, y)
        if loss > 1.0:
            loss = loss * float(tf.shape(x)[0]) / 8.0
        return loss

    return Regression(loss), X, Y


def words_looked_up() -> Any:
    lookup = layers.StringLookup(vocabulary=["a", "b", "c", "d"])
    model = keras.Sequential([lookup, layers.Embedding(5, 2), layers.Flatten(), layers.Dense(1)])
    return lw.Supervised(model, "mse", "sgd"), WORDS, Y


def size_only() -> Any:
    """Reads only the size of its batch: what it draws is new each step."""

    class Drawing(Regression):
        def __init__(self):
            super().__init__()
            self.seed = keras.random.SeedGenerator(0)

        def train_step(self, batch):
            drawn = keras.random.normal((tf.shape(batch)[0], 4), seed=self.seed)
            return super().train_step((drawn, drawn[:, :1]))

    return Drawing(), X


RIGHT: dict[str, Callable[[], Any]] = {
    "sparse labels": classes(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)),
    "a sparse loss under another name": classes(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, name="mine")
    ),
    "the loss that chooses itself": self_choosing_loss,
    "a loss between embeddings": classes(loss=keras.losses.Circle()),
    "a robust loss of class numbers": robust_loss,
    "binary labels": binary_labels,
    "a sparse loss of one's own": own_sparse_loss,
    "a weighted loss of one's own": own_weighted_loss,
    "two outputs": two_outputs,
    "contrastive": lambda: contrastive(fixed_size=False),
    "contrastive, fixed batch size": lambda: contrastive(fixed_size=True),
    "bias vectors": bias_vectors,
    "a causal mask": causal_mask,
    "normalised inputs": normalised,
    "model losses, used": used_model_losses,
    "model losses, used part by part": losses_of_each_part,
    "model losses in Supervised": supervised_with_regularizer,
    "a teacher with regularisers, not trained": teacher,
    "a GAN": gan,
    "an embedding": embedding,
    "a recurrent model": recurrent,
    "mixed precision": mixed_precision,
    "a branch and a Python float": python_numbers,
    "words that a layer looks up": words_looked_up,
    "a step that needs only the size of its batch": size_only,
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_step_that_is_right_is_let_through_without_a_word(name: str):
    task, *data = RIGHT[name]()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Keras 3.15 hands its variables to NumPy 2.
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        history = fit(task, *data)

    assert int(task.step) == 2
    assert all(np.isfinite(values).all() for values in history.history.values())


def test_a_step_under_tf_function_is_looked_into_as_any_other():
    class Decorated(lw.Task):
        def __init__(self):
            super().__init__()
            self.model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            self.optimizer = keras.optimizers.SGD()

        @tf.function
        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.model(x, training=True) - y) ** 2)
            self.minimize(loss, self.model, self.optimizer, tape)
            return {"loss": loss}

    x = np.ones((8, 2), "float32")
    with pytest.warns(lw.StepWarning, match=r"broadcasts to \(n, n\)"):
        lw.Trainer(Decorated()).fit(x, x[:, 0], verbose=0)


def test_supervised_without_labels_says_so():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(lw.StepError, match="the data has no labels"):
        lw.Trainer(lw.Supervised(model, "mse", "sgd")).fit(np.ones((8, 2)), verbose=0)
