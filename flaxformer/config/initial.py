"""Initial values of weights: the model's initializer, exceptions by path, and the factors of depth and width."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from flaxformer.components.initializers import Initializer
from flaxformer.core.params import Spec
from flaxformer.core.patterns import matches, unmatched_patterns, without_numbers
from flaxformer.core.struct import Config, leaf, part, static
from flaxformer.core.weight_specs import InitialValue

BRANCH_OUTPUTS = "outputs"
"""Pattern of the matrices with which residual branches write to the residual stream, whatever their names."""


class Initial(Config):
    """Initial values of some weights: factor · (number of residual branches)^−depth_power · what they are otherwise.

    weights: patterns of the paths, such as "blocks/*/attention/query" (`core.patterns`); "outputs" stands for the
        matrices with which residual branches write to the residual stream. An encoder has its own, without "encoder/".
    initializer: draws the weights in place of the model's initializer, or of what their declarations give; None changes
        the scale alone.
    factor: 0 for weights that begin at zero.
    depth_power: ½ for 1/√(2 L) in a model of L layers with two branches each (GPT-2).
    """

    weights: tuple[str, ...] = static()
    initializer: Initializer | None = part(None)
    factor: float = leaf(1.0)
    depth_power: float = leaf(0.0)

    def selects(self, spec: Spec) -> bool:
        """True if the patterns match a weight."""
        return matches(spec.path, self.weights) or (BRANCH_OUTPUTS in self.weights and spec.is_branch_output)

    def value(self, plain: InitialValue, spec: Spec, branches: int) -> InitialValue:
        """Return the initial value of a weight that it selects.

        Args:
          plain: the value otherwise.
          spec: of the weight at the base width of the parametrization.
          branches: number of residual branches of the model.
        """
        value = plain if self.initializer is None else drawn_by(self.initializer, spec)
        return value._replace(scale=value.scale * self.factor * max(branches, 1) ** -self.depth_power)


def drawn_by(initializer: Initializer, spec: Spec) -> InitialValue:
    """Return the initial value of a weight that an initializer draws."""
    return InitialValue(initializer.std(spec), entries=None if initializer.is_normal else initializer.entries)


ZERO_OUTPUTS = Initial(weights=(BRANCH_OUTPUTS,), factor=0.0)
"""Every residual branch is zero at first."""
DEPTH_SCALED_OUTPUTS = Initial(weights=(BRANCH_OUTPUTS,), depth_power=0.5)
"""The residual stream keeps its variance over the depth (Radford et al. 2019, section 2.3)."""


def initial_problems(rules: Sequence[Initial], specs: Iterable[tuple[str, Spec]]) -> Iterator[str]:
    """Yield a message for each pattern of `Initial` that matches no weight, and for weights without what it needs.

    Args:
      rules: `initial` of a model.
      specs: its weights by path.
    """
    by_path = {path: dataclasses.replace(spec, path=path) for path, spec in specs}
    for number, rule in enumerate(rules):
        where = f"initial.{number}"
        patterns = [pattern for pattern in rule.weights if pattern != BRANCH_OUTPUTS]
        yield from unmatched_patterns(f"{where}.weights", patterns, by_path)
        if BRANCH_OUTPUTS in rule.weights and not any(spec.is_branch_output for spec in by_path.values()):
            yield f"{where}.weights has '{BRANCH_OUTPUTS}', and no branch has a matrix; expected layers"
        if rule.initializer is not None and rule.initializer.reads_fans:
            wrong = [path for path, spec in by_path.items() if rule.selects(spec) and not spec.summed]
            if wrong:
                kind, listed = type(rule.initializer).__name__, ", ".join(without_numbers(wrong))
                yield f"{where}.initializer is {kind}, and {listed} has no fan-in; expected Normal(deviation=...)"
