"""A run directory that somebody sent: no command runs its code, or follows a link in it.

What a run directory holds is data: whatever it says, it is shown as text and leads nowhere.
"""

import ast
import contextlib
import html.parser
import importlib.metadata
import json
import os
import shutil
import stat
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.processes import run_command
from typer.testing import CliRunner

import loopwright as lw
from loopwright.checkpoints import lock
from loopwright.checkpoints.run_directory import Run
from loopwright.checkpoints.store import Store
from loopwright.cli import main

PACKAGE = Path(lw.__file__).parent
SECRET = "the secret of another person"
INSTEAD = "link the run directory instead"

MINE = """
import keras, numpy as np
import loopwright as lw


def make_task(*, seed=0):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    return lw.Supervised(model, "mse", "sgd")


def experiment():
    import beside  # when it is called, and not when this module is imported

    x = np.random.default_rng(0).normal(size=(beside.ROWS, 3)).astype("float32")
    y = np.zeros((beside.ROWS, 2), "float32")
    fit = {"x": x, "y": y, "validation_data": (x, y), "epochs": 1, "batch_size": 16, "verbose": 0}
    return lw.Experiment(make_task, fit=fit, test=(x, y))
"""


def make_trainer(run_dir: Path, **options: Any) -> lw.Trainer:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    return lw.Trainer(lw.Supervised(model, "mse", "sgd"), run_dir=run_dir, plan="graph", **options)


def fit(run_dir: Path, epochs: int = 1, **options: Any) -> lw.Trainer:
    trainer = make_trainer(run_dir, **options)
    x = np.ones((32, 3), "float32")
    data = {"validation_data": (x, x[:, :2]), "epochs": epochs, "batch_size": 16, "verbose": 0}
    trainer.fit(x, x[:, :2], **data)
    return trainer


def invoke(*arguments: str) -> tuple[int, str]:
    """Exit code and everything that a command said; what is no error of ours is raised."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        done = CliRunner().invoke(main.app, list(arguments))
    said = done.output + "".join(str(each.message) for each in caught)
    if isinstance(done.exception, lw.LoopwrightError):
        return main.exit_code(done.exception), said + str(done.exception)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, said


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A person's own directory with a finished run in it: config, figures, an export."""
    where = tmp_path_factory.mktemp("project")
    (where / "mine.py").write_text(MINE)
    (where / "beside.py").write_text("ROWS = 32\n")
    np.save(where / "x.npy", np.ones((4, 3), "float32"))
    before = os.getcwd()
    os.chdir(where)
    sys.modules.pop("mine", None)
    try:
        code, said = invoke(
            "train", "mine:experiment", "plan=graph", "export={format: keras}", "--run-dir", "run"
        )
        assert code == 0, said
    finally:
        os.chdir(before)
    (where / "run" / "figures").mkdir()
    (where / "run" / "figures" / "one.png").write_bytes(b"\x89PNG")
    (where / "run" / "callbacks").mkdir()
    yield where
    for name in ("mine", "beside"):
        sys.modules.pop(name, None)


# --- code ---


HOSTILE = "open({canary!r}, 'a').write(__name__ + ' ')\n"
DRIVER = """
import json, sys
from loopwright.cli import main

for arguments in json.loads(sys.argv[1]):
    sys.argv = ["loopwright", *arguments]
    code = 0
    try:
        main.main()
    except SystemExit as ended:
        code = ended.code
    print("ended", arguments[0], code, flush=True)
"""


def hostile_modules(directory: Path, canary: Path) -> None:
    """A module of every name that anything here could import, which leaves a trace."""
    names = {*sys.stdlib_module_names, *importlib.metadata.packages_distributions()}
    names |= {name.partition(".")[0] for name in sys.modules}
    assert {"numpy", "tensorboard", "json", "loopwright"} <= names
    for name in names | {"sitecustomize", "usercustomize"}:
        if "/" not in name:
            (directory / f"{name}.py").write_text(HOSTILE.format(canary=str(canary)))


def hostile_repository(directory: Path, canary: Path) -> None:
    """A repository whose settings name programs for git to start."""
    program = directory / "program"
    program.write_text(f"#!/bin/sh\necho git >> {canary}\ncat\n")
    program.chmod(0o700)
    (directory / "tracked.txt").write_text("before")
    git = ["git", "-C", str(directory), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "tracked.txt"], ["commit", "-qm", "a"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    (directory / ".gitattributes").write_text("* filter=evil\n")
    (directory / "tracked.txt").write_text("after!")
    names = ["core.fsmonitor", "filter.evil.clean", "filter.evil.process", "core.pager"]
    for name in [*names, "pager.rev-parse", "alias.rev-parse", "core.sshCommand"]:
        value = f"!{program}" if name.startswith("alias") else str(program)
        subprocess.run([*git, "config", name, value], check=True)
    for hook in ("post-index-change", "reference-transaction", "post-checkout"):
        shutil.copy(program, directory / ".git" / "hooks" / hook)
    # What the settings are for: `git status` starts a program.
    subprocess.run([*git, "status"], check=False, capture_output=True)
    assert canary.exists()
    canary.unlink()


def test_no_command_in_a_run_directory_imports_a_module_or_starts_a_program_of_it(
    tmp_path: Path,
):
    run, canary = tmp_path / "run", tmp_path / "canary"
    run.mkdir()
    (run / "config.yaml").write_text("task: digits\nquick: true\nplan: graph\n")
    hostile_repository(run, canary)
    hostile_modules(run, canary)
    (run / "matplotlibrc").write_text("text.usetex: True\nbackend: module://numpy\n")
    (tmp_path / "bin").mkdir()
    driver = tmp_path / "bin" / "loopwright"  # as the console script: its own directory comes first
    driver.write_text(DRIVER)
    commands = [
        ["resume", "."],
        ["doctor"],
        ["runs", "."],
        ["report", "."],
        ["evaluate", ".", "--checkpoint", "last"],
        ["predict", ".", "--checkpoint=last", "--input=x.npy", f"--output={tmp_path}/y.npy"],
        ["export", ".", "--checkpoint", "last"],
        ["launch", "--workers", "1", "--", "runs", "."],
    ]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [sys.executable, str(driver), json.dumps(commands)],
        cwd=run,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert not canary.exists(), canary.read_text()
    for name, *_ in commands:
        code = 2 if name == "predict" else 0  # there is no x.npy, which it reads last
        assert f"ended {name} {code}" in said, said[-3000:]
    assert (run / "figures").is_dir()


@pytest.mark.parametrize("where", ["above the run", "inside it", "named by a file inside it"])
def test_no_program_of_a_repository_around_a_run_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
):
    """As in `cd stranger; loopwright resume runs/a`, or in the run directory."""
    from loopwright import environment

    canary, run = tmp_path / "canary", tmp_path / "stranger" / "runs" / "a"
    run.mkdir(parents=True)
    repository = run if where == "inside it" else tmp_path / "stranger"
    hostile_repository(repository, canary)
    if "file" in where:
        (run / ".git").write_text(f"gitdir: {repository / '.git'}\n")
    monkeypatch.setattr(sys, "argv", ["/usr/bin/loopwright", "resume", "runs/a"])
    for cwd in (tmp_path / "stranger", run):
        monkeypatch.chdir(cwd)
        assert environment.about(run)["git"] is None
        assert not canary.exists(), canary.read_text()


@pytest.mark.parametrize("way", ["script", "command", "prompt"])
def test_the_revision_is_that_of_the_programs_own_code(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
):
    """Also where the user's git is in the middle of something else."""
    from loopwright import environment

    canary, code = tmp_path / "canary", tmp_path / "code"
    code.mkdir()
    hostile_repository(code, canary)
    asked = ["git", "-C", str(code), "rev-parse", "HEAD"]
    revision = run_command(asked).stdout.strip()
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "another"))
    main = sys.modules["__main__"]
    monkeypatch.chdir(tmp_path if way == "script" else code)
    if way == "prompt":
        monkeypatch.delattr(main, "__file__", raising=False)
    else:
        monkeypatch.setattr(main, "__file__", str(code / "train.py"), raising=False)
    if way == "command":
        monkeypatch.setattr(sys, "argv", ["bin/loopwright"])
        monkeypatch.setattr(main, "__file__", "/usr/bin/loopwright")
        assert environment.about()["git"] is None, "no module of the project was imported"
        module = type(sys)("task_of_the_project")
        module.__file__ = str(code / "task.py")
        monkeypatch.setitem(sys.modules, "task_of_the_project", module)
    assert environment.about(tmp_path / "run")["git"] == {"revision": revision}
    assert environment.about(code)["git"] is None  # it came with the run
    assert not canary.exists(), canary.read_text()


def test_every_child_process_leaves_the_current_directory_out_of_its_import_path():
    """One function names the interpreter, with -P; `run` starts what the user named as is."""
    users = {path.name for path in PACKAGE.rglob("*.py") if "sys.executable" in path.read_text()}
    assert users == {"processes.py", "process_settings.py"}
    from loopwright import processes
    from loopwright.cli import verify

    assert processes.python() == [sys.executable, "-P"]
    assert verify.command_for("digits")(Path("other"), "graph")[:2] == processes.python()


def test_a_workers_project_is_found_though_it_is_not_on_the_import_path(project: Path):
    command = ["launch", "--workers", "1", "--", "train", "mine:experiment", "plan=graph"]
    run_command(
        [sys.executable, "-P", "-m", "loopwright", *command, "--run-dir", "launched"],
        cwd=project,
        env={"PYTHONPATH": str(PACKAGE.parent)},
    )
    assert (project / "launched" / "checkpoints").is_dir()


# --- links ---


def looking(run: Path) -> list[list[str]]:
    return [[command, str(run)] for command in ("runs", "report")]


def using(run: Path, name: str) -> list[list[str]]:
    """The commands that train or load; where it cannot matter they are left out, for time."""
    task = ["--task", "mine:experiment"]
    found = list[list[str]]()
    if name.startswith(("config", "checkpoints")):
        found.append(["evaluate", str(run), *task])
    if not name.startswith(("figures", "callbacks")) and not name.endswith(".keras"):
        # An export is loaded in a new process, which takes its time.
        export = [] if name.startswith("export") else ["export=null"]
        found.append(["resume", str(run), "fit.epochs=2", *export, *task])
    return found


def entries(run: Path) -> list[str]:
    return sorted(path.relative_to(run).as_posix() for path in run.rglob("*"))


def contents(directory: Path) -> dict[str, bytes]:
    found = directory.rglob("*")
    return {str(path.relative_to(directory)): path.read_bytes() for path in found if path.is_file()}


def test_no_command_follows_a_link_in_a_run_directory(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Every file and every directory of a run, one after the other, leads elsewhere."""
    monkeypatch.chdir(project)
    names = entries(project / "run")
    assert {"config.yaml", "tensorboard/train", "figures/one.png", "lock"} <= set(names)
    silent = list[str]()
    for number, name in enumerate(names):
        outside, run = tmp_path / f"outside-{number}", tmp_path / f"run-{number}"
        shutil.copytree(project / "run", run)
        entry, target = run / name, outside / "target"
        outside.mkdir()
        if entry.is_dir():
            shutil.move(entry, target)
            (target / "events.out.tfevents.9").write_text(SECRET)
            (target / "one.png").write_text(SECRET)
        else:
            content = entry.read_bytes()
            target.write_bytes(content if name.endswith(".yaml") else SECRET.encode())
            entry.unlink()
        entry.symlink_to(target)
        before, said = contents(outside), ""
        for arguments in [*looking(run), *using(run, name)]:
            code, output = invoke(*arguments)
            assert code in (0, 1, 2), (name, arguments, output)
            said += output
        assert contents(outside) == before, name
        assert SECRET not in said, name
        page = run / "report.html"
        if not page.is_symlink() and page.exists():
            assert SECRET not in page.read_text(), name
            assert "dGhlIHNlY3JldCBvZi" not in page.read_text(), name  # as base64
        if INSTEAD not in said:
            silent.append(name)
        shutil.rmtree(run)
    # What no command opens, nor writes.
    assert silent == [
        "callbacks",
        *[name for name in names if name.startswith("export/") and name.endswith(".keras")],
    ]


@pytest.mark.parametrize("name", ["export", "export/2"])
def test_an_export_into_the_run_directory_follows_no_link(tmp_path: Path, name: str):
    trainer = fit(tmp_path / "run")
    (tmp_path / "outside").mkdir()
    if "/" in name:
        (tmp_path / "run" / "export").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "outside")
    if name == "export":
        with pytest.raises(lw.ConfigurationError, match=INSTEAD):
            trainer.export(format="keras")
    else:
        assert trainer.export().path.endswith("export/3")
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize("name", ["history.csv", "callbacks"])
def test_a_callback_of_a_config_follows_no_link_even_one_that_stays_inside(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.chdir(project)
    run = tmp_path / "run"
    (run / "inside").mkdir(parents=True)
    (run / name).symlink_to(run / "inside")
    options = ["callbacks=[CSVLogger, TensorBoard]", "plan=graph", "--run-dir", str(run)]
    code, said = invoke("train", "mine:experiment", *options)
    assert code == 2
    assert INSTEAD in said
    assert not list((run / "inside").iterdir())


def test_the_run_directory_itself_may_be_a_link(tmp_path: Path):
    real, link = tmp_path / "real", tmp_path / "link"
    link.symlink_to(real)
    fit(link)
    assert (real / "checkpoints").is_dir()
    fit(link, epochs=2)
    with pytest.warns(lw.LoopwrightWarning, match="real.old-"):
        fit(link, fresh=True)
    assert link.is_symlink()
    for command in ("runs", "report"):
        assert invoke(command, str(link))[0] == 0


@pytest.mark.parametrize("name", ["metrics.jsonl", "status.json", "config.yaml", "model.txt"])
def test_a_pipe_in_place_of_a_file_is_refused_and_nobody_waits(tmp_path: Path, name: str):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "metrics.jsonl").write_text('{"event": "started", "step": 0}\n')
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    said = "".join(invoke(*command)[1] for command in looking(tmp_path))
    assert f"{tmp_path / name} cannot be used" in said
    assert "not a regular file" in said


# What opens, lists, makes, renames, locks, truncates, flushes or deletes files.
OF_PATHS = {
    *("read_text", "read_bytes", "write_text", "write_bytes", "glob", "rglob", "iterdir"),
    *("unlink", "rename", "mkdir", "rmdir", "touch", "symlink_to", "hardlink_to", "chmod"),
    *("exists", "is_file", "is_dir", "stat", "lstat", "savefig", "create_file_writer"),
    "TFRecordWriter",
    *("load_model", "load_weights", "save_weights", "load_checkpoint", "write_out", "truncate"),
}
OF_MODULES = {
    "os": {
        *("open", "listdir", "scandir", "walk", "fwalk", "unlink", "remove", "rename", "replace"),
        *("mkdir", "makedirs", "rmdir", "stat", "lstat", "symlink", "link", "truncate", "chmod"),
        *("ftruncate", "pwrite", "fsync", "fdatasync", "sync", "fchmod", "lockf", "renames"),
    },
    "fcntl": None,
    "shutil": None,
    "np": {"load", "save", "savez", "loadtxt", "savetxt", "fromfile", "memmap"},
    "h5py": {"File"},
    "gfile": None,
}
# Where something else than a run's files is meant, or was checked: module, call, reason.
ALLOWED = [
    ("disk.py", "", "the one place that opens, renames, locks and truncates files of a run"),
    ("digits.py", "savefig", "into memory"),
    ("data/", "", "a person's data"),
    ("config/plain_yaml.py", "is_file open", "a config that a person named"),
    ("cli/use_commands.py", "", "inputs and outputs that a person named"),
    ("cli/look_commands.py", "is_dir", "the directory that a person named"),
    ("cli/train_commands.py", "exists is_dir iterdir", "the directory that a person named"),
    ("cli/arguments.py", "is_dir", "the directory that a person named"),
    ("cli/arguments.py", "read_text", "the pyproject.toml of the current directory"),
    ("cli/run_overview.py", "walk stat", "directories that hold runs; the run directory itself"),
    ("cli/compare_command.py", "write_text", "a page in a named file"),
    ("cli/new_command.py", "is_dir exists iterdir", "the new directory that a person named"),
    ("cli/replay_child.py", "load save", "bytes in memory"),
    ("cli/tune_command.py", "is_dir", "the config that a person named"),
    ("compat/xplane.py", "glob read_bytes", "the profile that was just written"),
    ("insight/step_look.py", "open", "a file that a person named"),
    ("insight/estimates.py", "is_dir", "the nearest directory there is: its free space"),
    ("sinks/figures.py", "savefig write_bytes", "a figure that a person named"),
    ("processor.py", "read_text", "/proc/cpuinfo"),
    ("cli/process_settings.py", "exists", "a script that the user named"),
    ("distribute/strategy.py", "listdir", "/proc/self/fd"),
    ("plans/record.py", "read_text write_text", "a file the user named"),
    (
        "export/exporter.py",
        "exists glob mkdir",
        "where the user exports to; export/ of a run is checked before",
    ),
    ("export/writers.py", "write_out write_text", "a directory that was just made"),
    ("export/child.py", "", "the export that was just written, in a directory of its parent"),
    ("cli/verify.py", "is_dir open", "the directory that a person named; what children print"),
    ("quiet_start.py", "exists", "/dev and /proc: is there a GPU driver"),
    ("checkpoints/initial_weights.py", "", "weights that a person named; runs are read by Store"),
    ("checkpoints/tensors.py", "load_checkpoint symlink", "files that were just verified"),
    ("sinks/tensorboard.py", "TFRecordWriter", "a new file in a directory that was just checked"),
]


def file_calls(module: Path) -> set[str]:
    """The calls of a module that touch files by their paths."""
    found = set[str]()
    for node in ast.walk(ast.parse(module.read_text())):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id == "open":
            found.add("open")
        if not isinstance(node.func, ast.Attribute):
            continue
        name, owner = node.func.attr, node.func.value
        last = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
        if last in OF_MODULES:
            known = OF_MODULES[last]
            if known is None or name in known:
                found.add(name)
        elif last == "disk":
            continue
        elif name in OF_PATHS:
            found.add(name)
        elif name == "replace" and len(node.args) == 1 and not node.keywords:
            found.add(name)  # of a Path; a text takes two
        elif name == "open":
            mode = node.args and isinstance(node.args[0], ast.Constant)
            if mode or any(k.arg in ("mode", "encoding", "buffering") for k in node.keywords):
                found.add(name)  # of a Path; feeds and journals are opened otherwise
    return found


def test_files_of_a_run_are_opened_through_one_module():
    used = set[tuple[str, str, str]]()
    others = dict[str, set[str]]()
    for module in sorted(PACKAGE.rglob("*.py")):
        path = module.relative_to(PACKAGE).as_posix()
        calls = file_calls(module)
        for rule in ALLOWED:
            if path.startswith(rule[0]) and calls:
                used.add(rule)
                calls = calls - set(rule[1].split()) if rule[1] else set()
        if calls:
            others[path] = calls
    assert others == {}, "open files of a run with loopwright.disk, or name the reason in ALLOWED"
    assert used == set(ALLOWED), "exceptions that nothing needs"


def test_one_module_renames_locks_truncates_flushes_and_deletes():
    """No exceptions: an object store would be one more file, and nothing would bypass it."""
    system = {"rename", "renames", "replace", "flock", "lockf", "truncate", "ftruncate", "pwrite"}
    system |= {"fsync", "fdatasync", "sync", "fchmod", "unlink", "remove", "rmdir", "rmtree"}
    users = {m.name for m in PACKAGE.rglob("*.py") if file_calls(m) & system}
    assert users == {"disk.py"}
    opens = [m.name for m in PACKAGE.rglob("*.py") if "os.open(" in m.read_text()]
    assert opens == ["disk.py"]


def test_the_check_finds_what_it_looks_for(tmp_path: Path):
    module = tmp_path / "module.py"
    for text in (
        *('open("x")', "path.open('rb')", "path.replace(other)", "os.listdir(x)"),
        *("os.rename(a, b)", "fcntl.flock(f, 2)", "os.ftruncate(f, 0)", "file.truncate()"),
        *("os.fsync(f)", "os.unlink(a)", "path.unlink()", "os.open(a, 0)", "path.rename(b)"),
    ):
        module.write_text(text)
        assert file_calls(module), text
    module.write_text("feed.open(); 'a'.replace('b', 'c'); disk.rename(a, b, c)")
    assert not file_calls(module)


# --- the report ---

PAYLOADS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style></pre></script><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "' onmouseover='alert(1)",
)
PAYLOAD = "".join(PAYLOADS)
ALLOWED_ELEMENTS = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "span", "table"),
    *("tr", "th", "td", "ul", "li", "pre", "figure", "figcaption", "img", "svg", "rect"),
    *("label", "input", "button", "details", "summary", "noscript", "script", "strong"),
}
DRAWN_ELEMENTS = {"tbody", "canvas"}  # by the page's own script
ALLOWED_ATTRIBUTES = {
    *("lang", "charset", "http-equiv", "content", "name", "class", "alt", "src", "viewbox"),
    *("role", "aria-label", "x", "width", "height", "preserveaspectratio"),
    *("type", "id", "hidden", "rowspan", "colspan"),
}
DRAWN_ATTRIBUTES = {"style", "title", "disabled"}


def spoiled(value: Any) -> Any:
    """The value with each text, and each key that is a name, made hostile."""
    if isinstance(value, dict):
        known = {*("event", "metrics", "validation", "learning_rates", "spent", "changes", "notes")}
        known |= {"plan", "step", "status", "seconds", "advice"}
        return {k if k in known else k + PAYLOAD: spoiled(v) for k, v in value.items()}
    if isinstance(value, list):
        return [spoiled(each) for each in value]
    if isinstance(value, str):
        return PAYLOAD
    return value


class Page(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.elements, self.attributes = set[str](), set[str]()
        self.scripts, self.sources, self.texts = list[Any](), list[str](), list[str]()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.scripts += [attrs] if tag == "script" else []
        self.sources += [value for name, value in attrs if name == "src"]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def hostile_run(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose files are as they were, but for their texts."""
    run = tmp_path_factory.mktemp("hostile") / "a<script>alert(1)<"
    shutil.copytree(project / "run", run)
    finished = {"event": "finished", "seconds": 1.0, "spent": {"training": 2.0}, "advice": "none"}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = [each for each in lines if each["event"] != "trained"] + [finished]
    events = [{**spoiled(each), "event": each["event"]} for each in kept]
    (run / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events))
    for name in ("status.json", "environment.json", "plan.json", "history.json"):
        content = json.loads((run / name).read_text())
        (run / name).write_text(json.dumps(spoiled(content)))
    plan = {"changes": [{"step": 0, "plan": {PAYLOAD: PAYLOAD}}], "notes": [PAYLOAD, 7]}
    (run / "plan.json").write_text(json.dumps(plan))
    for name in ("model.txt", "config.yaml"):
        (run / name).write_text(PAYLOAD)
    (run / "figures" / "<img src=x onerror=alert(1)>.png").write_bytes(b"\x89PNG")
    return run


def test_whatever_the_files_of_a_run_say_is_text_in_the_report(hostile_run: Path):
    code, said = invoke("report", str(hostile_run))
    assert code == 0, said
    text = (hostile_run / "report.html").read_text()
    page = Page()
    page.feed(text)
    assert page.elements <= ALLOWED_ELEMENTS
    assert page.attributes <= ALLOWED_ATTRIBUTES
    assert page.scripts == [[("type", "application/json"), ("id", "curves")], [], []]
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    shown = "".join(page.texts)
    for payload in PAYLOADS:
        assert payload in shown  # as it was written, and nothing of it evaluated
    assert "49" not in [part.strip() for part in page.texts]
    assert "default-src 'none'" in html.unescape(text)


@pytest.mark.parametrize("value", ["text", None, [], 7, {"a": {}}, 10**400, 1e308, True])
def test_values_of_the_wrong_kind_are_left_out_of_the_report(tmp_path: Path, value: Any):
    lines: list[Any] = [
        {"event": "epoch_ended", "step": value, "metrics": {"loss": 1.0}, "validation": value},
        {"event": "epoch_ended", "step": 1, "metrics": {"loss": value}, "learning_rates": value},
        {"event": "epoch_ended", "step": 2, "metrics": {"loss": -1e308}},
        {"event": "validated", "step": 3, "metrics": value},
        {"event": "finished", "seconds": value, "spent": {"a": value}, "advice": value},
        {"event": value},
        value,
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    for name in ("status.json", "plan.json", "environment.json"):
        (tmp_path / name).write_text(json.dumps(value))
    assert invoke("report", str(tmp_path))[0] == 0
    (tmp_path / "status.json").write_text(json.dumps({"status": value, "step": value}))
    plan = {"changes": [{"step": value, "plan": value}, value], "notes": value}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert invoke("report", str(tmp_path))[0] == 0


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")
def test_a_browser_runs_nothing_of_a_hostile_report(hostile_run: Path):
    assert invoke("report", str(hostile_run))[0] == 0
    page = hostile_run.parent / "page.html"
    shutil.copy(hostile_run / "report.html", page)
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    done = run_command([*command, page.as_uri()])
    shown = Page()
    shown.feed(done.stdout)
    assert shown.elements <= ALLOWED_ELEMENTS | DRAWN_ELEMENTS
    assert shown.attributes <= ALLOWED_ATTRIBUTES | DRAWN_ATTRIBUTES
    assert "canvas" in shown.elements
    assert len(shown.scripts) == 3
    assert any(PAYLOADS[0] in text for text in shown.texts)  # in a legend, too


def test_names_in_a_run_do_not_steer_the_terminal(tmp_path: Path):
    content = {
        "leg": 0,
        "place": {"epoch": 0, "is_over": True, "seconds": 1.0},
        "scores": {"\x1b]0;owned\x07": 1.0},
        "variables": [{"name": "\x1b[2J", "dtype": "float32", "shape": [1]}],
    }
    Store(tmp_path / "checkpoints").write(1, content, lambda directory: None)
    code, said = invoke("runs", str(tmp_path))
    assert code == 0, said
    assert "\x1b" not in said
    assert "owned" in said


# --- modes ---


@pytest.mark.parametrize(("mode", "umask"), [(0o700, 0o022), (0o750, 0o077), (0o2770, 0o022)])
def test_what_a_run_writes_has_the_mode_of_its_directory(tmp_path: Path, mode: int, umask: int):
    from matplotlib.figure import Figure

    from loopwright import digits

    run = tmp_path / "run"
    before = os.umask(umask)
    try:
        if mode != 0o700:
            run.mkdir()
            run.chmod(mode)
        trainer = fit(run)
        if mode == 0o750:
            trainer.export(format="keras")
        digits.save_figure(Figure(), str(run), "drawn")
        invoke("report", str(run))
    finally:
        os.umask(before)
    names = entries(run)
    assert any("tfevents" in name for name in names)
    assert "figures/drawn.png" in names
    for name in names:
        path = run / name
        found = stat.S_IMODE(path.stat().st_mode) & 0o777
        assert found == mode & (0o777 if path.is_dir() else 0o666), name


# --- starting over ---


def test_starting_over_is_refused_while_the_run_is_in_use(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(project)
    run = tmp_path / "run"
    shutil.copytree(project / "run", run)
    before = contents(run)
    with lock.held(run / "lock"):
        with pytest.raises(lw.ConfigurationError, match="in use"):
            fit(run, fresh=True)
        code, said = invoke("train", "mine:experiment", "--fresh", "--run-dir", str(run))
        assert code == 2
        assert "in use" in said
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert {**contents(run), "lock": b""} == {**before, "lock": b""}


def test_the_new_directory_is_held_before_the_old_one_is_released(tmp_path: Path):
    fit(tmp_path / "run")
    run = Run(tmp_path / "run", (), fresh=True)
    with contextlib.ExitStack() as opened:
        with pytest.warns(lw.LoopwrightWarning, match=r"run\.old-"):
            opened.enter_context(run.opened())
        assert os.listdir(tmp_path / "run") == ["lock"]
        with pytest.raises(lw.ConfigurationError, match="this process"):
            fit(tmp_path / "run")
        (tmp_path / "run" / "kept").touch()
        moved = run.move_aside()
        assert moved is not None
        assert (moved / "kept").exists()
        assert lock.is_held(tmp_path / "run" / "lock")
    assert not lock.is_held(tmp_path / "run" / "lock")
    aside = [path for path in tmp_path.iterdir() if path.name != "run"]
    assert len(aside) == 2
    assert all(path.name.startswith("run.old-") for path in aside)
    assert not any(lock.is_held(path / "lock") for path in aside)


# --- on disk for good ---


def test_durable_files_and_new_directories_are_on_disk_with_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    synced, real = list[str](), os.fsync

    def fsync(handle: int) -> None:
        real(handle)
        path = os.readlink(f"/proc/self/fd/{handle}")
        synced.append(os.path.relpath(path, tmp_path))

    monkeypatch.setattr(os, "fsync", fsync)
    fit(tmp_path / "some" / "runs" / "run")
    run = "some/runs/run"
    assert {".", "some", "some/runs"} <= set(synced)  # each new directory has its entry on disk
    assert f"{run}/plan.json.tmp" in synced
    assert run in synced[synced.index(f"{run}/plan.json.tmp") :]
    assert f"{run}/checkpoints" in synced
