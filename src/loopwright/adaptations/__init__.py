"""The only place that touches internals of Keras and TensorFlow.

Each adaptation is scoped, says what happens "if this moves", and has a test that fails then, most
of them in `tests/adaptations/`. Everybody else calls them from here: `adaptations.compiled(...)`.
"""

from loopwright.adaptations.bodies import captured_values, inner_graphs, inner_inputs
from loopwright.adaptations.callbacks import (
    count_batch,
    profiles,
    steps_to_profile,
    steps_to_save,
    writes_batch,
)
from loopwright.adaptations.comparisons import Comparison, without_keras_warnings
from loopwright.adaptations.datasets import (
    PipelinePart,
    holds_failure,
    iterator_state,
    pipeline_graphs,
    pipeline_parts,
    restore_iterator,
)
from loopwright.adaptations.devices import (
    gpu_memory_bytes,
    mirrored_strategy,
    replica_numbers,
    workers,
)
from loopwright.adaptations.frames import was_left_on_purpose
from loopwright.adaptations.layers import Called, layers_in, watching_calls, watching_losses
from loopwright.adaptations.models import (
    better,
    build_compiled_model,
    is_bookkeeping,
    is_loss_tracker,
    loss_arguments,
    take_initial_epoch,
    watching_updates,
    without_values,
)
from loopwright.adaptations.optimizers import (
    Applied,
    accumulators,
    counter_in,
    learning_rate_of,
    trained_by,
    update_counter,
    watching_applies,
    without_accumulation,
)
from loopwright.adaptations.reduction import (
    losses_as_for_one_device,
    optimizers_reduce_nothing,
    plain_apply_refused,
    replicas_draw_alike,
    replicas_draw_apart,
)
from loopwright.adaptations.tapes import watching_tapes
from loopwright.adaptations.tracing import (
    autograph,
    captured_variables,
    captures_of,
    compiled,
    random_numbers_for_xla,
    run_on_copies,
    scratch_graph,
    slow_random_numbers,
    written_handles,
)

__all__ = [
    "Applied",
    "Called",
    "Comparison",
    "PipelinePart",
    "accumulators",
    "autograph",
    "better",
    "build_compiled_model",
    "captured_values",
    "captured_variables",
    "captures_of",
    "compiled",
    "count_batch",
    "counter_in",
    "gpu_memory_bytes",
    "holds_failure",
    "inner_graphs",
    "inner_inputs",
    "is_bookkeeping",
    "is_loss_tracker",
    "iterator_state",
    "layers_in",
    "learning_rate_of",
    "loss_arguments",
    "losses_as_for_one_device",
    "mirrored_strategy",
    "optimizers_reduce_nothing",
    "pipeline_graphs",
    "pipeline_parts",
    "plain_apply_refused",
    "profiles",
    "random_numbers_for_xla",
    "replica_numbers",
    "replicas_draw_alike",
    "replicas_draw_apart",
    "restore_iterator",
    "run_on_copies",
    "scratch_graph",
    "slow_random_numbers",
    "steps_to_profile",
    "steps_to_save",
    "take_initial_epoch",
    "trained_by",
    "update_counter",
    "was_left_on_purpose",
    "watching_applies",
    "watching_calls",
    "watching_losses",
    "watching_tapes",
    "watching_updates",
    "without_accumulation",
    "without_keras_warnings",
    "without_values",
    "workers",
    "writes_batch",
    "written_handles",
]
