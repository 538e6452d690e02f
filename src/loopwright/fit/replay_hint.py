"""How to look into the step that ended a run: a command, at the end of its error."""

import os

from loopwright.checkpoints.run_directory import Run
from loopwright.config.file import saved_in
from loopwright.errors import LoopwrightError, NotFiniteError
from loopwright.fit.leg import Leg


def add_to(error: Exception, leg: Leg, run: Run) -> None:
    """Add to an error how to replay the step that raised it, if the run can be replayed."""
    step = error.step if isinstance(error, NotFiniteError) else leg.stepper.failed_step
    if step is None or leg.inexact or not leg.parts.team.is_alone:
        return
    hint = f"to look into this step: {_command(run, step)}"
    if isinstance(error, LoopwrightError) and error.args:
        error.args = (f"{error.args[0]}; {hint}", *error.args[1:])
    else:
        error.add_note(hint)


def _command(run: Run, step: int) -> str:
    try:
        config = saved_in(run.directory)
    except LoopwrightError:
        config = None
    if config is None:
        return f"trainer.replay({step}, ...) with the arguments of fit"
    code = "".join(f" --task {name}" for name in config.code)
    return f"loopwright replay {os.fspath(run.directory)} --step {step}{code}"
