"""Another backend for checkpoints is one more class: here one that keeps them in memory."""

import contextlib
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, final

import keras
import numpy as np
import pytest

import loopwright as lw
from loopwright.checkpoints.retention import Entry, KeepLatest
from loopwright.checkpoints.run_directory import Run
from loopwright.checkpoints.store import Backend, LocalBackend, Store


@final
class MemoryBackend:
    """What an object store would do: an object per file, local copies to write and to read."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "copies"
        self.objects: dict[int, dict[str, bytes]] = {}
        self.is_locked = False

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        if self.is_locked:
            raise lw.ConfigurationError("the run is in use")
        self.is_locked = True
        try:
            yield
        finally:
            self.is_locked = False

    def steps(self) -> list[int]:
        return sorted(self.objects)

    def read(self, step: int) -> Path:
        path = self.directory / f"step-{step:08d}"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        for name, content in self.objects[step].items():
            (path / name).write_bytes(content)
        return path

    def write(self, step: int, fill: Callable[[Path], None]) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.directory) as temporary:
            fill(Path(temporary))
            found = {path.name: path.read_bytes() for path in Path(temporary).iterdir()}
        self.objects[step] = found
        return self.read(step)

    def delete(self, step: int) -> None:
        self.objects.pop(step, None)

    def set_aside(self, steps: Sequence[int]) -> list[Path]:
        return [self.directory / f"bad-{step}" for step in steps if self.objects.pop(step)]

    def move_run_aside(self) -> Path | None:
        return next(iter(self.set_aside(self.steps())), None)

    def clean(self) -> list[Path]:
        return []


def write_one(directory: Path) -> None:
    (directory / "state").write_bytes(b"12345")


@pytest.fixture(params=[MemoryBackend, lambda path: LocalBackend(path / "checkpoints")])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return request.param(tmp_path)


def test_a_backend_keeps_what_a_store_writes_and_deletes(backend: Backend):
    store = Store(backend)
    for step in (3, 1, 2):
        store.write(step, {"number": step}, write_one)
    newest = store.newest()
    assert newest is not None
    assert (newest.step, newest.content) == (3, {"number": 3})
    assert [found.step for found in store.all()] == backend.steps() == [1, 2, 3]
    assert (store.at(2).path / "state").read_bytes() == b"12345"
    entries = [Entry(step, False, {}) for step in (1, 2, 3)]
    assert store.apply_retention([KeepLatest(2)], entries) == [1]
    assert len(store.set_aside_after(2)) == 1
    assert backend.steps() == [2]
    with pytest.raises(lw.ConfigurationError, match="no checkpoint of step 3"):
        store.at(3)
    with pytest.raises(ZeroDivisionError):
        store.write(4, {}, lambda directory: 1 // 0)  # type: ignore[arg-type]
    assert backend.steps() == [2]
    backend.delete(2)
    backend.delete(2)
    assert store.newest() is None


def test_a_backend_is_held_by_one_at_a_time(backend: Backend, tmp_path: Path):
    with backend.lock():
        with pytest.raises(lw.ConfigurationError, match="in use"), backend.lock():
            pass
        (tmp_path / "checkpoints").mkdir()
        Store(backend).write(1, {}, write_one)
        assert backend.move_run_aside() is not None
        assert backend.steps() == []
        with pytest.raises(lw.ConfigurationError, match="in use"), backend.lock():
            pass
    with backend.lock():
        pass


def test_damage_is_found_whatever_the_backend(tmp_path: Path):
    backend = MemoryBackend(tmp_path)
    store = Store(backend)
    store.write(1, {}, write_one)
    store.write(2, {}, write_one)
    backend.objects[2]["state"] = b"12346"
    with pytest.warns(lw.LoopwrightWarning, match=r"(?s)step 1 instead.*checksum mismatch"):
        newest = store.newest()
    assert newest is not None
    assert newest.step == 1


def test_a_run_is_saved_and_resumed_in_another_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The whole library, with nothing in `checkpoints/` of the run directory."""
    x = np.arange(48, dtype="float32").reshape(16, 3) / 48

    def trained(run_dir: Path, epochs: int) -> Any:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        task = lw.Supervised(model, "mse", "adam")
        trainer = lw.Trainer(task, run_dir=run_dir, plan="graph")
        trainer.fit(x, x[:, :2], epochs=epochs, batch_size=4, verbose=0)
        return trainer.task.model.get_weights()

    whole = trained(tmp_path / "local", 3)
    backend = MemoryBackend(tmp_path)
    monkeypatch.setattr("loopwright.trainer.Run", functools.partial(Run, backend=backend))
    trained(tmp_path / "run", 1)
    assert backend.steps() == [4]
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert all(map(np.array_equal, trained(tmp_path / "run", 3), whole))
