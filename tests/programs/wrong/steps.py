"""Mistakes inside a step that its trace shows."""

import keras
import numpy as np
import tensorflow as tf
from tests.programs.wrong.wrong_program import Wrong

import loopwright as lw

X = np.random.default_rng(3).normal(size=(16, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
UNTIL = {"until": "4 steps"}


class _Regression(lw.Task):
    """A step by hand, with the loss that a program gives it."""

    def __init__(self, *layers: keras.Layer) -> None:
        super().__init__()
        last = keras.layers.Dense(1, name="last")
        self.model = keras.Sequential([keras.Input((4,)), *layers, last], name="net")
        self.optimizer = keras.optimizers.SGD(0.01)

    def train_step(self, batch):
        with tf.GradientTape() as tape:
            loss = self.loss_of(*batch)
        self.minimize(loss, self.model, self.optimizer, tape)
        return {"loss": loss}

    def loss_of(self, x, y):
        return tf.reduce_mean(tf.square(y - self.model(x, training=True)))


class _KerasModel(keras.Model):
    """A compiled model with a step by hand."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.compile("sgd", "mse", **options)

    def call(self, x):
        return self.dense(x)

    def loss_of(self, x, y):
        return tf.reduce_mean(tf.square(y - self(x, training=True)))


# --- updates --------------------------------------------------------------------------------------


def minimize_forgotten(mistake: bool) -> Wrong:
    class Watching(_Regression):
        def train_step(self, batch):
            with tf.GradientTape() as tape:
                loss = self.loss_of(*batch)
            if not mistake:
                self.minimize(loss, self.model, self.optimizer, tape)
            return {"loss": loss}

    return Wrong(
        Watching(),
        "Watching.train_step updates no trainable variable: the loss will stay the same.\n"
        "  expected: an update in each step\n"
        "  received: 2 trainable variables and SGD, which is not applied\n"
        "  do: call self.minimize(loss, model, optimizer, tape); in a Keras model "
        "self.optimizer.apply(gradients, self.trainable_variables)",
        X,
        Y,
        id="no-update",
    )


def update_of_a_keras_model_forgotten(mistake: bool) -> Wrong:
    class Forgetful(_KerasModel):
        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = self.loss_of(*data)
            gradients = tape.gradient(loss, self.trainable_variables)
            if not mistake:
                self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss}

    return Wrong(
        Forgetful(),
        "Forgetful.train_step updates no trainable variable: the loss will stay the same.\n"
        "  expected: an update in each step\n"
        "  received: 2 trainable variables and SGD, which is not applied\n"
        "  do: call self.minimize(loss, model, optimizer, tape); in a Keras model "
        "self.optimizer.apply(gradients, self.trainable_variables)",
        X,
        Y,
        id="no-update",
    )


def two_optimizers_for_one_model(mistake: bool) -> Wrong:
    class Both(_Regression):
        def __init__(self):
            super().__init__()
            self.other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            self.second = keras.optimizers.Adam()

        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape(persistent=True) as tape:
                loss = self.loss_of(x, y)
                other = tf.reduce_mean(tf.square(y - self.other(x, training=True)))
            self.minimize(loss, self.model, self.optimizer, tape)
            if mistake:
                self.minimize(loss, self.model, self.second, tape)
            else:
                self.minimize(other, self.other, self.second, tape)
            return {"loss": loss + other}

    return Wrong(
        Both(),
        "Both.train_step updates 2 variables with two optimizers: net/last/kernel, net/last/bias.\n"
        "  expected: one optimizer for each variable\n"
        "  received: SGD and Adam\n"
        "  do: give each optimizer the variables of its own model only; for two losses add them "
        "up, and minimize their sum",
        X,
        Y,
        id="shared-variables",
    )


def epochs_inside_the_step(mistake: bool) -> Wrong:
    class Unrolled(_Regression):
        def train_step(self, batch):
            scalars = {}
            for _ in range(12 if mistake else 2):
                scalars = super().train_step(batch)
            return scalars

    return Wrong(
        Unrolled(),
        "Unrolled.train_step makes the same update 12 times: a Python loop was unrolled 12 times "
        "at trace time.\n"
        "  expected: one update for each batch\n"
        "  received: 12 updates of the same variables by one optimizer\n"
        "  do: leave epochs to fit(..., epochs=12); for several updates on one batch write "
        "`for _ in tf.range(12):`",
        X,
        Y,
        id="unrolled-loop",
    )


def variables_before_gradients(mistake: bool) -> Wrong:
    class Swapped(_Regression):
        def train_step(self, batch):
            with tf.GradientTape() as tape:
                loss = self.loss_of(*batch)
            weights = self.model.trainable_variables
            pairs = (tape.gradient(loss, weights), weights)
            pairs = reversed(pairs) if mistake else pairs
            self.optimizer.apply_gradients(zip(*pairs, strict=True))  # here
            return {"loss": loss}

    return Wrong(
        Swapped(),
        'Swapped.train_step passes variables for gradients to the optimizer (file "steps.py", '
        "line {line}: self.optimizer.apply_gradients(zip(*pairs, strict=True))  # here).\n"
        "  expected: pairs of a gradient and its variable, in this order\n"
        "  received: self.optimizer.apply_gradients(zip(*pairs, strict=True))  # here\n"
        "  do: write optimizer.apply_gradients(zip(gradients, variables)), or self.minimize(loss, "
        "model, optimizer, tape)",
        X,
        Y,
    )


def optimizer_made_in_the_step(mistake: bool) -> Wrong:
    class Fresh(_Regression):
        def train_step(self, batch):
            if mistake:
                self.optimizer = keras.optimizers.SGD(0.01)  # here
            return super().train_step(batch)

    return Wrong(
        Fresh(),
        'Fresh.train_step creates a variable, a layer or an optimizer (file "steps.py", line '
        "{line}: self.optimizer = keras.optimizers.SGD(0.01)  # here).\n"
        "  expected: variables, layers and optimizers that are made once and kept\n"
        "  received: self.optimizer = keras.optimizers.SGD(0.01)  # here\n"
        "  do: create it in __init__ as an attribute of self, and use it in the step",
        X,
        Y,
    )


def layer_made_in_the_step(mistake: bool) -> Wrong:
    class Fresh(_Regression):
        def loss_of(self, x, y):
            if not mistake:
                return super().loss_of(x, y)
            x = keras.layers.Dense(4)(x)  # here
            return super().loss_of(x, y)

    return Wrong(
        Fresh(),
        'Fresh.train_step creates a variable, a layer or an optimizer (file "steps.py", line '
        "{line}: x = keras.layers.Dense(4)(x)  # here).\n"
        "  expected: variables, layers and optimizers that are made once and kept\n"
        "  received: x = keras.layers.Dense(4)(x)  # here\n"
        "  do: create it in __init__ as an attribute of self, and use it in the step",
        X,
        Y,
    )


# --- gradients ------------------------------------------------------------------------------------


def loss_outside_the_tape(mistake: bool) -> Wrong:
    class Outside(_Regression):
        def train_step(self, batch):
            loss = self.loss_of(*batch)
            with tf.GradientTape() as tape:
                loss = 2.0 * (loss if mistake else self.loss_of(*batch))
            self.minimize(loss, self.model, self.optimizer, tape)
            return {"loss": loss}

    return Wrong(
        Outside(),
        "No variable has a gradient: the loss does not depend on any of them.\n"
        "  expected: a loss computed from these variables, inside the GradientTape\n"
        "  received: None for every one of: net/last/kernel, net/last/bias\n"
        "  do: compute predictions and loss inside `with tf.GradientTape() as tape:`, with "
        "TensorFlow functions (no .numpy(), argmax or rounding in between)",
        X,
        Y,
    )


def layer_that_the_loss_does_not_use(mistake: bool) -> Wrong:
    class Half(_Regression):
        def __init__(self):
            super().__init__()
            self.unused = keras.layers.Dense(1, name="spare")
            self.unused.build((None, 4))

        def train_step(self, batch):
            with tf.GradientTape() as tape:
                loss = self.loss_of(*batch)
            models = [self.model, self.unused] if mistake else [self.model]
            self.minimize(loss, models, self.optimizer, tape)
            return {"loss": loss}

    return Wrong(
        Half(),
        "2 of 4 variables have no gradient, and are not updated: spare/kernel, spare/bias.\n"
        "  do: leave them out of minimize if that is intended; otherwise check that the loss uses "
        "what they compute",
        X,
        Y,
        id="no-gradient",
    )


def frozen_model(mistake: bool) -> Wrong:
    task = _Regression()
    task.model.trainable = not mistake
    return Wrong(
        task,
        "The model 'net' has nothing to train.\n"
        "  expected: at least one trainable variable\n"
        "  received: none: no weights, not built, or trainable=False everywhere\n"
        "  do: call the model inside the tape before minimize, or set .trainable = True",
        X,
        Y,
    )


def tape_used_twice(mistake: bool) -> Wrong:
    class Twice(_Regression):
        def train_step(self, batch):
            with tf.GradientTape(persistent=not mistake) as tape:
                loss = self.loss_of(*batch)
            norm = tf.linalg.global_norm(tape.gradient(loss, self.model.trainable_variables))
            self.minimize(loss, self.model, self.optimizer, tape)  # here
            return {"loss": loss, "norm": norm}

    return Wrong(
        Twice(),
        'Twice.train_step asks one GradientTape for gradients twice (file "steps.py", line '
        "{line}: self.minimize(loss, self.model, self.optimizer, tape)  # here).\n"
        "  expected: one minimize or tape.gradient for each tape\n"
        "  received: self.minimize(loss, self.model, self.optimizer, tape)  # here\n"
        "  do: open the tape with tf.GradientTape(persistent=True), or one tape for each loss",
        X,
        Y,
    )


def loss_that_was_not_reduced(mistake: bool) -> Wrong:
    class Vector(_Regression):
        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                errors = tf.square(y - self.model(x, training=True))[:, 0]
                loss = tf.reduce_mean(errors)
            self.minimize(errors if mistake else loss, self.model, self.optimizer, tape)
            return {"loss": loss}

    return Wrong(
        Vector(),
        "Vector.train_step minimizes a loss of shape (None,): its gradient is that of the sum, and "
        "grows with the batch size.\n"
        "  expected: one number\n"
        "  received: a loss of shape (None,)\n"
        "  do: reduce it first: tf.reduce_mean(loss)",
        X,
        Y,
        id="unreduced-loss",
    )


def losses_of_layers_left_out(mistake: bool) -> Wrong:
    class Regularized(_Regression):
        def loss_of(self, x, y):
            loss = super().loss_of(x, y)
            return loss if mistake else loss + sum(self.model.losses)

    return Wrong(
        Regularized(keras.layers.Dense(2, kernel_regularizer="l2")),
        "The model 'net' has 1 loss of its own (regularisation, add_loss) that the step did not "
        "use.\n"
        "  do: add them inside the tape: loss += sum(model.losses)",
        X,
        Y,
        id="unused-losses",
    )


def model_called_without_training(mistake: bool) -> Wrong:
    class Inference(_Regression):
        def loss_of(self, x, y):
            predictions = self.model(x) if mistake else self.model(x, training=True)
            return tf.reduce_mean(tf.square(y - predictions))

    return Wrong(
        Inference(keras.layers.BatchNormalization(name="norm")),
        "The step calls 'net' without training=True: dropout and batch norm are in inference mode "
        "while training.\n"
        "  received: inference mode for norm\n"
        "  do: write model(x, training=True) in train_step, or False if that is intended",
        X,
        Y,
        id="inference-mode",
    )


# --- the batch ------------------------------------------------------------------------------------


def labels_without_their_axis(mistake: bool) -> Wrong:
    class Spread(_Regression):
        def loss_of(self, x, y):
            difference = y - self.model(x, training=True)  # here
            return tf.reduce_mean(tf.square(difference))

    return Wrong(
        Spread(),
        "Spread.train_step combines shapes (None,) and (None, 1), which broadcasts to (n, n) "
        '(file "steps.py", line {line}: difference = y - self.model(x, training=True)  # here).\n'
        "  do: give both the same shape, for instance labels[:, None] or tf.squeeze(predictions, "
        "-1); if this is intended, use both axes: a[:, None] and b[None, :]",
        X,
        Y[:, 0] if mistake else Y,
        id="broadcast",
    )


def step_closed_over_its_batch(mistake: bool) -> Wrong:
    x, y = tf.constant(X[:8]), tf.constant(Y[:8])

    class Closed(_Regression):
        @tf.function
        def train_step(self, batch):
            return super().train_step((x, y) if mistake else batch)

    return Wrong(
        Closed(),
        "Closed.train_step does not read its batch: every step would compute the same.\n"
        "  expected: a step that uses its `batch` argument\n"
        "  received: a step that uses none of its tensors (perhaps a variable from outside)\n"
        "  do: take inputs and labels from `batch`; for a step without data call "
        'fit(None, until="1000 steps")',
        X,
        Y,
    )


def loss_of_other_examples(mistake: bool) -> Wrong:
    first = tf.constant(X[:8]), tf.constant(Y[:8])

    class Outside(_Regression):
        def train_step(self, batch):
            scalars = super().train_step(first if mistake else batch)
            return {**scalars, "labels": tf.reduce_mean(batch[1])}

    return Wrong(
        Outside(),
        "Outside.train_step minimizes a loss that does not depend on the batch: every step makes "
        "the same update.\n"
        "  expected: a loss computed from the step's `batch` argument\n"
        "  received: gradients that do not depend on the batch\n"
        "  do: take inputs and labels from `batch`, not from a variable outside the step",
        X,
        Y,
        id="constant-loss",
    )


def step_without_a_batch_argument(mistake: bool) -> Wrong:
    class Seedlike(_Regression):
        pass

    def train_step():
        return _Regression.train_step(task, (X[:8], Y[:8]))

    task = Seedlike()
    if mistake:
        vars(task)["train_step"] = train_step
    return Wrong(
        task,
        "Seedlike.train_step takes no batch, but it was given data.\n"
        "  expected: def train_step(self, batch)\n"
        "  received: def train_step(self)\n"
        "  do: add the argument and take the examples from it: x, y = batch; or call fit(None, "
        'until="1000 steps")',
        X,
        Y,
    )


def fixed_batch_without_data(mistake: bool) -> Wrong:
    class Baked(_Regression):
        def __init__(self):
            super().__init__()
            self.seed = keras.random.SeedGenerator(0)

        def train_step(self):  # pyright: ignore[reportIncompatibleMethodOverride]
            x = X[:8] if mistake else keras.random.normal((8, 4), seed=self.seed)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.model(x, training=True)))  # here
            self.minimize(loss, self.model, self.optimizer, tape)
            return {"loss": loss}

    return Wrong(
        Baked(),
        'Baked.train_step computes with a fixed array in every step (file "steps.py", line {line}: '
        "loss = tf.reduce_mean(tf.square(self.model(x, training=True)))  # here).\n"
        "  expected: a step without a batch argument that draws its examples in each step\n"
        "  received: float32 (8, 4)\n"
        "  do: pass the data to fit(x, y) and take a batch argument; or hold all examples and "
        "choose rows: tf.gather(self.x, keras.random.randint((32,), 0, rows, seed=self.seed))",
        id="baked-in-array",
        options=UNTIL,
    )


def batch_drawn_by_numpy(mistake: bool) -> Wrong:
    class Drawn(_Regression):
        def __init__(self):
            super().__init__()
            self.seed, self.x = keras.random.SeedGenerator(0), tf.constant(X)

        def train_step(self):  # pyright: ignore[reportIncompatibleMethodOverride]
            rows = keras.random.randint((3,), 0, 16, seed=self.seed)
            x = tf.gather(self.x, rows)
            if mistake:
                x = tf.gather(self.x, np.random.randint(16, size=3))  # here
            return super().train_step((x, tf.reduce_sum(x, axis=1, keepdims=True)))

    return Wrong(
        Drawn(),
        "Drawn.train_step uses a value that Python computed while the step was traced (file "
        '"steps.py", line {line}: x = tf.gather(self.x, np.random.randint(16, size=3))  # here): '
        "every step would use the same one.\n"
        "  expected: values that change to come from the batch, a variable, or keras.random\n"
        "  received: two traces of the step gave constants that differ: int64 (3,); drawn by "
        'np.random.randint (file "steps.py", line {line}: x = tf.gather(self.x, '
        "np.random.randint(16, size=3))  # here)\n"
        "  do: draw with keras.random.uniform, normal or randint(..., seed=self.seed), with "
        "self.seed = keras.random.SeedGenerator(0) in __init__, or pass the data to fit; or run "
        'Python in each step with plan="eager"',
        options=UNTIL,
    )


# --- Python ---------------------------------------------------------------------------------------


def numpy_function(mistake: bool) -> Wrong:
    class ByNumpy(_Regression):
        def loss_of(self, x, y):
            if not mistake:
                return super().loss_of(x, y)
            return np.mean(tf.square(y - self.model(x, training=True)))  # here

    return Wrong(
        ByNumpy(),
        'ByNumpy.train_step calls np.mean on a symbolic tensor (file "steps.py", line {line}: '
        "return np.mean(tf.square(y - self.model(x, training=True)))  # here).\n"
        "  expected: TensorFlow functions inside a step, which is compiled before it runs\n"
        "  received: return np.mean(tf.square(y - self.model(x, training=True)))  # here\n"
        "  do: use tf.reduce_mean; to look at values while debugging, "
        'Trainer(..., plan="eager")',
        X,
        Y,
    )


def predictions_by_predict(mistake: bool) -> Wrong:
    class Predicting(_Regression):
        def loss_of(self, x, y):
            if not mistake:
                return super().loss_of(x, y)
            return tf.reduce_mean(tf.square(y - self.model.predict(x)))  # here

    return Wrong(
        Predicting(),
        'Predicting.train_step calls model.predict (file "steps.py", line {line}: return '
        "tf.reduce_mean(tf.square(y - self.model.predict(x)))  # here).\n"
        "  expected: the model as a function inside a step: self.model(x, training=True)\n"
        "  received: return tf.reduce_mean(tf.square(y - self.model.predict(x)))  # here\n"
        "  do: call the model instead; predict runs loops of its own, outside the step",
        X,
        Y,
    )


def print_in_the_step(mistake: bool) -> Wrong:
    class Printing(_Regression):
        def loss_of(self, x, y):
            loss = super().loss_of(x, y)
            print("loss:", loss)  # here
            return loss

    class Quiet(_Regression):
        def loss_of(self, x, y):
            loss = super().loss_of(x, y)
            if tf.executing_eagerly():
                print("loss:", loss)
            return loss

    return Wrong(
        Printing() if mistake else Quiet(),
        'Printing.train_step prints with Python (file "steps.py", line {line}: '
        'print("loss:", loss)  # here): Python runs once, while the step is traced.\n'
        "  expected: TensorFlow operations for what should happen in each step\n"
        "  received: a Python statement with an effect outside the step\n"
        "  do: use tf.print(...); or run Python in each step with "
        'plan="eager"',
        X,
        Y,
        id="python-side-effect",
    )


def losses_appended_to_a_list(mistake: bool) -> Wrong:
    class Appending(_Regression):
        def __init__(self):
            super().__init__()
            self.past = []

        def train_step(self, batch):
            scalars = super().train_step(batch)
            self.past.append(scalars["loss"])  # here
            return scalars

    class Local(_Regression):
        def train_step(self, batch):
            found = []
            scalars = super().train_step(batch)
            found.append(scalars["loss"])
            return {"loss": tf.add_n(found)}

    return Wrong(
        Appending() if mistake else Local(),
        'Appending.train_step appends a symbolic tensor to a list (file "steps.py", line {line}: '
        'self.past.append(scalars["loss"])  # here): Python runs once, while the step is traced.\n'
        "  expected: TensorFlow operations for what should happen in each step\n"
        "  received: a Python statement with an effect outside the step\n"
        "  do: return the value by name, and read it from the history or in a callback; or run "
        'Python in each step with plan="eager"',
        X,
        Y,
        id="python-side-effect",
    )


def steps_counted_by_python(mistake: bool) -> Wrong:
    class Counting(_Regression):
        def __init__(self):
            super().__init__()
            self.steps = 0

        def train_step(self, batch):
            self.steps += 1  # here
            return super().train_step(batch)

    return Wrong(
        Counting() if mistake else _Regression(),
        'Counting.train_step counts with a Python number (file "steps.py", line {line}: '
        "self.steps += 1  # here): Python runs once, while the step is traced.\n"
        "  expected: TensorFlow operations for what should happen in each step\n"
        "  received: a Python statement with an effect outside the step\n"
        "  do: count with self.step or a tf.Variable; or run Python in each step with "
        'plan="eager"',
        X,
        Y,
        id="python-side-effect",
    )


def updates_chosen_by_a_python_count(mistake: bool) -> Wrong:
    class Alternating(_Regression):
        def __init__(self):
            super().__init__()
            self.turn = 0

        def train_step(this, batch):  # pyright: ignore[reportSelfClsParameterName]
            this.turn = (this.turn + 1) % 4  # here
            return super().train_step(batch)

    class Cached(_Regression):
        def __init__(self):
            super().__init__()
            self.features, self.traced = None, False

        def train_step(self, batch):
            self.traced = True
            if self.features is None:
                self.features = batch[0].shape[-1]
            return super().train_step(batch)

    return Wrong(
        Alternating() if mistake else Cached(),
        'Alternating.train_step counts with a Python number (file "steps.py", line {line}: '
        "this.turn = (this.turn + 1) % 4  # here): Python runs once, while the step is traced.\n"
        "  expected: TensorFlow operations for what should happen in each step\n"
        "  received: a Python statement with an effect outside the step\n"
        "  do: count with self.step or a tf.Variable; or run Python in each step with "
        'plan="eager"',
        X,
        Y,
        id="python-side-effect",
    )


def an_optimizer_that_is_never_used(mistake: bool) -> Wrong:
    class Alternating(_Regression):
        def __init__(self):
            super().__init__(keras.layers.Dense(3, name="first"))
            self.slow = keras.optimizers.SGD(0.001)
            self.turns = [1]

        def train_step(self, batch):
            with tf.GradientTape(persistent=True) as tape:
                loss = self.loss_of(*batch)
            self.turns[0] = self.turns[0] + 1
            first, last = self.model.layers
            self.minimize(loss, last, self.optimizer, tape)
            if not mistake:
                self.minimize(loss, first, self.slow, tape, when=self.step % 3 == 0)
            elif self.turns[0] % 1000 == 0:
                self.minimize(loss, first, self.slow, tape)
            return {"loss": loss}

    return Wrong(
        Alternating(),
        "Alternating.train_step never uses the optimizer 'slow': it updates nothing.\n"
        "  expected: an update by every optimizer that the task holds\n"
        "  received: a trace without it, perhaps because a Python `if` left it out\n"
        "  do: call minimize with 'slow'; for an update in some steps only, pass a condition on "
        "the device: self.minimize(..., when=self.step % 3 == 0)",
        X,
        Y,
        id="idle-optimizer",
    )


# --- what a step returns --------------------------------------------------------------------------


def nothing_returned(mistake: bool) -> Wrong:
    class Silent(_Regression):
        def train_step(self, batch):  # pyright: ignore[reportIncompatibleMethodOverride]
            scalars = super().train_step(batch)
            return None if mistake else scalars

    return Wrong(
        Silent(),
        "Silent.train_step must return a dict of scalars.\n"
        '  expected: return {"loss": loss}\n'
        "  received: nothing (no return statement?)\n"
        "  do: return the numbers to report, by name",
        X,
        Y,
    )


def one_number_for_each_example(mistake: bool) -> Wrong:
    class Vector(_Regression):
        def train_step(self, batch):
            scalars = super().train_step(batch)
            error = tf.abs(batch[1] - self.model(batch[0], training=True))
            return {**scalars, "error": error if mistake else tf.reduce_mean(error)}

    return Wrong(
        Vector(),
        "Vector.train_step returned 'error', which is not a scalar number.\n"
        "  expected: one number per name\n"
        "  received: a tensor: float32 (None, 1)\n"
        "  do: reduce it first, for instance with tf.reduce_mean",
        X,
        Y,
    )


def count_of_updates_for_a_loss(mistake: bool) -> Wrong:
    class Counting(_Regression):
        def train_step(self, batch):
            with tf.GradientTape() as tape:
                loss = self.loss_of(*batch)
            weights = self.model.trainable_variables
            pairs = zip(tape.gradient(loss, weights), weights, strict=True)
            applied = self.optimizer.apply_gradients(pairs)
            return {"loss": applied if mistake else loss}

    return Wrong(
        Counting(),
        "Counting.train_step returned 'loss', which is not a loss but a number of updates.\n"
        "  expected: a number computed from the batch\n"
        "  received: what optimizer.apply_gradients returns: its count of updates\n"
        "  do: return the loss from which the gradients were taken",
        X,
        Y,
    )


def loss_that_was_not_trained(mistake: bool) -> Wrong:
    class Other(_Regression):
        def train_step(self, batch):
            scalars = super().train_step(batch)
            return {"loss": tf.reduce_mean(batch[1])} if mistake else scalars

    return Wrong(
        Other(),
        "Other.train_step returns a 'loss' that does not depend on any variable.\n"
        "  expected: the loss from which the gradients were taken\n"
        "  received: a tensor computed from the batch and constants only\n"
        '  do: return {"loss": loss} with the loss that is minimized',
        X,
        Y,
        id="constant-loss",
    )


# --- metrics and layers ---------------------------------------------------------------------------


def metric_without_updates(mistake: bool) -> Wrong:
    class Idle(_Regression):
        def __init__(self):
            super().__init__()
            self.error = keras.metrics.MeanAbsoluteError(name="error")

        def train_step(self, batch):
            if not mistake:
                self.error.update_state(batch[1], self.model(batch[0], training=True))
            return super().train_step(batch)

    return Wrong(
        Idle(),
        "Idle.train_step does not update the metric 'error': left out of the numbers of the "
        "training.\n"
        "  do: call update_state in train_step to report it there; nothing, if it is for the other "
        "step only",
        X,
        Y,
        id="idle-metric",
    )


def metric_without_updates_in_a_keras_model(mistake: bool) -> Wrong:
    class Idle(_KerasModel):
        def __init__(self):
            super().__init__()
            self.error = keras.metrics.MeanAbsoluteError(name="error")

        def train_step(self, data):
            scalars = super().train_step(data)
            if not mistake:
                self.error.update_state(data[1], self(data[0], training=True))
            return {**scalars, "error": self.error.result()}

    return Wrong(
        Idle(),
        "Idle.train_step returns the metric 'error' without an update: its value stays the same.\n"
        "  do: call update_state of 'error' in the step, or leave it out of what the step returns",
        X,
        Y,
        id="idle-metric",
    )


def compiled_metrics_without_updates(mistake: bool) -> Wrong:
    class Forgetful(_KerasModel):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                predictions = self(x, training=True)
                loss = self.compute_loss(x, y, predictions)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss, **({} if mistake else self.compute_metrics(x, y, predictions))}

    return Wrong(
        Forgetful(metrics=["mae"]),
        "Forgetful.train_step does not update the metrics that the model was compiled with.\n"
        "  expected: a step that updates them, or compile() without metrics\n"
        "  received: compile(metrics=...), and no call of compute_metrics\n"
        "  do: call self.compute_metrics(x, y, y_pred) in the step, or leave metrics out of "
        "compile",
        X,
        Y,
    )


class _Unsavable(keras.layers.Layer):
    def call(self, inputs):
        return inputs

    def get_config(self):
        return {**super().get_config(), "units": units}  # noqa: F821  # pyright: ignore


def layer_that_cannot_be_saved(mistake: bool) -> Wrong:
    return Wrong(
        _Regression(*([_Unsavable()] if mistake else [])),
        "_Unsavable.get_config fails: name 'units' is not defined. Keras cannot save it.\n"
        "  expected: a get_config that names attributes of the layer\n"
        "  received: NameError in _Unsavable.get_config\n"
        "  do: keep the arguments of __init__ as attributes, and return them: "
        '{**super().get_config(), "units": self.units}',
        X,
        Y,
        id="unsavable-layer",
    )
