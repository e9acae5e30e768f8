"""Settings of all tests: two CPU devices, no implicit rank promotion, shapes of `flaxformer.nn` checked at run time.

Most tests compile a program to run it once, so it is compiled with little optimisation. Those in `OPTIMISED`, which
compare bits between programs or test the compiler's numbers, are compiled like those of a user.
"""

import ctypes
import gc
import itertools
import os
import signal
import time
from pathlib import Path

import jax
import pytest
from jax._src import compiler
from jaxtyping import install_import_hook

jax.config.update("jax_num_cpu_devices", int(os.environ.get("JAX_NUM_CPU_DEVICES", "2")))
jax.config.update("jax_numpy_rank_promotion", "raise")

CHECKED = ["attention", "dot_product", "heads", "kernels.packed", "kernels.products"]
CHECKED += ["linear", "losses", "norms", "positions", "recurrent"]
install_import_hook([f"flaxformer.nn.{name}" for name in CHECKED], "beartype.beartype")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts a background job so, and processes inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    """Leave accelerators alone when programs are compiled for them; without a driver, CUDA cannot be asked at all."""
    selected = config.option.markexpr
    if "compile" in selected and "not compile" not in selected:
        jax.config.update("jax_platforms", "cpu")


EVERY = {
    "diagnostics/test_nonfinite.py::test_first_activation_after_a_non_finite_weight_is_found": 3,
    "examples/test_studies.py::test_every_arm_has_a_training_step": 2,
    "interpret/test_interventions.py::test_ablation_replaces_the_chosen_heads_and_positions_alone": 3,
    "jobs/test_train.py::test_a_killed_job_resumes_from_its_checkpoint_bit_for_bit": 2,
    "jobs/test_train.py::test_a_stopped_job_saves_and_resumes_bit_for_bit": 4,
    "laws/test_check.py::test_every_faulty_component_violates_its_law": 3,
    "model/test_components.py::test_decoding_equals_the_forward_pass_in_both_layouts": 2,
    "model/test_decoding.py::test_cached_logits_equal_full_logits": 6,
    "model/test_initial_loss.py::test_the_default_model_reduces_the_loss_in_a_few_steps": 2,
    "model/test_initial_loss.py::test_the_initial_loss_of_defaults_is_near_log_vocabulary": 2,
    "model/test_initial_loss.py::test_the_initial_loss_with_a_tied_head_is_near_log_vocabulary": 2,
    "model/test_recurrent.py::test_decoding_a_block_in_parts_equals_the_forward_pass": 2,
    "nn/test_dropout.py::test_a_part_of_a_batch_has_the_mask_of_the_whole_batch": 3,
    "nn/test_kernel_meshes.py::test_the_tpu_kernel_lowers_whatever_axes_are_mapped_already": 4,
    "nn/test_kernels.py::test_tiles_equal_the_equation": 2,
    "report/test_report.py::test_odd_studies_have_reports_too": 2,
    "runner/test_execute.py::test_a_run_of_a_study_has_the_bits_of_the_run_alone": 4,
    "runner/test_execute.py::test_the_length_of_a_chunk_changes_no_bit": 2,
    "runner/test_kept_weights.py::test_an_interrupted_study_keeps_the_same_weights": 7,
    "runner/test_kept_weights.py::test_kept_weights_give_the_evaluations_of_the_row": 5,
    "sharding/test_rows.py::test_each_decoded_row_equals_that_of_one_device": 3,
    "store/test_columns.py::test_lines_with_any_value_are_rows_or_damage": 3,
    "store/test_columns.py::test_tables_with_any_column_are_rows_or_damage": 3,
    "tasks/test_evaluation_data.py::test_the_batch_size_does_not_change_the_evaluation_examples": 3,
    "tasks/test_evaluation_data.py::test_the_digest_is_that_of_the_examples_in_any_division": 3,
    "tasks/test_evaluation_data.py::test_the_test_set_has_the_shape_of_the_evaluation_set_and_other_examples": 3,
    "test_user_code.py::test_changed_definition_is_named_in_the_error_and_results_can_be_kept": 3,
    "test_user_code.py::test_edits_without_effect_on_results_retrain_nothing": 3,
    "training/test_accumulation.py::test_dropout_is_the_same_in_any_number_of_micro_batches": 3,
    "training/test_optimizer.py::test_updates_equal_optax_adamw": 2,
    "training/test_parametrizations.py::test_at_the_base_width_training_is_that_of_the_standard_parametrization": 3,
    "training/test_precision.py::test_the_residual_stream_is_bfloat16_and_attention_weights_and_logits_are_float32": 3,
}
"""Tests with many expensive cases: every n-th of the cases is in the default run, and the others are slow."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark the further cases of `EVERY` as slow."""
    counts: dict[str, itertools.count] = {}
    for item in items:
        name = item.nodeid.partition("[")[0].removeprefix("tests/")
        if (
            name in EVERY
            and not item.get_closest_marker("slow")
            and next(counts.setdefault(name, itertools.count())) % EVERY[name]
        ):
            item.add_marker(pytest.mark.slow)


START = time.monotonic()


def pytest_addoption(parser):
    parser.addoption("--minutes", type=float, help="skip the tests that are left after so many minutes")


def pytest_runtest_setup(item):
    minutes = item.config.getoption("--minutes")
    if minutes is not None and time.monotonic() - START > 60 * minutes:
        pytest.skip(f"--minutes {minutes:g} have passed")


def compile_options(*arguments, env_options_overrides=None, **options):
    """Options of XLA; without its emitters of fusions, small programs compile in half the time."""
    if compiled_with.get("little"):
        env_options_overrides = {"xla_cpu_use_fusion_emitters": False} | (env_options_overrides or {})
    return OPTIONS_OF_JAX(*arguments, env_options_overrides=env_options_overrides, **options)


OPTIONS_OF_JAX = compiler.get_compile_options
if jax.__version_info__ < (0, 11):  # later versions have no other emitters
    compiler.get_compile_options = compile_options
OPTIMISED = {
    "runner/test_device_groups.py",
    "runner/test_execute.py",
    "runner/test_partial_runs.py",
    "targets",
    "training/test_compiled_run.py",
    "training/test_memory_targets.py",
    "training/test_step.py",
}
"""Folders and files of tests whose programs are compiled like those of a user."""
compiled_with: dict[str, bool] = {}


@pytest.fixture(autouse=True, scope="module")
def compiled_as_it_is_used(request):
    """Set how much XLA optimises by the file of the test, and forget what was compiled otherwise."""
    folder = request.path.parent.name
    little = not {folder, f"{folder}/{request.path.name}"} & OPTIMISED
    if little != compiled_with.get("little"):
        compiled_with["little"] = little
        jax.config.update("jax_disable_most_optimizations", little)
        jax.clear_caches()


MAPS, MEMORY = Path("/proc/self/maps"), Path("/proc/self/statm")
MOST_MAPS = 35_000
"""Of the 65,530 memory maps that Linux allows a process; past them, XLA crashes in its next compilation."""
MOST_BYTES = 2_000_000_000
"""Resident memory at which compiled programs are forgotten; without this, a worker takes 4 to 5 GB."""
MARGIN = 800_000_000
"""Least growth between two such times, so that a large live test does not compile everything anew for each test."""
tests_run = itertools.count(1)
limit = {"bytes": MOST_BYTES}


def resident_bytes():
    return int(MEMORY.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def forget_compiled_programs():
    """Free compiled programs, and return the memory to the system, which the C library keeps otherwise."""
    jax.clear_caches()
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


@pytest.fixture(autouse=True)
def compiled_programs_are_few():
    """Forget compiled programs, which hold memory and several memory maps each, before there are too many."""
    yield
    if not MAPS.exists():
        return
    full = resident_bytes() > limit["bytes"]
    if full or (next(tests_run) % 20 == 0 and MAPS.read_bytes().count(b"\n") > MOST_MAPS):
        forget_compiled_programs()
        limit["bytes"] = max(MOST_BYTES, resident_bytes() + MARGIN)
