"""Leave-one-out study of a recipe: each feature removed from the whole, and each added to the plain baseline."""

import dataclasses
from collections.abc import Mapping, Sequence

from flaxformer.store.declaration import WITH, WITHOUT, Goal, Labels
from flaxformer.store.places import WeightsToKeep
from flaxformer.study.claim import Claim
from flaxformer.study.declare import Measure, Study
from flaxformer.study.equal_cost import EqualCost
from flaxformer.study.halving import direction_of
from flaxformer.study.search import Points
from flaxformer.system.arguments import check_call
from flaxformer.system.errors import UserError
from flaxformer.training.run import Run


@check_call
def leave_one_out(
    baseline: Run,
    features: Mapping[str, Mapping[str, object]],
    *,
    name: str = "leave_one_out",
    question: str = "Which features of the recipe matter, alone and within the whole?",
    removing: bool = True,
    adding: bool = True,
    claims: Sequence[Claim] = (),
    seeds: Sequence[int] = range(5),
    metric: str = "validation_loss",
    goal: Goal | None = None,
    measure: Measure | None = None,
    compare: EqualCost | str | None = None,
    keep: WeightsToKeep | None = None,
    caveats: Sequence[str] = (),
) -> Study:
    """Return the study that removes each feature of a recipe alone, and adds each alone to the plain baseline.

    With n features, it has 2 n + 2 arms: the baseline, each feature alone, all features, and all but each; 2 with one
    feature, 4 with two. With the metric L of an arm, of which lower is better, the report has for every feature f

        effect within the whole  w_f = L(all but f) − L(all)
        effect alone             a_f = L(baseline) − L(f)
        interaction              w_f − a_f

    and beside Σ a_f and Σ w_f the effect of all features, L(baseline) − L(all): each paired by seed, with its interval,
    positive where the feature is good. The same pairs of arms give the speed-ups in compute, per step and in time.

    >>> study = leave_one_out(
    ...     baseline, {"QK norm": {"model.attention.query_key_norm": RMSNorm()}, "Muon": {"optimizer": Muon}}
    ... )

    Args:
      baseline: the plain run, without any of the features.
      features: value at each path that a feature changes, by the name of the feature, which is an axis with the levels
        "without" and "with". Two features have no path in common. One may change a component and another a field of
        it. Their order has no effect.
      name, question: of the study.
      removing: claim of every feature that removing it from the whole is worse.
      adding: claim of every feature that adding it to the baseline is better.
      claims: further claims, tested in the same family.
      seeds, metric, goal, measure, compare, keep, caveats: fields of `Study`; for its others,
        `dataclasses.replace(study, …)`.

    Raises:
      UserError: no feature; features that cannot be combined, which the message names; or claims about a metric
        without a direction.
    """
    if not features or not all(features.values()):
        raise UserError(f"features are {dict(features)}; expected at least one, each with the value at a path or more")
    names = sorted(features)
    study = Study(
        name=name,
        question=question,
        baseline=baseline,
        axes=[Points(feature, {WITHOUT: {}, WITH: features[feature]}) for feature in names],
        combine="leave-one-out",
        seeds=seeds,
        metric=metric,
        goal=goal,
        measure=measure,
        compare=compare,
        keep=keep,
        caveats=caveats,
    )
    better = direction_of(study.metric, study.goal)
    if better is None and (removing or adding):
        raise UserError(f"metric is '{study.metric}', which has no direction; expected goal='lower' or goal='higher'")

    def effect(text: str, feature: str, where: Labels) -> Claim:
        lower, higher = ({feature: WITH} if goal == better else None for goal in ("lower", "higher"))
        return Claim(text, lower=lower, higher=higher, than={feature: WITHOUT}, where=where)

    contexts = {feature: {other: WITH for other in names if other != feature} for feature in names}
    within = [effect(f"removing {feature} from the whole is worse", feature, contexts[feature]) for feature in names]
    alone = [effect(f"adding {feature} to the baseline is better", feature, {}) for feature in names]
    removals = within if removing and not (adding and len(names) == 1) else []  # of one feature, both are one contrast
    return dataclasses.replace(study, claims=[*removals, *(alone if adding else []), *claims])
