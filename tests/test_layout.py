"""How the package is laid out, and what importing it does: nothing but define names."""

import ast
import builtins
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.processes import run_command

import loopwright as lw

SOURCE = Path(__file__).parent.parent / "src"
PACKAGE = SOURCE / "loopwright"
MODULES = sorted(PACKAGE.rglob("*.py"))
PURE_ROOMS = ["loop", "plans", "config"]
PURE = [
    "events",
    "errors",
    "extras",
    *(
        f"{room}.{path.stem}"
        for room in PURE_ROOMS
        for path in sorted((PACKAGE / room).glob("[a-z]*.py"))
    ),
]
HEAVY = {"tensorflow", "keras", "numpy"}

PUBLIC = [
    "Arrays",
    "BatchSkipped",
    "CheckpointError",
    "ConfigurationError",
    "DataError",
    "EpochEnded",
    "EpochStarted",
    "Event",
    "Every",
    "Experiment",
    "Finished",
    "GradientsWatched",
    "History",
    "ImagesDrawn",
    "KeepBest",
    "KeepLatest",
    "LoopwrightError",
    "LoopwrightWarning",
    "Mean",
    "MissingStepError",
    "NotFiniteError",
    "Noted",
    "Plan",
    "PlanChosen",
    "PlanHistory",
    "Preempted",
    "Rehearsal",
    "RetraceWarning",
    "RunFacts",
    "Saved",
    "Scheduled",
    "Shares",
    "Sink",
    "Started",
    "StepError",
    "StepWarning",
    "Stream",
    "Supervised",
    "Task",
    "Trained",
    "Trainer",
    "Trial",
    "Tuned",
    "Validated",
    "WorkerLostError",
    "check_gradients",
    "components",
    "first_difference",
    "sinks",
    "testing",
    "tune",
]

MOST_LINES = 450

# The one class people subclass.
SUBCLASSED_BY_PEOPLE = {"Task"}


def path_of(module: Path) -> str:
    return str(module.relative_to(PACKAGE))


def syntax(module: Path) -> ast.Module:
    return ast.parse(module.read_text(), filename=str(module))


def imports(tree: ast.AST) -> set[str]:
    """The full names of all modules imported anywhere below this node."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def top(name: str) -> str:
    return name.partition(".")[0]


def run_python(text: str, *arguments: str) -> Any:
    """What a fresh interpreter prints as JSON in its last line."""
    environment = {"PYTHONPATH": str(SOURCE), "TF_CPP_MIN_LOG_LEVEL": "3"}
    result = run_command([sys.executable, "-c", text, *arguments], env=environment)
    return json.loads(result.stdout.splitlines()[-1])


# --- names ---


def test_the_public_names_are_exactly_these():
    assert lw.__all__ == PUBLIC
    assert dir(lw) == PUBLIC


def test_what_type_checkers_see_is_what_is_public():
    (block,) = (node for node in syntax(PACKAGE / "__init__.py").body if isinstance(node, ast.If))
    declared = [
        (statement.module, alias.name, alias.asname)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    ]
    homes = {name: f"loopwright.{home}" for home, names in lw._HOMES.items() for name in names}
    homes |= dict.fromkeys(lw._MODULES, "loopwright")
    assert sorted(declared) == sorted((home, name, name) for name, home in homes.items())


def test_an_unknown_name_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match="module 'loopwright' has no attribute 'Trianer'"):
        lw.Trianer  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


# --- what importing does ---


def test_importing_the_pure_modules_imports_no_tensorflow_keras_or_numpy():
    modules = ["loopwright", *(f"loopwright.{name}" for name in PURE)]
    text = "import sys, json, importlib; [importlib.import_module(m) for m in sys.argv[1:]]\n"
    loaded = set(run_python(text + "print(json.dumps(sorted(sys.modules)))", *modules))
    assert loaded >= set(modules)
    assert not HEAVY & loaded


def test_import_loopwright_changes_nothing_in_a_fresh_process():
    look = """
import json, logging, os, signal, sys, threading, warnings
def look():
    return [
        list(map(repr, sys.meta_path)), sys.path_hooks.__repr__(), list(sys.path),
        dict(os.environ), [repr(signal.getsignal(n)) for n in signal.valid_signals()],
        [thread.name for thread in threading.enumerate()], list(map(repr, warnings.filters)),
        [repr(sys.excepthook), repr(threading.excepthook), repr(logging.root.handlers)],
    ]
before = look()
import loopwright
print(json.dumps([before, look()]))
"""
    before, after = run_python(look)
    assert before == after
    named = [imports(syntax(PACKAGE / f"{name.replace('.', '/')}.py")) for name in PURE]
    assert not HEAVY & set(map(top, set[str]().union(*named))), "in a function"


LOOK_AROUND = """
import hashlib, importlib, json, logging, os, pickle, pkgutil, random, signal, sys, threading
import warnings

OPTIONAL = {"albumentations", "matplotlib", "optuna", "plotly", "scipy", "sklearn", "sqlalchemy"}

def digest(value): return hashlib.sha256(pickle.dumps(value)).hexdigest()

def load(names):
    # digits may need more than the library does: `loopwright[examples]`.
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name.partition(".")[0] not in OPTIONAL: raise

def look():
    import keras, numpy, tensorflow as tf
    loggers = {"root": logging.root, **logging.root.manager.loggerDict}
    set_up = {n: [l.level, l.propagate, list(map(repr, l.handlers)), list(map(repr, l.filters))]
              for n, l in loggers.items() if isinstance(l, logging.Logger)}
    return {
        "signal handlers": {int(n): repr(signal.getsignal(n)) for n in signal.valid_signals()},
        "environment": dict(os.environ),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "working directory": os.getcwd(),
        "warning filters": list(map(repr, warnings.filters)),
        "logging": {n: s for n, s in set_up.items() if s != [0, True, [], []]},
        "hooks": [repr(sys.excepthook), repr(threading.excepthook), repr(sys.displayhook)],
        "import path": sys.path + list(map(repr, sys.meta_path)),
        "random numbers": [digest(random.getstate()), digest(numpy.random.get_state())],
        "tensorflow": [
            tf.config.threading.get_intra_op_parallelism_threads(),
            tf.config.threading.get_inter_op_parallelism_threads(),
            tf.config.optimizer.get_jit(), tf.config.optimizer.get_experimental_options(),
            tf.config.functions_run_eagerly(), tf.config.get_soft_device_placement(),
            tf.config.experimental.tensor_float_32_execution_enabled(),
            tf.autograph.get_verbosity() if hasattr(tf.autograph, "get_verbosity") else 0,
        ],
        "keras": [
            keras.config.floatx(), keras.config.epsilon(), keras.config.image_data_format(),
            keras.config.dtype_policy().name, keras.config.is_traceback_filtering_enabled(),
            keras.config.is_interactive_logging_enabled(),
        ],
    }

outside, inside = json.loads(sys.argv[1])
load(["tensorflow", "keras", "numpy", *outside])
before = look()
load(inside)
after = look()

import tensorflow as tf
try:
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    devices = len(tf.config.list_logical_devices("CPU"))
except RuntimeError as error:
    devices = str(error)

import loopwright as lw
public = {name: [hasattr(lw, name), getattr(getattr(lw, name), "__module__", "")]
          for name in lw.__all__}
print(json.dumps({"before": before, "after": after, "devices": devices, "public": public,
                  "loaded": sorted(sys.modules)}))
"""


@pytest.fixture(scope="module")
def imported() -> dict[str, Any]:
    """A process around the import of all modules of Loopwright, after those it depends on."""
    outside = set[str]().union(*(imports(syntax(module)) for module in MODULES))
    outside = {name for name in outside if top(name) not in {"loopwright", "__future__"}}
    inside = [".".join(module.relative_to(SOURCE).with_suffix("").parts) for module in MODULES]
    inside = [name.removesuffix(".__init__") for name in inside]
    inside = [name for name in inside if not name.endswith("__main__")]
    return run_python(LOOK_AROUND, json.dumps([sorted(outside), inside]))


@pytest.mark.parametrize(
    "kind",
    [
        "signal handlers",
        "environment",
        "threads",
        "working directory",
        "warning filters",
        "logging",
        "hooks",
        "import path",
        "random numbers",
        "tensorflow",
        "keras",
    ],
)
def test_importing_everything_changes_no_global(imported: dict[str, Any], kind: str):
    assert set(imported["before"]) >= {kind}
    assert imported["after"][kind] == imported["before"][kind]


def test_importing_everything_leaves_devices_to_be_configured(imported: dict[str, Any]):
    assert imported["devices"] == 2


def test_every_public_name_leads_to_something(imported: dict[str, Any]):
    assert sorted(imported["public"]) == PUBLIC
    for name, (found, home) in imported["public"].items():
        assert found, name
        if name not in {"Event", "Sink", *lw._MODULES}:  # unions, callables, modules have no home
            assert home.startswith("loopwright."), name


def test_everything_was_imported(imported: dict[str, Any]):
    optional = {"digits"}
    for module in MODULES:
        parts = module.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        if not optional & set(parts) and parts[-1] != "__main__":
            assert name in imported["loaded"]


# --- rooms ---

ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
LAZY_ROOMS = {"sinks": ["MLflow", "WandB"]}  # public names, loaded when they are used
PUBLIC_ROOMS = {"cli", "components"}  # not imported by others, or public themselves


def open_files(room: str) -> set[str]:
    """The files that the sign of a room opens to other rooms."""
    sign = ast.get_docstring(syntax(PACKAGE / room / "__init__.py")) or ""
    _, _, listed = sign.rpartition("Open files: ")
    return set(listed.removesuffix(".").replace("\n", " ").split(", "))


def crossings() -> Iterator[tuple[str, str, str, str]]:
    """Imports from one room into another: the file, the room, the file there, the name."""
    for module in MODULES:
        for node in ast.walk(syntax(module)):
            if not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("loopwr")):
                continue
            for alias in node.names:
                _, room, file, *_ = *f"{node.module}.{alias.name}".split("."), "", ""
                is_whole = not file and room in LAZY_ROOMS
                if room in ROOMS and not is_whole and room != module.relative_to(PACKAGE).parts[0]:
                    yield path_of(module), room, file, alias.name


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in PUBLIC_ROOMS])
def test_a_room_says_which_files_are_open_and_imports_nothing(room: str):
    files = {path.stem for path in (PACKAGE / room).glob("[a-z]*.py")}
    assert open_files(room) <= files
    tree = syntax(PACKAGE / room / "__init__.py")
    loaded = tree if room not in LAZY_ROOMS else ast.Module(tree.body[:1], [])
    assert not imports(loaded)
    lines = (ast.get_docstring(tree) or "").splitlines()
    assert len(lines) <= 10, "what it is for, what it never does, what is open: ten lines"


@pytest.mark.parametrize("room", LAZY_ROOMS)
def test_a_room_with_public_names_loads_them_when_they_are_used(room: str):
    text = f"import json, sys, loopwright.{room} as room\nnames = sorted(room._HOMES)\n"
    found = run_python(text + "print(json.dumps([names, sorted(sys.modules)]))")
    assert found[0] == LAZY_ROOMS[room]
    assert not [name for name in found[1] if name.startswith(f"loopwright.{room}.")]
    tree = syntax(PACKAGE / room / "__init__.py")
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    declared = [
        a.name for node in block.body if isinstance(node, ast.ImportFrom) for a in node.names
    ]
    assert sorted(declared) == LAZY_ROOMS[room]


def test_rooms_import_from_each_other_only_what_is_open():
    closed = [
        f"{module}: {room}/{file}.py"
        for module, room, file, _ in crossings()
        if room not in PUBLIC_ROOMS and file not in open_files(room)
    ]
    assert not closed
    used = {(room, file) for _, room, file, _ in crossings()}
    opened = {
        (room, file) for room in ROOMS if room not in PUBLIC_ROOMS for file in open_files(room)
    }
    assert not opened - used, "open, and used by no other room"


def test_rooms_import_no_private_name_of_each_other():
    assert not [crossing for crossing in crossings() if crossing[3].startswith("_")]


# --- files ---


@pytest.mark.parametrize("module", MODULES, ids=path_of)
def test_a_module_fits_into_a_head_and_says_its_idea_in_a_line(module: Path):
    assert len(module.read_text().splitlines()) <= MOST_LINES
    first = (ast.get_docstring(syntax(module)) or "").partition("\n")[0]
    assert 0 < len(first) < 90


def test_no_module_has_a_name_that_says_nothing():
    said_nothing = {"utils", "util", "base", "helpers", "helper", "common", "misc"}
    names = {path.stem.strip("_") for path in PACKAGE.rglob("*") if path.suffix in {"", ".py"}}
    assert "loop" in names
    assert "sinks" in names
    assert not said_nothing & names


def test_type_checkers_are_told_that_there_are_types():
    assert (PACKAGE / "py.typed").is_file()


# --- functions ---

CORE = ["loop", "task", "data", "engine", "plans", "guards", "checkpoints"]
CORE += ["distribute", "compat", "rewrites"]
MOST_PARAMETERS = 7
MOST_VALUES = 3  # but for rewrites: TensorFlow asks for a gradient of each input of a function


def nodes_of(*rooms: str) -> Iterator[tuple[str, ast.AST]]:
    for module in MODULES:
        if path_of(module).partition("/")[0] in rooms:
            yield from ((path_of(module), node) for node in ast.walk(syntax(module)))


def test_no_function_of_the_core_takes_more_parameters_than_a_reader_can_hold():
    wide = list[str]()
    for path, node in nodes_of(*CORE):
        if isinstance(node, ast.FunctionDef):
            names = {arg.arg for arg in [*node.args.args, *node.args.kwonlyargs]} - {"self", "cls"}
            wide += [f"{path} {node.name}"] if len(names) > MOST_PARAMETERS else []
    assert wide == []


def test_no_function_of_the_core_returns_many_values_without_names():
    bare = list[str]()
    for path, node in nodes_of(*(room for room in CORE if room != "rewrites")):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            is_open = any(isinstance(item, ast.Starred) for item in node.value.elts)
            is_many = len(node.value.elts) > MOST_VALUES and not is_open
            bare += [f"{path}:{node.lineno}"] if is_many else []
    assert bare == []


def test_objects_of_the_core_set_their_own_fields():
    foreign = list[str]()
    for path, node in nodes_of(*(room for room in CORE if room not in ("data", "compat"))):
        match node:
            case ast.Attribute(ast.Name("self" | "cls")):
                pass
            case ast.Attribute(ctx=ast.Store()):
                foreign.append(f"{path}:{node.lineno}: {ast.unparse(node)}")
            case _:
                pass
    assert foreign == []


# --- classes ---


def classes(tree: ast.AST) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def last_name(node: ast.expr) -> str:
    """`keras.Model` is a Model, `Generic[T]` is Generic."""
    if isinstance(node, ast.Subscript | ast.Call):
        return last_name(node.value if isinstance(node, ast.Subscript) else node.func)
    return node.attr if isinstance(node, ast.Attribute) else ast.unparse(node)


ALL_CLASSES = [(path_of(module), node) for module in MODULES for node in classes(syntax(module))]
BASES = {node.name: [last_name(base) for base in node.bases] for _, node in ALL_CLASSES}


def is_exception(name: str) -> bool:
    builtin = getattr(builtins, name, None)
    if isinstance(builtin, type) and issubclass(builtin, BaseException):
        return True
    return any(map(is_exception, BASES.get(name, [])))


def is_frozen(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and any(
        keyword.arg == "frozen" and getattr(keyword.value, "value", False)
        for keyword in decorator.keywords
    )


def abstract_or_final(node: ast.ClassDef) -> bool:
    bases = {last_name(base) for base in node.bases}
    abstract = {"ABC", "Protocol"} & bases
    final = {"final"} & {last_name(decorator) for decorator in node.decorator_list}
    value = any(last_name(d) == "dataclass" and is_frozen(d) for d in node.decorator_list)
    return bool(abstract or final or value or any(map(is_exception, bases)))


@pytest.mark.parametrize(
    "node", [node for _, node in ALL_CLASSES], ids=[f"{path}:{n.name}" for path, n in ALL_CLASSES]
)
def test_a_class_is_abstract_or_final(node: ast.ClassDef):
    assert abstract_or_final(node) != (node.name in SUBCLASSED_BY_PEOPLE)
