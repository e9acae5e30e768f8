"""Linear maps against einsum in float64, summed over one or more axes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.nn.linear import linear

# x, weight, contracted axes, and the sum in letters.
CASES = {
    "vector": ((3,), (3, 5), 1, "i,io->o"),
    "batch": ((2, 7, 3), (3, 5), 1, "bti,io->bto"),
    "into heads": ((2, 7, 3), (3, 5, 11), 1, "bti,inh->btnh"),
    "out of heads": ((2, 7, 5, 11), (5, 11, 3), 2, "btnh,nho->bto"),
    "heads to heads": ((7, 5, 11), (5, 11, 3, 2), 2, "tnh,nhop->top"),
}
every_case = pytest.mark.parametrize(("x", "weight", "contract", "letters"), list(CASES.values()), ids=list(CASES))


def numbers(x, weight, contract):
    random = np.random.default_rng(0)
    return [random.normal(size=shape) for shape in (x, weight, weight[contract:])]


@every_case
@pytest.mark.parametrize("biased", [False, True])
def test_equals_einsum(x, weight, contract, letters, biased):
    x, weight, bias = numbers(x, weight, contract)
    wanted = np.einsum(letters, x, weight) + (bias if biased else 0)
    given = [jnp.asarray(a, jnp.float32) for a in (x, weight, bias)][: 2 + biased]
    options = {} if contract == 1 else {"contract": contract}
    np.testing.assert_allclose(linear(*given, **options), wanted, atol=2e-5)


@every_case
def test_gradients_are_the_transposed_sums(x, weight, contract, letters):
    x, weight, bias = numbers(x, weight, contract)
    (inputs, output), (first, second) = letters.split("->"), letters.split("->")[0].split(",")
    assert inputs == f"{first},{second}"
    cotangent = np.random.default_rng(1).normal(size=np.einsum(letters, x, weight).shape)
    wanted = (
        np.einsum(f"{output},{second}->{first}", cotangent, weight),
        np.einsum(f"{first},{output}->{second}", x, cotangent),
        cotangent.reshape(-1, *bias.shape).sum(0),
    )
    _, pull = jax.vjp(
        functools.partial(linear, contract=contract), *(jnp.asarray(a, jnp.float32) for a in (x, weight, bias))
    )
    for actual, expected in zip(pull(jnp.asarray(cotangent, jnp.float32)), wanted, strict=True):
        np.testing.assert_allclose(actual, expected, atol=5e-5)


@every_case
def test_lowers_to_one_matrix_product(x, weight, contract, letters):
    given = [jnp.zeros(a) for a in (x, weight, weight[contract:])]
    jaxpr = jax.make_jaxpr(functools.partial(linear, contract=contract))(*given)
    assert [str(e.primitive) for e in jaxpr.eqns].count("dot_general") == 1
    (product,) = (e for e in jaxpr.eqns if str(e.primitive) == "dot_general")
    assert all(v.aval.ndim == 2 for v in product.invars)


def test_linear_rejects_different_widths():
    with pytest.raises(ValueError, match="expected x to end in"):
        linear(jnp.ones((2, 3)), jnp.ones((5, 7)))


def test_linear_rejects_swapped_input_axes():
    with pytest.raises(ValueError, match=r"\(2, 5, 11\).*\(11, 5, 3\).*expected x to end in \(11, 5\)"):
        linear(jnp.ones((2, 5, 11)), jnp.ones((11, 5, 3)), contract=2)
