"""Studies with trials of a tenth of a second: states, kills, workers, pruning, refusals.

The trials are real processes with real files and locks; only the training in them is none.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.locking import locked
from tests.search import searching

import loopwright as lw
from loopwright.config import file
from loopwright.config.plain_yaml import read
from loopwright.search import optuna_study, trial_process, tune
from loopwright.search import study as studies

optuna = pytest.importorskip("optuna")
with contextlib.suppress(ImportError):
    import sklearn.ensemble  # noqa: F401  (Optuna's plots import it, and it sets variables)

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trial_process, "PROGRAM", searching.QUICK)


def start(directory: Path, trials: int, seconds: float = 0.02, **options: Any) -> Any:
    """The same study in another process."""
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.search.searching"),
            *(str(directory), str(trials), json.dumps(options)),
        ],
        env={**os.environ, "QUICK_TRIAL_SECONDS": str(seconds)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def outcomes(found: lw.Tuned) -> list[Any]:
    return [(t.number, t.state, t.score, t.parameters) for t in found.trials]


def starts(directory: Path) -> dict[str, int]:
    files = sorted(directory.glob("trials/*/starts.txt"))
    return {path.parent.name: len(path.read_text().splitlines()) for path in files}


def children(directory: Path) -> list[int]:
    """The processes of all trials that run now."""
    pids = [int(p.read_text().split()[-1]) for p in directory.glob("trials/*/starts.txt")]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_study_finds_the_best_and_writes_it_as_a_config(tmp_path: Path):
    found = searching.study(tmp_path / "s", 6)
    best = found.best
    assert best is not None
    assert len(found.trials) == 6
    assert best.score == min(t.score for t in found.trials if t.state == "complete" and t.score)
    assert found.best_config is not None
    config = file.from_content(read(found.best_config))
    assert config.model["rate"] == best.parameters["model.rate"]
    assert config.run_dir is None
    first, *others = str(found).splitlines()
    assert first.split() == ["trial", "state", "val_loss", "time", "parameters"]
    assert all(len(line) <= 80 for line in others if "loopwright train" not in line)
    assert found.table[0]["trial"] == best.number
    assert found.study.best_trial.number == best.number


def test_the_same_call_again_repeats_nothing_and_more_trials_continue_the_study(tmp_path: Path):
    whole = outcomes(searching.study(tmp_path / "whole", 4))
    searching.study(tmp_path / "parts", 3)
    before = {p: p.read_bytes() for p in (tmp_path / "parts/trials").rglob("*") if p.is_file()}
    searching.study(tmp_path / "parts", 3)
    assert {p: p.read_bytes() for p in before} == before
    assert outcomes(searching.study(tmp_path / "parts", 4)) == whole
    assert set(starts(tmp_path / "parts").values()) == {1}


@pytest.mark.parametrize(("kills", "trials"), [(1, 4), (10, 12)])
def test_a_study_that_is_killed_ends_as_one_that_was_not(tmp_path: Path, kills: int, trials: int):
    options: dict[str, Any] = {"pruner": "successive-halving"} if kills > 1 else {}
    whole = searching.study(tmp_path / "whole", trials, **options)
    moments = random.Random(kills)
    for at in range(kills):
        process = start(tmp_path / "killed", trials, **options)
        deadline, wanted = time.monotonic() + 60, 1 + at * 8 // kills
        while len(starts(tmp_path / "killed")) < wanted and time.monotonic() < deadline:
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.005)
        time.sleep(moments.uniform(0, 0.3))
        for pid in children(tmp_path / "killed") if moments.random() < 0.7 else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.communicate()
    killed = searching.study(tmp_path / "killed", trials, **options)
    assert outcomes(killed) == outcomes(whole)


PRUNED = """
import os, sys
from tests.search import searching
from loopwright.search import optuna_study, trial_process


def killed(self, number, state, score):
    os.kill(os.getpid(), 9) if state == "pruned" else conclude(self, number, state, score)


conclude, optuna_study.OptunaStudy.conclude = optuna_study.OptunaStudy.conclude, killed
trial_process.PROGRAM[:] = searching.QUICK
searching.study(sys.argv[1], 12, pruner=sys.argv[2])
"""


@pytest.mark.parametrize("pruner", ["successive-halving", "hyperband", "median"])
def test_a_trial_is_pruned_though_the_study_is_killed_right_after_that_decision(
    tmp_path: Path, pruner: str
):
    whole = searching.study(tmp_path / "whole", 12, pruner=pruner)
    command = [sys.executable, "-c", PRUNED, str(tmp_path / "killed"), pruner]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    assert outcomes(searching.study(tmp_path / "killed", 12, pruner=pruner)) == outcomes(whole)


KILLED = """
import os, sys
from tests.search import searching
from loopwright.search import study_runner, trial_process

write_best = study_runner.write_best


def killed(path, number, config):
    if number:  # the first trial was the best so far
        os.kill(os.getpid(), 9)
    write_best(path, number, config)


study_runner.write_best = killed
trial_process.PROGRAM[:] = searching.QUICK
searching.study(sys.argv[1], 20, seed=1)  # its second trial is the best
"""


@pytest.mark.parametrize("way", ["the same call", "--show"])
def test_the_best_config_is_that_of_the_study_after_a_kill_before_it_is_written(
    tmp_path: Path, way: str
):
    command = [sys.executable, "-c", KILLED, str(tmp_path / "s")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    stale = (tmp_path / "s/best.yaml").read_text()
    shown = way == "--show"
    found = tune.shown(tmp_path / "s") if shown else searching.study(tmp_path / "s", 1, seed=1)
    assert found.best is not None
    assert found.best.number > 0
    assert (tmp_path / "s/best.yaml").read_text() != stale
    config = file.load(str(tmp_path / "s/best.yaml"))
    assert config.model["rate"] == found.best.parameters["model.rate"]


def test_a_trial_of_another_command_is_not_just_running(tmp_path: Path):
    found = searching.study(tmp_path / "s", 1)
    claim = studies.StudyDirectory(found.directory, None).claimed(1)  # pyright: ignore[reportArgumentType]
    assert claim is not None
    found.study.ask()
    assert "trial 1: another command is still training it" in str(tune.shown(tmp_path / "s"))
    claim.release()
    assert "trial 1: interrupted; run the same command" in str(tune.shown(tmp_path / "s"))


def test_a_trial_whose_process_is_killed_is_resumed_by_its_leader(tmp_path: Path):
    process = start(tmp_path / "s", 1, 0.1)
    while not children(tmp_path / "s"):
        time.sleep(0.01)
    time.sleep(0.2)
    os.kill(children(tmp_path / "s")[0], signal.SIGKILL)
    process.communicate()
    assert starts(tmp_path / "s") == {"0000": 2}
    assert searching.study(tmp_path / "s", 1).trials[0].state == "complete"


def test_ctrl_c_ends_the_trials_and_the_same_command_goes_further(tmp_path: Path):
    process = start(tmp_path / "s", 2, 0.2)
    while not children(tmp_path / "s"):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode != 0
    assert not children(tmp_path / "s")
    assert [t.state for t in tune.shown(tmp_path / "s").trials] == ["running"]
    states = [t.state for t in searching.study(tmp_path / "s", 2).trials]
    assert states == ["complete", "complete"]


def test_two_processes_and_two_workers_share_a_study_and_run_nothing_twice(tmp_path: Path):
    both = [start(tmp_path / "s", 10, workers=2) for _ in range(2)]
    texts = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], texts
    found = searching.study(tmp_path / "s", 10)
    assert len(found.trials) == 10
    assert {t.state for t in found.trials} <= {"complete", "pruned"}
    assert set(starts(tmp_path / "s").values()) == {1}
    assert all(": complete" in text for text in texts)


def test_failed_trials_say_why_and_do_not_end_the_study(tmp_path: Path):
    space = {"model.rate": [0.1, 0.9, 0.2]}
    found = searching.study(tmp_path / "s", 3, space=space, sampler="grid", model={"fails": True})
    failed = [t for t in found.trials if t.state == "failed"]
    assert [t.parameters["model.rate"] for t in failed] == [0.9]
    assert failed[0].reason == "The loss is NaN. received: NaN at step 3"
    assert "NaN at step 3" in " ".join(str(found).split())


def test_first_trials_that_all_fail_for_one_reason_end_the_study(tmp_path: Path):
    space = {"model.rate": "float(0.6,0.9)"}
    with pytest.raises(lw.LoopwrightError, match=r"first 3 trials failed for the same reason"):
        searching.study(tmp_path / "s", 9, space=space, model={"fails": True})
    assert len(starts(tmp_path / "s")) == 3


def test_a_grid_ends_when_every_combination_was_tried(tmp_path: Path):
    space = {"model.rate": "float(0.1,0.5,step=0.2)", "model.width": [1, 2]}
    found = searching.study(tmp_path / "s", 50, space=space, sampler="grid", pruner="none")
    tried = {(t.parameters["model.rate"], t.parameters["model.width"]) for t in found.trials}
    assert len(found.trials) == len(tried) == 6


def test_the_last_score_and_the_larger_score_can_count(tmp_path: Path):
    common = {"space": {"model.rate": [0.3]}, "pruner": "none"}
    best = searching.study(tmp_path / "best", 1, mode="max", **common).trials[0].score
    last = searching.study(tmp_path / "last", 1, mode="max", take="last", **common).trials[0].score
    assert best == pytest.approx(1.01)
    assert last == pytest.approx(0.21)


def test_another_space_or_config_is_refused_and_the_difference_is_named(tmp_path: Path):
    searching.study(tmp_path / "s", 1)
    with pytest.raises(lw.ConfigurationError, match=r"space.model.width: choice\(1,2\) -> none"):
        searching.study(tmp_path / "s", 1, space={"model.rate": "float(1e-3,1,log)"})
    with pytest.raises(lw.ConfigurationError, match="seed: 0 -> 1"):
        searching.study(tmp_path / "s", 1, seed=1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sampler": "tpee"}, "Unknown sampler"),
        ({"pruner": "no"}, "Unknown pruner"),
        ({"objective": "val_wandering"}, "direction of val_wandering is unknown"),
        ({"sampler": "grid"}, "too many values for a grid"),
        ({"workers": 0}, "number of workers"),
        ({"seed": -1}, "seed of a study"),
        ({"space": {"model.widht": [1, 2]}}, "did you mean width"),
        ({"space": {"fit.epohcs": "int(1,2)"}}, "did you mean epochs"),
    ],
)
def test_an_option_or_a_key_that_cannot_be_followed_is_refused(
    tmp_path: Path, options: dict[str, Any], text: str
):
    with pytest.raises(lw.ConfigurationError, match=text):
        searching.study(tmp_path / "s", 1, **options)
    assert not (tmp_path / "s").exists()


def test_an_unknown_score_ends_the_study_with_the_known_names(tmp_path: Path):
    with pytest.raises(lw.ConfigurationError, match="one of: val_loss"):
        searching.study(tmp_path / "s", 9, objective="val_los", mode="min")
    assert len(starts(tmp_path / "s")) == 1


def test_a_locked_storage_is_refused_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(studies, "SECONDS_FOR_STORAGE", 0.1)
    before = outcomes(searching.study(tmp_path / "s", 2))
    with locked(tmp_path / "s/study.db"):
        with pytest.raises(lw.ConfigurationError, match="locked by another program"):
            searching.study(tmp_path / "s", 3)
        assert len(starts(tmp_path / "s")) == 2, "a trial was started"
    assert outcomes(searching.study(tmp_path / "s", 3))[:2] == before


def test_a_storage_that_is_locked_during_a_study_ends_it_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(studies, "SECONDS_FOR_STORAGE", 0.2)
    monkeypatch.setattr(optuna_study, "_SECONDS_TO_WRITE", 0.2)
    whole = outcomes(searching.study(tmp_path / "whole", 4))
    with contextlib.ExitStack() as stack:

        def lock_after_one(line: str) -> None:
            if line.startswith("trial 0: complete"):
                stack.enter_context(locked(tmp_path / "s/study.db"))

        began = time.monotonic()
        with pytest.raises(lw.ConfigurationError, match="locked by another program"):
            searching.study(tmp_path / "s", 4, say=lock_after_one)
        assert time.monotonic() - began < 20
    assert outcomes(searching.study(tmp_path / "s", 4)) == whole


def test_a_storage_that_is_none_or_a_link_is_refused(tmp_path: Path):
    searching.study(tmp_path / "s", 1)
    storage = tmp_path / "s/study.db"
    storage.rename(tmp_path / "elsewhere.db")
    storage.symlink_to(tmp_path / "elsewhere.db")
    with pytest.raises(lw.LoopwrightError, match="symlink"):
        tune.shown(tmp_path / "s")
    storage.unlink()
    storage.write_bytes(b"not a database" * 100)
    with pytest.raises(lw.ConfigurationError, match="cannot be used"):
        searching.study(tmp_path / "s", 1)


def test_a_storage_with_parameters_of_another_search_is_refused(tmp_path: Path):
    found = searching.study(tmp_path / "s", 1)
    strange = optuna.trial.create_trial(
        state=optuna.trial.TrialState.RUNNING,
        params={"task": "os:system"},
        distributions={"task": optuna.distributions.CategoricalDistribution(["os:system"])},
    )
    found.study.add_trial(strange)
    with pytest.raises(lw.ConfigurationError, match="a trial 1 of another search"):
        searching.study(tmp_path / "s", 3)


def test_variables_of_the_environment_do_not_change_what_a_trial_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LOOPWRIGHT__MODEL__RATE", "7")
    found = searching.study(tmp_path / "s", 1)
    config = file.saved_in(tmp_path / "s/trials/0000")
    assert config is not None
    assert config.model["rate"] == found.trials[0].parameters["model.rate"]


def test_a_study_outside_of_the_main_thread_runs_too(tmp_path: Path):
    found = list[lw.Tuned]()
    thread = threading.Thread(target=lambda: found.append(searching.study(tmp_path / "s", 1)))
    thread.start()
    thread.join()
    assert found[0].best is not None
