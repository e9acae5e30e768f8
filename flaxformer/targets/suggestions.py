"""Changes to a run that does not fit, each with the program that it gives."""

from collections.abc import Iterator
from typing import NamedTuple

from flaxformer.core.paths import replace_at
from flaxformer.devices.sharding import Devices
from flaxformer.nn.formulations import FormulationChoice
from flaxformer.nn.kernels import KERNELS
from flaxformer.system.errors import UserError
from flaxformer.targets.topology import Target
from flaxformer.training.micro_batches import check_batch
from flaxformer.training.run import Run


class Suggestion(NamedTuple):
    """A change that needs less memory.

    Args:
      text: the change as on a command line.
      changes: values of the run by path.
      mesh: its devices; None for one.
    """

    text: str
    changes: dict[str, object]
    mesh: Devices | None


def suggestions(run: Run, target: Target, mesh: Devices | None) -> Iterator[Suggestion]:
    """Yield changes of the run and its mesh that are valid, those that cost least time first."""
    current = mesh or Devices()
    whole = Devices(fsdp=target.count)
    candidates: list[tuple[dict[str, object], Devices | None]] = []
    if run.training.precision == "float32":
        candidates.append(({"training.precision": "bfloat16"}, mesh))
    if target.count > current.fsdp * current.tensor:
        candidates.append(({}, whole))
    micro_batches = run.training.micro_batches or 1
    candidates += [({"training.micro_batches": micro_batches * factor}, mesh) for factor in (2, 4, 8)]
    if run.training.remat == "none":
        candidates.append(({"training.remat": "block"}, mesh))
        candidates.append(({"training.remat": "block", "training.micro_batches": micro_batches * 4}, mesh))
        if target.count > current.fsdp * current.tensor:
            candidates.append(({"training.remat": "block"}, whole))
    for changes, devices in candidates:
        try:
            check_batch(replace_at(run, changes), devices or Devices())
        except UserError:
            continue
        words = [f"{path}={value}" for path, value in changes.items()]
        words += [f"--mesh fsdp={whole.fsdp}"] if devices is whole else []
        yield Suggestion(" ".join(words), changes, devices)


def kernel_suggestions(choices: tuple[FormulationChoice, ...], platform: str) -> list[str]:
    """Return why attention has no fused kernel, where a kernel of the platform exists."""
    fused = [name for name, kernel in KERNELS.items() if kernel.is_fused and platform in kernel.platforms]
    lines = [
        f"no fused attention for {choice.call}: {reason.partition(': ')[2]}"
        for choice in choices
        for reason in choice.reasons
        if choice.function == "attention"
        and choice.formulation not in fused
        and reason.partition(":")[0] in (fused[0], "all kernels")
    ]
    return list(dict.fromkeys(lines))
