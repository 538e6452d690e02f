"""Names of Keras and Lightning, and what Loopwright has instead."""

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from loopwright.errors import message
from loopwright.step_warnings import warn_at_call

_REPLACEMENTS = {
    "epochs max_epochs num_epochs": "fit(epochs={})",
    "max_steps": 'fit(until="{} steps")',
    "max_time": 'fit(until="6 hours")',
    "batch_size": "fit(batch_size={})",
    "callbacks": "fit(callbacks=[...])",
    "verbose enable_progress_bar": "fit(verbose=0)",
    "limit_train_batches": "fit(steps_per_epoch={})",
    "limit_val_batches": "fit(validation_steps={})",
    "validation_freq check_val_every_n_epoch": 'fit(validate_every="{} epochs")',
    "val_check_interval": 'fit(validate_every="{} steps")',
    "validation_batch_size": "fit(validation_data=dataset.batch({}))",
    "train_dataloaders datamodule": "fit(data): arrays, a tf.data.Dataset or a PyDataset",
    "val_dataloaders validation_data": "fit(data, validation_data=...)",
    "initial_epoch": "nothing: a second fit counts on, and Trainer(run_dir=...) resumes by itself",
    "ckpt_path": "Trainer(run_dir=...), which resumes by itself; or weights: Trainer(init_from={})",
    "run_dir default_root_dir enable_checkpointing": "Trainer(run_dir=...)",
    "workers use_multiprocessing max_queue_size": "the same argument of your keras.utils.PyDataset",
    "gradient_clip_val": "keras.optimizers.Adam(global_clipnorm={}), or another optimizer",
    "accumulate_grad_batches": "keras.optimizers.Adam(gradient_accumulation_steps={})",
    "strategy accelerator devices num_nodes": 'Trainer(strategy="auto")',
    "precision": 'keras.config.set_dtype_policy("mixed_bfloat16"), before the model is made',
    "seed": "Trainer(seed={})",
    "deterministic": "tf.config.experimental.enable_op_determinism(), on GPUs",
    "logger": "Trainer(sinks=[lw.sinks.MLflow(...)]); a run_dir has TensorBoard files",
    "detect_anomaly": 'nothing: on_nan="raise" is the default, and names the step and its examples',
    "fast_dev_run num_sanity_val_steps": "trainer.rehearse(...), with the arguments of fit",
    "overfit_batches": 'trainer.rehearse(..., overfit="1 batch")',
    "profiler": "trainer.profile(...)",
    "optimizer loss metrics": "lw.Supervised(model, loss, optimizer, metrics), or your own lw.Task",
    "plan steps_per_execution jit_compile run_eagerly": 'Trainer(plan="auto"), "graph" or "eager"',
    "return_dict": "nothing: evaluate always returns a dict",
}
_REMOVED = {
    "Trainer.replay(bundle)": 'replay(...).batch.save("batch.npz"), to send with the run directory',
    "Trainer.rehearse(export)": 'trainer.export("scratch", checkpoint="current")',
    "Trainer.export(validation_data)": "export(data=...), then score the file on your data",
}
"""What Loopwright itself once took, by method and argument."""
_ARGUMENTS = {name: text for names, text in _REPLACEMENTS.items() for name in names.split()}
_HOOKS = {
    "training_step": "train_step(self, batch), which calls self.minimize(...)",
    "validation_step": "test_step(self, batch)",
    "configure_optimizers": "an attribute in __init__: self.optimizer = keras.optimizers.Adam()",
    "forward": "a call of the model: self.model(x), and predict_step(self, batch) for predict",
}
ATTRIBUTES = {
    "log": 'numbers that the step returns: return {"loss": loss}',
    "log_dict": "numbers that the step returns, in a dict",
    "manual_backward": "self.minimize(loss, self.model, self.optimizer, tape)",
    "optimizers": _HOOKS["configure_optimizers"],
    "global_step": "self.step",
}
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def explains_arguments(method: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Say what to use instead of an argument that the method does not take."""
    known = inspect.signature(method).parameters

    @functools.wraps(method)
    def call(*args: _Parameters.args, **given: _Parameters.kwargs) -> _Result:
        require_known(method.__qualname__, given, known)
        return method(*args, **given)

    return call


def require_known(title: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise for the first argument that is unknown, with what to use instead.

    >>> require_known("Trainer.fit", {"max_epochs": 3}, ["epochs"])
    Traceback (most recent call last):
    TypeError: Trainer.fit() got an unexpected keyword argument 'max_epochs'
      expected: fit(epochs=3)
      received: max_epochs=3
      do: replace it
    """
    for name in (name for name in given if name not in known):
        value: Any = given[name]
        shown = repr(value) if isinstance(value, bool | int | float | str) else "..."
        near = difflib.get_close_matches(name, known, n=1)
        removed = _REMOVED.get(f"{title}({name})")
        instead = removed or _ARGUMENTS.get(name, *near or [", ".join(known)]).format(shown)
        text = f"{title}() got an unexpected keyword argument {name!r}"
        do = "replace it" if removed or near or name in _ARGUMENTS else "leave it out"
        raise TypeError(message(text, expected=instead, received=f"{name}={shown}", do=do))


def missing_attribute(kind: str, name: str) -> str:
    """Return the message about an attribute that tasks have in Lightning."""
    text = f"{kind!r} object has no attribute {name!r}"
    return message(text, expected=ATTRIBUTES[name], received=f"self.{name}", do="replace it")


def warn_of_hooks(kinds: Sequence[type]) -> None:
    """Warn of methods of a task's classes that only Lightning calls: no other method does."""
    methods = [item for kind in kinds for item in vars(kind).items()]
    codes = [getattr(method, "__code__", None) for _, method in methods]
    called = {name for code in codes if code is not None for name in code.co_names}
    for hook, instead in _HOOKS.items():
        if hook in dict(methods) and hook not in called:
            text = f"{kinds[0].__name__}.{hook} is never called: it is a hook of Lightning."
            warn_at_call(message(text, expected=instead, received=f"def {hook}", do="replace it"))
