"""Reading of a trace of `jax.profiler`: the time that each instruction of a compiled program took.

A plane of the trace is a device or the host. A CPU's instructions are events of the host's threads, each with the name
of the instruction and of the program (`hlo_op`, `hlo_module`) and the number of the device. A GPU's are events of its
streams with the same names; a TPU's are those of the line "XLA Ops", which begin with the instruction's name.
"""

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from jax.profiler import ProfileData, ProfileEvent, ProfilePlane

OPERATIONS = "XLA Ops"
"""Line of a device that has one event per instruction; where it is, other lines repeat its events."""


def instruction_seconds(folder: Path, module: str, devices: Collection[int]) -> dict[str, float]:
    """Return the seconds of each instruction of a program in all its runs, added up over devices and threads.

    Args:
      folder: of one trace, with a file NAME.xplane.pb.
      module: name of the program.
      devices: numbers of the devices that count.
    """
    seconds: dict[str, float] = {}
    for path in sorted(folder.glob("*.xplane.pb")):
        for plane in ProfileData.from_file(str(path)).planes:
            for event in _events(plane, devices):
                facts = dict(event.stats)
                program = str(facts.get("hlo_module", module)).partition("(")[0]
                if program == module and int(facts.get("device_ordinal", min(devices))) in devices:
                    name = str(facts.get("hlo_op") or _first_name(event.name))
                    seconds[name] = seconds.get(name, 0.0) + event.duration_ns / 1e9
    return seconds


def _events(plane: ProfilePlane, devices: Collection[int]) -> Iterator[ProfileEvent]:
    """Yield the events of a plane that may be instructions of these devices."""
    device = re.match(r"/device:\w+:(\d+)", plane.name)
    if device is None:
        yield from (event for line in plane.lines for event in line.events if _has_instruction(event))
    elif int(device[1]) in devices:
        lines = list(plane.lines)
        for line in [line for line in lines if line.name == OPERATIONS] or lines:
            yield from line.events


def _has_instruction(event: ProfileEvent) -> bool:
    """True if an event of the host is an instruction of a program."""
    return any(name == "hlo_op" for name, _ in event.stats)


def _first_name(text: str) -> str:
    """The name of an instruction at the beginning of its text, such as "%fusion.3 = …"."""
    match = re.match(r"%?([\w.\-]+)", text)
    return match[1] if match else ""
