"""Trackers get every point once, whatever happens to the run, to them, or to the network."""

import json
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from loopwright.config import file as config_file
from loopwright.errors import ConfigurationError
from loopwright.events import (
    BatchSkipped,
    EpochEnded,
    Event,
    Finished,
    RunFacts,
    Started,
    Trained,
    Validated,
)
from loopwright.fit.journal import Journal
from loopwright.sinks.outbox import Facts, Row, Status, TrackedRun, Tracker

FACTS = RunFacts({"seed": 0}, "a model", {"git": {"revision": "abc"}, "processor": "P", "cores": 2})


@dataclass
class Memory:
    """A tracker that keeps everything in memory, and fails as it is told to."""

    tracker: str = "mlflow"
    address: Mapping[str, str] = field(default_factory=lambda: {"tracking_uri": "memory"})
    is_down: bool = False
    fails_after_sending: int = 0
    hangs: threading.Event | None = None
    points: list[tuple[str, int, float]] = field(default_factory=list)
    known: set[tuple[str, int]] = field(default_factory=set)
    keys: list[str] = field(default_factory=list)
    facts: list[Facts] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    statuses: list[str] = field(default_factory=list)
    tries: int = 0

    def open(self, run: TrackedRun, *, is_training: bool) -> None:
        self.tries += 1
        if self.hangs is not None:
            self.hangs.wait()
        self.fail_if_down()
        if run.directory is not None:
            (written,) = (run.directory / "trackers").glob(f"{self.tracker}-*.json")
            assert json.loads(written.read_text())["key"] == run.key, "not on disk before its use"
        if run.key not in self.keys:
            self.keys.append(run.key)
        self.known = {(name, step) for name, step, _ in self.points}

    def describe(self, facts: Facts) -> None:
        self.fail_if_down()
        self.facts.append(facts)

    def send(self, rows: Sequence[Row]) -> None:
        self.fail_if_down()
        points = [(name, r.step, v) for r in rows for name, v in r.values.items()]
        self.points += [point for point in points if point[:2] not in self.known]
        self.known |= {(name, step) for name, step, _ in points}
        if self.fails_after_sending:
            self.fails_after_sending -= 1
            raise TimeoutError("no answer")

    def upload(self, files: Mapping[str, Path]) -> None:
        self.files |= {name: path.read_bytes() for name, path in files.items()}

    def close(self, status: Status) -> None:
        self.statuses.append(status)

    def fail_if_down(self) -> None:
        if self.is_down:
            raise ConnectionError("refused")


def tracker(service: Memory, **options: Any) -> Tracker:
    known = {"artifacts": (), "running": False, "wait_seconds": 10.0}
    return Tracker(service, **{**known, **options})


def steps(first: int, last: int) -> list[Event]:
    """Steps `first + 1` to `last`: a stop each 2, a validation each 4, an epoch each 10."""
    found = list[Event]()
    for step in range(first + 1, last + 1):
        value = 1.0 / step
        if step % 2 == 0:
            found.append(Trained(step, 0, step % 10, 2, 0.1, {"loss": value}))
        if step % 4 == 0:
            found.append(Validated(step, 0, 0.1, {"loss": 2 * value, "table": [[1, 2]]}))
        if step % 10 == 0:
            rates = {"learning_rate": 0.01}
            found.append(EpochEnded(step // 10 - 1, step, 10, 1.0, {"loss": value}, {}, rates))
    return found


def everything(last: int) -> list[tuple[str, int, float]]:
    """The points that a tracker should have of steps 1 to `last`."""
    found = list[tuple[str, int, float]]()
    for step in range(1, last + 1):
        if step % 4 == 0:
            found.append(("val_loss", step, 2.0 / step))
        if step % 10 == 0:
            found += [("loss", step, 1.0 / step), ("learning_rate", step, 0.01)]
    return found


@dataclass
class Run:
    """A run directory with a journal, as a trainer leaves it; killed by not finishing."""

    directory: Path
    saved: tuple[int, int] = (0, 0)  # the step of the checkpoint, and the length of the journal

    def train(self, sink: Tracker, to_step: int, *, save_at: int = 0, ends: str = "") -> None:
        self.directory.mkdir(exist_ok=True)
        journal = Journal(self.directory / "metrics.jsonl", time.time)
        first, length = self.saved
        journal.open({"metrics.jsonl": length})
        try:
            started = Started(
                first, 5, 10, 50, resumed_steps=first, facts=FACTS, run_dir=self.directory
            )
            for event in [started, *steps(first, to_step)]:
                journal(event)
                sink(event)
                if isinstance(event, Trained) and event.step == save_at:
                    self.saved = save_at, (self.directory / "metrics.jsonl").stat().st_size
            if ends:
                finished = Finished(to_step, 1.0, ends, run_dir=self.directory)  # type: ignore[arg-type]
                journal(finished)
                sink(finished)
        finally:
            journal.close()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr("loopwright.sinks.outbox._SECONDS_BETWEEN_READS", 0.005)
    return Run(tmp_path / "run")


def kill(sink: Tracker) -> None:
    """End the thread of a tracker where it is, as the end of its process does."""
    delivery = sink._delivery
    assert delivery is not None
    sink.service = Memory(is_down=True)
    delivery.end("failed", 10)


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_run_is_sent_once_under_the_names_of_the_history(run: Run):
    memory = Memory()
    run.train(tracker(memory), 40, ends="complete")
    assert memory.points == everything(40)
    assert memory.statuses == ["completed"]
    assert memory.facts[0].parameters == {"seed": "0"}
    tags = memory.facts[0].tags
    assert tags["loopwright.git.revision"] == "abc"
    assert (tags["loopwright.processor"], tags["loopwright.cores"]) == ("P", "2")


@pytest.mark.parametrize("killed_at", range(2, 40, 6))
def test_steps_that_are_trained_again_are_not_sent_again(run: Run, killed_at: int):
    memory = Memory()
    killed = tracker(memory)
    run.train(killed, killed_at, save_at=killed_at // 4 * 2)
    wait_for(lambda: len(memory.points) >= len(everything(killed_at - 4)))
    kill(killed)
    run.train(tracker(memory), 40, ends="complete")
    assert sorted(memory.points) == sorted(everything(40))
    assert len(memory.keys) == 1


def test_a_tracker_that_is_down_is_named_once_and_misses_nothing_afterwards(run: Run):
    memory = Memory(is_down=True)
    sink = tracker(memory)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run.train(sink, 20)
        wait_for(lambda: memory.tries)
        for _ in range(3):
            time.sleep(0.05)
            sink(Trained(20, 0, 0, 2, 0.1, {}))
    (warning,) = told
    assert "cannot be reached: ConnectionError: refused" in str(warning.message)
    memory.is_down = False
    sink(Finished(20, 1.0, "complete", run_dir=run.directory))
    assert sorted(memory.points) == sorted(everything(20))


def test_an_answer_that_is_lost_does_not_send_twice(run: Run):
    memory = Memory(fails_after_sending=2)
    sink = tracker(memory)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.train(sink, 20)
        wait_for(lambda: len(memory.points) == len(everything(20)) and memory.tries > 1)
        sink(Finished(20, 1.0, "complete", run_dir=run.directory))
    wait_for(lambda: memory.statuses)
    assert sorted(memory.points) == sorted(everything(20))


def test_a_tracker_that_hangs_does_not_slow_the_training(run: Run):
    memory = Memory(hangs=threading.Event())
    began = time.monotonic()
    with pytest.warns(match=r"no answer within 0\.2 seconds"):
        run.train(tracker(memory, wait_seconds=0.2), 1000, ends="complete")
    assert time.monotonic() - began < 2
    assert memory.hangs is not None
    memory.hangs.set()
    wait_for(lambda: memory.statuses)
    assert memory.points == everything(1000)


def test_what_a_tracker_misses_at_the_end_the_next_start_sends(run: Run):
    memory = Memory(is_down=True)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run.train(tracker(memory), 40, ends="complete")
    last = "refused; the next start of the run sends the rest."
    assert str(told[-1].message).endswith(last)
    memory.is_down = False
    tracker(memory)(Finished(40, 0.0, "skipped", run_dir=run.directory))
    assert memory.points == everything(40)
    assert memory.facts[-1].parameters == {"seed": "0"}
    # A tracker that has everything of a complete run is not asked again.
    tries = memory.tries
    tracker(memory)(Finished(40, 0.0, "skipped", run_dir=run.directory))
    assert memory.tries == tries


def test_the_row_of_a_step_waits_until_a_resume_can_add_nothing_to_it(run: Run):
    memory = Memory()
    sink = tracker(memory)
    run.train(sink, 8)  # interrupted between a validation and the end of the epoch of its step
    sink(Finished(8, 1.0, "interrupted", run_dir=run.directory))
    assert memory.points == everything(4)
    run.saved = 8, (run.directory / "metrics.jsonl").stat().st_size
    run.train(tracker(memory), 20, save_at=20, ends="interrupted")
    assert memory.points == everything(20)
    run.train(tracker(memory), 40, ends="complete")
    assert memory.points == everything(40)


def test_after_a_rollback_the_journal_is_read_again(run: Run):
    memory = Memory()
    sink = tracker(memory)
    run.train(sink, 26, save_at=6)
    wait_for(lambda: len(memory.points) >= len(everything(20)))
    journal = Journal(run.directory / "metrics.jsonl", time.time)
    journal.open({"metrics.jsonl": run.saved[1]})
    for event in [BatchSkipped(25, "batch 5", 6), *steps(6, 40), Finished(40, 1.0, "complete")]:
        journal(event)
        sink(event)
    journal.close()
    assert sorted(memory.points) == sorted(everything(40))


def test_running_values_are_on_request_and_never_sent_twice(
    run: Run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("loopwright.fit.journal._SECONDS_BETWEEN_TRAINED", 0.0)
    memory = Memory()
    sink = tracker(memory, running=True)
    run.train(sink, 26, save_at=4)
    wait_for(lambda: ("batch_loss", 24, 1 / 24) in memory.points)
    kill(sink)
    run.train(tracker(memory, running=True), 40, ends="complete")
    running = [step for name, step, _ in memory.points if name == "batch_loss"]
    assert running == [*range(2, 41, 2)]
    rest = [point for point in memory.points if point[0] != "batch_loss"]
    assert sorted(rest) == sorted(everything(40))


def test_without_a_run_directory_each_training_from_the_start_is_a_run():
    memory = Memory()
    sink = tracker(memory)
    for first, last in [(0, 20), (20, 30), (0, 10)]:
        sink(Started(first, 1, 10, 10, facts=FACTS))
        for event in steps(first, last):
            sink(event)
        sink(Finished(last, 1.0, "complete"))
        if last == 30:
            assert memory.points == everything(30)
            assert len(memory.keys) == 1
    assert len(memory.keys) == 2


def test_files_are_sent_on_request_also_those_of_after_the_training(run: Run):
    memory = Memory()
    (run.directory / "figures").mkdir(parents=True)
    (run.directory / "figures" / "one.svg").write_text("<svg/>")
    sink = tracker(memory, artifacts=["report", "figures"])
    sink.waits_for_files = True
    run.train(sink, 20, ends="complete")
    (run.directory / "figures" / "two.svg").write_text("<svg/>")
    assert not memory.statuses
    sink.end()
    assert set(memory.files) == {"figures/one.svg", "figures/two.svg", "report.html"}
    assert b"</html>" in memory.files["report.html"]
    assert memory.points == everything(20)
    assert memory.statuses == ["completed"]


def test_a_link_in_a_run_directory_is_not_sent(run: Run, tmp_path: Path):
    (tmp_path / "secret").write_text("key")
    run.directory.mkdir()
    (run.directory / "figures").mkdir()
    (run.directory / "figures" / "one.svg").symlink_to(tmp_path / "secret")
    memory = Memory()
    with pytest.warns(match="is a symlink"):
        run.train(tracker(memory, artifacts=["figures"]), 20, ends="complete")
    assert not memory.files


def test_the_parameters_are_those_of_the_config_without_addresses(run: Run):
    run.directory.mkdir()
    given = ['sinks=[{name: mlflow, tracking_uri: "http://ada:secret@host"}]', "fit.epochs=3"]
    config_file.save(config_file.load("digits", given), run.directory)
    memory = Memory()
    run.train(tracker(memory), 20, ends="complete")
    found = memory.facts[0].parameters
    assert found["fit.epochs"] == "3"
    assert found["task"] == "digits"
    assert not [name for name in found if name.startswith("sinks")]


# As it was written when a command still sent what was missing.
OLD = {
    "key": "cc19eb53aa6dfd9362ffaea886069862",
    "tracker": "mlflow",
    "address": {"tracking_uri": "memory"},
    "hyperparameters": {"seed": "0"},
    "signatures": {},
    "wanted": {"artifacts": ["figures"], "running": False},
    "run_id": "5b0c1d",
    "files": {"figures/one.svg": [6, 1794974747271187946]},
}


def test_the_tracked_run_of_an_older_version_is_found_again(run: Run):
    (run.directory / "trackers").mkdir(parents=True)
    (run.directory / "trackers" / "mlflow-89ceb2a0.json").write_text(json.dumps(OLD))
    memory = Memory()
    run.train(tracker(memory), 10, ends="complete")
    assert memory.keys == [OLD["key"]]
    assert TrackedRun(run.directory, memory).content["run_id"] == OLD["run_id"]
    assert memory.points == everything(10)


def test_a_damaged_id_is_refused(run: Run):
    memory = Memory()
    run.train(tracker(memory), 10, ends="complete")
    (file,) = (run.directory / "trackers").iterdir()
    file.write_text(json.dumps({"key": "' OR 1=1", "run_id": "../../x"}))
    with pytest.raises(ConfigurationError, match=r"is damaged[\s\S]*delete the file"):
        TrackedRun(run.directory, memory)


def test_unknown_artifacts_are_refused():
    with pytest.raises(ConfigurationError, match="report, figures, checkpoints, export"):
        tracker(Memory(), artifacts=["weights"])


@pytest.mark.parametrize(
    ("sinks", "problem"),
    [
        ("[mlfow]", "unknown tracker 'mlfow'; did you mean mlflow\\?, or MODULE:FUNCTION"),
        ("[tensorboard]", "unknown tracker 'tensorboard'; choose one of mlflow, wandb"),
        ("['os.system:']", "not MODULE:FUNCTION"),
    ],
)
def test_an_unknown_tracker_in_a_config_is_refused(sinks: str, problem: str):
    with pytest.raises(ConfigurationError, match=problem):
        config_file.load("digits", [f"sinks={sinks}"])


def test_trackers_in_a_config_are_read_back_as_they_were(tmp_path: Path):
    given = ["sinks=[mlflow, mine:note, {name: wandb, project: p, mode: offline}]"]
    config = config_file.load("digits", given)
    config_file.save(config, tmp_path)
    assert config_file.saved_in(tmp_path) == config
    assert config.trusted_sinks[1] == "mine:note"


@pytest.mark.parametrize(
    ("sinks", "is_refused"),
    [
        ("[mlflow, wandb]", False),
        ("[{name: mlflow, experiment: e, artifacts: [export]}]", False),
        ("[{name: mlflow, tracking_uri: 'http://elsewhere'}]", True),
        ("[{name: wandb, entity: others}]", True),
        ("[mine:note]", True),
    ],
)
def test_a_run_directory_may_not_say_where_to_send(sinks: str, is_refused: bool):
    assert bool(config_file.load("digits", [f"sinks={sinks}"]).trusted_sinks) == is_refused
