"""Whether a step can be resumed exactly: what it uses that no checkpoint holds."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import keras

from loopwright.engine.trace import Built
from loopwright.errors import StepError
from loopwright.exactness import BEST_EFFORT, Exact
from loopwright.guards import resources
from loopwright.task import variables
from loopwright.task.task import class_name

if TYPE_CHECKING:
    from loopwright.fit.session import Session


def require_resumable(session: "Session", exact: Exact) -> list[str]:
    """Return why the steps cannot be resumed exactly; raise if they use what cannot be saved.

    With `exact="best_effort"` random numbers that cannot be repeated are accepted.
    """
    engine, reasons = session.parts.engine, list[str]()
    spec = None if session.feed is None else session.feed.batch_spec
    built = engine.built("train_step", spec)
    if engine.plans.plan.step == "eager":
        changing = engine.changing_values(spec)
        if changing is not None and exact != "best_effort":
            raise StepError(changing)
        reasons += [] if changing is None else [changing.partition(": ")[0]]
    reasons += _unsaved(session, "train_step", built, exact)
    for tested in engine.traces("test_step") if session.request.sets else ():
        reasons += _unsaved(session, "test_step", tested, exact)
    return reasons


def _unsaved(session: "Session", step: str, built: Built, exact: Exact) -> list[str]:
    """Return what a step draws from and no checkpoint holds; raise if `exact` refuses it."""
    task, named, accepts = session.parts.task, session.named, exact == "best_effort"
    title = f"{class_name(task)}.{step}"
    seeds = variables.require_complete(named, built.captured, title, accepts_seeds=accepts)
    resources.require_saved(title, built.resources)
    drawn = unrepeatable(built.operations)
    if drawn and not accepts:
        raise StepError(
            f"{title} draws random numbers that cannot be repeated when it is resumed.",
            expected="random numbers from a state that is saved with the run",
            received=", ".join(drawn),
            do="hold a keras.random.SeedGenerator or a tf.random.Generator in the task and "
            f"draw from it; or {BEST_EFFORT}: a resumed run then draws its sequence from the "
            "start; or train without run_dir",
        )
    reasons = [f"{title} draws from {each}, which the task does not hold" for each in seeds]
    return [*reasons, *(f"{title} draws from {each}" for each in drawn)]


_DRAWING = {
    "RandomUniform": "tf.nn.dropout or tf.random.uniform",
    "RandomUniformInt": "tf.random.uniform",
    "RandomStandardNormal": "tf.random.normal",
    "TruncatedNormal": "tf.random.truncated_normal",
    "ParameterizedTruncatedNormal": "tf.random.truncated_normal",
    "RandomGamma": "tf.random.gamma",
    "RandomPoisson": "tf.random.poisson",
    "RandomPoissonV2": "tf.random.poisson",
    "RandomShuffle": "tf.random.shuffle",
    "Multinomial": "tf.random.categorical",
    "RandomCrop": "tf.image.random_crop",
    "SampleDistortedBoundingBox": "tf.image.sample_distorted_bounding_box",
    "SampleDistortedBoundingBoxV2": "tf.image.sample_distorted_bounding_box",
    "FractionalMaxPool": "tf.nn.fractional_max_pool",
    "FractionalAvgPool": "tf.nn.fractional_avg_pool",
} | {
    f"{kind}CandidateSampler": "a sampled loss of tf.nn"
    for kind in (
        "Uniform",
        "LogUniform",
        "LearnedUnigram",
        "ThreadUnsafeUnigram",
        "FixedUnigram",
        "All",
    )
}
"""Operations that draw from a state of their own, by what users write."""


def unrepeatable(operations: Iterable[str]) -> list[str]:
    """Return the operations that draw from a state that cannot be saved, and what to use.

    They start over in another process, and would repeat the numbers of the first steps. `self.seed`
    in the advice is a `keras.random.SeedGenerator` that the task holds.

    >>> unrepeatable(["MatMul", "RandomStandardNormal", "StatelessRandomUniformV2"])
    ['tf.random.normal (instead: keras.random.normal(..., seed=self.seed))']
    """
    found = dict.fromkeys(_DRAWING[kind] for kind in operations if kind in _DRAWING)
    return [f"{drawn} (instead: {_seeded(drawn)})" for drawn in found]


def _seeded(drawn: str) -> str:
    module, _, name = drawn.rpartition(".")
    if hasattr(keras.random, name):
        return f"keras.random.{name}(..., seed=self.seed)"
    if module in ("tf.random", "tf.image"):
        return f"{module}.stateless_{name} with a seed from self.seed.next()"
    return "keras.random with seed=self.seed"
