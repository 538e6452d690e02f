"""Tiger: a custom optimizer, written like those of Keras."""

from typing import Any, final

import keras

from loopwright.compat.keras_internals import registered


@final
@registered
class Tiger(keras.optimizers.Optimizer):
    """Tiger, a memory-saving optimizer: updates by the sign of the momentum.

    By Jianlin Su, 2023 (github.com/bojone/tiger): Lion with one momentum instead of two. This class
    has only the update rule, not the learning rates by kind of weight. Every weight moves by the
    learning rate at each step, so use a tenth to a third of Adam's rate, and let it decay.

    >>> weight = keras.Variable([1.0, -1.0])
    >>> Tiger(learning_rate=0.125).apply([keras.ops.array([3.0, -0.001])], [weight])
    >>> weight.numpy().tolist()
    [0.875, -0.875]
    """

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        beta: float = 0.965,
        *,
        name: str = "tiger",
        **options: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, name=name, **options)
        self.beta = float(beta)
        self._momentums: Any = []

    def build(self, variables: Any) -> None:
        """Create a momentum for each variable."""
        if not self.built:
            super().build(variables)
            self._momentums = self.add_optimizer_variables(variables, "momentum")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable; Keras does weight decay, clipping and averages."""
        momentum = self._momentums[self._get_variable_index(variable)]
        gradient = keras.ops.cast(gradient, variable.dtype)
        rate = keras.ops.cast(learning_rate, variable.dtype)
        mixed = self.beta * momentum + (1.0 - self.beta) * gradient
        self.assign(momentum, mixed)
        self.assign_sub(variable, rate * keras.ops.sign(mixed))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {**super().get_config(), "beta": self.beta}
