"""Every kernel against the equation of one head, in value and gradient, over masks, dtypes and shapes.

Fused kernels run without their hardware: splash attention in Pallas's interpreter; cuDNN's and tokamax's arguments go
to the plain products of the same function.
"""

import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.nn import Causal, Explicit, Padding, Segments, Window, dot_product_attention
from flaxformer.nn.formulations import FormulationChoice, compiling_for, platform, recording, using
from flaxformer.nn.kernels import KERNELS, attention, chunked, cudnn, splash, tokamax
from flaxformer.nn.kernels.call import AttentionCall
from flaxformer.nn.kernels.products import reference_attention
from flaxformer.nn.kernels.structure import structure
from flaxformer.nn.masks import Mask, Prefix, lengths_to_valid

B, N, K = 3, 6, 3
COMPUTE = {
    "chunked": functools.partial(chunked.chunked_attention, side=5),
    "splash": functools.partial(splash.splash_attention, interpret=True),
    "cudnn": lambda call: cudnn.cudnn_attention(call, "xla"),
    "tokamax": lambda call: tokamax.tokamax_attention(call, "xla"),
}
UNMET = {"chunked": chunked.unsupported_reason, "splash": splash.unsupported_reason, "tokamax": tokamax.unmet_condition}
SHAPES = {"square": (13, 13), "more keys": (7, 13), "more queries": (13, 7), "one query": (1, 11), "one key": (11, 1)}


class Even(Mask):
    """A mask of a user's own: keys of even index."""

    def matrix(self, queries, keys):
        return jnp.broadcast_to(jnp.arange(keys) % 2 == 0, (queries, keys))


def masks(T, S):
    """Masks by name; in each with padding, a sequence has no token."""
    random = np.random.default_rng(T * 100 + S)
    valid = jnp.asarray(random.random((B, S)) < 0.6).at[1].set(False)
    lengths = jnp.asarray([S, 0, (S + 1) // 2])
    ids, other = (jnp.asarray(random.integers(0, 3, (B, length))) for length in (T, S))
    explicit = jnp.asarray(random.random((B, N, T, S)) < 0.4).at[0, 1, T // 2].set(False)
    return {
        "none": None,
        "causal": Causal(),
        "causal after 2 keys": Causal(offset=2),
        "causal before 3 keys": Causal(offset=-3),
        "window": Window(3),
        "causal window": Window(4) & Causal(),
        "padding": Padding(valid),
        "causal padding": Causal() & Padding(valid),
        "lengths": Prefix(lengths),
        "causal lengths": Causal() & Prefix(lengths),
        "prefix": Causal() | Prefix(lengths),
        "segments": Segments(ids, other),
        "packed": Causal() & Segments(ids, other) & Padding(valid) & Window(5),
        "traced window": Causal() & Window(jnp.int32(3)),
        "positions": Window(2, ids, other) & Causal(),
        "explicit": Explicit(explicit),
    }


NAMES = list(masks(1, 1))


def arrays(T, S, d_k, d_v, dtype=jnp.float32):
    random = np.random.default_rng(T * 10_000 + S * 100 + d_k)
    shapes = (B, T, N, d_k), (B, S, K, d_k), (B, S, K, d_v), (B, T, N, d_v)
    return [jnp.asarray(random.normal(size=shape), dtype) for shape in shapes]


def equals_the_reference(kernel, T, S, d_k, d_v, mask, dtype=jnp.float32, tolerance=3e-5, bias=None, **logits):
    query, key, value, cotangent = arrays(T, S, d_k, d_v, dtype)

    def both(compute, *numbers):
        def attend(query, key, value):
            return compute(AttentionCall(query, key, value, mask, bias, logits.get("scale", 0.37), logits.get("cap")))

        y, back = jax.vjp(attend, *numbers[:3])
        return jax.device_get([y, *back(numbers[3])])

    found = jax.jit(functools.partial(both, COMPUTE[kernel]))(query, key, value, cotangent)
    wide = [x.astype(jnp.float32) for x in (query, key, value, cotangent)]
    expected = jax.jit(functools.partial(both, reference_attention))(*wide)
    for name, own, other in zip(("y", "query", "key", "value"), found, expected, strict=True):
        assert own.dtype == dtype
        assert np.isfinite(own.astype(np.float32)).all()
        np.testing.assert_allclose(
            own.astype(np.float32), other, rtol=tolerance, atol=tolerance * max(1, abs(other).max()), err_msg=name
        )


@pytest.mark.every(4)
@pytest.mark.parametrize(
    "shape", [name if name == "more keys" else pytest.param(name, marks=pytest.mark.slow) for name in SHAPES]
)
@pytest.mark.parametrize("mask", NAMES)
def test_tiles_equal_the_equation(mask, shape):
    T, S = SHAPES[shape]
    equals_the_reference("chunked", T, S, 5, 3, masks(T, S)[mask])


@pytest.mark.parametrize("mask", ["causal", "packed", "explicit"])
def test_tiles_in_bfloat16_equal_the_equation(mask):
    equals_the_reference("chunked", 13, 13, 8, 8, masks(13, 13)[mask], jnp.bfloat16, tolerance=0.03)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "shape",
    [
        (11, 1),
        (B, N, 11, 13),
        *(pytest.param(shape, marks=pytest.mark.slow) for shape in [(13,), (11, 13), (N, 1, 13), (B, 1, 1, 13)]),
    ],
    ids=str,
)
def test_tiles_take_bias_cap_and_scale_with_their_gradients(shape):
    T, S = 11, 13
    random = np.random.default_rng(1)
    query, key, value, cotangent = arrays(T, S, 5, 3)
    bias = jnp.asarray(random.normal(size=shape), jnp.float32)

    def gradients(compute):
        def attend(query, key, value, bias, scale, cap):
            return compute(AttentionCall(query, key, value, Causal(offset=3), bias, scale, cap))

        y, back = jax.vjp(attend, query, key, value, bias, jnp.float32(0.61), jnp.float32(1.7))
        return jax.device_get((y, *back(cotangent)))

    for own, other in zip(*map(gradients, (COMPUTE["chunked"], reference_attention)), strict=True):
        assert own.shape == other.shape
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize("cap", [None, 1.7])
def test_scale_and_cap_may_be_numbers_in_a_loop_over_layers(cap):
    query, key, value, _ = arrays(16, 16, 4, 4)

    @jax.jit
    def gradient(query):
        @jax.checkpoint
        def layer(x, _):
            return COMPUTE["chunked"](AttentionCall(x, key, value, Causal(), None, 0.37, cap)), None

        return jax.grad(lambda x: jax.lax.scan(layer, x, length=2)[0].sum())(query)

    def plain(x):
        for _ in range(2):
            x = reference_attention(AttentionCall(x, key, value, Causal(), None, 0.37, cap))
        return x.sum()

    np.testing.assert_allclose(gradient(query), jax.grad(plain)(query), rtol=1e-4, atol=1e-5)


def test_tiles_map_over_trials_and_leading_axes():
    query, key, value, _ = arrays(13, 13, 5, 3)
    mask = masks(13, 13)["causal padding"]
    scales = jnp.asarray([0.2, 0.9])

    def attend(scale, compute):
        return compute(AttentionCall(query, key, value, mask, None, scale))

    both = (
        jax.vmap(functools.partial(attend, compute=one))(scales) for one in (COMPUTE["chunked"], reference_attention)
    )
    np.testing.assert_allclose(*both, rtol=1e-4, atol=1e-5)
    split = [x.reshape(1, B, *x.shape[1:]) for x in (query, key, value)]
    own = dot_product_attention(*split, mask=Causal(), implementation="chunked")
    np.testing.assert_allclose(
        own[0], dot_product_attention(query, key, value, mask=Causal(), implementation="reference"), atol=1e-5
    )


def biggest(jaxpr, found=0):
    """Number of elements of the largest array in a program, inner programs included."""
    for equation in jaxpr.eqns:
        found = max([found, *(variable.aval.size for variable in equation.outvars)])
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "jaxpr")):
            inner = getattr(value, "jaxpr", value)
            found = biggest(inner, found) if hasattr(inner, "eqns") else found
    return found


@pytest.mark.parametrize("mask", ["none", "packed", "prefix"])
def test_no_array_of_the_logits_above_the_limit(mask):
    T = 4 * chunked.SIDE
    shapes = [jax.ShapeDtypeStruct((B, T, heads, 8), jnp.float32) for heads in (N, K, K)]
    ids, valid = jnp.zeros((B, T), int), jnp.ones((B, T), bool)
    form = {
        "none": None,
        "packed": Causal() & Segments(ids, ids) & Padding(valid),
        "prefix": Causal() | Prefix(ids[:, 0]),
    }

    def total(query, key, value):
        return dot_product_attention(query, key, value, mask=form[mask]).sum()

    program = jax.make_jaxpr(jax.grad(total, (0, 1, 2)))(*shapes)
    assert biggest(program.jaxpr) <= B * N * chunked.MAX_LOGITS < B * N * T * T // 8
    with using("reference"):
        assert biggest(jax.make_jaxpr(jax.grad(total))(*shapes).jaxpr) >= B * N * T * T


def test_tiles_outside_the_band_are_not_computed():
    def count(mask):
        return len(chunked.tiling((), 64, 64, structure(mask), 8).starts)

    assert [count(mask) for mask in (None, Causal(), Causal() & Window(8), Window(9))] == [64, 36, 15, 22]
    assert count(Causal() | Prefix(jnp.ones(3, int))) == 64


@pytest.mark.every(3)
@pytest.mark.parametrize("kernel", ["chunked", "splash", "cudnn"])
def test_padding_that_is_not_finite_changes_nothing(kernel):
    T = 7
    lengths = jnp.asarray([4, 7, 0])
    query, key, value, cotangent = arrays(T, T, 8, 8)
    padded = ~lengths_to_valid(lengths, T)[..., None, None]

    def run(key, value):
        call = AttentionCall(query, key, value, Causal() & Prefix(lengths), None, 0.4)
        y, back = jax.vjp(
            lambda *qkv: COMPUTE[kernel](call._replace(query=qkv[0], key=qkv[1], value=qkv[2])), *call[:3]
        )
        return jax.device_get((y, *back(cotangent)))

    nan, zero = (run(*(jnp.where(padded, fill, x) for x in (key, value))) for fill in (jnp.nan, 0.0))
    for own, other in zip(nan, zero, strict=True):
        np.testing.assert_array_equal(own, other)
    assert (nan[0][2] == 0).all()


FUSED = ["none", "causal", "window", "causal window", "causal padding", "causal lengths", "packed"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(13, 13), (7, 130), (130, 7)], ids=str)
@pytest.mark.parametrize("mask", NAMES)
def test_splash_equals_the_equation(mask, shape, dtype):
    given = masks(*shape)[mask]
    call = AttentionCall(*arrays(*shape, 16, 8, dtype)[:3], given)
    if splash.unsupported_reason(call) is not None:
        pytest.skip(splash.unsupported_reason(call))
    equals_the_reference("splash", *shape, 16, 8, given, dtype, tolerance=3e-5 if dtype == jnp.float32 else 0.03)


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("mask", ["packed", "causal lengths"])
def test_splash_equals_the_equation_with_padding(mask):
    equals_the_reference("splash", 13, 13, 5, 3, masks(13, 13)[mask], cap=1.7)


CUDNN = ["none", "causal", "causal window", "lengths", "causal lengths"]


@pytest.mark.every(2, "long")
@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("shape", "widths"), [((7, 7), (5, 3)), ((10, 10), (8, 8)), ((7, 12), (12, 20)), ((8, 5), (8, 8))], ids=str
)
@pytest.mark.parametrize("mask", CUDNN)
def test_cudnn_arguments_equal_the_equation(mask, shape, widths):
    given = masks(*shape)[mask]
    if shape[0] != shape[1] and "causal" in mask:
        assert not cudnn.takes_mask(AttentionCall(*arrays(*shape, *widths)[:3], given))
        return
    equals_the_reference("cudnn", *shape, *widths, given)


def test_a_kernel_maps_over_trials_whose_padding_is_shared():
    query, key, value, _ = arrays(7, 7, 5, 5)
    call = AttentionCall(query, key, value, Prefix(jnp.asarray([4, 0, 7])), None, 0.4)

    def attend(factor, compute):
        return compute(call._replace(query=call.query * factor))

    own, other = (
        jax.vmap(functools.partial(attend, compute=one))(jnp.asarray([1.0, 2.0]))
        for one in (COMPUTE["cudnn"], reference_attention)
    )
    np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mask", FUSED)
def test_tokamax_arguments_equal_the_equation(mask):
    pytest.importorskip("tokamax")
    given = masks(10, 10)[mask]
    call = AttentionCall(*arrays(10, 10, 8, 8, jnp.bfloat16)[:3], given)
    if tokamax.unmet_condition(call) is not None:
        pytest.skip(tokamax.unmet_condition(call))
    equals_the_reference("tokamax", 10, 10, 8, 8, given, jnp.bfloat16, tolerance=0.03)


def test_structure_of_a_mask_is_what_kernels_take():
    valid, lengths, ids = jnp.ones((B, 4), bool), jnp.ones(B, int), jnp.zeros((B, 4), int)
    found = structure(Causal() & (Window(3) & Padding(valid)) & Prefix(lengths) & Segments(ids, ids))
    assert (found.least, found.greatest, found.is_whole) == (0, 2, True)
    assert found.valid is valid
    assert found.lengths is lengths
    assert structure(Window(3)) == (-2, 2, None, None, None, True)
    assert structure(Causal(offset=2) & Causal()).least == 0
    assert not structure(Window(jnp.int32(3))).is_whole
    assert not structure(jnp.ones((4, 4), bool)).is_whole
    assert not structure(Segments(ids, ids) & Segments(ids, ids)).is_whole
    either = structure(Causal() & Window(2) | Causal(offset=1) & Window(5))
    assert (either.least, either.greatest, either.is_whole) == (-1, 4, False)


def call(T=1024, mask=None, dtype=jnp.bfloat16, **more):
    arrays = (jax.ShapeDtypeStruct((B, T, heads, 64), dtype) for heads in (N, K, K))
    return AttentionCall(*arrays, mask=mask, **more)


def chosen(*arguments, **more):
    with recording() as found:
        attention.choose(call(*arguments, **more))
    return found[-1]


SEGMENTS = Causal() & Segments(jnp.zeros((B, 1024), int), jnp.zeros((B, 1024), int))


@pytest.mark.parametrize(
    ("target", "mask", "more", "kernel"),
    [
        ("tpu", Causal(), {}, "splash"),
        ("tpu", SEGMENTS, {}, "splash"),
        ("tpu", Causal() & Window(256), {"dtype": jnp.float32}, "splash"),
        ("tpu", Causal(), {"bias": jnp.zeros(1024)}, "chunked"),
        ("tpu", Causal() & Window(jnp.int32(256)), {}, "chunked"),
        ("tpu", Causal(), {"T": 64}, "xla"),
        ("gpu", Causal(), {}, "cudnn"),
        ("gpu", Causal() & Window(256), {}, "cudnn"),
        ("gpu", Causal(), {"T": 63}, "cudnn"),
        ("gpu", SEGMENTS, {}, "chunked"),
        ("gpu", Causal(), {"dtype": jnp.float32}, "chunked"),
        ("cpu", Causal(), {}, "chunked"),
        ("cpu", Causal(), {"T": 512}, "xla"),
        ("cpu", Even(), {}, "xla"),
    ],
)
def test_the_compile_target_chooses_the_kernel(target, mask, more, kernel):
    with compiling_for(target):
        found = chosen(mask=mask, **more)
    assert found.formulation == kernel
    earlier = list(KERNELS)[: list(KERNELS).index(kernel)]
    here = [name for name in earlier if target in KERNELS[name].platforms]
    assert [reason.partition(":")[0] for reason in found.reasons] == here


def test_a_program_is_traced_again_for_another_target():
    @jax.jit
    def attend(query, key, value):
        return dot_product_attention(query, key, value, mask=Causal())

    def kernel():
        with recording() as found:
            attend.trace(*call(dtype=jnp.float32)[:3])
        return [choice.formulation for choice in found]

    assert kernel() == ["chunked"]
    with compiling_for("tpu"):
        assert kernel() == ["splash"]
        assert platform() == ("tpu", False)
    assert kernel() == []  # the first trace is still in JAX's cache
    assert platform() == ("cpu", True)


def test_choices_are_logged_once_with_their_reasons(caplog):
    with caplog.at_level(logging.INFO, "flaxformer.nn.formulations"):
        for _ in range(2):
            chosen(T=500, mask=Causal() & Window(17))
    assert [record.getMessage() for record in caplog.records] == [
        "attention by xla; T 500, 6 heads on 3, d 64, bfloat16, causal & window 17; "
        "chunked: T · S is 250,000; tiles save memory above 262,144"
    ]
    assert isinstance(chosen(), FormulationChoice)
    assert chosen(T=600, mask=Causal() & Window(17)).call == "T 600, 6 heads on 3, d 64, bfloat16, causal & window 17"


def test_a_refused_kernel_says_why():
    query, key, value, _ = arrays(4, 4, 8, 8)
    with pytest.raises(ValueError, match="implementation is 'splash': splash needs a TPU"):
        dot_product_attention(query, key, value, implementation="splash")
    with pytest.raises(ValueError, match="implementation is 'chunked': tiles need masks with `tile`; mask is Even"):
        dot_product_attention(query, key, value, mask=Even(), implementation="chunked")
