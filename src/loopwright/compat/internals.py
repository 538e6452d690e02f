"""The internals of Keras and TensorFlow that Loopwright uses: what, why, and what if they move."""

from typing import Literal, NamedTuple

Outcome = Literal["degrades", "refuses", "fails"]


class Internal(NamedTuple):
    """What one function of `compat/` depends on."""

    used_by: str
    """Module and function: `keras_optimizers.trained_by`."""
    names: tuple[str, ...]
    """Where the internals are; empty for texts of messages, which only tests can check."""
    why: str
    if_moved: str
    outcome: Outcome = "degrades"
    """`degrades`: training continues with right numbers. `refuses`: a clear error where numbers
    would be wrong. `fails`: there is no fallback."""


_OPTIMIZER = "keras.optimizers.Optimizer"
_EAGER = "tensorflow.python.eager.polymorphic_function"
_FRAMEWORK = "tensorflow.python.framework"
_BOARD = "keras.callbacks.TensorBoard"
_DATA = "tensorflow.python.data.ops"
_NO_GUARD = "the guard that reads it gives no warning"
_EVERY_STEP = "control returns to Python after every step while this callback is used"

INTERNALS: tuple[Internal, ...] = (
    Internal(
        "tensorflow_internals.scratch_graph",
        ("tensorflow.__internal__.FuncGraph",),
        "trace a step once, where tf.function traces twice if variables are created",
        "no step can be built",
        "fails",
    ),
    Internal(
        "tensorflow_internals.autograph",
        (
            "tensorflow.__internal__.autograph.tf_convert",
            "tensorflow.__internal__.autograph.control_status_ctx",
        ),
        "turn if and while on tensors into graph operations where merge_call is allowed",
        "if and while on tensors fail; write tf.cond and tf.while_loop",
    ),
    Internal(
        "tensorflow_internals.compiled",
        (f"{_EAGER}.polymorphic_function.Function._omit_frequent_tracing_warning",),
        "leave out the warning about functions made again from one line of code",
        "TensorFlow warns of frequent retracing when many trainers are created",
    ),
    Internal(
        "tensorflow_internals.run_on_copies",
        (f"{_EAGER}.concrete_function.ConcreteFunction._call_flat",),
        "compile an XLA step in advance, on copies of the variables",
        "XLA compiles at the first step, which takes longer",
    ),
    Internal(
        "tensorflow_internals.random_numbers_for_xla",
        ("tensorflow.python.ops.random_ops_util.get_key_counter_alg",),
        "draw random numbers under XLA on a CPU with Philox, about thirty times as fast",
        "random numbers inside XLA are drawn slowly; a note of the plan says so",
    ),
    Internal(
        "tensorflow_internals.captured_variables",
        ("tensorflow.__internal__.FuncGraph._watched_variables",),
        "find variables that a step uses and no checkpoint holds",
        "a step that uses variables outside of the task is not refused: keep them in the task",
    ),
    Internal(
        "tensorflow_internals.is_variable_handle",
        ("tensorflow.python.framework.ops.EagerTensor._handle_data",),
        "tell handles of variables from those of tables and queues",
        "a state that no checkpoint holds is not refused: keep values in variables of the task",
    ),
    Internal(
        "tensorflow_internals.written_handles",
        (f"{_FRAMEWORK}.auto_control_deps_utils.get_read_write_resource_inputs",),
        "find the variables that a graph changes",
        "a metric that no step updates is reported as 0, without a warning",
    ),
    Internal(
        "tensorflow_internals.inner_graphs",
        ("tensorflow.Graph._get_function",),
        "look into branches, loops and functions of a graph",
        "guards do not see what is inside of branches, loops and tf.functions",
    ),
    Internal(
        "tensorflow_internals.watching_tapes",
        ("tensorflow.GradientTape.gradient",),
        "find a loss that was not reduced to a scalar",
        "gradients cannot be computed at all",
        "fails",
    ),
    Internal(
        "tensorflow_internals.iterator_state",
        (
            f"{_DATA}.iterator_ops.OwnedIterator._iterator_resource",
            "tensorflow.raw_ops.SerializeIterator",
            "tensorflow.raw_ops.DeserializeIterator",
        ),
        "save the position of a tf.data iterator, shuffle buffers included",
        "positions of tf.data pipelines are not saved: a resumed run reads the dataset from the "
        "beginning, unless it is lw.Stream(dataset, replay=True)",
    ),
    Internal(
        "tensorflow_internals.restore_iterator",
        (f"{_DATA}.iterator_ops.OwnedIterator._iterator_resource",),
        "restore the position of a tf.data iterator",
        "a checkpoint with the position of an iterator is refused",
        "refuses",
    ),
    Internal(
        "tensorflow_internals.holds_failure",
        (),
        "see in a saved iterator that it had prefetched data that failed",
        "the resumed run fails at the same data again",
    ),
    Internal(
        "tensorflow_internals.pipeline_parts",
        ("tensorflow.data.Dataset._inputs", "tensorflow.data.Dataset._functions"),
        "find what in a pipeline cannot be repeated or saved",
        "pipelines cannot be inspected, so every one is reported as possibly not repeatable",
    ),
    Internal(
        "tensorflow_internals._pipeline_part",
        (
            f"{_DATA}.shuffle_op._ShuffleDataset._seed",
            f"{_DATA}.shuffle_op._ShuffleDataset._seed2",
            f"{_DATA}.shuffle_op._ShuffleDataset._reshuffle_each_iteration",
            f"{_DATA}.random_op._RandomDataset._rerandomize",
            f"{_DATA}.map_op._ParallelMapDataset._deterministic",
            f"{_DATA}.directed_interleave_op._DirectedInterleaveDataset._stop_on_empty_dataset",
            f"{_DATA}.from_tensors_op._TensorDataset._tensors",
            f"{_DATA}.cache_op.CacheDataset._filename",
            f"{_DATA}.structured_function.StructuredFunctionWrapper._func",
            f"{_FRAMEWORK}.op_def_registry.get",
        ),
        "find unseeded shuffles, unordered maps, stateful functions and caches in a pipeline",
        "such a pipeline is resumed without a warning, and may give other batches",
    ),
    Internal(
        "tensorflow_internals.pipeline_graphs",
        ("tensorflow.data.Dataset._functions",),
        "find the line of a pipeline that raised an error",
        "the error is reported without its line",
    ),
    Internal(
        "tensorflow_internals.gpu_memory_bytes",
        ("tensorflow.python.client.device_lib.list_local_devices",),
        "keep data on the GPU only if it fits",
        "the memory of the host decides whether data is kept on the GPU",
    ),
    Internal(
        "tensorflow_internals.mirrored_strategy",
        ("tensorflow.distribute.MirroredStrategy._collective_key_base",),
        "use several MirroredStrategies in one process",
        "a second MirroredStrategy in a process fails with a shape mismatch of collectives",
    ),
    Internal(
        "patches._carried_to_replicas",
        ("tensorflow.compat.v1.distribute.StrategyExtended.call_for_each_replica",),
        "apply changes of Keras in the threads in which a strategy runs replicas",
        "no step can be built",
        "fails",
    ),
    Internal(
        "keras_internals.watching_comparisons",
        (
            "keras.losses.Loss.__call__",
            "keras.metrics.MeanMetricWrapper.update_state",
            "keras.metrics.MeanMetricWrapper._fn",
            "keras.metrics.MeanMetricWrapper._fn_kwargs",
        ),
        "look at labels and predictions for mistakes",
        _NO_GUARD,
    ),
    Internal(
        "keras_internals.without_keras_warnings",
        (),
        "leave out three warnings of Keras that the guards give once, in other words",
        "these warnings of Keras are shown at each trace",
    ),
    Internal(
        "keras_internals.watching_losses",
        ("keras.Layer.losses",),
        "find model losses that a step forgets",
        "no step can be built",
        "fails",
    ),
    Internal(
        "keras_internals.watching_calls",
        ("keras.Layer.__call__",),
        "find layers called in inference mode, and swapped arguments",
        "no step can be built",
        "fails",
    ),
    Internal(
        "keras_internals._refusing_whole_trainings",
        ("keras.Model.fit", "keras.Model.evaluate", "keras.Model.predict"),
        "refuse model.fit and the like inside a step",
        "such a call ends in an error of Keras that is hard to read",
    ),
    Internal(
        "keras_internals.layers_in",
        ("keras.Layer._flatten_layers",),
        "list the layers inside a layer",
        "guards do not see layers inside layers that are not models",
    ),
    Internal(
        "keras_internals.build_compiled_model",
        ("keras.Model._symbolic_build",),
        "create the variables of a compiled model before it is traced",
        "with several replicas, build a compiled model and its optimizer before training",
    ),
    Internal(
        "keras_internals.better",
        ("keras.metrics.Accuracy._direction",),
        "know whether a higher value of a metric is better",
        "EarlyStopping and KeepBest need an explicit mode",
    ),
    Internal(
        "keras_internals.loss_arguments",
        ("keras.losses.MeanSquaredError._fn_kwargs",),
        "notice an edited argument of a loss when a run is resumed",
        "such an edit is not noticed",
    ),
    Internal(
        "keras_internals.without_values",
        ("keras.src.trainers.compile_utils.CompileMetrics",),
        "recognize metrics of compile(metrics=...) that no step has updated",
        "a step that forgets them fails at the end of the epoch, as in Keras",
    ),
    Internal(
        "keras_internals.is_loss_tracker",
        ("keras.Model._loss_tracker",),
        "know Keras' own mean of the loss, which a custom step need not update",
        "a correct step gets a warning of an idle metric",
    ),
    Internal(
        "keras_internals.watching_updates",
        ("keras.metrics.Metric.update_state",),
        "find metrics that an eager step does not update",
        "only a metric whose values have changed counts as updated",
    ),
    Internal(
        "keras_internals.has_logits",
        ("keras.src.backend.tensorflow.nn.softmax._keras_logits",),
        "tell probabilities from logits",
        _NO_GUARD,
    ),
    Internal(
        "keras_internals.is_bookkeeping",
        ("keras.Model._layers", "keras.Model._metrics", "keras.Model._seed_generators"),
        "name variables by the attributes that hold them, not by Keras' own lists",
        "some variables get other names, and checkpoints from before are refused",
        "refuses",
    ),
    Internal(
        "keras_internals.take_initial_epoch",
        ("keras.Model._initial_epoch",),
        "see that BackupAndRestore asks for another first epoch",
        "the note that epochs count from zero is missing",
    ),
    Internal(
        "keras_internals.steps_to_save",
        ("keras.callbacks.ModelCheckpoint._batches_seen_since_last_saving",),
        "call a callback with save_freq only where it saves",
        _EVERY_STEP,
    ),
    Internal(
        "keras_internals.save_hook_of",
        ("keras.callbacks.ModelCheckpoint._should_save_on_batch",),
        "notice a ModelCheckpoint that decides by itself when to save",
        "such a callback is called as often as its save_freq says",
    ),
    Internal(
        "keras_internals.steps_to_profile",
        (f"{_BOARD}._global_train_batch", f"{_BOARD}._start_batch", f"{_BOARD}._stop_batch"),
        "call TensorBoard only where its profile starts and stops",
        _EVERY_STEP,
    ),
    Internal(
        "keras_internals.profiles",
        (f"{_BOARD}._should_trace",),
        "know whether TensorBoard takes a profile",
        "a profile needs needs_every_step = True on the callback",
    ),
    Internal(
        "keras_internals.writes_batch",
        (f"{_BOARD}._global_train_batch",),
        "hand TensorBoard only the values that it writes",
        "it gets the values of all batches, which takes longer",
    ),
    Internal(
        "keras_internals.count_batch",
        (f"{_BOARD}._global_train_batch",),
        "count batches for TensorBoard without its hook, which is slow",
        "its hook is called for every batch",
    ),
    Internal(
        "keras_optimizers.trained_by",
        (f"{_OPTIMIZER}._trainable_variables",),
        "name the variables of an optimizer by those that it trains",
        "no task with an optimizer can be trained",
        "fails",
    ),
    Internal(
        "keras_optimizers.learning_rate_of",
        (f"{_OPTIMIZER}._learning_rate",),
        "record the learning rate, or its schedule, that a run was started with",
        "it is read from the config of the optimizer",
    ),
    Internal(
        "keras_optimizers.update_counter",
        (f"{_OPTIMIZER}._iterations",),
        "read the count of calls, which iterations divides by the accumulation steps",
        "without accumulation iterations is the same count; with it training is refused",
        "refuses",
    ),
    Internal(
        "keras_optimizers.accumulators",
        (f"{_OPTIMIZER}._accumulated_gradients", f"{_OPTIMIZER}._get_variable_index"),
        "accumulate gradients across replicas, where Keras' own way is not allowed",
        "gradient accumulation with several replicas is refused",
        "refuses",
    ),
    Internal(
        "keras_optimizers.without_accumulation",
        (
            f"{_OPTIMIZER}.iterations",
            f"{_OPTIMIZER}._iterations",
            f"{_OPTIMIZER}.gradient_accumulation_steps",
        ),
        "make one call of an accumulating optimizer an ordinary update",
        "gradient accumulation with several replicas is refused",
        "refuses",
    ),
    Internal(
        "keras_optimizers.watching_applies",
        (f"{_OPTIMIZER}.apply",),
        "find unrolled loops, and two optimizers for one variable",
        "no step can be built",
        "fails",
    ),
    Internal(
        "keras_optimizers.optimizers_reduce_nothing",
        ("keras.src.backend.tensorflow.optimizer.TFOptimizer._all_reduce_sum_gradients",),
        "keep Keras from summing gradients that are summed already",
        "with one replica memory grows with each trainer; with several training is refused, since "
        "updates would be too large",
        "refuses",
    ),
    Internal(
        "keras_optimizers.losses_as_for_one_device",
        (
            "keras.src.losses.loss.scale_loss_for_distribution",
            "keras.src.losses.loss.unscale_loss_for_distribution",
        ),
        "keep Keras from dividing losses by the number of replicas",
        "training with several replicas is refused, since losses would be too small",
        "refuses",
    ),
    Internal(
        "keras_optimizers.replicas_draw_apart",
        ("keras.random.SeedGenerator.next",),
        "have each replica draw its own random numbers",
        "training with several replicas is refused, since all would drop the same units",
        "refuses",
    ),
    Internal(
        "keras_optimizers.plain_apply_refused",
        (f"{_OPTIMIZER}.apply", "keras.optimizers.LossScaleOptimizer.apply"),
        "refuse optimizer.apply in a step with several replicas",
        "no step can be built",
        "fails",
    ),
    Internal(
        "error_messages._explain",
        (),
        "explain errors that Keras and TensorFlow raise while a step is traced",
        "the original error is raised, with the line of the step",
    ),
    Internal(
        "error_messages._frames",
        ("tensorflow.python.autograph.impl.api._attach_error_metadata.ag_error_metadata",),
        "find the line of the step in code that AutoGraph has generated",
        "errors are reported without the line of the step",
    ),
    Internal(
        "runtime_errors.failure_in",
        (),
        "explain errors of operations while a step runs",
        "the error shows TensorFlow's own line",
    ),
    Internal(
        "messages.lost_worker",
        (),
        "tell a lost worker from an error of the step",
        "the original error is raised, and the exit code is not the one that supervisors retry",
    ),
    Internal(
        "messages.is_too_late_to_connect",
        (),
        "explain why workers cannot be connected any more",
        "the original error is raised",
    ),
    Internal(
        "messages.is_worker_noise",
        (),
        "leave out lines about a lost worker that the other workers explain",
        "loopwright launch prints these lines as well",
    ),
    Internal(
        "messages.kernel_message",
        (),
        "show the sentence of an operation without the names of nodes around it",
        "messages show these names as well",
    ),
    Internal(
        "messages.damaged_record",
        (),
        "find the damaged TFRecord file by the position in the message",
        "all files of the pipeline are named",
    ),
    Internal(
        "messages.quoted_frames",
        (),
        "find the line of a Python function in a pipeline that raised",
        "the error is reported without its line",
    ),
    Internal(
        "messages.stateful_operation",
        (),
        "say which operation of a pipeline cannot be saved",
        "the message quotes TensorFlow's own",
    ),
    Internal(
        "messages.operation_with_nan",
        (),
        "name the first operation of an eager step that gave NaN",
        "the operation is not named",
    ),
    Internal(
        "messages.system_error_number",
        (),
        "explain errors of the disk that TensorFlow reports",
        "the original error is raised; the earlier checkpoints are untouched",
    ),
    Internal(
        "out_of_memory.is_out_of_memory",
        ("tensorflow.errors.ResourceExhaustedError",),
        "explain that memory ran out while saving or restoring, without importing TensorFlow",
        "the original error is raised",
    ),
    Internal(
        "quiet_start.without_noise",
        (),
        "leave out the lines that TensorFlow prints at every start",
        "these lines are printed",
    ),
)
