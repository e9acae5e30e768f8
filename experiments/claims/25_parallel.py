"""How much of a recurrent network can be computed in parallel, and does recurrence preclude it?

The notes on self-attention: h_2 needs h_1, h_3 needs h_2, and so the parallel computation of a longer sequence is
limited by the number of serial dependencies. The walk-through calls the computation not parallelizable, and "What
Happens in A Transformer Layer" says that recurrence inherently precludes it. Claim 13 counts the trips of loops and
measures time on one kind of machine. Here two numbers of the traced program are counted, which hold for every machine:

- work: the number of arithmetic operations;
- path: the length of the longest chain of operations that each need the result of the one before. An elementwise
  operation counts 1, a sum or maximum of n numbers ⌈log₂ n⌉, a matrix product 1 + ⌈log₂ n⌉, and moving data 0. A loop
  over tokens is followed iteration by iteration, so that what does not depend on the state is not in the chain.

With p processors, the time is at least path and at least work / p, and a schedule exists that takes at most
work / p + path (Brent 1974). Work / path, the average parallelism, is therefore the largest speed-up that is possible.
The programs are the gradients of one layer of width 32, with one sequence of 128 and 256 tokens.

Two conditions. First, the cell is nonlinear in its state. h_t = a_t h_{t−1} + b_t, where a_t and b_t depend on the
token alone, is a recurrence too; its steps are affine maps, the composition of affine maps is associative, and an
associative scan computes all h_t along a path of order log T. It is tested with a gated recurrence of this kind (the
minimal GRU of Feng et al. 2024), once as a loop and once as a scan, whose outputs and gradients have to agree. Second,
a Transformer is parallel over tokens that are given. Tokens that it generates itself are computed one after another.

Drafts: with twice the tokens, the path grew from 128 to 256 tokens by a factor of 2.00 in Elman, GRU and LSTM networks
and by 4 operations in attention, and the linear recurrence's by 1.96 as a loop and by 12 operations as a scan. Loop and
scan were the same within 2e-7 (seeds 100 to 103).

Command: flaxformer claims 25
Cost: no training, about 20 CPU-seconds; the quick form, the counts alone, 12.
"""

import functools
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.extend import core
from jaxtyping import Array, Float

from flaxformer import (
    GRU,
    LSTM,
    Attention,
    Claim,
    Context,
    Elman,
    Embeddings,
    ModelConfig,
    NoHead,
    Parameters,
    Probe,
    TokenMixer,
    model,
    param,
    recurrent_model,
    static,
)
from flaxformer.claims import Case
from flaxformer.nn.linear import linear

LENGTHS = (128, 256)
MOVES = {"broadcast_in_dim", "concatenate", "convert_element_type", "copy", "dynamic_slice", "dynamic_update_slice"}
MOVES |= {"expand_dims", "gather", "iota", "pad", "reshape", "rev", "slice", "split", "squeeze", "stack"}
MOVES |= {"stop_gradient", "transpose", "unstack"}
"""Operations without arithmetic."""


class MinimalGRU(TokenMixer):
    """h_t = (1 − z_t) ⊙ h_{t−1} + z_t ⊙ n_t, whose gate z = σ(x W_z) and candidate n = x W_n do not depend on h.

    scan: compute all h_t by an associative scan; by default, by a loop over tokens.
    """

    class Weights(Parameters):
        """Matrices of the gate and of the candidate."""

        gate: Float[Array, "d_model d_model"] = param(fan_in="d_model")
        candidate: Float[Array, "d_model d_model"] = param(fan_in="d_model")

    reads_mask: ClassVar[bool] = False
    scan: bool = static(False)

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        gate = jax.nn.sigmoid(linear(x, weights.gate))
        maps = 1 - gate, gate * linear(x, weights.candidate)
        if self.scan:
            return jax.lax.associative_scan(compose, maps, axis=x.ndim - 2)[1]
        by_token = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -2, 0), maps)
        first = jnp.zeros_like(by_token[1][0])
        _, hidden = jax.lax.scan(lambda h, token: (token[0] * h + token[1],) * 2, first, by_token)
        return jnp.moveaxis(hidden, 0, -2)


def compose(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return the affine map (a, b), h → a h + b, of two maps one after the other."""
    return first[0] * second[0], second[0] * first[1] + second[1]


SHAPE = {"d_model": 32, "layers": 1}
CELLS = {"Elman": Elman(), "GRU": GRU(), "LSTM": LSTM()}
LINEAR = {"linear, loop": MinimalGRU(), "linear, scan": MinimalGRU(scan=True)}
MODELS = {
    name: config.replace(inputs=Embeddings(), head=NoHead())
    for name, config in {
        "attention": ModelConfig(attention=Attention(heads=1), **SHAPE),
        **{name: recurrent_model(cell, **SHAPE) for name, cell in (CELLS | LINEAR).items()},
    }.items()
}


def inner(equation: core.JaxprEqn) -> core.Jaxpr | None:
    """Return the program that an operation calls; None for an operation without one."""
    calls = [equation.params.get(name) for name in ("jaxpr", "call_jaxpr", "fun_jaxpr")]
    found = next((call for call in calls if call is not None), None)
    return getattr(found, "jaxpr", found)


def chain(equation: core.JaxprEqn) -> int:
    """Return the length of the chain of operations within one operation."""
    name = equation.primitive.name
    if name in MOVES:
        return 0
    shape = equation.invars[0].aval.shape
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return 1 + math.ceil(math.log2(math.prod(shape[axis] for axis in contracted)))
    if name.startswith("reduce_"):
        return math.ceil(math.log2(math.prod(shape[axis] for axis in equation.params["axes"])))
    return 1


def paths(program: core.Jaxpr, starts: list[int]) -> list[int]:
    """Return the path to each output of a program, given those to its inputs."""
    to = dict(zip(program.invars, starts, strict=True))

    def read(variable: Any) -> int:
        return 0 if isinstance(variable, core.Literal) else to.get(variable, 0)

    for equation in program.eqns:
        given, body = [read(variable) for variable in equation.invars], inner(equation)
        if equation.primitive.name == "scan":
            constants, carries = equation.params["num_consts"], equation.params["num_carry"]
            state, emitted = given[constants : constants + carries], [0] * (len(equation.outvars) - carries)
            for _ in range(equation.params["length"]):
                after = paths(body, given[:constants] + state + given[constants + carries :])
                state, emitted = after[:carries], [max(p) for p in zip(emitted, after[carries:], strict=True)]
            found = state + emitted
        elif body is not None:
            found = paths(body, given)
        else:
            found = [max(given, default=0) + chain(equation)] * len(equation.outvars)
        to |= dict(zip(equation.outvars, found, strict=True))
    return [read(variable) for variable in program.outvars]


def work(program: core.Jaxpr) -> int:
    """Return the number of arithmetic operations of a program."""
    total = 0
    for equation in program.eqns:
        name, body = equation.primitive.name, inner(equation)
        if body is not None:
            total += work(body) * (equation.params["length"] if name == "scan" else 1)
        elif name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            terms = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
            total += 2 * terms * equation.outvars[0].aval.size
        elif name.startswith("reduce_"):
            total += equation.invars[0].aval.size
        elif name not in MOVES:
            total += equation.outvars[0].aval.size
    return total


def gradient(config: ModelConfig, params: Any, x: Array) -> Any:
    """Return the gradient of the mean square of all outputs in the weights."""
    return jax.grad(lambda params: jnp.square(model.apply(params, config, x)).mean())(params)


def generate(config: ModelConfig, params: Any, x: Array) -> Array:
    """Return a sequence of which each token after the first is the output at the token before it."""

    def step(sequence: Array, place: Array) -> tuple[Array, None]:
        output = model.apply(params, config, sequence)
        return jax.lax.dynamic_update_index_in_dim(sequence, output[:, place], place + 1, 1), None

    return jax.lax.scan(step, x, jnp.arange(x.shape[1] - 1))[0]


@functools.cache
def counts(name: str, length: int, batch: int = 1, of: Any = gradient) -> tuple[int, int]:
    """Return path and work of a traced program, by default the gradient."""
    config = MODELS[name]
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), config))
    x = jax.ShapeDtypeStruct((batch, length, config.d_model), jnp.float32)
    program = jax.make_jaxpr(functools.partial(of, config))(params, x).jaxpr
    return max(paths(program, [0] * len(program.invars))), work(program)


def measure(seed: int) -> dict[str, float]:
    """Return the growth of paths and of parallelism with length and batch size."""
    numbers = {}
    for name in MODELS:
        path, operations = zip(*(counts(name, length) for length in LENGTHS), strict=True)
        parallelism = [one / other for one, other in zip(operations, path, strict=True)]
        numbers |= {
            f"path, {name}, 256 tokens": path[1],
            f"parallelism, {name}, 256 tokens": parallelism[1],
            f"path, {name}, 256 over 128 tokens": path[1] / path[0],
            f"path, {name}, 256 less 128 tokens": path[1] - path[0],
            f"parallelism, {name}, 256 over 128 tokens": parallelism[1] / parallelism[0],
        }
    path, operations = counts("LSTM", 256, batch=8)
    numbers["parallelism, LSTM, 8 sequences over 1"] = operations / path / numbers["parallelism, LSTM, 256 tokens"]
    numbers["work, scan over loop, 256 tokens"] = counts("linear, scan", 256)[1] / counts("linear, loop", 256)[1]
    numbers["path, generation with attention, 128 over 64 tokens"] = (
        counts("attention", 128, of=generate)[0] / counts("attention", 64, of=generate)[0]
    )
    return numbers


def differences(seed: int) -> dict[str, float]:
    """Return the largest difference of scan and loop, relative to the largest entry, of outputs and of gradients."""
    params = model.init(jax.random.key(seed), MODELS["linear, loop"])
    x = jax.random.normal(jax.random.key(seed + 1), (2, 256, SHAPE["d_model"]))
    numbers = {}
    for name, function in (("output", lambda config: model.apply(params, config, x)), ("gradient", None)):
        of = function or (lambda config: gradient(config, params, x))
        loop, scan = (jax.tree.leaves(of(MODELS[form])) for form in LINEAR)
        apart = [jnp.abs(one - other).max() / jnp.abs(one).max() for one, other in zip(loop, scan, strict=True)]
        numbers[f"{name}, scan and loop"] = float(max(apart))
    return numbers


COUNTED = Probe(
    name="paths",
    question="How do the longest chain of dependent operations and the average parallelism grow with length?",
    measure=measure,
    seeds=[0],
    exact=True,
    claims=[
        *(
            Claim(
                f"as written, “the number of serial dependencies”: with twice the tokens, the path of the {cell} "
                "network is twice as long, within 5 %",
                equal={"quantity": f"path, {cell}, 256 over 128 tokens"},
                to=2,
                within=0.1,
            )
            for cell in CELLS
        ),
        *(
            Claim(
                f"as written, “only so much we can parallelize”: with twice the tokens, the average parallelism of the "
                f"{cell} network is the same, within 5 %",
                equal={"quantity": f"parallelism, {cell}, 256 over 128 tokens"},
                to=1,
                within=0.05,
            )
            for cell in CELLS
        ),
        Claim(
            "as written, “no longer highly sequential”: with twice the tokens, the path of attention is longer by less "
            "than 20 operations",
            lower={"quantity": "path, attention, 256 less 128 tokens"},
            than=20,
        ),
        Claim(
            "with twice the tokens, the average parallelism of attention grows by above 2 times",
            higher={"quantity": "parallelism, attention, 256 over 128 tokens"},
            than=2,
        ),
        Claim(
            "as written, “inherently precludes parallelization”: with twice the tokens, the shortest path found for a "
            "recurrence that is linear in its state is twice as long, within 5 %",
            equal={"quantity": "path, linear, scan, 256 over 128 tokens"},
            to=2,
            within=0.1,
        ),
        Claim(
            "corrected, a recurrence that is linear in its state is parallel: with twice the tokens, the path is "
            "longer by less than 20 operations",
            lower={"quantity": "path, linear, scan, 256 less 128 tokens"},
            than=20,
        ),
        Claim(
            "at less than 1.5 times the work of the loop",
            lower={"quantity": "work, scan over loop, 256 tokens"},
            than=1.5,
        ),
        Claim(
            "with the condition that there are more sequences: with 8 times the sequences, the average parallelism of "
            "an LSTM is above 6 times as large",
            higher={"quantity": "parallelism, LSTM, 8 sequences over 1"},
            than=6,
        ),
        Claim(
            "with the condition that the model generates the tokens: with twice the tokens, the path of a Transformer "
            "is at least 1.9 times as long",
            higher={"quantity": "path, generation with attention, 128 over 64 tokens"},
            than=1.9,
        ),
    ],
    caveats=[
        "The path is that of the program as it is written, at the granularity of whole arrays; that no shorter program "
        "computes a nonlinear cell is not shown.",
        "Memory, communication and the start of operations cost time too, and are not counted.",
    ],
)
EQUAL = Probe(
    name="scan",
    question="Does the associative scan compute what the loop over tokens computes?",
    measure=differences,
    seeds=range(20, 28),
    claims=[
        Claim(
            f"scan and loop have the same {name}, within a relative 1e-4",
            equal={"quantity": f"{name}, scan and loop"},
            to=0,
            within=1e-4,
        )
        for name in ("output", "gradient")
    ],
    caveats=["Random weights and random tokens, 256 of them, in float32."],
)

case = Case(
    claim="Serial dependencies limit how much of a recurrent network can be computed in parallel as sequences get "
    "longer; recurrence precludes parallelism.",
    source="Self-Attention and Transformers, problems with RNN; Transformer (walk-through), introduction and decoder; "
    "What Happens in A Transformer Layer, inputs and outputs; Brent 1974; Blelloch 1990; Martin & Cundy 2018",
    evidence=[COUNTED, EQUAL],
    quick=[COUNTED],
)
