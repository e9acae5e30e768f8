"""Reading of texts of the compiler: programs, and its message that memory ran out.

These forms are of no public interface, and may change with XLA: no other module of the package searches such a text.
`tests/targets/golden` has texts of each version of JAX that the package is tested with, and what they must give.

Source of the form of a program: openxla.org/xla/operation_semantics. JAX writes a Python callback as a custom call on a
GPU, and as send and recv of the host on a TPU.
"""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

WIDTHS = {"pred": 1, "f8e4m3fn": 1, "f8e5m2": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8, "c64": 8, "c128": 16}
"""Bytes per number of the types whose name does not end in a number of bits."""
_ARRAY = re.compile(r"\b(pred|bf16|f8\w+|[a-z]\d+)\[([\d,]*)\](\{[^}]*\})?")
_CALL = re.compile(r"\b(?:body|condition|to_apply|calls|\w+_computations?)=(?:\{([^}]*)\}|%?([\w.\-]+))")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<type>.*?) (?P<kind>[a-z][\w\-]*)\((?P<rest>.*)$")
_HEADER = re.compile(r"^(?:ENTRY )?(%?[\w.\-]+) .*\{$")
COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
_COLLECTIVE = re.compile(rf"= (?P<result>.*?) (?P<name>{'|'.join(COLLECTIVES)})(?P<phase>-start|-done)?\(")
_SHAPE, _LAYOUT = r"\w+\[[\d,]*\]", r"[^}]*"
_ON_HOST = rf"\{{{_LAYOUT}S\(5\)\}}"
"""The layout of an array in the host's memory, which is space 5 of XLA."""
_FORMS = {
    "infeed": re.compile(r"= .*? infeed\("),
    "outfeed": re.compile(r"= .*? outfeed\("),
    "send to the host": re.compile(r"= .*? send\(.*is_host_transfer=true"),
    "receive from the host": re.compile(r"= .*? recv\(.*is_host_transfer=true"),
    "Python callback": re.compile(r'custom_call_target="[^"]*callback[^"]*"'),
    "copy to the host": re.compile(rf"= \(?{_SHAPE}{_ON_HOST}.* copy(-start)?\("),
    "copy from the host": re.compile(
        rf"= \({_SHAPE}(\{{(?!{_LAYOUT}S\(5\))[^}}]*\}})?, {_SHAPE}{_ON_HOST}.* copy-start\("
    ),
}
"""Forms of the operations, by their names in words."""
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_NEEDED = (
    (re.compile(r"[Uu]sed ([\d.]+)([KMGT]?) of"), False),
    (re.compile(r"total memory required[^(]*temporaries \(([\d.]+)([KMGT]?)\)"), True),
    (re.compile(r"\(([\d.]+)([KMGT]?)\) exceeds"), False),
)
"""Forms of the compiler's message that memory ran out, and whether the number leaves the arguments out."""


class ArrayType(NamedTuple):
    """An array in the text of a program.

    Args:
      dtype: such as "bf16".
      is_in_memory: False for an array in another memory than that of the device: in one of its cores, or in the host's.
    """

    dtype: str
    shape: tuple[int, ...]
    is_in_memory: bool = True

    @property
    def bytes(self) -> int:
        """Bytes of the array."""
        return number_bytes(self.dtype) * math.prod(self.shape)


def number_bytes(dtype: str) -> int:
    """Return the bytes per number of a type."""
    return WIDTHS.get(dtype) or max(1, int(re.sub(r"\D", "", dtype) or 8) // 8)


def arrays(text: str) -> list[ArrayType]:
    """Return the arrays of a type, one or a tuple."""
    return [
        ArrayType(dtype, tuple(int(size) for size in sizes.split(",") if size), "S(" not in layout)
        for dtype, sizes, layout in _ARRAY.findall(text)
    ]


class Instruction(NamedTuple):
    """One line of a computation, `name = type kind(operands), attributes`.

    Args:
      operands: names of the instructions that it reads.
      operand_types: their types, or those of the elements of tuples that are read; "" for one that is not known.
      number: of a parameter, its place among those of the computation; -1 for other instructions.
    """

    name: str
    type: str
    kind: str
    operands: list[str]
    operand_types: list[str]
    number: int
    line: str

    @property
    def scope(self) -> str:
        """The name that JAX gives it: functions and scopes, such as "jit(step)/jvp(block_0)/attention/mul"."""
        match = re.search(r'op_name="([^"]*)"', self.line)
        return match[1] if match else ""


def instructions(lines: list[str]) -> dict[str, Instruction]:
    """Return the instructions of a computation by name."""
    matches = [match for match in map(_INSTRUCTION.match, lines) if match]
    types = {match["name"]: match["type"] for match in matches}
    by_name = {}
    for match in matches:
        within = match["rest"][: _closing_bracket(match["rest"])]
        read = re.findall(r"%([\w.\-]+)(?:#(\d+))?", within)
        operand_types = [_element(types.get(name, ""), place) for name, place in read]
        number = int(within) if match["kind"] == "parameter" else -1
        names = [name for name, _ in read]
        by_name[match["name"]] = Instruction(
            match["name"], match["type"], match["kind"], names, operand_types, number, match[0]
        )
    return by_name


def _closing_bracket(text: str) -> int:
    """Return the place of the bracket that closes one before the text, or its length."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return place
    return len(text)


def _element(tuple_type: str, place: str) -> str:
    """Return the type of one element of a tuple; without a place, the whole type."""
    if not place or not tuple_type.startswith("("):
        return tuple_type
    depth, elements = 0, [""]
    for character in tuple_type[1:-1]:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            elements.append("")
        else:
            elements[-1] += character
    return elements[int(place)] if int(place) < len(elements) else ""


def module_name(text: str) -> str:
    """Return the name of a program, such as "jit_step"; "" if the text has none."""
    match = re.match(r"HloModule ([\w.\-]+)", text)
    return match[1] if match else ""


def computations(text: str) -> dict[str, list[str]]:
    """Return the lines of each computation of a program by its name; that of the entry is ""."""
    bodies: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in text.splitlines():
        if lines is None and (match := _HEADER.match(line)):
            lines = bodies.setdefault("" if line.startswith("ENTRY") else match[1].lstrip("%"), [])
        elif line == "}":
            lines = None
        elif lines is not None:
            lines.append(line)
    return bodies


def callees(line: str) -> list[str]:
    """Return the names of the computations that an instruction calls."""
    names = [several or single for several, single in _CALL.findall(line)]
    return [callee.lstrip("%") for name in names for callee in re.split(r"[,\s]+", name)]


def run_counts(bodies: dict[str, list[str]]) -> dict[str, tuple[int, bool]]:
    """Return how often each computation runs, and whether that is known; a loop of unknown length counts once.

    Args:
      bodies: the result of `computations`.
    """
    counts: dict[str, tuple[int, bool]] = {}

    def visit(name: str, count: int, is_known: bool) -> None:
        earlier, was_known = counts.get(name, (0, True))
        counts[name] = (earlier + count, was_known and is_known)
        for line in bodies.get(name, ()):
            trips: int | None = 1
            if re.search(r"\bwhile\(", line):
                trips = _trips(line, bodies)
            for inner in callees(line):
                if inner in bodies:
                    visit(inner, count * (trips or 1), is_known and trips is not None)

    visit("", 1, True)
    return counts


def _trips(line: str, bodies: dict[str, list[str]]) -> int | None:
    """Return the number of iterations of a loop that counts up from 0, or None."""
    if match := re.search(r'"known_trip_count":\{"n":"(\d+)"', line):
        return int(match[1])
    match = re.search(r"condition=%?([\w.\-]+)", line)
    lines = bodies.get(match[1], []) if match else []
    bounds = [
        int(n) for condition_line in lines for n in re.findall(r"s32\[\][^=]*? constant\((\d+)\)", condition_line)
    ]
    is_less = any("direction=LT" in condition_line for condition_line in lines)
    return bounds[0] if len(bounds) == 1 and is_less else None


# --- operations ------------------------------------------------------------------------------------------


def host_transfers(text: str) -> dict[str, int]:
    """Return how many operations of a program exchange data with the host, by kind; empty if none does.

    Args:
      text: the program, as `jax.stages.Compiled.as_text` gives it.
    """
    counts = {name: sum(bool(form.search(line)) for line in text.splitlines()) for name, form in _FORMS.items()}
    return {name: count for name, count in counts.items() if count}


def fused_computations(bodies: dict[str, list[str]]) -> set[str]:
    """Return the names of the computations that fusions call."""
    return {name for lines in bodies.values() for line in lines if " fusion(" in line for name in callees(line)}


def channel_of(line: str) -> str | None:
    """Return the number of a collective's channel, or None."""
    match = re.search(r"channel_id=(\d+)", line)
    return match[1] if match else None


def collectives_in(line: str, devices: int, computation: str) -> Iterator[tuple[str, ArrayType, int]]:
    """Yield the collective's name, the array and the number of devices of each group; nothing for other lines.

    The array is the result on a device; of a reduce-scatter, it is the operand.

    Args:
      line: of the text of a program.
      devices: number of devices, for collectives of all of them.
      computation: the name of the computation that has the line.
    """
    match = _COLLECTIVE.search(line)
    if match is None or match["phase"] == "-done":
        return
    name = "reduce-scatter" if computation.startswith("all-reduce-scatter") else match["name"]  # a fusion on TPUs
    results = arrays(match["result"])
    if match["phase"] == "-start" and match["name"] != "all-reduce":  # operands, results, and contexts
        whole = [array for array in results if array.shape]
        results = whole[len(whole) // 2 :] if len(whole) > 1 else whole
    group = _group(line, devices)
    for array in results:
        if match["name"] == "reduce-scatter" and array.shape:
            array = array._replace(shape=(array.shape[0] * group, *array.shape[1:]))
        yield name, array, group


def _group(line: str, devices: int) -> int:
    """Return the number of devices of each group of a collective."""
    if match := re.search(r"replica_groups=\{\{([\d,]*)\}", line):
        return match[1].count(",") + 1
    if match := re.search(r"replica_groups=\[(\d+),(\d+)\]<=", line):
        return int(match[2])
    if match := re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", line):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", match[1])}
        return math.prod(sizes.get(name, 1) for name in re.findall(r"'([^']+)'", match[2])) or devices
    return devices


# --- messages --------------------------------------------------------------------------------------------


def parse_bytes_needed(error: str, held: int) -> int:
    """Return the bytes that the compiler says it needs, or 0."""
    for form, is_temporary in _NEEDED:
        if match := form.search(error):
            return int(float(match[1]) * UNITS[match[2]]) + (held if is_temporary else 0)
    return 0
