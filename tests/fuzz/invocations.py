"""Bad command lines, drawn from a seed: each is a mistake, which the command has to refuse with one message."""

import dataclasses
import os
import random
import re
import typing
from pathlib import Path

from fuzz.observe import CANARY

from flaxformer.cli.arguments import COMMANDS

HUGE = ["99999999999", str(2**63), str(10**30), "1" * 400]
NO_INTEGER = ["", " ", "1.5", "1e3", "nan", "inf", "one", "0x10", "1,000", "--", "٣x", f"<b>{CANARY}</b>"]
NO_NUMBER = ["", "one", "1,5", "--", "1e", "0x1p3", f"[{CANARY}]"]
TEXTS = [
    f"<script>{CANARY}()</script>",
    f'"><img src=x onerror={CANARY}()>',
    f"[x](javascript:{CANARY})",
    f"![x](http://example.org/{CANARY})",
    f"<http://example.org/{CANARY}>",
    f"\\immediate\\write18{{{CANARY}}} \\{CANARY}",
    "[/bold] [red]",
    "x" * 300,
    "../" * 40 + "etc/passwd",
    "$(touch EXECUTED)",
    "; touch EXECUTED",
    "%s%n{0}{}",
    "🙂" * 80,
    "-",
]
URLS = ["s3://bucket/../x", "nope://bucket/x"]
CONTROL = ["\x1b[2J\x1b]0;x\x07", "a\0b", "\x9b31m", "\x7f", "a\x08b"]
SURROGATE = "a\udcffb"
CODE = [
    '__import__("pathlib").Path("EXECUTED").touch()',
    "exec(\"open('EXECUTED','w')\")",
    "(lambda: open('EXECUTED','w'))()",
    'eval("1")',
    "[x for x in ().__class__.__base__.__subclasses__()]",
]
POSITIONAL = {
    "new": ["study", "fresh"],
    "check": ["study.py"],
    "plan": ["study.py"],
    "noise": ["study.py"],
    "improve": ["ledger.py"],
    "declare": ["study.py"],
    "run": ["study.py"],
    "status": ["results"],
    "report": ["results"],
    "measure": ["results", "measure.py"],
    "compare": ["results", "results"],
    "replicate": ["results", "--trust-code"],
    "verify": ["results", "--trust-code"],
    "claims": [],
    "bench": ["training"],
    "prepare": ["text.txt", "tokens"],
    "fit": ["text.txt"],
    "train": ["job.py"],
    "generate": ["job"],
    "completion": ["bash"],
    "catalog": [],
}
"""Valid positional arguments of each command."""
REFUSED: dict[str, list[tuple[str, list[str]]]] = {
    "plan": [
        ("--seeds", ["-1", "0", "a:b", "5:5", "3,3", "9:1", "1:2:3", ",", *HUGE]),
        ("--devices", ["0", "-2", "4097", *HUGE]),
        ("--group-size", ["0", "-1"]),
        (
            "--mesh",
            [
                "x",
                "data",
                "data=",
                "data=0",
                "data=-1",
                "data=x",
                "depth=2",
                "data=2,data=2",
                *(f"data={n}" for n in HUGE),
            ],
        ),
        ("--chunk-steps", ["0", "-5"]),
        ("--save-minutes", ["-1", "nan", "inf", "1e400"]),
        ("--layout", ["folded", ""]),
        ("--keep", ["none of them", "FINAL"]),
        ("--output", ["x" * 300]),
    ],
    "run": [
        ("--on-error", ["ignore"]),
        ("--on-code-change", ["forget"]),
        ("--track", ["mlflow", "", "../tensorboard", "Study", "study"]),
        ("--profile", ["0", "-1", "x", "1:0", "0:1", "1:2:3", *HUGE]),
        ("--workers", ["0", "-1", "3"]),
        ("--launcher", ["threads", "slurm ray"]),
        ("--slurm", ["time=60", "gpus"]),
        ("--ray", ["cpus=x"]),
        ("--share", ["2", "0/3", "4/3", "1/"]),
        ("--process", ["0"]),
        ("--output", ["x" * 300, "study.py", "study.py/below", "/proc/none", "/dev/null/x", "dangling/x", *URLS]),
    ],
    "new": [("--kind", ["norms", "", "norm", *TEXTS[:3]]), ("--like", ["none.py", "text.txt", "job.py", ""])],
    "compare": [("--table", ["x" * 300, "study.py/x"])],
    "check": [("--laws", ["gravity", "", "causality,gradients", *TEXTS[:3]])],
    "train": [
        ("--save-every", ["0", "-1"]),
        ("--keep-last", ["-1"]),
        ("--keep-best", ["-1"]),
        ("--chunk-steps", ["0", "-1"]),
        ("--samples", ["-1"]),
        ("--mesh", ["x", "data=0", "data=99", "tensor=-1"]),
        ("--track", ["none", "Run", "run"]),
        ("--profile", ["0", "-1", "x", "1:0", "0:1", "1:2:3", *HUGE]),
        ("--output", ["x" * 300, "job.py", "job.py/below", "/proc/none", *URLS]),
    ],
    "generate": [
        ("--tokens", ["-1", *HUGE]),
        ("--temperature", ["0", "-1", "nan", "inf"]),
        ("--top-k", ["0", "-3"]),
        ("--top-p", ["0", "1.5", "nan", "-1"]),
        ("--beams", ["0", "-1", "1000000", *HUGE]),
        ("--seed", ["-1", *HUGE]),
        ("--step", ["3", "-1", *HUGE]),
        ("--prompt", ["", SURROGATE, "ab" * 200_000]),
        ("--input", ["text.txt", "none.txt"]),
        ("--edit", ["none.py", "text.txt", "job", "study.py"]),
    ],
    "prepare": [
        ("--tokenizer", ["words", "none.json", "study.py", ""]),
        ("--vocabulary", ["0", "-1", "5"]),
        ("--validation-tenths", ["0", "10", "-1", *HUGE]),
        ("--target", ["none.txt", "job"]),
        ("--pattern", ["/abs/**", "", "../**/*.txt", "**x", "a\\", "none*"]),
    ],
    "replicate": [("--seeds", ["0", "1", "0:2", "x", "", *HUGE]), ("--file", ["none.py", "text.txt", "job"])],
    "verify": [
        ("--trials", ["0", "-1"]),
        ("--seed", ["-1", *HUGE[1:]]),
        ("--file", ["none.py", "text.txt", "job"]),
        ("--mesh", ["x", "data=0", "tensor=-1"]),
    ],
    "declare": [
        ("--seeds", ["-1", "x", *HUGE]),
        ("--on-code-change", ["forget"]),
        ("--output", ["x" * 300, "study.py", "study.py/below"]),
    ],
    "noise": [
        ("--seeds", ["1", "-1", "x", *HUGE]),
        ("--change", ["", "x", "model.layers", "model.layers=x", "nothing=1"]),
        ("--output", ["x" * 300, "study.py", "study.py/below"]),
    ],
    "improve": [
        ("--candidate", ["none.py", "text.txt", "job", "study.py"]),
        ("--reason", ["", " ", "without a change"]),
        ("--tune", ["x", "0.1", "nan 0.1"]),
        ("--budget", ["5", "0s", "-1 tokens", "1e999 FLOPs"]),
        ("--share", ["2", "0/3", "4/3", "1/"]),
    ],
    "claims": [("--seeds", ["-1", "x", *HUGE]), ("--folder", ["none", "results", "study.py"])],
    "bench": [
        ("--rounds", ["0", "-1"]),
        ("--only", ["nothing", ""]),
        ("--reference", ["nothing"]),
        ("--compared", ["nothing"]),
        ("--folder", ["none", "results", "study.py"]),
    ],
}
"""Values that an option refuses, whatever the others are."""
REFUSED["run"] += REFUSED["plan"][:-1]
OVERRIDES = [
    ("model.layers", ["-1", "x", "1.5", "None", "True", *HUGE]),
    ("model.d_model", ["0", "-8", "7", "x", "1000000000", *HUGE]),
    ("model.vocabulary", ["0", "2", "x", "100000000000", *HUGE]),
    ("model.attention.heads", ["0", "-2", "3", "1000000007", *HUGE]),
    ("model.attention", ["Attention(", "Attention(3)", "Nothing()", "Attention(**{})", "Attention(heads=)", *CODE]),
    ("model.feed_forward", ["Dense(d_ff=0)", "Dense(d_ff=-1)", "Dense(activation='x')", "Dense()()", *CODE]),
    (
        "model.positions",
        ["LearnedPositions()", "LearnedPositions(max_length=1)", "Rotary(base=0)", "(" * 500, "[" * 9000],
    ),
    ("model.norm", ["prenorm", "PRE", "0", "(pre, post)", *CODE]),
    ("model.window", ["3"]),
    ("optimizer", ["SGD(", "Adam Sandler", "SGD(learning_rate=)", "SGD(1)", "os.system('touch EXECUTED')", *CODE]),
    ("optimizer.learning_rate", ["-1", "nan", "inf", "1e400", "x", "-inf", "[1]", "'1'", *CODE]),
    ("task", ["TextFiles", "Copy(symbols=-1)", "Copy(", "TextFiles(path=3)", *CODE]),
    ("task.length", ["0", "-1", "x", "10000000000", *HUGE]),
    ("task.batch_size", ["0", "-1", "10000000000", *HUGE]),
    ("training.steps", ["0", "-1", "7", "1.5", *HUGE]),
    ("training.precision", ["int8", "float", "0", ""]),
    ("training.evaluate_every", ["0", "-1", "5", "x", *HUGE]),
    ("seed", ["-1", "x", "1.5", *HUGE]),
    ("nothing", ["1"]),
    ("model.__class__", ["1"]),
    ("model..layers", ["1"]),
    ("model.layers.x", ["1"]),
    ("model.pattern.0.attention", ["1"]),
]
"""Overrides of the baseline that are refused."""
PATHS = [
    "",
    "none",
    "x" * 300,
    "dangling",
    "loop",
    "/dev/zero",
    "fifo",
    "/proc/self/mem",
    "/",
    "binary",
    "text.txt/x",
    *TEXTS,
    *CONTROL,
    SURROGATE,
]
READABLE = {"/", "../" * 40 + "etc/passwd"}
"""Paths of texts, which `prepare` may read."""


@dataclasses.dataclass(frozen=True)
class Invocation:
    """A command line, and the exit codes that are right for it."""

    words: list[str]
    codes: tuple[int, ...] = (2,)


def draw(seed: int, number: int) -> Invocation:
    """Draw the bad command line of a number."""
    rng = random.Random(f"{seed}/{number}")
    family = rng.choices([_unknown, _type, _value, _override, _path], [1, 3, 4, 4, 3])[0]
    words = family(rng)
    is_size = any(re.fullmatch(r"(model|task)\.\w+(\.\w+)?=10+\d*", word) for word in words)
    return Invocation(words, (0, 2) if is_size and {"plan", "--plan"} & {*words} else (2,))


def _unknown(rng: random.Random) -> list[str]:
    """An unknown command or option, or too few or too many words."""
    command = rng.choice(list(COMMANDS))
    other = rng.choice([*TEXTS, *CONTROL, SURROGATE])
    return rng.choice(
        [
            [other],
            [command + "x", *POSITIONAL[command]],
            [command, *POSITIONAL[command], "--nothing"],
            [command, *POSITIONAL[command], f"--{other}"],
            [command, *POSITIONAL[command], "--nothing=1", other],
            [command, "--set"] if command not in ("completion", "bench") else [command, "--set", "x"],
        ]
    )


def _type(rng: random.Random) -> list[str]:
    """An option with a value of another type, found from the type of its field."""
    options = []
    for command, arguments in COMMANDS.items():
        hints = typing.get_type_hints(arguments)
        for field in dataclasses.fields(arguments):
            kinds = typing.get_args(hints[field.name]) or (hints[field.name],)
            bad = [NO_INTEGER] if int in kinds else [NO_NUMBER] if float in kinds else []
            bad += [["x", "", CANARY]] if any(typing.get_origin(k) is typing.Literal for k in kinds) else []
            options += [(command, field.name, own) for own in bad]
    command, name, values = rng.choice(options)
    if name == "directory":
        return [command]
    return [command, *POSITIONAL[command], f"--{name.replace('_', '-')}", rng.choice(values)]


def _value(rng: random.Random) -> list[str]:
    """An option with a value of its type that it refuses."""
    command = rng.choice(list(REFUSED))
    option, values = rng.choice(REFUSED[command])
    words = [command, *POSITIONAL[command], option, rng.choice([*values, *rng.sample(CONTROL, 1)])]
    if command == "prepare":
        words[1] = rng.choice(["text.txt", "texts"]) if option != "--pattern" else "texts"
        words += ["--tokenizer", "bpe"] if option == "--vocabulary" else []
    return words


def _override(rng: random.Random) -> list[str]:
    """A change of a field that is refused, beside others that are not."""
    command = rng.choice(["plan", "run", "check", "train", "train"])
    path, values = rng.choice(OVERRIDES)
    value = rng.choice([*values, *rng.sample([*TEXTS, *CONTROL], 1)])
    fine = rng.sample(["optimizer.weight_decay=0.1", "training.label_smoothing=0.1"], rng.randrange(3))
    override = [*fine, f"{path}={value}"]
    rng.shuffle(override)
    plan = ["--plan"] if command == "train" and rng.random() < 0.3 else []
    return [command, *POSITIONAL[command], *rng.choice([[], ["--set"]]), *override, *plan]


def _path(rng: random.Random) -> list[str]:
    """A positional path that is not what the command expects."""
    command = rng.choice(
        [
            "check",
            "plan",
            "declare",
            "run",
            "status",
            "report",
            "compare",
            "replicate",
            "verify",
            "prepare",
            "train",
            "generate",
        ]
    )
    words = [command, *POSITIONAL[command]]
    place = rng.randrange(1, len(words)) if command != "prepare" else 1
    words[place] = rng.choice([path for path in PATHS if command != "prepare" or path not in READABLE])
    return words


def write_files(folder: Path, study: str, job: str) -> None:
    """Write the files that the command lines name, besides `results` and `job`."""
    (folder / "study.py").write_text(study)
    (folder / "job.py").write_text(job)
    ledger = "\nfrom flaxformer import Ledger\nledger = Ledger(name='drawn', start=run, effect=0.1)\n"
    (folder / "ledger.py").write_text(job + ledger)
    (folder / "text.txt").write_text("to be or not to be " * 50)
    (folder / "binary").write_bytes(bytes(range(256)) * 9)
    (folder / "texts").mkdir()
    for name in "abcdef":
        (folder / "texts" / f"{name}.txt").write_text("to be or not to be " * 50)
    (folder / "dangling").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")

    os.mkfifo(folder / "fifo")
