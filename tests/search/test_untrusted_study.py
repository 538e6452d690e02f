"""A study that somebody sent: opening it touches nothing outside of its directory."""

import os
import sqlite3
import struct
from pathlib import Path

import pytest
from tests.search import searching

import loopwright as lw
from loopwright.search import study, trial_process, tune

pytest.importorskip("optuna")

MAGIC = bytes.fromhex("d9d505f920a163d7")


def storage(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    connection = sqlite3.connect(path)
    connection.execute("create table t(a)")
    connection.executemany("insert into t values (?)", [("before" * 400,)] * 20)
    connection.commit()
    connection.close()
    return path


def write_hot_journal(database: Path, *, names: Path | None = None) -> None:
    """A journal as a killed process leaves it; SQLite deletes the file that its end `names`."""
    raw = database.read_bytes()
    (page,) = struct.unpack(">H", raw[16:18])
    first = raw[:page]
    check = sum(first[at] for at in range(page - 200, 0, -200)) & 0xFFFFFFFF
    header = MAGIC + struct.pack(">IIIII", 1, 0, len(raw) // page, 512, page)
    body = header.ljust(512, b"\0") + struct.pack(">I", 1) + first + struct.pack(">I", check)
    if names is not None:
        body += b"\0" * (-len(body) % 512)
        name = str(names).encode()
        body += struct.pack(">I", 0x40000000 // page + 1) + name
        body += struct.pack(">II", len(name), sum(name)) + MAGIC
    Path(f"{database}-journal").write_bytes(body)


def test_a_journal_that_names_a_file_is_refused_and_the_file_stays(tmp_path: Path):
    database, victim = storage(tmp_path / "study" / "study.db"), tmp_path / "thesis.txt"
    victim.write_text("years of work")
    write_hot_journal(database, names=victim)
    with pytest.raises(lw.ConfigurationError, match=r"study\.db-journal cannot be used") as caught:
        tune.shown(database.parent)
    assert "names another file to delete" in str(caught.value)
    assert victim.read_text() == "years of work"
    # What the refusal is for: SQLite itself deletes the file.
    with sqlite3.connect(database) as connection:
        connection.execute("select * from t").fetchall()
    assert not victim.exists()
    # Nor is a journal accepted whose database is missing.
    write_hot_journal(database, names=victim)
    database.unlink()
    with pytest.raises(lw.ConfigurationError, match="names another file to delete"):
        tune.shown(database.parent)


def test_the_journal_of_a_killed_process_is_rolled_back(tmp_path: Path):
    database = storage(tmp_path / "study.db")
    killed = os.fork()
    if not killed:
        connection = sqlite3.connect(database, isolation_level=None)
        connection.execute("pragma cache_size = 1")
        connection.execute("begin")
        connection.execute("update t set a = 'half done'")
        os._exit(0)
    os.waitpid(killed, 0)
    assert Path(f"{database}-journal").stat().st_size
    study.require_storage(tmp_path)
    with sqlite3.connect(database) as connection:
        assert connection.execute("select distinct a from t").fetchall() == [("before" * 400,)]


@pytest.mark.parametrize("part", ["journal", "wal", "shm"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_link_or_a_pipe_beside_the_storage_is_refused(tmp_path: Path, part: str, kind: str):
    beside = Path(f"{storage(tmp_path / 'study.db')}-{part}")
    if kind == "link":
        beside.symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(beside)
    with pytest.raises(lw.ConfigurationError, match=f"study.db-{part}"):
        tune.shown(tmp_path)


def test_the_store_of_a_tracker_with_such_a_journal_is_refused(tmp_path: Path):
    pytest.importorskip("mlflow.store.tracking.sqlalchemy_store")
    from loopwright.sinks.mlflow import MLflow

    database = storage(tmp_path / "mlflow.db")
    write_hot_journal(database, names=tmp_path / "thesis.txt")
    with pytest.raises(lw.ConfigurationError, match="names another file to delete"):
        MLflow(f"sqlite:///{database}")


DEEP = "[" * 5000 + "]" * 5000
ATTRIBUTE = "insert into trial_user_attributes(trial_id, key, value_json) values (1, 'a', ?)"


def test_values_that_optuna_does_not_write_are_refused_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(trial_process, "PROGRAM", searching.QUICK)
    searching.study(tmp_path / "s", 1)
    original = (tmp_path / "s/study.db").read_bytes()
    for statement, values in (
        (ATTRIBUTE, [DEEP]),
        ("update trial_params set distribution_json = ?", [DEEP]),
        ("update trial_params set distribution_json = '{}'", []),
        ("update trials set state = 'NOPE'", []),
        ("update study_directions set direction = 'UP'", []),
    ):
        (tmp_path / "s/study.db").write_bytes(original)
        connection = sqlite3.connect(tmp_path / "s/study.db")
        connection.execute(statement, values)
        connection.commit()
        connection.close()
        with pytest.raises(lw.ConfigurationError, match=r"study\.db cannot be used"):
            tune.shown(tmp_path / "s")
        with pytest.raises(lw.ConfigurationError, match=r"study\.db cannot be used"):
            searching.study(tmp_path / "s", 2)
