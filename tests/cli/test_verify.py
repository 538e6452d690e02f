"""Trainings that are killed end with the same bits; what does not repeat itself is named."""

import json
import sys
from pathlib import Path

import pytest
from tests.cli.small_project import MINE, enter, invoke
from typer.testing import CliRunner

from loopwright import LoopwrightError
from loopwright.checkpoints.store import Store
from loopwright.cli import verify
from loopwright.cli.main import app


def test_a_task_that_is_killed_and_started_again_is_exact():
    told: list[str] = []
    command = verify.command_for("digits", "quick=true", "fit.save_every=5 steps")
    verdict = verify.train_and_kill("digits", command, kills=1, seed=1, say=told.append)
    assert verdict == ("exact: 60 steps, killed and resumed 1 times: identical bits", 0)
    assert told[1].startswith("kill 1 of 1: saved at step")


HISTORY = {
    "epoch": [0],
    "epoch_steps": [5],
    "validation_steps": [],
    "training": {},
    "validation": {},
}
HISTORY_JSON = json.dumps(HISTORY)
TRAINS_AT_ONCE = """
import json, sys
from pathlib import Path
from loopwright.checkpoints.store import Store
*places, history = sys.argv[1:]
run_dir, plans, plan = map(Path, places)
with plans.open("a") as file:
    print(plan, file=file)
for stream in (sys.stderr, sys.stdout):  # more than a pipe holds
    stream.write("x" * 300_000)
    stream.flush()
content = {"history": json.loads(history)}
write = lambda into: (into / "state.index").write_bytes(b"the same")
Store(run_dir / "checkpoints").write(5, content, write)
"""


def test_the_killed_training_follows_the_plans_of_the_undisturbed_one_and_may_print_much(
    tmp_path: Path,
):
    given = tmp_path / "plans"

    def command(run_dir: Path, plan: str | None) -> list[str]:
        return [
            sys.executable,
            "-c",
            TRAINS_AT_ONCE,
            *map(str, (run_dir, given, plan)),
            HISTORY_JSON,
        ]

    verdict = verify.train_and_kill("it", command, kills=1, seed=1, say=lambda text: None)
    assert verdict.exit_code == 0
    first, *others = given.read_text().splitlines()
    assert first == "None"
    assert others
    assert all(plan.endswith("whole/plan.json") for plan in others)


def test_a_run_is_verified_by_its_own_plan():
    command = verify.command_for("run/config.yaml")
    assert not [word for word in command(Path("other"), None) if word.startswith("plan=")]
    assert 'plan="whole/plan.json"' in command(Path("other"), "whole/plan.json")


def test_other_bits_are_named(tmp_path: Path):
    for name, content in (("whole", b"one"), ("killed", b"two")):
        store = Store(tmp_path / name / "checkpoints")
        history = {"history": HISTORY}

        def write(into: Path, content: bytes = content) -> None:
            (into / "state.index").write_bytes(content)

        store.write(5, history, write)
    verdict = verify._compare_ends(tmp_path / "whole", tmp_path / "killed", 1)
    assert verdict == (
        "NOT EXACT: 5 steps, killed and resumed 1 times: different bits in state.index",
        1,
    )


def test_another_last_step_is_named(tmp_path: Path):
    Store(tmp_path / "whole" / "checkpoints").write(5, {}, lambda into: None)
    verdict = verify._compare_ends(tmp_path / "whole", tmp_path / "killed", 1)
    assert "different bits in the last step (5 and None)" in verdict.text


def command_of(program: str) -> verify.Command:
    return lambda run_dir, plan: [sys.executable, "-c", program, str(run_dir), HISTORY_JSON]


@pytest.mark.parametrize(
    ("program", "received"),
    [
        ("import os; os.abort()", "killed by SIGABRT, and it printed nothing"),
        ("import sys; sys.exit(7)", "exit code 7, and it printed nothing"),
        (
            "import os; print('out of cats', flush=True); os._exit(7)",
            "exit code 7:\nout of cats",
        ),
        (
            "import os; os.write(2, b'x' * 99_999 + b' no dogs'); os.abort()",
            "killed by SIGABRT:\nxxx",
        ),
        (
            "import os; from loopwright.quiet_start import quiet_start\n"
            "with quiet_start():\n"
            "    os.write(2, b'oneDNN custom operations are on\\nno AVX instructions\\n')\n"
            "    os.abort()",
            "killed by SIGABRT:\nno AVX instructions",
        ),
    ],
)
def test_a_training_that_fails_by_itself_is_told_with_its_end(program: str, received: str):
    with pytest.raises(LoopwrightError) as caught:
        verify.train_and_kill("it", command_of(program), kills=1, seed=1, say=lambda text: None)
    text = str(caught.value)
    assert f"received: {received}" in text
    assert len(text) < 3000
    assert ("no dogs" in text) == ("no dogs" in program)


CANNOT_BE_EXACT = """
import sys
from pathlib import Path
from loopwright.checkpoints.store import Store
content = {"inexact": {"reasons": ["shuffle() has no seed", "it reads the clock"]}}
write = lambda into: (into / "state.index").write_bytes(b"any")
Store(Path(sys.argv[1]) / "checkpoints").write(5, content, write)
"""


def test_training_that_cannot_be_exact_is_told_with_its_reasons(monkeypatch: pytest.MonkeyPatch):
    why = "not exactly resumable: shuffle() has no seed; it reads the clock"
    told: list[str] = []
    command = command_of(CANNOT_BE_EXACT)
    verdict = verify.train_and_kill("it", command, kills=1, seed=1, say=told.append)
    assert verdict == (why, 4)
    assert told == ["training it undisturbed"]  # there is nothing to compare

    monkeypatch.setattr(verify, "command_for", lambda *_: command)
    done = CliRunner().invoke(app, ["verify", "digits"])
    assert done.exit_code == 4
    assert done.output.splitlines()[-1] == why


# --- trained twice, without kills ---

UNSEEDED = MINE.replace("default_rng(0)", "default_rng()")
STATEFUL = MINE.replace(
    'return lw.Supervised(model, "mse", keras.optimizers.Adam(rate))',
    "return Noisy(model)",
).replace(
    "def experiment",
    """
class Noisy(lw.Task):
    def __init__(self, model):
        super().__init__()
        self.model, self.optimizer = model, keras.optimizers.Adam(0.01)

    def train_step(self, batch):
        import os, tensorflow as tf
        x, y = batch
        noise = tf.random.normal(tf.shape(y), seed=int.from_bytes(os.urandom(3), "big"))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.model(x, training=True) - y - noise))
        self.minimize(loss, self.model, self.optimizer, tape)
        return {"loss": loss}

    def test_step(self, batch):
        x, y = batch
        import tensorflow as tf
        return {"loss": tf.reduce_mean(tf.square(self.model(x) - y))}


def experiment""",
)


def repeat(program: str, where: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    enter(where, monkeypatch, mine=program)
    code, output = invoke(
        *("train", "mine:experiment", "plan=graph", "fit.verbose=0", "exact=best_effort"),
        *("--run-dir", "runs/it"),
    )
    assert code == 0, output
    return invoke("verify", "runs/it", "--repeat", "--task", "mine:experiment")


def test_a_program_that_repeats_itself_is_told_so(tmp_path, monkeypatch):
    code, output = repeat(MINE, tmp_path, monkeypatch)
    assert code == 0, output
    assert "repeats itself: 24 steps, trained twice: identical bits" in output


def test_data_without_a_seed_is_named(tmp_path, monkeypatch):
    code, output = repeat(UNSEEDED, tmp_path, monkeypatch)
    assert code == 1
    assert "DOES NOT REPEAT ITSELF: 24 steps" in output
    assert "cause: the data differs each time it is made" in output


def test_a_step_that_draws_from_a_stateful_operation_is_named(tmp_path, monkeypatch):
    code, output = repeat(STATEFUL, tmp_path, monkeypatch)
    assert code == 1
    assert "draws from tf.random.normal" in output
