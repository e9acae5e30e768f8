"""Weights as matrices of inputs and outputs."""

import numpy as np
import pytest

from flaxformer.core.weight_axes import Axes


def axes_of(names, fan_in, batch=(), in_layer=True):
    return Axes(tuple(names.split()), fan_in, batch, in_layer, "hidden")


@pytest.mark.parametrize(
    ("axes", "formula"),
    [
        (axes_of("d_model heads d_head", ("d_model",)), "mnh->mnh"),
        (axes_of("heads d_value d_model", ("heads", "d_value")), "nvm->nvm"),
        (axes_of("layers d_ff experts d_model", ("d_model",), ("experts",)), "lfem->lemf"),
    ],
)
def test_matrices_have_stacked_axes_inputs_and_outputs_in_this_order(axes, formula):
    x = np.random.default_rng(0).standard_normal([2, 3, 5, 7][: len(axes.names)])
    stacked, summed, _ = axes.as_matrix
    inputs = int(np.prod([x.shape[place] for place in summed]))
    expected = np.einsum(formula, x).reshape(*(x.shape[place] for place in stacked), inputs, -1)
    np.testing.assert_array_equal(axes.matrices(x), expected)
    np.testing.assert_array_equal(axes.from_matrices(axes.matrices(x), x.shape), x)
    assert axes.is_layer_matrix


def test_vectors_and_tables_are_not_matrices_of_a_layer():
    vector = axes_of("d_model", ())
    assert not vector.is_layer_matrix
    assert not axes_of("vocabulary d_model", (), in_layer=False).is_layer_matrix
    with pytest.raises(ValueError, match="expected a matrix"):
        vector.matrices(np.zeros(3))
