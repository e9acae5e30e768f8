"""Calls of the command in this process, and checks of what it prints, writes and executes."""

import contextlib
import dataclasses
import io
import os
import resource
import signal
import sys
import unicodedata
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from markdown_it import MarkdownIt

from flaxformer import cli

CANARY = "CANARY"
"""Word in every hostile text: in a report, it may be in the text alone."""
SECONDS, BYTES = 120, 8 << 30
"""Time and address space that one call may take beyond what the process has."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.chmod", "os.truncate"}
EXECUTION = {"os.system", "os.exec", "os.posix_spawn", "os.startfile", "pickle.find_class", "webbrowser.open"}
ACTIVE_TAGS = {"script", "iframe", "object", "embed", "base", "form", "link", "meta", "img", "svg", "a", "image", "use"}


@dataclasses.dataclass
class Watch:
    """Record of what the process did outside a folder, while it is active."""

    folder: Path | None = None
    seen: list[str] = dataclasses.field(default_factory=list)


watch = Watch()


def _is_inside(path: object, follows: bool = True) -> bool:
    if isinstance(path, int) or watch.folder is None:
        return True
    text = os.fsdecode(path)  # type: ignore[arg-type]
    if "\0" in text or text.endswith(".pyc") or "__pycache__" in text or "matplotlib" in text or text == os.devnull:
        return True
    parent, name = os.path.split(text)
    real = Path(os.path.realpath(text) if follows else os.path.join(os.path.realpath(parent), name))
    allowed = [watch.folder, Path(os.environ.get("JAX_COMPILATION_CACHE_DIR") or watch.folder)]
    return any(real.is_relative_to(folder) for folder in allowed)


def _audit(event: str, arguments: tuple) -> None:
    if watch.folder is None:
        return
    if event == "open" and arguments[2] & WRITING and not _is_inside(arguments[0]):
        watch.seen.append(f"{event} {arguments[0]!r}")
    elif event == "os.mkdir" and Path(os.fsdecode(arguments[0])).parts[:2] == ("/", "proc"):
        return  # no folder can be made there
    elif event in CHANGES:
        paths = [one for one in arguments[:2] if isinstance(one, str | bytes | os.PathLike)]
        watch.seen += [f"{event} {path!r}" for path in paths if not _is_inside(path, follows=False)]
    elif event in EXECUTION or (event == "subprocess.Popen" and "git" not in str(arguments[0])):
        watch.seen.append(f"{event} {arguments!r:.200}")


_HOOKS: list[bool] = []


class TooLongError(BaseException):
    """The command ran on instead of ending."""


def _late(number: int, frame: object) -> None:
    raise TooLongError


@contextlib.contextmanager
def limited(folder: Path) -> Iterator[None]:
    """Within, watch the process, and limit its time and memory."""
    if not _HOOKS:
        sys.addaudithook(_audit)
        _HOOKS.append(True)
    own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    memory = resource.getrlimit(resource.RLIMIT_AS)
    before, here = signal.signal(signal.SIGALRM, _late), Path.cwd()
    resource.setrlimit(resource.RLIMIT_AS, (own + BYTES, memory[1]))
    signal.alarm(SECONDS)
    os.chdir(folder)
    watch.folder, watch.seen = folder.resolve(), []
    try:
        yield
    finally:
        watch.folder = None
        os.chdir(here)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, memory)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Exit code and output of a call, and what it did outside its folder."""

    code: object
    out: str
    err: str
    outside: list[str]


def call(words: list[str], folder: Path) -> Outcome:
    """Call the command in a folder."""
    out, err, code = io.StringIO(), io.StringIO(), None
    handlers = {number: signal.getsignal(number) for number in range(1, 32)}
    with limited(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(words)
        except SystemExit as stop:
            code = stop.code
    for number, handler in handlers.items():
        if signal.getsignal(number) != handler and handler is not None:
            signal.signal(number, handler)
    return Outcome(code, out.getvalue(), err.getvalue(), list(watch.seen))


def faults(outcome: Outcome, codes: tuple[int, ...], folder: Path) -> list[str]:
    """What is wrong with an outcome: the exit code, the message, the terminal, the files."""
    found = []
    if outcome.code not in codes:
        found.append(f"exit code {outcome.code}; expected {codes}: {outcome.err[-300:]} {outcome.out[-300:]}")
    for name, text in (("stdout", outcome.out), ("stderr", outcome.err)):
        bad = {c for c in text if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t\r"}
        found += [f"{name} holds {bad}"] if bad else []
        found += [f"{name} holds a traceback"] if "Traceback (most" in text else []
    if outcome.code == 2:
        is_message = outcome.err.startswith("error: ") or "For full helptext" in outcome.err
        found += [] if is_message else [f"no message: {outcome.err!r:.300}"]
        found += ["several messages"] if outcome.err.startswith("error: ") and "\nerror: " in outcome.err else []
    found += [f"outside the folder: {one}" for one in outcome.outside]
    found += ["something was executed"] if (folder / "EXECUTED").exists() else []
    for path in folder.rglob("*"):
        if path.suffix in (".html", ".md", ".svg", ".tex") and path.is_file() and not path.is_symlink():
            found += [f"{path.relative_to(folder)}: {one}" for one in active_content(path)]
    return found


class _Passive(HTMLParser):
    """Parser that notes hostile text in any place but the text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self.within: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.within.append(tag)
        for name, value in attrs:
            is_url = name in ("href", "src", "action", "xlink:href") and CANARY in str(value) and ":" in str(value)
            if CANARY in tag or CANARY in name or is_url or (name.startswith("on") and CANARY in str(value)):
                self.found.append(f"<{tag} {name}={value!r}>")

    def handle_endtag(self, tag: str) -> None:
        while self.within and self.within.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if CANARY in data and self.within[-1:] in (["script"], ["style"]):
            self.found.append(f"{self.within[-1]}: {data!r:.80}")


def active_content(path: Path) -> list[str]:
    """Hostile texts of a file that a viewer would obey."""
    text = path.read_text(errors="replace")
    if path.suffix == ".tex":
        return [line for line in text.splitlines() if f"\\{CANARY}" in line or f"\\input{{{CANARY}" in line]
    if path.suffix == ".md":
        text = MarkdownIt("gfm-like", {"linkify": False}).render(text)
    parser = _Passive()
    parser.feed(text)
    return parser.found
