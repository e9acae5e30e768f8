"""Edits in code that is mapped over prompts: a function still gets the activations of all prompts in one array.

Beam search is written for one prompt and mapped over the batch by `vmap`, and within it over hypotheses. An edit may
depend on its place in the batch, as values per row or `interpret.resample` do, so that `vmap` over prompts must not map
it: `custom_vmap` hands it the activations [B, ...] of all prompts. Other axes, such as hypotheses, are mapped.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Int, PyTree

from flaxformer.core.points import Edit, Edits, edit_after
from flaxformer.model.decoding_edits import EditArguments

Call = Callable[[EditArguments, PyTree], PyTree]
"""Function of an edit and the activations of all prompts; the edit is an argument because its arrays may be traced."""
AXIS = "prompts"
"""Name of the axis of the `vmap` over prompts."""


def map_edits(edits: Edits | None) -> Edits | None:
    """Return the edits of a batch for code that is mapped over prompts, each of them a batch of one.

    That `vmap` has the axis name `AXIS`.
    """
    if edits is None:
        return None
    return dataclasses.replace(
        edits, functions={path: _MappedEdit(function) for path, function in edits.functions.items()}
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _MappedEdit:
    """Edit of the activation of one prompt, or of one hypothesis for its continuation."""

    function: Edit

    def after(self, count: int | Int[Array, ""]) -> "_MappedEdit":
        """Return the edit of tokens that follow `count` others; see `points.Edit`."""
        return _MappedEdit(edit_after(self.function, count))

    def __call__(self, x: PyTree) -> PyTree:
        """Return the activation after the edit."""
        return _of_prompt(_edit_batch)(EditArguments.of({"": self.function}), x, jax.lax.axis_index(AXIS))


def _edit_batch(edit: EditArguments, x: PyTree) -> PyTree:
    """Return the activations [B, 1, …] of all prompts after an edit, which is given [B, …]."""
    edits = edit.edits()
    assert edits is not None
    y = edits.functions[""](jax.tree.map(lambda leaf: leaf.squeeze(1), x))
    return jax.tree.map(lambda leaf: leaf[:, None], y)


def _of_prompt(call: Call) -> Callable[[EditArguments, PyTree, Array], PyTree]:
    """Return the function of one prompt that `vmap` over prompts turns into `call`.

    Its third argument, the number of the prompt, is mapped by that `vmap` alone.
    """

    @custom_vmap
    def of_prompt(edit: EditArguments, x: PyTree, prompt: Array) -> PyTree:
        return x  # never computed: the number of the prompt is mapped

    @of_prompt.def_vmap
    def of_all(size: int, is_mapped: list[PyTree], edit: EditArguments, x: PyTree, prompt: Array) -> tuple:
        edit_is_mapped, x_is_mapped, is_over_prompts = is_mapped
        # A condition that is mapped repeats the arrays of an edit; they are equal.
        edit = jax.tree.map(lambda leaf, mapped: leaf[0] if mapped else leaf, edit, edit_is_mapped)
        x = jax.tree.map(
            lambda leaf, mapped: leaf if mapped else jnp.broadcast_to(leaf, (size, *leaf.shape)),
            x,
            x_is_mapped,
        )
        if is_over_prompts:
            y = call(edit, x)
        else:  # over hypotheses or layers; the leading axis of what `call` gets is that of the prompts
            y = _of_prompt(jax.vmap(call, in_axes=(None, 1), out_axes=1))(edit, x, prompt)
        return y, jax.tree.map(lambda _: True, y)

    return of_prompt
