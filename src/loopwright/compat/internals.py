"""Internals of Keras and TensorFlow: named where they are used, replaced for one thread.

    @uses("keras.Layer._flatten_layers", if_moved="guards do not see layers inside of layers")
    def layers_in(layer): ...

`make compat` lists them.

A class belongs to the whole process, so a function that is replaced becomes one that looks up which
replacement the calling thread has asked for. Threads that did not ask get the original; the threads
in which a strategy runs its replicas have the replacements of the thread that started them.
"""

import contextlib
import functools
import importlib
import inspect
import re
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

import keras
import tensorflow as tf

from loopwright.errors import ConfigurationError

Function = Callable[..., Any]
T = TypeVar("T")
_Noted = TypeVar("_Noted", bound=Callable[..., Any])


@dataclass(frozen=True)
class Internal:
    """What one function of `compat/` depends on."""

    names: tuple[str, ...]
    if_moved: str
    """Empty: there is no fallback."""


INTERNALS: dict[str, Internal] = {}
"""By module and function: `keras_optimizers.trained_by`."""


def uses(*names: str, if_moved: str = "") -> Callable[[_Noted], _Noted]:
    """Note which internals a function uses, and what follows if one of them has moved."""

    def note(function: _Noted) -> _Noted:
        key = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        INTERNALS[key] = Internal(names, if_moved)
        return function

    return note


def module(name: str) -> ModuleType | None:
    """Return a private module of TensorFlow or Keras; None if it has moved.

    >>> module("tensorflow.python.no_such_module")
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def is_present(name: str) -> bool:
    """Return whether a dotted name exists; an instance's attribute, if its class mentions it.

    >>> is_present("pathlib.Path.read_text"), is_present("pathlib.Path.read_all")
    (True, False)
    """
    path, _, attribute = name.rpartition(".")
    owner = find(path)
    if owner is None or hasattr(owner, attribute):
        return owner is not None
    written = [kind for kind in getattr(owner, "__mro__", [owner]) if kind is not object]
    return any(re.search(rf"\b{attribute}\b", inspect.getsource(kind)) for kind in written)


def find(path: str) -> Any:
    """Return the object of a dotted path through modules and classes; None if there is none."""
    owner, _, name = path.rpartition(".")
    found = getattr(find(owner), name, None) if owner else None
    return module(path) if found is None else found


# -- replaced for one thread -----------------------------------------------------------------------


@contextlib.contextmanager
def replaced(
    owner: Any, name: str, around: Callable[[Function], Function], *, is_field: bool = False
) -> Iterator[None]:
    """Replace a function of a class or module, for this thread, until the scope is left.

    A function that a class inherits is replaced in the class that defines it.

    `around` gets the function it replaces: the original, or the replacement of a scope around this
    one. Of a property, or of a field that instances hold, it is the getter. Without the function
    numbers might be wrong: that is refused.

    >>> class Layer:
    ...     def call(self): return "layer"
    >>> with replaced(Layer, "call", lambda original: lambda self: f"patched {original(self)}"):
    ...     Layer().call()
    'patched layer'
    >>> Layer().call()
    'layer'
    """
    kinds = [
        kind for kind in getattr(owner, "__mro__", [owner]) if name in getattr(kind, "__dict__", ())
    ]
    if not (kinds or is_field):
        raise ConfigurationError(
            f"{name} of Keras or TensorFlow has moved: Loopwright cannot train this way without "
            "it.",
            expected="a version where Loopwright can reach it",
            received=f"TensorFlow {tf.__version__}, Keras {keras.__version__}",
            do="install a version that this Loopwright was tested with; python -m "
            "loopwright.compat lists what has moved",
        )
    with _site(*_REPLICAS) as replicas, _site(kinds[0] if kinds else owner, name) as site:
        outer = _replacements.get()
        replacement = around(outer.get(site, site.__wrapped__))
        carried = {replicas: _carry_replacements(replicas.__wrapped__)}
        token = _replacements.set({**carried, **outer, site: replacement})
        try:
            yield
        finally:
            _replacements.reset(token)


def observed(
    owner: Any, name: str, note: Callable[..., None]
) -> contextlib.AbstractContextManager[None]:
    """Call `note` with the result and the arguments of each call of a function, in this thread."""

    def around(original: Function) -> Function:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            note(result, *args, **kwargs)
            return result

        return call

    return replaced(owner, name, around)


@contextlib.contextmanager
def shared(key: Hashable, scope: Callable[[], contextlib.AbstractContextManager[T]]) -> Iterator[T]:
    """Enter a scope that belongs to the whole process: the first thread opens it, the last closes.

    >>> import io
    >>> output = io.StringIO()
    >>> with shared("output", lambda: output), shared("output", lambda: output):
    ...     output.closed
    False
    >>> output.closed
    True
    """
    with _lock:
        if key not in _open:
            opened = scope()
            _open[key] = opened, opened.__enter__()
        held, value = _open[key]
        _threads[key] += 1
    try:
        yield value
    finally:
        with _lock:
            _threads[key] -= 1
            if not _threads[key]:
                del _open[key], _threads[key]
                held.__exit__(None, None, None)


_lock = threading.RLock()
_open: dict[Hashable, tuple[contextlib.AbstractContextManager[Any], Any]] = {}
_threads: Counter[Hashable] = Counter()
"""In how many threads a shared scope is open."""
_replacements: ContextVar[Mapping[Any, Function]] = ContextVar("replacements", default={})  # noqa: B039
"""By the function that looks them up."""
_REPLICAS = (tf.compat.v1.distribute.StrategyExtended, "call_for_each_replica")


def _site(owner: Any, name: str) -> contextlib.AbstractContextManager[Any]:
    return shared((owner, name), lambda: _look_up_replacement(owner, name))


@contextlib.contextmanager
def _look_up_replacement(owner: Any, name: str) -> Iterator[Any]:
    """Have an attribute look up the replacement of the calling thread; yield what does so."""
    is_field = name not in vars(owner)
    held: Any = _field(name) if is_field else vars(owner)[name]
    is_property = isinstance(held, property)
    original: Any = held.fget if is_property else held

    # AutoGraph does not convert functions of Keras and TensorFlow: `wraps` makes this one of them.
    @functools.wraps(original)
    def site(*args: Any, **kwargs: Any) -> Any:
        return _replacements.get().get(site, original)(*args, **kwargs)

    setattr(owner, name, property(site, held.fset, held.fdel) if is_property else site)
    try:
        yield site
    finally:
        if is_field:
            delattr(owner, name)
        else:
            setattr(owner, name, held)


@uses("tensorflow.compat.v1.distribute.StrategyExtended.call_for_each_replica")
def _carry_replacements(original: Function) -> Function:
    """Have strategies run replicas, each in a new thread, with the replacements of their caller."""

    def call_for_each_replica(self: Any, fn: Any, args: Any = (), kwargs: Any = None) -> Any:
        own = _replacements.get()

        @tf.autograph.experimental.do_not_convert
        def on_replica(*args: Any, **kwargs: Any) -> Any:
            token = _replacements.set(own)
            try:
                return fn(*args, **kwargs)
            finally:
                _replacements.reset(token)

        is_graph = isinstance(fn, tf.types.experimental.GenericFunction)
        return original(self, fn if is_graph else on_replica, args, kwargs)

    return call_for_each_replica


def _field(name: str) -> property:
    """Return a property for what instances hold in their own `__dict__`."""

    def getter(self: Any) -> Any:
        try:
            return vars(self)[name]
        except KeyError:
            raise AttributeError(name) from None

    def setter(self: Any, value: Any) -> None:
        vars(self)[name] = value

    return property(getter, setter)
