"""The result of a replay: one step of a run, as values and as a page of text."""

import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from loopwright.insight import step_look
from loopwright.insight.step_look import BatchLook, StepLook

_WIDTH, _LABEL = 80, 10
_MOST_LISTED = 5


@final
@dataclass(frozen=True)
class Check:
    """One comparison of the replay with the record of the run."""

    step: int
    what: str
    """`state`, `loss`, or `end`: the run ended at this step."""
    matches: bool
    detail: str = ""
    """What differs; of a state that matches, its digest."""


@final
@dataclass(frozen=True)
class Replayed:
    """One step of a run, replayed: its batch, its loss, its layers and gradients.

    `print` it to read it. The task, its seeds and the run directory are as before the replay.
    """

    run: Path
    step: int
    epoch: int
    """Counted from 0 within the call of `fit`."""
    step_in_epoch: int
    plan: str
    """The recorded plan of the step, in words."""
    batch: BatchLook
    start_step: int = 0
    """The step that the replay began after."""
    has_checkpoint: bool = False
    """Whether the replay began from a checkpoint, and not from where the call of `fit` began."""
    recorded_plan: StepLook | None = None
    """The step by its recorded plan; with layers and gradients if the eager step differs."""
    eager: StepLook | None = None
    """The same step run eagerly; None if it raised an error."""
    loss_after: Mapping[str, float] = field(default_factory=dict[str, float])
    """The losses of the same batch after the update, by the recorded plan."""
    first_operation: str = ""
    """The first operation that was not finite, with the line of the code; empty if none was."""
    weights_before: tuple[str, ...] = ()
    """Variables that were NaN or infinite before the step."""
    weights_after: tuple[str, ...] = ()
    """Variables that are NaN or infinite after the step, and were not before."""
    error: str = ""
    """The error that the step raised, in one line; empty if it raised none."""
    checks: tuple[Check, ...] = ()
    causes: tuple[str, ...] = ()
    """Why the replay may differ from the record: environment, code, callbacks."""
    notes: tuple[str, ...] = ()

    @property
    def matches(self) -> bool | None:
        """Whether the replay agrees with the record; None if the record has nothing to compare."""
        return all(check.matches for check in self.checks) if self.checks else None

    @property
    def fails(self) -> bool:
        """Whether the step raises an error, or its loss or a variable becomes NaN or infinite."""
        plan = self.recorded_plan
        is_bad = plan is not None and not step_look.is_finite(plan.numbers)
        return is_bad or bool(self.error or self.weights_after)

    @property
    def eager_reproduces(self) -> bool | None:
        """Whether the eager step has the loss of the recorded plan; None if one of them failed."""
        if self.eager is None or self.recorded_plan is None:
            return None
        return step_look.are_close(self.recorded_plan.numbers, self.eager.numbers)

    @property
    def hides_nan(self) -> bool:
        """Whether the kernels of the recorded plan gave a finite loss where the eager step has NaN.

        oneDNN's fused product, bias and relu turn NaN into 0; the gradients are NaN all the same.
        """
        if self.eager is None or self.recorded_plan is None or not self.weights_after:
            return False
        plan, eager = self.recorded_plan.numbers, self.eager.numbers
        return step_look.is_finite(plan) and not step_look.is_finite(eager)

    @property
    def bad_examples(self) -> tuple[int, ...]:
        """The examples, or rows of the batch, for which the first layer is not finite.

        Empty if that cannot be told: all are, or the layer has another first axis.
        """
        bad = [] if self.shown is None else [each for each in self.shown.layers if each.not_finite]
        sizes = {one.shape[0] for one in self.batch.arrays if one.shape}
        if not bad or sizes != {*bad[0].shape[:1]} or len(bad[0].rows) == bad[0].shape[0]:
            return ()
        return self.batch.bad_examples(bad[0])

    @property
    def shown(self) -> StepLook | None:
        """The run of the step whose layers and gradients are shown."""
        plan = self.recorded_plan
        return plan if plan is not None and plan.layers + plan.gradients else self.eager

    def __str__(self) -> str:
        title = f"step {self.step:,} of {self.run}: epoch {self.epoch + 1}, step "
        title += f"{self.step_in_epoch:,} of the epoch"
        lines = textwrap.wrap(title, _WIDTH, subsequent_indent="  ")
        for label, text in self._facts():
            lines += _wrapped(label, text)
        shown = self.shown
        if shown is not None:
            where = "the recorded plan" if shown is self.recorded_plan else "the eager step"
            for title, looks in (("layer", shown.layers), ("gradient", shown.gradients)):
                if looks:
                    lines += ["", f"{title}s, from {where}:", *step_look.table(looks, title)]
        return "\n".join(lines)

    def _facts(self) -> list[tuple[str, str]]:
        start = "a checkpoint" if self.has_checkpoint else "the start of fit"
        steps = self.step - 1 - self.start_step
        count = f"{steps:,} step{'' if steps == 1 else 's'}"
        facts = [
            ("replayed", f"{count} from {start} at step {self.start_step:,}"),
            ("plan", self.plan),
            *(("record", text) for text in self._record()),
            ("batch", self.batch.words),
            *(("", line) for line in self.batch.lines()),
            *(("loss", text) for text in self._losses()),
        ]
        facts += [("error", self.error)] if self.error else []
        facts += [("eager", self._eager())]
        if self.first_operation:
            facts.append(("first NaN", self.first_operation.removeprefix("first in ")))
        bad = [] if self.shown is None else self.shown.not_finite
        if bad:
            where = ", ".join(map(str, self.bad_examples[:_MOST_LISTED]))
            kind = "row" if self.batch.examples is None else "example"
            where = f", in {kind} {where}" if where else ""
            facts.append(("", f"first tensor: {bad[0].name}{where}"))
        if self.weights_before:
            text = f"already not finite before this step: {_some(self.weights_before)}"
            facts.append(("weights", f"{text}; look at step {self.step - 1:,}"))
        elif self.weights_after:
            text = f"this step makes them NaN or infinite: {_some(self.weights_after)}"
            facts.append(("weights", text))
        return [*facts, *(("note", note) for note in self.notes)]

    def _record(self) -> list[str]:
        if not self.checks:
            return ["nothing to compare with: no checkpoint and no loss between start and step"]
        found = list[str]()
        same = {check.what: check for check in self.checks if check.matches}
        if last := same.get("state"):
            found.append(f"state after step {last.step:,}: bit-identical ({last.detail})")
        if last := same.get("loss"):
            count = sum(check.what == "loss" and check.matches for check in self.checks)
            found.append(f"loss matches at {count} recorded step(s), last {last.step:,}")
        if "end" in same:
            found.append("the run ended at this step, and so does the replay")
        differing = [check for check in self.checks if not check.matches]
        if differing:
            first = differing[0]
            found.append(f"DIFFERS: {first.what} after step {first.step:,}: {first.detail}")
            causes = self.causes or ("unknown: a callback, a device, or data that changed",)
            found += [f"possible cause: {cause}" for cause in causes]
        return found

    def _losses(self) -> list[str]:
        if self.recorded_plan is None:
            return []
        found = list[str]()
        for name, value in step_look.losses(self.recorded_plan.numbers).items():
            after = self.loss_after.get(name)
            text = f"{'' if name == 'loss' else f'{name} '}{_number(value)}"
            found.append(text if after is None else f"{text}, after the update {_number(after)}")
        return found

    def _eager(self) -> str:
        if self.eager is None:
            return "the eager step raised the error" if self.error else "not run"
        losses = ", ".join(
            f"{n} {_number(v)}" for n, v in step_look.losses(self.eager.numbers).items()
        )
        if self.eager_reproduces is None:
            return losses
        if self.eager_reproduces:
            return f"{losses}: reproduces the recorded plan"
        if self.hides_nan:
            return (
                f"{losses}: the kernels of the recorded plan turn this NaN into 0 (oneDNN fuses "
                "product, bias and relu), so its loss is finite; the tables are from the eager step"
            )
        return (
            f"{losses}: does not reproduce the recorded plan (XLA draws other random numbers, "
            "or rounds differently); the tables are from inside the recorded plan"
        )


def _wrapped(label: str, text: str) -> list[str]:
    indent = " " * (_LABEL + len(text) - len(text.lstrip()))
    return textwrap.wrap(
        text.strip(),
        _WIDTH,
        initial_indent=f"{label:{_LABEL}}" + indent[_LABEL:],
        subsequent_indent=indent + "  ",
    )


def _some(names: tuple[str, ...]) -> str:
    listed = ", ".join(names[:3])
    return f"{listed} and {len(names) - 3} more" if len(names) > 3 else listed


def _number(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else "NaN" if math.isnan(value) else "infinity"
