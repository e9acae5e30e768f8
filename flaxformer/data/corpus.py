"""Bytes of text, split into training and validation, with a fingerprint."""

import dataclasses
import functools
import hashlib
import sysconfig
from pathlib import Path

import numpy as np

from flaxformer.struct import UserError

MODULES = """
_collections_abc _pydecimal _pyio _strptime _weakrefset abc argparse ast base64 bdb bisect bz2 cProfile calendar cmd
code codecs codeop colorsys compileall configparser contextlib copy copyreg csv dataclasses datetime decimal difflib
dis doctest enum filecmp fileinput fnmatch fractions ftplib functools genericpath getopt getpass gettext glob graphlib
gzip hashlib heapq hmac imaplib inspect io ipaddress linecache locale lzma mailbox mimetypes modulefinder netrc ntpath
numbers opcode operator optparse os pdb pickle pickletools pkgutil platform plistlib poplib posixpath pprint profile
pstats pty py_compile pyclbr pydoc queue quopri random reprlib rlcompleter runpy sched secrets selectors shelve shlex
shutil signal site smtplib socket socketserver ssl stat statistics string stringprep struct subprocess symtable
tabnanny tarfile tempfile textwrap threading timeit token tokenize trace traceback tracemalloc tty turtle types typing
uuid warnings wave weakref webbrowser zipapp zipimport
""".split()  # noqa: SIM905
PACKAGES = """
asyncio collections concurrent ctypes dbm email html http importlib json logging multiprocessing sqlite3 unittest
urllib wsgiref xml xmlrpc
""".split()  # noqa: SIM905
"""Modules and packages that every Python from 3.11 on installs; tests and generated tables are left out."""


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """Training and validation text as bytes, and what identifies them."""

    train: np.ndarray
    validation: np.ndarray
    files: int
    digest: str

    def fingerprint(self) -> dict[str, object]:
        """Recorded with every result: losses compare across machines only where the digests are equal."""
        sizes = {"train_bytes": self.train.size, "validation_bytes": self.validation.size}
        return {"sha256": self.digest, "files": self.files} | sizes


@functools.cache
def standard_library() -> Corpus:
    """The source of this Python's standard library: a fixed list of modules and packages, about 7 MB."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [root / f"{name}.py" for name in MODULES]
    for package in PACKAGES:
        files += (root / package).rglob("*.py")
    files = [file for file in files if file.is_file() and not {"test", "tests"} & set(file.relative_to(root).parts)]
    if not files:
        raise UserError(f"no standard-library source under {root}; expected .py files there (is it a zipped Python?)")
    return by_file_name(root, files)


@functools.cache
def text_files(path: str, pattern: str, validation_tenths: int) -> Corpus:
    """A user's own text: one file, whose end becomes the validation text, or a folder, split by file name."""
    root = Path(path).expanduser()
    if root.is_file():
        data = root.read_bytes()
        cut = len(data) * (10 - validation_tenths) // 10
        return _corpus([(root.name, data)], data[:cut], data[cut:])
    files = sorted(file for file in root.glob(pattern) if file.is_file())
    if not files:
        kind = f"has no file matching '{pattern}'" if root.is_dir() else "is neither a file nor a folder"
        raise UserError(f"path is '{path}', which {kind}; expected text to learn from")
    return by_file_name(root, files, validation_tenths)


def by_file_name(root: Path, files: list[Path], validation_tenths: int = 1) -> Corpus:
    """Split by a hash of each file's name, so that a file stays on its side whatever else is there."""
    named = sorted((file.relative_to(root).as_posix(), file.read_bytes()) for file in files)
    held_out = {name for name, _ in named if tenth(name.encode()) < validation_tenths}
    train = b"\n".join(data for name, data in named if name not in held_out)
    return _corpus(named, train, b"\n".join(data for name, data in named if name in held_out))


def tenth(data: bytes) -> int:
    """Return the part of the data that something falls in, 0 to 9, by its digest alone."""
    return int(hashlib.sha256(data).hexdigest()[:8], 16) % 10


def _corpus(named: list[tuple[str, bytes]], train: bytes, validation: bytes) -> Corpus:
    digest = hashlib.sha256()
    for name, data in named:
        digest.update(f"{name} {hashlib.sha256(data).hexdigest()}\n".encode())
    sides = {"train": train, "validation": validation}
    arrays = {name: np.frombuffer(side, np.uint8) for name, side in sides.items()}
    return Corpus(**arrays, files=len(named), digest=digest.hexdigest())


def count_model_losses(
    train: np.ndarray, inputs: np.ndarray, targets: np.ndarray, vocabulary: int = 256
) -> dict[str, float]:
    """Cross-entropy in nats of token-frequency models, fitted to train with one added to every count.

    unigram: p(b); bigram: p(b | the token before).
    """
    unigram, bigram = count_models(train, inputs, targets, vocabulary)
    return {"unigram": float(unigram.mean()), "bigram": float(bigram.mean())}


def count_models(
    train: np.ndarray, inputs: np.ndarray, targets: np.ndarray, vocabulary: int
) -> tuple[np.ndarray, np.ndarray]:
    """The losses of `count_model_losses` at each target: of the unigram model, and of the bigram model."""
    singles = np.bincount(train, minlength=vocabulary)
    unigram = np.log((singles + 1.0) / (train.size + vocabulary))
    # Pairs as numbers in order: a count is a difference of two places, and no table of vocabulary² is needed.
    narrow = np.min_scalar_type(vocabulary**2 - 1)  # sorts 5 to 10 times as fast
    pairs = np.sort((train[:-1].astype(np.int64) * vocabulary + train[1:]).astype(narrow))
    asked = (inputs.astype(np.int64) * vocabulary + targets).astype(narrow)
    together = np.searchsorted(pairs, asked, "right") - np.searchsorted(pairs, asked, "left")
    before = np.bincount(train[:-1], minlength=vocabulary)[inputs]
    bigram = np.log((together + 1.0) / (before + vocabulary))
    return -unigram[targets], -bigram
