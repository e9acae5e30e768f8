"""Settings of all tests: two CPU devices, no implicit rank promotion, shapes of `flaxformer.nn` checked at run time.

Most tests compile a program to run it once, so it is compiled with little optimisation. Those in `OPTIMISED`, which
compare bits between programs or test the compiler's numbers, are compiled like those of a user.
"""

import ctypes
import gc
import itertools
import os
import signal
import threading
import time
from pathlib import Path

import jax
import pytest
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir
from jaxtyping import install_import_hook

jax.config.update("jax_num_cpu_devices", int(os.environ.get("JAX_NUM_CPU_DEVICES", "2")))
jax.config.update("jax_numpy_rank_promotion", "raise")

CHECKED = ["attention", "dot_product", "heads", "kernels.packed", "kernels.products"]
CHECKED += ["linear", "losses", "norms", "positions", "recurrent"]
install_import_hook([f"flaxformer.nn.{name}" for name in CHECKED], "beartype.beartype")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts a background job so, and processes inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


gc.set_threshold(100_000, 50, 100)  # traces are many objects, which the garbage collector reads again and again


def pytest_collection_finish():
    """Take what stays until the end, such as modules and tests, out of the garbage collector's work."""
    gc.collect()
    gc.freeze()


def pytest_configure(config):
    """Leave accelerators alone when programs are compiled for them; without a driver, CUDA cannot be asked at all."""
    selected = config.option.markexpr
    if "compile" in selected and "not compile" not in selected:
        jax.config.update("jax_platforms", "cpu")


EVERY = {
    "checkpoint/test_checkpoints.py::test_each_layout_reads_checkpoints_of_the_other": 2,
    "claims/test_cases.py::test_failed_claim_is_reported_and_others_continue": 2,
    "cli/test_width.py::test_run_report_status_and_compare_fit_80_columns": 2,
    "diagnostics/test_nonfinite.py::test_finite_run_gives_none": 2,
    "diagnostics/test_nonfinite.py::test_first_activation_after_a_non_finite_weight_is_found": 6,
    "diagnostics/test_nonfinite.py::test_overflowing_gradient_is_found_although_the_loss_is_finite": 4,
    "diagnostics/test_own_components.py::test_mixer_without_logits_has_all_diagnostics_except_attention_statistics": 2,
    "docs/test_component_guide.py::test_each_model_trains_and_decodes_to_the_outputs_of_the_whole_sequence": 2,
    "examples/test_studies.py::test_every_arm_has_a_training_step": 6,
    "interop/test_flax_modules.py::test_linen_attention_equals_that_of_flax": 2,
    "interop/test_flax_modules.py::test_nnx_attention_equals_that_of_flax": 2,
    "interop/test_flax_modules.py::test_nnx_module_equals_the_pure_function": 2,
    "interop/test_flax_modules.py::test_training_applies_dropout_and_updates_statistics_in_place": 2,
    "interop/test_huggingface.py::test_greedy_generation_equals_that_of_transformers": 2,
    "interop/test_huggingface.py::test_logits_equal_those_of_transformers": 2,
    "interop/test_huggingface_heads.py::test_bert_without_a_head_returns_the_final_vectors": 2,
    "interop/test_torch_modules.py::test_block_equals_the_torch_layer_under_every_mask": 6,
    "interop/test_torch_modules.py::test_stack_equals_the_torch_stack_under_every_mask": 3,
    "interpret/test_attribution.py::test_attributions_add_up_to_the_logit": 2,
    "interpret/test_interventions.py::test_ablation_replaces_the_chosen_heads_and_positions_alone": 3,
    "jobs/test_edit_files.py::test_text_is_generated_under_the_edits_of_a_file": 2,
    "jobs/test_train.py::test_a_killed_job_resumes_from_its_checkpoint_bit_for_bit": 2,
    "laws/test_check.py::test_every_faulty_component_violates_its_law": 9,
    "model/test_beam.py::test_beam_search_with_a_beam_per_sequence_is_exhaustive": 2,
    "model/test_components.py::test_decoding_equals_the_forward_pass_in_both_layouts": 4,
    "model/test_components.py::test_decoding_uses_an_overridden_apply_of_attention": 2,
    "model/test_components.py::test_later_tokens_and_padding_do_not_change_earlier_outputs": 4,
    "model/test_decoding.py::test_cached_logits_equal_full_logits": 36,
    "model/test_decoding.py::test_padding_of_a_prompt_does_not_change_its_continuation": 6,
    "model/test_edited_beams.py::test_scores_are_those_of_apply_with_the_same_edits": 2,
    "model/test_edited_decoding.py::test_edits_that_have_no_meaning_token_by_token_are_refused": 2,
    "model/test_edited_decoding.py::test_generation_with_edits_in_other_mixers_and_layouts": 2,
    "model/test_edited_decoding.py::test_greedy_generation_with_edits_equals_the_argmax_of_apply": 2,
    "model/test_edits.py::test_every_point_that_is_read_is_what_an_edit_is_given": 2,
    "model/test_initial_loss.py::test_the_default_model_reduces_the_loss_in_a_few_steps": 2,
    "model/test_initial_loss.py::test_the_initial_loss_of_defaults_is_near_log_vocabulary": 4,
    "model/test_initial_loss.py::test_the_initial_loss_with_a_tied_head_is_near_log_vocabulary": 4,
    "model/test_norm.py::test_nan_in_padding_reaches_no_output_and_no_gradient": 2,
    "model/test_norm.py::test_running_statistics_change_only_in_training": 2,
    "model/test_own_inputs_and_heads.py::test_a_task_trains_and_evaluates_user_defined_inputs_and_heads": 3,
    "model/test_recurrent.py::test_decoding_a_block_in_parts_equals_the_forward_pass": 6,
    "model/test_recurrent.py::test_nan_padding_reaches_no_output_and_no_gradient_of_cells": 3,
    "model/test_scale_in_map.py::test_values_and_gradients_are_those_of_scaled_logits": 3,
    "model/test_torch_parity.py::test_a_block_equals_the_torch_encoder_layer": 3,
    "nn/test_attention.py::test_equals_the_float64_loop": 2,
    "nn/test_attention_weights.py::test_weights_and_their_mixture_are_the_whole": 3,
    "nn/test_attention_weights.py::test_weights_equal_the_float64_loop_and_rows_sum_to_one_or_nothing": 3,
    "nn/test_chunks.py::test_loss_and_gradient_do_not_depend_on_the_chunks": 2,
    "nn/test_distances.py::test_alibi_is_minus_slope_times_distance": 3,
    "nn/test_dropout.py::test_a_part_of_a_batch_has_the_mask_of_the_whole_batch": 6,
    "nn/test_kernel_meshes.py::test_the_tpu_kernel_lowers_whatever_axes_are_mapped_already": 4,
    "nn/test_kernels.py::test_cudnn_arguments_equal_the_equation": 2,
    "nn/test_kernels.py::test_padding_that_is_not_finite_changes_nothing": 3,
    "nn/test_kernels.py::test_tiles_equal_the_equation": 4,
    "nn/test_kernels.py::test_tiles_take_bias_cap_and_scale_with_their_gradients": 2,
    "nn/test_losses.py::test_any_split_into_micro_batches_gives_the_same_loss_and_gradient": 2,
    "nn/test_losses.py::test_equals_the_sum_over_tokens": 2,
    "nn/test_norms.py::test_derivatives_of_both_modes_and_orders_agree": 3,
    "nn/test_rotary.py::test_equals_multiplication_by_unit_complex_numbers": 2,
    "report/test_claim_context.py::test_an_interaction_is_shown_with_the_two_effects_that_it_compares": 2,
    "report/test_claim_context.py::test_the_report_begins_with_the_answer_to_its_question": 3,
    "report/test_report.py::test_odd_studies_have_reports_too": 2,
    "runner/test_execute.py::test_an_exception_fails_its_own_group_and_is_retried_when_asked_for": 2,
    "runner/test_execute.py::test_the_length_of_a_chunk_changes_no_bit": 4,
    "runner/test_kept_weights.py::test_kept_weights_give_the_evaluations_of_the_row": 10,
    "runner/test_run_alone.py::test_a_run_of_a_study_has_the_bits_of_the_run_alone": 12,
    "sharding/test_rows.py::test_each_decoded_row_equals_that_of_one_device": 3,
    "store/test_columns.py::test_lines_with_any_value_are_rows_or_damage": 6,
    "store/test_columns.py::test_tables_with_any_column_are_rows_or_damage": 9,
    "store/test_store_faults.py::test_damaged_files_are_set_aside_and_only_their_rows_are_trained_again": 2,
    "study/test_joint_law.py::test_a_law_that_is_not_identified_has_its_reason": 2,
    "study/test_scaling_law.py::test_scores_without_a_law_have_intervals_without_a_warning": 3,
    "study/test_search.py::test_two_workers_in_one_folder_train_every_stage_once": 2,
    "tasks/test_evaluation_data.py::test_the_batch_size_does_not_change_the_evaluation_examples": 6,
    "tasks/test_evaluation_data.py::test_the_digest_is_that_of_the_examples_in_any_division": 3,
    "tasks/test_evaluation_data.py::test_the_test_set_has_the_shape_of_the_evaluation_set_and_other_examples": 3,
    "tasks/test_tasks.py::test_every_field_of_a_task_changes_its_data": 4,
    "tasks/test_token_files.py::test_documents_in_a_window_do_not_influence_each_other": 2,
    "test_cli.py::test_failed_runs_exit_with_1_and_say_why": 2,
    "test_laws.py::test_scanned_layers_equal_unrolled_ones": 2,
    "test_laws.py::test_sequences_of_a_batch_are_independent": 2,
    "test_laws.py::test_the_content_of_padding_does_not_change_the_output": 2,
    "test_laws.py::test_the_gradient_reaches_exactly_the_tokens_that_the_mask_allows": 4,
    "test_liveness.py::test_every_field_changes_the_result": 4,
    "test_new.py::test_a_new_file_declares_a_study_that_trains": 2,
    "test_params.py::test_initial_std_of_matrices_follows_the_initializer": 3,
    "test_published.py::test_the_forward_pass_has_the_shape_of_the_vocabulary": 2,
    "test_user_code.py::test_changed_definition_is_named_in_the_error_and_results_can_be_kept": 9,
    "test_user_code.py::test_edits_without_effect_on_results_retrain_nothing": 3,
    "training/test_accumulation.py::test_dropout_is_the_same_in_any_number_of_micro_batches": 6,
    "training/test_compiled_run.py::test_an_error_of_the_compiler_ends_compile": 3,
    "training/test_compiled_run.py::test_programs_compiled_beforehand_run_on_their_device": 3,
    "training/test_flops.py::test_a_training_step_has_six_flops_per_weight_and_token_and_its_attention": 2,
    "training/test_optimizer.py::test_updates_equal_optax_adamw": 4,
    "training/test_optimizers.py::test_both_layouts_get_the_same_update": 2,
    "training/test_parametrizations.py::test_learning_rates_of_mup_are_those_of_table_3": 2,
    "training/test_precision.py::test_the_residual_stream_is_bfloat16_and_attention_weights_and_logits_are_float32": 3,
    "training/test_seeds_apart.py::test_a_seed_of_one_source_changes_that_source_only": 3,
    "training/test_split_loss.py::test_chunks_change_neither_loss_nor_gradient_nor_scores": 2,
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


FOR_SMALL_PROGRAMS = {"xla_cpu_parallel_codegen_split_count": 1}
"""Options of XLA with which small programs compile in less time."""
if jax.__version_info__ < (0, 11):  # later versions have no other emitters
    FOR_SMALL_PROGRAMS["xla_cpu_use_fusion_emitters"] = False


def compile_options(*arguments, env_options_overrides=None, **options):
    """Options of XLA, with those for small programs in tests that are compiled with little optimisation."""
    if compiled_with.get("little"):
        env_options_overrides = FOR_SMALL_PROGRAMS | (env_options_overrides or {})
    return OPTIONS_OF_JAX(*arguments, env_options_overrides=env_options_overrides, **options)


OPTIONS_OF_JAX = compiler.get_compile_options
compiler.get_compile_options = compile_options
USES = 100
"""Programs that are lowered in one context; a context keeps their constants and types."""
contexts = threading.local()


def context_of_several_programs():
    """Return an MLIR context that the next programs of a thread share, since making one takes as long as a lowering.

    A program that is compiled while another is lowered has a context of its own.
    """
    if ir.Context.current is not None:
        return CONTEXT_OF_JAX()
    if getattr(contexts, "uses", 0) % USES == 0:
        contexts.current, contexts.uses = CONTEXT_OF_JAX(), 0
    contexts.uses += 1
    return contexts.current


CONTEXT_OF_JAX = mlir.make_ir_context
mlir.make_ir_context = context_of_several_programs
OPTIMISED = {
    "runner/test_run_alone.py",
    "targets",
    "training/test_compiled_run.py",
    "training/test_memory_targets.py",
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
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(little)  # for the processes that a test starts
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
