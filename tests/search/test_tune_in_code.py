"""`lw.tune` with real trainings: the best config, the table, and the example of the page."""

import re
import sys
from pathlib import Path

import pytest
from tests.cli.small_project import MINE
from tests.processes import run_command

import loopwright as lw
from loopwright import runs
from loopwright.config import file

pytest.importorskip("optuna")
pytest.importorskip("sklearn.ensemble")  # Optuna's plots import it, and it sets variables

PAGE = Path(__file__).parents[2] / "docs" / "tuning.md"


@pytest.mark.timeout(600)
def test_a_search_in_code_trains_its_trials_and_names_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    said = list[str]()
    found = lw.tune(
        {"task": "mine:experiment", "plan": "graph", "fit": {"epochs": 2}},
        {"model.rate": "float(1e-3,1e-1,log)", "model.width": [2, 4]},
        trials=2,
        directory="search",
        settings="default",
        say=said.append,
    )
    assert [trial.state for trial in found.trials] == ["complete", "complete"]
    assert sum(line.startswith("trial ") for line in said) == 2
    best = found.best
    assert best is not None
    scores = {}
    for trial in found.trials:
        record = runs.open(tmp_path / f"search/trials/{trial.number:04d}")
        assert record.best is not None
        scores[trial.number] = record.best[1]
        assert trial.score == record.best[1]
    assert scores[best.number] == min(scores.values())
    config = file.load(str(found.best_config))
    chosen = {f"model.{name}": value for name, value in config.model.items()}
    assert best.parameters.items() <= chosen.items()
    assert {row["trial"] for row in found.table} == {0, 1}
    assert len(found.study.trials) == 2


@pytest.mark.timeout(600)
def test_the_example_of_the_page_runs(tmp_path: Path):
    (fence,) = re.findall(r"```python notest\n(.*?lw\.tune\(.*?)```", PAGE.read_text(), re.DOTALL)
    done = run_command([sys.executable, "-c", fence], cwd=tmp_path)
    assert "2 trials: 2 complete" in done.stdout
    assert (tmp_path / "runs/tune-digits/best.yaml").exists()
