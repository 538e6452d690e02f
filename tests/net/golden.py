"""Dumps of what users see, to be compared after every change: `python -m tests.net.golden`.

The command writes them again. A change that is meant changes its dump in the same commit.
"""

import dataclasses
import difflib
import inspect
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.processes import run_command

HERE = Path(__file__).with_name("golden")
ROOT = Path(__file__).parents[2]
_TIMES = {"seconds", "spent", "advice", "facts", "run_dir", "time", "process", "measured"}
"""What differs from run to run."""
_SETTINGS = {"onednn", "xla_flags", "intra_op_threads", "inter_op_threads"}
"""What differs from machine to machine."""
_FLOAT = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?|-?\d+e[+-]?\d+")


def signatures() -> str:
    """Return the parameters of every public name, and of the methods of every public class."""
    import loopwright as lw

    modules = {name: getattr(lw, name) for name in ("components", "sinks", "testing")}
    names = {name: getattr(lw, name) for name in lw.__all__ if name not in modules}
    for room, module in modules.items():
        for name in getattr(module, "_HOMES", None) or vars(module):
            value = getattr(module, name)
            home = getattr(value, "__module__", "")
            if not name.startswith("_") and home.startswith(f"loopwright.{room}"):
                names[f"{room}.{name}"] = value
    lines = [line for name, value in sorted(names.items()) for line in _described(name, value)]
    return "\n".join(lines)


def _described(name: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        yield f"{name}{_parameters(value) if inspect.isroutine(value) else ''}"
        return
    yield f"{name}{_parameters(value)}"
    for member, found in sorted(vars(value).items()):
        if member.startswith("_"):
            continue
        method = getattr(found, "__func__", found)
        if inspect.isfunction(method):
            yield f"  .{member}{_parameters(method)}"
        elif isinstance(found, property):
            yield f"  .{member}"


def _parameters(value: Any) -> str:
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    bare = [p.replace(annotation=p.empty) for p in found.parameters.values()]
    text = str(found.replace(parameters=bare, return_annotation=found.empty))
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def help_texts() -> str:
    """Return the help of every command, made in a process that imports no TensorFlow."""
    code = (
        "import sys; from tests.net import golden; print('\\n'.join(golden.helps()))\n"
        "sys.exit('tensorflow' in sys.modules)"
    )
    environment = {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}
    return run_command([sys.executable, "-c", code], cwd=ROOT, env=environment).stdout


def helps(words: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the help of a command, then those of its subcommands, by name."""
    import typer.main
    from typer.testing import CliRunner

    from loopwright.cli import main

    command: Any = typer.main.get_command(main.app)
    for word in words:
        command = command.commands[word]
    shown = CliRunner().invoke(main.app, [*words, "--help"], prog_name="loopwright")
    lines = [line.rstrip() for line in shown.output.strip().splitlines()]
    yield "\n".join([f"## {' '.join(['loopwright', *words])}", "", *lines, ""])
    for name in sorted(getattr(command, "commands", {})):
        yield from helps((*words, name))


def write_messages() -> None:
    """Write again what the wrong programs of `tests/programs` are told."""
    from tests.programs.test_wrong_programs import MESSAGES, PROGRAMS, messages
    from tests.programs.wrong.wrong_program import plans_of

    texts = [f"## {n}\n{messages(n, plans_of(build)[0])}\n" for n, build in PROGRAMS.items()]
    MESSAGES.write_text("\n".join(texts))


def training(name: str, directory: Path) -> str:
    """Return what a small training reports and writes, without times."""
    from tests.net.small_trainings import TRAININGS

    run = directory / "run"
    parts = ["## reports", *map(json.dumps, _merged(TRAININGS[name](run)))]
    journal = run / "metrics.jsonl"
    if journal.exists():
        rows = [json.loads(line) for line in journal.read_text().splitlines()]
        # How often steps are reported depends on the time they take.
        told = [json.dumps(_plain(row)) for row in rows if row["event"] != "trained"]
        parts += ["## metrics.jsonl", *told]
    for file in ("plan.json", "history.json"):
        if (run / file).exists():
            parts += [f"## {file}", json.dumps(_plain(json.loads((run / file).read_text())))]
    if (run / "config.yaml").exists():
        parts += ["## config.yaml", (run / "config.yaml").read_text().rstrip()]
    if run.exists():
        found = sorted(str(path.relative_to(run)) for path in run.rglob("*"))
        parts += ["## files", " ".join(name for name in found if name.count("/") < 2)]
    return re.sub(r"tfevents\S+", "tfevents", "\n".join(parts))


def _merged(reports: Iterable[Any]) -> Iterator[Any]:
    """Yield reports as JSON values; steps that were reported in parts are one report."""
    waiting: dict[str, Any] | None = None
    for report in reports:
        plain = _plain(report)
        if plain.get("event") == "Trained":
            waiting = {**plain, "steps": plain["steps"] + (waiting["steps"] if waiting else 0)}
            continue
        if waiting is not None:
            yield waiting
            waiting = None
        yield plain


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {"event": type(value).__name__, **_plain(fields)}
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if k not in _TIMES | _SETTINGS}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    return float(f"{float(value):.4g}")


def differences(old: str, new: str) -> str:
    """Return the lines that differ; numbers with a point may differ by rounding.

    >>> differences("loss 0.5001", "loss 0.5002"), differences("loss 0.5", "los 0.5")
    ('', '- loss 0.5\\n+ los 0.5')
    """
    before, after = old.rstrip().splitlines(), new.rstrip().splitlines()
    if len(before) == len(after) and all(map(_same, before, after)):
        return ""
    shown = difflib.unified_diff(before, after, n=0, lineterm="")
    lines = [line for line in shown if not line.startswith(("---", "+++", "@@"))]
    return "\n".join(f"{line[0]} {line[1:]}" for line in lines)


def _same(old: str, new: str) -> bool:
    if _FLOAT.sub("#", old) != _FLOAT.sub("#", new):
        return False
    pairs = zip(_FLOAT.findall(old), _FLOAT.findall(new), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=2e-3, abs_tol=1e-5) for a, b in pairs)


def dumps() -> dict[str, Callable[[Path], str]]:
    """Return by the name of each dump what makes it in an empty directory."""
    from tests.net.small_trainings import TRAININGS

    return {
        "signatures": lambda _: signatures(),
        "help": lambda _: help_texts(),
        **{f"training-{name}": partial(training, name) for name in TRAININGS},
    }


def main() -> None:
    os.environ["LOOPWRIGHT_CACHE_DIR"] = ""
    if not sys.argv[1:] or "messages" in sys.argv:
        write_messages()
    for name, make in dumps().items():
        if sys.argv[1:] and not any(word in name for word in sys.argv[1:]):
            continue
        with tempfile.TemporaryDirectory() as directory:
            here = Path.cwd()
            os.chdir(directory)
            try:
                text = make(Path(directory))
            finally:
                os.chdir(here)
        HERE.mkdir(exist_ok=True)
        HERE.joinpath(f"{name}.txt").write_text(text.rstrip() + "\n")
        print(name)


if __name__ == "__main__":
    main()
