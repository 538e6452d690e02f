"""Which tests `make test` leaves out, and what each folder of tests may cost in CPU seconds.

`make test` runs one path through every promise. What is marked `thorough` is left to
`make test-all`: more cases of a promise that a test of `make test` keeps, or a test of minutes.
"""

import itertools
import os
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from multiprocessing import forkserver
from pathlib import PurePosixPath
from typing import TypeVar

import pytest

START = "imports and collection"

BUDGET_SECONDS = {
    "tests/resume": 170,
    "tests/engine": 112,
    "tests/checkpoints": 66,
    "tests/data": 60,
    "docs": 98,
    "tests/guards": 62,
    "tests/sinks": 37,
    "tests/distribute": 60,
    "tests": 60,
    "tests/cli": 78,
    "tests/task": 38,
    START: 34,
    "tests/programs": 30,
    "tests/export": 24,
    "tests/compat": 30,
    "tests/rewrites": 11,
    "tests/components": 14,
    "tests/insight": 50,
    ".": 4,
    "tests/examples": 16,
    "tests/loop": 4,
    "tests/docs": 8,
    "src/loopwright": 5,
    "tests/fit": 46,
    "tests/config": 2,
    "tests/plans": 8,
    "tests/search": 22,
    "tests/net": 25,
}
"""CPU seconds that the tests of a folder may take in `make test`, child processes included.

They add up to about nineteen minutes, which are ten on two cores. A test that is new has to
fit in, or has to be one of those that `make test` leaves out.
"""

THOROUGH: dict[str, dict[str, str]] = {
    "net/test_old_runs.py": {
        r"an_old_run_ends.*\[arrays_fused|an_old_run_(with|of|in)|an_old_study": "its other runs",
    },
    # Resuming, kills and signals: `make faults` has hundreds of them.
    "resume/test_resume.py": {
        r"a_run_that_failed.*\[(mapped|pydataset|shares|unknown|stream-fused)": (
            "arrays-graph, stream-graph; data/test_pipelines.py"
        ),
        "the_end_of_an_epoch|the_place_in": "test_more_epochs; data/test_stream.py",
        "the_other_files|a_compiled_keras": "test_the_journal; engine/test_parity.py",
        "early_stopping": "test_manifest_fields.py::test_the_state_of_a_callback",
    },
    "insight/test_replay.py": {
        r"a_replayed_run.*\[(?!arrays-(graph|eager))": "arrays, two plans",
        "a_state_that|a_step_of|a_step_that": "arrays-graph",
        "random_numbers|the_debugger|the_state_before": "cli/test_replay_command.py",
        "without_a|a_learning_rate|batches_that": "arrays-graph; a_replay_names",
    },
    "resume/test_same_trainer.py": {
        "the_second_leg|a_learning_rate|an_exception_at|an_epoch_of": "others",
        "an_interrupted_leg|a_leg_that|a_run_whose": "test_resume.py",
    },
    "resume/test_signals_and_kills.py": {
        "killed_at_random.*stream|killed_at_a_system": "arrays-graph; test_store_kills.py",
        r"a_signal_saves.*\[(2|10)\]|what_comes": "SIGTERM",
        "a_second_process|a_run_that_gets": "checkpoints/test_lock.py, checkpoints/test_store.py",
    },
    "resume/test_leg_ends.py": {
        "killed_at_random|killed_while|workers": "killed at its end",
        "a_replay|a_run_begins": "insight/test_replay.py; resume/test_restore.py",
        "more_epochs|the_best_is|a_skipped": "a finished leg keeps",
    },
    "resume/test_interruptions.py": {
        "asked_to|killed_in|a_run_on_two": "test_signals_and_kills.py",
    },
    "resume/test_store_kills.py": {"a_kill_at_any_system_call_of_a_start": "at any system call"},
    "resume/test_full_disks.py": {"a_disk_that_cannot_flush": "full and read-only disks"},
    "resume/test_edits.py": {
        "a_learning_rate_b|an_accepted": "a schedule; cli/test_job.py",
        "cells_run|the_order_of|an_extended": "test_a_model_that_is_built_twice",
        "starting_over_covers": "test_starting_over_moves",
    },
    "resume/test_rewrites.py": {
        "": "engine/test_plan_selector.py::test_a_small_network; plans/test_plan_history.py"
    },
    "resume/test_process_settings.py": {"a_command_is_measured_once": "test_settings_are_found"},
    "resume/test_plans.py": {"": "test_resume.py::test_the_plans_of_a_run"},
    "resume/test_best.py": {
        "killed_after|a_best_validation": "the best is restored",
        "the_default_rule|runs_are": "each rule has its best; cli/test_run_table.py",
    },
    "resume/test_best_effort.py": {
        "an_epoch_|training_that|a_stream|a_pydataset": "a step, a source",
    },
    "resume/test_restore.py": {
        "what_was|a_callback|a_model_that|scheduled|a_skipped": "a step, the last, the best",
    },
    "resume/test_mutations.py": {"": "the tests of resuming, which these test"},
    # Plans, numbers and NaN.
    "engine/test_parity.py": {
        r"training_gives.*\[(?!batch norm|sample w|class w|mixed precision with a p|no loss)": (
            "five other cases; programs/test_right_programs.py"
        ),
        r"training_gives.*\[(?!no loss).*compiled\]": "with a supervised task",
        "the_loss_scale": "it tests the tests",
    },
    "engine/test_runner.py": {
        r"every_plan_trains.*\[(xla|eager|Plan)": "fused",
        r"every_plan_runs.*\[(fused|Plan)": "eager",
        r"(a_run_split|a_loop).*\[(xla|fused|Plan)": "graph",
        "one_compile|a_compiled_model|a_trainer_reads|scores_are": "a fused loop is traced once",
        "a_size": "its other tests",
    },
    "engine/test_plan_selector.py": {
        "chunks_are|preparing_a|a_candidate|a_validation": "test_a_small_network",
        "a_process_may|batches_from": "its other tests",
        "the_identity|the_second_run": "test_what_was_remembered; plans/test_cache.py",
    },
    "engine/test_program_names.py": {
        r".*\[xla\]|equal_steps|a_step_with_a_state": "test_a_step_with_another_constant[fused]",
    },
    "engine/test_attempts.py": {"huge|a_run_split": "test_skipped_steps"},
    "engine/test_on_nan.py": {
        "a_run_that_went|a_later_leg|statistics|infinity": "test_going_back",
        r"(kernels_hide|gradients_that_are_not).*\[(?!graph-False|fused)": "arrays, two plans",
        "too_large|a_row_of|gradients_are_found|a_rollback_leaves": "test_nan_that_the_kernels",
    },
    "engine/test_scorer.py": {
        "a_run_that_is": "test_validation_in_mid_epoch",
        "a_metric_that_is|a_scalar|a_compiled|early_stopping": "test_a_metric_is_reported",
    },
    "engine/test_memory.py": {"": "task/test_variables.py::test_what_is_kept_of_a_trace"},
    "components/test_parts_by_plan.py": {"": "engine/test_runner.py; each part's own tests"},
    "components/test_layers_and_models.py": {".*in_keras_own_fit": "the same in a trainer"},
    "components/test_saved_and_loaded.py": {"": "export/test_exporter.py::test_a_keras_file"},
    "components/test_tiger.py": {"it_accumulates": "test_it_trains"},
    "components/test_gradient_transforms.py": {
        "with_several|a_limit": "distribute/test_strategies.py"
    },
    "rewrites/test_recurrent.py": {
        r"a_layer_gives.*\[(?!LSTM-xla)": "an LSTM with XLA",
        "every_option|both_d|a_stateful|float64|what_is_not": "test_a_layer_gives",
    },
    "resume/test_recurrent_layers.py": {"": "test_rewrites.py::test_a_run_that_draws"},
    "test_environment.py": {"processors_of": "a record without the instructions"},
    "rewrites/test_random_algorithm.py": {
        "every_draw|no_step": "test_threefry_draws_only",
    },
    # Configs, checkpoints and run directories.
    "config/test_config_fuzz.py": {"": "test_config.py"},
    # Searches: their trials are processes.
    "search/test_studies.py": {
        r"a_study_that_is_killed.*10-12|ctrl_c|a_trial_whose|two_processes": "killed once",
        "a_grid_ends|the_last|a_study_outside|variables_of|a_storage_with": "finds the best",
        r"the_same_call|the_best_config.*\[--show": "killed once; the same call after a kill",
        "first_trials|an_unknown_score|a_storage_that": "failed trials; a locked storage",
    },
    "search/test_untrusted_study.py": {
        "values_that|the_store_of": "a storage that is none; a journal that names a file",
    },
    "search/test_tune_in_code.py": {"": "test_studies.py"},
    "search/test_tune_command.py": {"a_search_that|a_key_that": "test_studies.py"},
    "checkpoints/test_tensors.py": {"a_table": "a run that is put back"},
    "checkpoints/test_store.py": {"a_full_disk_under_tensorflow": "its other tests of a full disk"},
    "checkpoints/test_initial_weights.py": {
        "a_run_that|what_is_no_source": "the other weights to start from",
    },
    "checkpoints/test_run_directory_security.py": {
        "a_workers_project": "distribute/test_launch.py",
        "no_command_follows|an_export_into|the_run_directory_itself": (
            "links in test_store.py and test_lock.py; a callback follows no link"
        ),
    },
    # Programs that others write, and the guards.
    "programs/test_wrong_programs.py": {
        r"a_wrong.*-(eager|xla|fused)\]": "the same programs on graph",
        "without_its_mistake": "test_right_programs.py",
    },
    "programs/test_right_programs.py": {
        ".*(gan|causal_language|memory_network|windows_of|distillation)": "smaller programs",
    },
    "programs/test_slow_programs.py": {r".*\[float64\]": "other programs"},
    "programs/test_others_code.py": {"ragged|datasets_zipped": "test_right_programs.py"},
    "task/test_every_optimizer.py": {"every_optimizer": "those that create variables of their own"},
    "task/test_gradients.py": {"a_half": "engine/test_parity.py"},
    "task/test_variables.py": {"names_are_the_same_in": "the names in this process"},
    "task/test_watched_gradients.py": {"watching|they_are|histograms_are": "test_each_norm"},
    "task/test_scheduled.py": {"it_is_resumed|another_schedule": "it follows every step"},
    "task/test_own_steps.py": {
        "models_without": "test_each_optimizer_moves_only",
    },
    "task/test_keras_models.py": {
        r"an_optimizer|a_raw|a_keras.*\[a (GAN|VAE|distiller|contr)": "a train step of its own",
    },
    "guards/test_mistakes.py": {"float64_labels": "test_updates_by_the_optimizer"},
    "guards/test_constants.py": {
        r"rows_chosen|values_that_stay|a_draw_is.*\[random|a_draw_in_a_layer|an_eager_step_that": (
            "its other tests"
        ),
    },
    "guards/test_changes.py": {r"a_number.*fused|a_tuple|a_change_before": "its other tests"},
    # Callbacks, files and pages.
    "fit/test_callback_needs.py": {
        r".*-compiled\]": "the same with a supervised task",
        "a_compiled_loop|needs_every|a_stream_whose|batches_that": "every plan records",
        "a_logger_counts|batches_are_numbered": "a logger gets every step",
        "several_replicas|a_task_of|a_task_that|evaluate_and|test_batch": "engine/test_scorer.py",
        "a_learning_rate|the_optimizer|terminate": "test_keras_callbacks.py",
    },
    "fit/test_keras_callbacks.py": {
        r"a_callback_does.*-compiled\]|averaged|early_stopping_restores": "with a supervised task",
    },
    "sinks/test_tracked_kills.py": {
        "killed|what_a_server|addresses": "test_tracker.py; docs/trackers.md",
    },
    "sinks/test_trackers_in_use.py": {"": "test_tracker.py; docs/trackers.md"},
    "fit/test_real_callbacks.py": {
        "a_callback_does": "stand-ins in test_callback_needs.py; test_keras_callbacks.py",
    },
    "sinks/test_report_in_browser.py": {"dragging|a_log|a_click": "the mouse"},
    "sinks/test_run_files.py": {
        "images_that|what_a_run_wrote|the_rates|a_run_that_failed": "its other files",
    },
    "docs/test_migrating.py": {"each_hand_loop": "fences of the other pages"},
    "docs/test_site.py": {
        "the_|every_link|every_public|examples|a_cell": "links of the pages; `make docs`"
    },
    "fit/test_interrupted_cells.py": {
        r"after_ctrl_c.*\[(stream|unknown)|ctrl_c_twice|a_learning": "arrays",
        "a_call_for|data_whose|other_call": "arrays",
        "early_stopping|a_handler|a_loop_over": "arrays; loop/test_signals.py",
        "an_interrupted_cell": "arrays; sinks/test_notebook.py",
    },
    "fit/test_early_interrupts.py": {"ctrl_c_at": "ctrl_c_inside"},
    "cli/test_new.py": {"a_new_project_trains": "the tests of a new project, in process"},
    # Data and workers.
    "data/test_records.py": {
        "it_is_named_in_val|of_compressed|a_file_that_the|a_run_whose": "named in training",
    },
    "data/test_nests.py": {"a_model_scores|predictions": "test_sparse_examples"},
    "data/test_iterables.py": {"workers_that|each_axis|the_hooks": "a batch of another shape"},
    "data/test_arrays.py": {"class_weights_give": "engine/test_parity.py"},
    "distribute/test_exact.py": {"(?!a_worker_that_is_gone.*killed)": "one of two is killed"},
    "distribute/test_launch.py": {"workers_that_are_killed": "test_exact.py, test_supervisor.py"},
    "distribute/test_numbers.py": {"": "test_exact.py, test_strategies.py"},
    "distribute/test_replicas.py": {"one_two|a_break_of|without_a_break": "test_strategies.py"},
    "distribute/test_strategies.py": {
        r"streams|a_compiled|the_tuner|two_r.*\[supervised|a_batch_with|replicas_draw|the_eager": (
            "test_two_replicas_train_as_one"
        ),
    },
    # Rehearsals.
    "insight/test_rehearsal.py": {
        r"the_run_after.*\[dataset|a_step_that_draws|initial_weights": "arrays; test_scratch.py",
        "a_run_of_epochs|an_endless|the_end_of_an_epoch|frozen": "every_part_of_a_run",
        "the_callbacks_of|a_callback_that|what_guards|images_that": "cli/test_rehearse_option.py",
        "checkpoints_that|a_checkpoint_that|a_state_that|the_scratch_run": "a_metric_that",
        "a_run_with_checkpoints": "cli/test_rehearse_option.py",
    },
    "insight/test_overfit.py": {
        "why_a_loss|a_step_that": "docs/rehearsing.md",
    },
    "insight/test_scratch.py": {
        r"no_generator.*\[(rehearse|profile-Aug|find_learning_rate-aug)": "the other two",
        "what_a_refused": "data_that_can_be_read_only_once",
    },
    # The command line, exports and examples.
    "cli/test_cli.py": {
        "ctrl_c|in_a_pipe": "resume/test_signals_and_kills.py, sinks/test_terminal.py",
        "a_checkpoint_is_exported|images_are": "a_training_ends_with; a_run_is_trained",
        "a_run_is_verified": "test_verify.py",
    },
    "cli/test_job.py": {
        "a_config_(may|accepts)|components|a_loss_and": "others",
        "a_run_that_never": "resume/test_edits.py",
        "fresh_moves|more_epochs|what_happens": "resume/test_edits.py, engine/test_on_nan.py",
    },
    "cli/test_rehearse_option.py": {
        "a_step_that_does|nan_in|a_config_that|a_rehearsal_prints": "insight/test_rehearsal.py"
    },
    "cli/test_verify.py": {
        "a_task_that_is_killed": "a small program, killed",
        "a_program_that|data_without|a_step_that": "insight/test_first_difference.py",
    },
    "cli/test_compare.py": {
        "the_first_step|comparing_files": "insight/test_history_state.py; test_layout.py",
        "equal_runs|runs_of_custom|what_cannot": "what differs is listed",
    },
    "cli/test_fork.py": {"custom_code|a_fork_trains": "test_compare.py; a fork without changes"},
    "insight/test_history_state.py": {
        "a_replay_follows|another_batch|a_replayed_state|replaying_changes": "test_replay.py",
    },
    "export/test_exporter.py": {
        "a_saved_model|a_run_exports": "docs/exporting.md, cli/test_cli.py",
        "strings_flags|a_model_|nan_other": "beyond the tolerance",
        "a_task_chooses|the_next": "keras_file",
    },
    "export/test_litert_and_onnx.py": {
        "a_file_gives|a_quantized|a_task_with|names_of|outputs_that": "docs/exporting.md",
        "a_recurrent|an_operation|onnx_takes": "export/converter_messages.py; wrong arguments",
    },
    "export/test_predict_step.py": {
        "a_converted|a_table|the_model_is": "a saved model; what cannot be served",
        "outputs_and_inputs": "names are unique",
    },
    "export/test_exports_of_runs.py": {
        "a_config_exports|an_export_that|a_browser": "docs/exporting.md; untrusted run",
    },
    "docs/test_export_table.py": {"": "docs/exporting.md"},
    "examples/test_examples.py": {"every_example_exports|an_example_resumes": "export, resume"},
    "examples/test_(?!examples).*": {
        "": "test_examples.py; README.md and cli/test_cli.py train digits",
    },
    "cli/test_find_commands.py": {"a_profile": "insight/test_profile.py"},
    # Before a run and after it.
    "insight/test_learning_rates.py": {
        "the_losses_are|several_opt|a_compiled": "the suggestion lies; training after a sweep",
    },
    "insight/test_profile.py": {"a_slow_map|operations_are": "docs/profiling.md"},
    "compat/test_out_of_memory.py": {"predictions|.*eager": "the batch size, on graph"},
    # What tests the tests.
    "tests/test_testing.py": {"a_stream|breaking_down": "a task passes; another fails"},
    "tests/test_police.py": {"": "a test that leaves the process changed fails at once"},
    "tests/test_bench_turns.py": {
        "who_fails|a_process_that|convolutions|products_in|a_loop": "turns; dense layers",
    },
    "tests/test_benchmarks.py": {"the_loop_by_hand|a_tiny_run": "what is measured, by fake clocks"},
}
"""Of each file, which tests `make test` leaves out, and which tests keep their promise there.

A pattern is compared with a test's name, after `test_`, and with its case in brackets.
"""

CASES: dict[str, dict[str, int]] = {
    "checkpoints/test_(initial_weights|run_directory_security).py": {"what_|weights_|no_": 1},
    "checkpoints/test_tensors.py": {"a_run": 1},
    "cli/test_(job|run_table|fork).py": {"": 1},
    "compat/test_(tracing|replacement).py": {"": 2},
    "components/test_(layers_and_models|tiger).py": {"": 1},
    "data/test_(arrays|iterables|nests|records|stream).py": {"": 1},
    "data/test_as_data.py": {"every_kind_of_data_trains": 6, "": 1},
    "data/test_pipelines.py": {"a_pipeline_goes": 6, "": 3},
    "distribute/test_strategies.py": {"": 1},
    "engine/test_(attempts|chunks|on_nan|runner|scorer).py": {"": 1},
    "engine/test_parity.py": {"a_second": 1},
    "engine/test_predictor.py": {"": 1},
    "programs/test_wrong_programs.py": {"": 30},
    "programs/test_(right|slow)_programs.py": {"": 3},
    "resume/test_(best|best_effort|full_disks|interruptions|same_trainer).py": {"": 1},
    "resume/test_manifest_fields.py": {"": 3},
    "fit/test_callback_needs.py": {"": 1},
    "sinks/test_report_in_browser.py": {"": 1},
    "fit/test_keras_callbacks.py": {"a_callback_does": 4, "": 1},
    "task/test_(guards|gradients|variables).py": {"": 2},
    "task/test_(keras_models|mistakes|own_steps|scheduled|traced_step).py": {"": 1},
    "task/test_(watched_gradients|every_optimizer).py": {"": 1},
    "tests/test_trainer.py": {"": 1},
}
"""Of each file, how many cases of a parametrized test stay in `make test`, spread over all."""

_V = TypeVar("_V")
_BEGUN = pytest.StashKey[float]()
_CPU = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seconds",
        type=float,
        help="skip the tests that would begin later than so many seconds after the start",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_BEGUN] = time.monotonic()
    config.stash[_CPU] = 0.0


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Start no workers for pure tests or a single file: the workers would take longer."""
    pure = [f"tests/{room}" for room in ("config", "loop", "plans")]
    paths = [argument.partition("::")[0].rstrip("/") for argument in config.args]
    quick = all(path.startswith(tuple(pure)) for path in paths)
    return 0 if quick or (len(paths) == 1 and paths[0].endswith((".py", ".md"))) else 2


@pytest.hookimpl(tryfirst=True)  # before `-m` and `-k` choose among them
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make test` leaves out; a pattern that matches no test of its file is an error."""
    names = [item.nodeid for item in items]
    for item, thorough in zip(items, left_out(names), strict=True):
        if thorough:
            item.add_marker("thorough")
    for fence, following in itertools.pairwise(items):
        if _is_run_again(fence, following):
            fence.add_marker("thorough")
    chosen = any("::" in argument for argument in items[0].config.args) if items else True
    if stale := [] if chosen else _stale_patterns(names):
        raise pytest.UsageError(f"tests/tiers.py has patterns that match no test: {stale}")


def left_out(names: Sequence[str]) -> list[bool]:
    """Return of each node id whether `make test` leaves it out."""
    thorough = [_found(THOROUGH, name) is not None for name in names]
    cases: defaultdict[str, list[int]] = defaultdict(list)
    for index, name in enumerate(names):
        test, bracket, _ = name.partition("[")
        if bracket and not thorough[index]:
            cases[test].append(index)
    for test, indices in cases.items():
        stay = _found(CASES, test) or len(indices)
        kept = {indices[i * len(indices) // stay] for i in range(stay)}
        for index in indices:
            thorough[index] = index not in kept
    return thorough


def _found(table: dict[str, dict[str, _V]], name: str) -> _V | None:
    """Return what a table says of a node id, by the first pattern that fits."""
    path, _, test = name.partition("::")
    for file, patterns in table.items():
        if re.search(f"{file}$", path):
            for pattern, value in patterns.items():
                if re.match(f"test_({pattern})", test):
                    return value
    return None


def _stale_patterns(names: Sequence[str]) -> list[str]:
    tests: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        path, _, test = name.partition("::")
        tests[path].append(test)
    return [
        f"{file}: {pattern}"
        for table in (THOROUGH, CASES)
        for file, patterns in table.items()
        if (found := [t for path in tests if re.search(f"{file}$", path) for t in tests[path]])
        for pattern in patterns
        if not any(re.match(f"test_({pattern})", test) for test in found)
    ]


def _is_run_again(fence: pytest.Item, following: pytest.Item) -> bool:
    """Return whether the next fence of a page begins with this one, as a continuation does."""
    first, second = (getattr(each, "test_definition", None) for each in (fence, following))
    if first is None or second is None or fence.path != following.path:
        return False
    return second.source.startswith(first.source)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    seconds = item.config.getoption("--seconds")
    if seconds is not None and time.monotonic() - item.config.stash[_BEGUN] > seconds:
        pytest.skip(f"the {seconds:.0f} seconds of --seconds are over")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Note the CPU seconds before the first test, which are those of imports and collection."""
    if not item.config.stash[_CPU]:
        item.config.stash[_CPU] = _cpu_seconds()
        item.user_properties.append((START, item.config.stash[_CPU]))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.when == "teardown":
        now = _cpu_seconds()
        item.user_properties.append(("cpu", now - item.config.stash[_CPU]))
        item.config.stash[_CPU] = now


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process, its ended children and its server of forks."""
    seconds = sum(os.times()[:4])
    server = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if server is not None:
        with open(f"/proc/{server}/stat") as file:
            ticks = file.read().rpartition(")")[2].split()[11:15]
        seconds += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return seconds


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    taken = seconds_by_folder(
        (report.nodeid, name, seconds)
        for some in terminalreporter.stats.values()
        for report in some
        if isinstance(report, pytest.TestReport) and report.when == "teardown"
        for name, seconds in report.user_properties
        if isinstance(seconds, float)
    )
    if sum(taken.values()) < 60:
        return
    terminalreporter.section("CPU seconds by folder, and its budget in `make test`")
    for folder, seconds in taken.items():
        budget = BUDGET_SECONDS.get(folder)
        over = "  over its budget" if budget is not None and seconds > budget else ""
        terminalreporter.write_line(f"{seconds:7.0f} of {budget or '-':>4}  {folder}{over}")
    total, budget = sum(taken.values()), sum(BUDGET_SECONDS.values())
    terminalreporter.write_line(f"{total:7.0f} of {budget:>4}  in all")


def seconds_by_folder(measured: Iterable[tuple[str, str, float]]) -> dict[str, float]:
    """Add up seconds by folder, the most first; imports and collection are a row of their own.

    >>> seconds_by_folder([("tests/data/test_a.py::test_b", "cpu", 1.0)])
    {'tests/data': 1.0}
    """
    taken: defaultdict[str, float] = defaultdict(float)
    for nodeid, name, seconds in measured:
        file = PurePosixPath(nodeid.partition("::")[0])
        taken[START if name == START else str(PurePosixPath(*file.parent.parts[:2]))] += seconds
    return dict(sorted(taken.items(), key=lambda item: -item[1]))
