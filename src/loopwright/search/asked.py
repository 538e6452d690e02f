"""What a study was asked for: a config, a search space, the objective, sampler and pruner."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from loopwright.checkpoints.retention import larger_is_better
from loopwright.config import file
from loopwright.config.schema import Config
from loopwright.config.space import Space, grid_size, require_fits
from loopwright.errors import ConfigurationError, message

SAMPLERS = ("tpe", "random", "grid")
PRUNERS = ("median", "hyperband", "successive-halving", "none")
_MODES = ("auto", "min", "max")
_TAKEN = ("best", "last")
_MOST_SEED = 2**32


@final
@dataclass(frozen=True)
class Asked:
    """A study as it was asked for; it must not change while the study grows."""

    config: Config
    space: Space
    objective: str
    mode: Literal["min", "max"]
    take: str
    """The score of a trial: of all its validations the best, or the last."""
    sampler: str
    pruner: str
    seed: int

    @property
    def title(self) -> str:
        """The name of what is trained."""
        return self.config.title

    @property
    def most_trials(self) -> int | None:
        """The number of different trials; None: there is no end to them."""
        return grid_size(self.space) if self.sampler == "grid" else None

    def content(self) -> dict[str, Any]:
        """Return plain values, which two starts of the same study have in common."""
        config = file.to_dict(self.config)
        config.pop("run_dir", None)
        return {
            "objective": self.objective,
            "mode": self.mode,
            "take": self.take,
            "sampler": self.sampler,
            "pruner": self.pruner,
            "seed": self.seed,
            "space": {key: str(one) for key, one in self.space.items()},
            "config": config,
        }


def asked(
    config: Config,
    space: Space,
    *,
    objective: str,
    mode: str,
    take: str,
    sampler: str,
    pruner: str,
    seed: int,
) -> Asked:
    """Return what is asked for; raise for anything that could not be done."""
    for option, value, known in (
        ("sampler", sampler, SAMPLERS),
        ("pruner", pruner, PRUNERS),
        ("mode", mode, _MODES),
        ("take", take, _TAKEN),
    ):
        _require_word(option, value, known)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < _MOST_SEED:
        raise ConfigurationError(
            message(
                "The seed of a study must be a whole number.",
                expected=f"0 to {_MOST_SEED - 1}",
                received=f"seed={seed!r}"[:200],
                do="omit it, or choose another number",
            )
        )
    require_fits(config, space)
    made = Asked(config, space, objective, _direction(objective, mode), take, sampler, pruner, seed)
    _ = made.most_trials  # raises for a grid without steps
    return made


def _require_word(option: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigurationError(
            message(
                f"Unknown {option}.",
                expected=" or ".join(known),
                received=f"{option} {value!r:.80}",
                do=f"choose one of these, or omit it: the default is {known[0]}",
            )
        )


def _direction(objective: str, mode: str) -> Literal["min", "max"]:
    if not objective:
        raise ConfigurationError(
            message(
                "A study needs the name of a score.",
                expected="a name as in the history: val_loss, val_accuracy",
                received="an empty name",
                do="omit the objective: the default is val_loss",
            )
        )
    if mode == "min" or mode == "max":
        return mode
    is_larger = larger_is_better(objective)
    if is_larger is None:
        raise ConfigurationError(
            message(
                f"The direction of {objective[:80]} is unknown.",
                expected="min if smaller values are better, max if larger ones are",
                received="a name that says neither",
                do="add --mode min or --mode max; in code mode='min' or mode='max'",
            )
        )
    return "max" if is_larger else "min"


def is_better(value: float, than: float, mode: str) -> bool:
    """Return whether a score is better than another score.

    >>> is_better(0.1, than=0.2, mode="min"), is_better(0.1, than=0.2, mode="max")
    (True, False)
    """
    return value > than if mode == "max" else value < than


def recorded(content: Any) -> Mapping[str, Any]:
    """Return the content of a `study.yaml`, which may come from anyone; empty if it is none."""
    is_study = isinstance(content, dict) and isinstance(content.get("objective"), str)
    return content if is_study and content.get("mode") in ("min", "max") else {}
