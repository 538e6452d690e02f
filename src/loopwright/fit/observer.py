"""What sinks cannot see, added to the events of a leg: facts, rates, gradients, images."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, final

import keras

from loopwright import environment
from loopwright.compat.keras_internals import undisplayed
from loopwright.data.arrays import Arrays
from loopwright.dispatch import attempted
from loopwright.events import (
    EpochEnded,
    Event,
    GradientsWatched,
    ImagesDrawn,
    RunFacts,
    Started,
    Trained,
)
from loopwright.fit.parts import Parts
from loopwright.fit.request import FitRequest
from loopwright.loop.clock import Stopwatch
from loopwright.task import variables
from loopwright.task.optimizers import Plain, hyperparameters, learning_rates, optimizers
from loopwright.task.state import undisturbed
from loopwright.task.task import Task

_SECONDS_BETWEEN_GRADIENTS = 10.0
_SECONDS_BETWEEN_IMAGES = 30.0

_Found = TypeVar("_Found")


@final
class Observer:
    """Reads the task and its compiled steps for sinks; what cannot be read warns once."""

    def __init__(self, parts: Parts, request: FitRequest, watch: Stopwatch) -> None:
        self._parts, self._request, self._watch = parts, request, watch
        self._gradients_at = self._images_at = -math.inf
        self._images_step = -1
        self._facts: RunFacts | None = None
        self._failed: set[str] = set()

    def collect_facts(self) -> None:
        """Collect the facts of the run, which `Started` carries."""
        with attempted("The facts of the run", "collected"):
            task, request = self._parts.task, self._request
            settings: dict[str, Plain] = {"seed": self._parts.seed, "until": str(request.until)}
            if isinstance(request.data, Arrays):
                settings["batch_size"] = request.data.batch_size
            traced = self._parts.engine.traces("train_step")  # none if steps run eagerly
            self._facts = RunFacts(
                {**hyperparameters(task), **settings},
                model_summaries(task),
                environment.about(request.run_dir),
                traced[-1].graph if traced else None,
                signatures(task),
            )

    def completed(self, event: Event) -> Sequence[Event]:
        """Return the event with what sinks cannot see, and the events that belong to it."""
        match event:
            case Started():
                return [replace(event, facts=self._facts)]
            case Trained():
                return [event, *self._gradients(event.step)]
            case EpochEnded():
                rates = self._tried("learning rates", self._learning_rates, {})
                is_due = self._watch.clock() - self._images_at >= _SECONDS_BETWEEN_IMAGES
                drawn = self.images(event.step) if is_due else []
                return [replace(event, learning_rates=rates), *drawn]
            case _:
                return [event]

    def images(self, step: int) -> Sequence[ImagesDrawn]:
        """Return the images of the task, unless those of this step were drawn before."""
        if step == self._images_step:
            return []
        self._images_at, self._images_step = self._watch.clock(), step
        images = self._tried("images", self._drawn, {})
        return [ImagesDrawn(step, images)] if images else []

    def _drawn(self) -> Mapping[str, Any]:
        with undisturbed(self._parts.task):
            return self._parts.task.images()

    def _gradients(self, step: int) -> Sequence[GradientsWatched]:
        now = self._watch.clock()
        if now - self._gradients_at < _SECONDS_BETWEEN_GRADIENTS:
            return []
        self._gradients_at = now
        found = self._tried("gradients", self._parts.engine.last_gradients, {})
        return [GradientsWatched(step, found)] if found else []

    def _learning_rates(self) -> dict[str, float]:
        return learning_rates(self._optimizers)

    @functools.cached_property
    def _optimizers(self) -> Mapping[str, keras.optimizers.Optimizer]:
        return optimizers(self._parts.task)  # finding them takes a while

    def _tried(self, name: str, find: Callable[[], _Found], default: _Found) -> _Found:
        """Return what `find` gives; warn the first time it fails, and never call it again."""
        if name in self._failed:
            return default
        self._failed.add(name)
        with attempted(f"The {name} of the run", "collected"), self._watch.timing("logging", name):
            found = find()
            self._failed.discard(name)
            return found
        return default


def model_summaries(task: Task) -> str:
    """Return the Keras summary of every model that is an attribute of the task."""
    lines = list[str]()
    for part in variables.parts(task):
        if isinstance(part.value, keras.Model) and not part.path.startswith("_"):
            # Keras truncates lines that are longer than a terminal of 80 columns.
            with undisplayed():
                part.value.summary(line_length=78, print_fn=lambda text, **_: lines.append(text))
    return "\n".join(lines)


def signatures(task: Task) -> dict[str, Any]:
    """Return the inputs and outputs of every model that the task exports, where Keras knows them.

    A subclassed model has none before it is traced for an export.
    """

    def described(tensors: Any) -> list[dict[str, Any]]:
        found = keras.tree.flatten(tensors) if tensors else []
        return [
            {"name": each.name, "shape": list(each.shape), "dtype": str(each.dtype)}
            for each in found
        ]

    return {
        name: {
            "inputs": described(getattr(model, "inputs", None)),
            "outputs": described(getattr(model, "outputs", None)),
        }
        for name, model in task.exports().items()
    }
