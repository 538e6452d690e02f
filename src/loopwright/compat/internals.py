"""The internals of Keras and TensorFlow in use: what, why, and what if they move."""

from loopwright.compat import converter_messages, xla_internals
from loopwright.compat.internal import Internal

_OPTIMIZER = "keras.optimizers.Optimizer"
_EAGER = "tensorflow.python.eager.polymorphic_function"
_FRAMEWORK = "tensorflow.python.framework"
_BOARD = "keras.callbacks.TensorBoard"
_DATA = "tensorflow.python.data.ops"
_LOSS = "keras.src.losses.loss"
_NO_GUARD = "the guard that reads it gives no warning"
_EVERY_STEP = "control returns to Python after every step while this callback is used"


def _of(owner: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{owner}.{name}" for name in names)


INTERNALS: tuple[Internal, ...] = (
    Internal(
        "tensorflow_internals.scratch_graph",
        "trace a step once, where tf.function traces twice if variables are created",
        "no step can be built",
        ("tensorflow.__internal__.FuncGraph",),
        "fails",
    ),
    Internal(
        "tensorflow_internals.autograph",
        "turn if and while on tensors into graph operations where merge_call is allowed",
        "if and while on tensors fail; write tf.cond and tf.while_loop",
        _of("tensorflow.__internal__.autograph", "tf_convert", "control_status_ctx"),
    ),
    Internal(
        "tensorflow_internals.compiled",
        "leave out the warning about functions made again from one line of code",
        "TensorFlow warns of frequent retracing when many trainers are created",
        (f"{_EAGER}.polymorphic_function.Function._omit_frequent_tracing_warning",),
    ),
    Internal(
        "tensorflow_internals.run_on_copies",
        "compile an XLA step in advance, on copies of the variables",
        "XLA compiles at the first step, which takes longer",
        (f"{_EAGER}.concrete_function.ConcreteFunction._call_flat",),
    ),
    Internal(
        "tensorflow_internals.captured_variables",
        "find variables that a step uses and no checkpoint holds",
        "a step that uses variables outside of the task is not refused: keep them in the task",
        ("tensorflow.__internal__.FuncGraph._watched_variables",),
    ),
    Internal(
        "tensorflow_internals.is_variable_handle",
        "tell handles of variables from those of tables and queues",
        "a state that no checkpoint holds is not refused: keep values in variables of the task",
        ("tensorflow.python.framework.ops.EagerTensor._handle_data",),
    ),
    Internal(
        "tensorflow_internals.written_handles",
        "find the variables that a graph changes",
        "a metric that no step updates is reported as 0, without a warning",
        (f"{_FRAMEWORK}.auto_control_deps_utils.get_read_write_resource_inputs",),
    ),
    Internal(
        "tensorflow_internals.inner_graphs",
        "look into branches, loops and functions of a graph",
        "guards do not see what is inside of branches, loops and tf.functions",
        ("tensorflow.Graph._get_function",),
    ),
    Internal(
        "tensorflow_internals.watching_tapes",
        "find a loss that was not reduced to a scalar",
        "gradients cannot be computed at all",
        ("tensorflow.GradientTape.gradient",),
        "fails",
    ),
    Internal(
        "tensorflow_internals.iterator_state",
        "save the position of a tf.data iterator, shuffle buffers included",
        "positions of tf.data pipelines are not saved: a resumed run reads the dataset from the "
        "beginning, unless it is lw.Stream(dataset, replay=True)",
        (
            f"{_DATA}.iterator_ops.OwnedIterator._iterator_resource",
            "tensorflow.raw_ops.SerializeIterator",
            "tensorflow.raw_ops.DeserializeIterator",
        ),
    ),
    Internal(
        "tensorflow_internals.restore_iterator",
        "restore the position of a tf.data iterator",
        "a checkpoint with the position of an iterator is refused",
        (f"{_DATA}.iterator_ops.OwnedIterator._iterator_resource",),
        "refuses",
    ),
    Internal(
        "tensorflow_internals.holds_failure",
        "see in a saved iterator that it had prefetched data that failed",
        "the resumed run fails at the same data again",
    ),
    Internal(
        "tensorflow_internals.pipeline_parts",
        "find what in a pipeline cannot be repeated or saved",
        "pipelines cannot be inspected, so every one is reported as possibly not repeatable",
        ("tensorflow.data.Dataset._inputs", "tensorflow.data.Dataset._functions"),
    ),
    Internal(
        "tensorflow_internals._pipeline_part",
        "find unseeded shuffles, unordered maps, stateful functions and caches in a pipeline",
        "such a pipeline is resumed without a warning, and may give other batches",
        (
            *_of(f"{_DATA}.shuffle_op._ShuffleDataset", "_seed", "_seed2"),
            f"{_DATA}.shuffle_op._ShuffleDataset._reshuffle_each_iteration",
            f"{_DATA}.random_op._RandomDataset._rerandomize",
            f"{_DATA}.map_op._ParallelMapDataset._deterministic",
            f"{_DATA}.directed_interleave_op._DirectedInterleaveDataset._stop_on_empty_dataset",
            f"{_DATA}.from_tensors_op._TensorDataset._tensors",
            f"{_DATA}.cache_op.CacheDataset._filename",
            f"{_DATA}.structured_function.StructuredFunctionWrapper._func",
            f"{_FRAMEWORK}.op_def_registry.get",
        ),
    ),
    Internal(
        "tensorflow_internals.has_own_state",
        "know whether a step can be run again from the same variables",
        'on_nan="skip" copies the state in every step',
        (f"{_FRAMEWORK}.op_def_registry.get",),
    ),
    Internal(
        "tensorflow_internals.pipeline_graphs",
        "find the line of a pipeline that raised an error",
        "the error is reported without its line",
        ("tensorflow.data.Dataset._functions",),
    ),
    Internal(
        "tensorflow_internals.gpu_memory_bytes",
        "keep data on the GPU only if it fits",
        "the memory of the host decides whether data is kept on the GPU",
        ("tensorflow.python.client.device_lib.list_local_devices",),
    ),
    Internal(
        "tensorflow_internals.mirrored_strategy",
        "use several MirroredStrategies in one process",
        "a second MirroredStrategy in a process fails with a shape mismatch of collectives",
        ("tensorflow.distribute.MirroredStrategy._collective_key_base",),
    ),
    Internal(
        "patches._carried_to_replicas",
        "apply changes of Keras in the threads in which a strategy runs replicas",
        "no step can be built",
        ("tensorflow.compat.v1.distribute.StrategyExtended.call_for_each_replica",),
        "fails",
    ),
    Internal(
        "keras_internals.watching_comparisons",
        "look at labels and predictions for mistakes",
        _NO_GUARD,
        (
            "keras.losses.Loss.__call__",
            *_of("keras.metrics.MeanMetricWrapper", "update_state", "_fn", "_fn_kwargs"),
        ),
    ),
    Internal(
        "keras_internals.without_keras_warnings",
        "leave out three warnings of Keras that the guards give once, in other words",
        "these warnings of Keras are shown at each trace",
    ),
    Internal(
        "keras_internals.watching_losses",
        "find model losses that a step forgets",
        "no step can be built",
        ("keras.Layer.losses",),
        "fails",
    ),
    Internal(
        "keras_internals.watching_calls",
        "find layers called in inference mode, and swapped arguments",
        "no step can be built",
        ("keras.Layer.__call__",),
        "fails",
    ),
    Internal(
        "keras_internals.watching_outputs",
        "show what each layer returns in a step that is replayed",
        "no step can be replayed",
        ("keras.Layer.__call__",),
        "fails",
    ),
    Internal(
        "keras_internals._refusing_whole_trainings",
        "refuse model.fit and the like inside a step",
        "such a call ends in an error of Keras that is hard to read",
        ("keras.Model.fit", "keras.Model.evaluate", "keras.Model.predict"),
    ),
    Internal(
        "keras_internals.layers_in",
        "list the layers inside a layer",
        "guards do not see layers inside layers that are not models",
        ("keras.Layer._flatten_layers",),
    ),
    Internal(
        "keras_internals.build_compiled_model",
        "create the variables of a compiled model before it is traced",
        "with several replicas, build a compiled model and its optimizer before training",
        ("keras.Model._symbolic_build",),
    ),
    Internal(
        "keras_internals.better",
        "know whether a higher value of a metric is better",
        "EarlyStopping and KeepBest need an explicit mode",
        ("keras.metrics.Accuracy._direction",),
    ),
    Internal(
        "keras_internals.loss_arguments",
        "notice an edited argument of a loss when a run is resumed",
        "such an edit is not noticed",
        ("keras.losses.MeanSquaredError._fn_kwargs",),
    ),
    Internal(
        "keras_internals.without_values",
        "recognize metrics of compile(metrics=...) that no step has updated",
        "a step that forgets them fails at the end of the epoch, as in Keras",
        ("keras.src.trainers.compile_utils.CompileMetrics",),
    ),
    Internal(
        "keras_internals.is_loss_tracker",
        "know Keras' own mean of the loss, which a custom step need not update",
        "a correct step gets a warning of an idle metric",
        ("keras.Model._loss_tracker",),
    ),
    Internal(
        "keras_internals.watching_updates",
        "find metrics that an eager step does not update",
        "only a metric whose values have changed counts as updated",
        ("keras.metrics.Metric.update_state",),
    ),
    Internal(
        "keras_internals.has_logits",
        "tell probabilities from logits",
        _NO_GUARD,
        ("keras.src.backend.tensorflow.nn.softmax._keras_logits",),
    ),
    Internal(
        "keras_internals.is_bookkeeping",
        "name variables by the attributes that hold them, not by Keras' own lists",
        "some variables get other names, and checkpoints from before are refused",
        ("keras.Model._layers", "keras.Model._metrics", "keras.Model._seed_generators"),
        "refuses",
    ),
    Internal(
        "keras_internals.take_initial_epoch",
        "see that BackupAndRestore asks for another first epoch",
        "the note that epochs count from zero is missing",
        ("keras.Model._initial_epoch",),
    ),
    Internal(
        "keras_internals.steps_to_save",
        "call a callback with save_freq only where it saves",
        _EVERY_STEP,
        ("keras.callbacks.ModelCheckpoint._batches_seen_since_last_saving",),
    ),
    Internal(
        "keras_internals.save_hook_of",
        "notice a ModelCheckpoint that decides by itself when to save",
        "such a callback is called as often as its save_freq says",
        ("keras.callbacks.ModelCheckpoint._should_save_on_batch",),
    ),
    Internal(
        "keras_internals.steps_to_profile",
        "call TensorBoard only where its profile starts and stops",
        _EVERY_STEP,
        (f"{_BOARD}._global_train_batch", f"{_BOARD}._start_batch", f"{_BOARD}._stop_batch"),
    ),
    Internal(
        "keras_internals.profiles",
        "know whether TensorBoard takes a profile",
        "a profile needs needs_every_step = True on the callback",
        (f"{_BOARD}._should_trace",),
    ),
    Internal(
        "keras_internals.writes_batch",
        "hand TensorBoard only the values that it writes",
        "it gets the values of all batches, which takes longer",
        (f"{_BOARD}._global_train_batch",),
    ),
    Internal(
        "keras_internals.count_batch",
        "count batches for TensorBoard without its hook, which is slow",
        "its hook is called for every batch",
        (f"{_BOARD}._global_train_batch",),
    ),
    Internal(
        "keras_optimizers.trained_by",
        "name the variables of an optimizer by those that it trains",
        "no task with an optimizer can be trained",
        (f"{_OPTIMIZER}._trainable_variables",),
        "fails",
    ),
    Internal(
        "keras_optimizers.learning_rate_of",
        "record the learning rate, or its schedule, that a run was started with",
        "it is read from the config of the optimizer",
        (f"{_OPTIMIZER}._learning_rate",),
    ),
    Internal(
        "xplane.recorded",
        "read what TensorFlow's profiler recorded",
        "trainer.profile is refused; tf.profiler.experimental and TensorBoard show a profile",
        ("tensorflow.tsl.profiler.protobuf.xplane_pb2.XSpace",),
        "refuses",
    ),
    Internal(
        "keras_optimizers.rate_replaced",
        "sweep the learning rate inside the compiled loop, that of a schedule too",
        "find_learning_rate is refused",
        (f"{_OPTIMIZER}._learning_rate",),
        "refuses",
    ),
    Internal(
        "keras_optimizers.update_counter",
        "read the count of calls, which iterations divides by the accumulation steps",
        "without accumulation iterations is the same count; with it training is refused",
        (f"{_OPTIMIZER}._iterations",),
        "refuses",
    ),
    Internal(
        "keras_optimizers.accumulators",
        "accumulate gradients across replicas, where Keras' own way is not allowed",
        "gradient accumulation with several replicas is refused",
        (f"{_OPTIMIZER}._accumulated_gradients", f"{_OPTIMIZER}._get_variable_index"),
        "refuses",
    ),
    Internal(
        "keras_optimizers.without_accumulation",
        "make one call of an accumulating optimizer an ordinary update",
        "gradient accumulation with several replicas is refused",
        _of(_OPTIMIZER, "iterations", "_iterations", "gradient_accumulation_steps"),
        "refuses",
    ),
    Internal(
        "keras_optimizers.watching_applies",
        "find unrolled loops, and two optimizers for one variable",
        "no step can be built",
        (f"{_OPTIMIZER}.apply",),
        "fails",
    ),
    Internal(
        "keras_optimizers.optimizers_reduce_nothing",
        "keep Keras from summing gradients that are summed already",
        "with one replica memory grows with each trainer; with several training is refused, since "
        "updates would be too large",
        ("keras.src.backend.tensorflow.optimizer.TFOptimizer._all_reduce_sum_gradients",),
        "refuses",
    ),
    Internal(
        "keras_optimizers.losses_as_for_one_device",
        "keep Keras from dividing losses by the number of replicas",
        "training with several replicas is refused, since losses would be too small",
        _of(_LOSS, "scale_loss_for_distribution", "unscale_loss_for_distribution"),
        "refuses",
    ),
    Internal(
        "keras_optimizers.replicas_draw_apart",
        "have each replica draw its own random numbers",
        "training with several replicas is refused, since all would drop the same units",
        ("keras.random.SeedGenerator.next",),
        "refuses",
    ),
    Internal(
        "keras_optimizers.plain_apply_refused",
        "refuse optimizer.apply in a step with several replicas",
        "no step can be built",
        (f"{_OPTIMIZER}.apply", "keras.optimizers.LossScaleOptimizer.apply"),
        "fails",
    ),
    Internal(
        "error_messages._explain",
        "explain errors that Keras and TensorFlow raise while a step is traced",
        "the original error is raised, with the line of the step",
    ),
    Internal(
        "error_messages._frames",
        "find the line of the step in code that AutoGraph has generated",
        "errors are reported without the line of the step",
        ("tensorflow.python.autograph.impl.api._attach_error_metadata.ag_error_metadata",),
    ),
    Internal(
        "runtime_errors.failure_in",
        "explain errors of operations while a step runs",
        "the error shows TensorFlow's own line",
    ),
    Internal(
        "messages.lost_worker",
        "tell a lost worker from an error of the step",
        "the original error is raised, and the exit code is not the one that supervisors retry",
    ),
    Internal(
        "messages.is_too_late_to_connect",
        "explain why workers cannot be connected any more",
        "the original error is raised",
    ),
    Internal(
        "messages.is_worker_noise",
        "leave out lines about a lost worker that the other workers explain",
        "loopwright launch prints these lines as well",
    ),
    Internal(
        "messages.kernel_message",
        "show the sentence of an operation without the names of nodes around it",
        "messages show these names as well",
    ),
    Internal(
        "messages.damaged_record",
        "find the damaged TFRecord file by the position in the message",
        "all files of the pipeline are named",
    ),
    Internal(
        "messages.quoted_frames",
        "find the line of a Python function in a pipeline that raised",
        "the error is reported without its line",
    ),
    Internal(
        "messages.stateful_operation",
        "say which operation of a pipeline cannot be saved",
        "the message quotes TensorFlow's own",
    ),
    Internal(
        "messages.operation_with_nan",
        "name the first operation of an eager step that gave NaN",
        "the operation is not named",
    ),
    Internal(
        "messages.system_error_number",
        "explain errors of the disk that TensorFlow reports",
        "the original error is raised; the earlier checkpoints are untouched",
    ),
    Internal(
        "out_of_memory.is_out_of_memory",
        "explain that memory ran out while saving or restoring, without importing TensorFlow",
        "the original error is raised",
        ("tensorflow.errors.ResourceExhaustedError",),
    ),
    Internal(
        "quiet_start.without_noise",
        "leave out the lines that TensorFlow prints at every start",
        "these lines are printed",
    ),
    *converter_messages.INTERNALS,
    *xla_internals.INTERNALS,
)
