"""Text as bytes, split into training and validation parts, with a fingerprint."""

import dataclasses
import hashlib
import sysconfig
from pathlib import Path

import numpy as np

from flaxformer.data.compressed import matching, read_bytes
from flaxformer.data.lines import BYTE_ORDER_MARK, character_boundary, decode_utf8, refuse_structured
from flaxformer.system.errors import UserError
from flaxformer.system.remembered import remembered
from flaxformer.system.remote_data import local_path

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
"""Packages that, with `MODULES`, every Python from 3.11 on installs; tests and generated tables are left out."""


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """Training and validation text as bytes (uint8), the number of files, and a digest of names and contents."""

    train: np.ndarray
    validation: np.ndarray
    files: int
    digest: str

    def fingerprint(self) -> dict[str, object]:
        """Return digest and sizes, which are recorded with results: losses are comparable only for equal digests."""
        sizes = {"train_bytes": self.train.size, "validation_bytes": self.validation.size}
        return {"sha256": self.digest, "files": self.files} | sizes


@remembered
def standard_library() -> Corpus:
    """Return the source code of this Python's standard library: a fixed list of modules and packages, about 7 MB.

    Raises:
      UserError: the installation has no source files.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [root / f"{name}.py" for name in MODULES]
    for package in PACKAGES:
        files += (root / package).rglob("*.py")
    files = [file for file in files if file.is_file() and not {"test", "tests"} & set(file.relative_to(root).parts)]
    if not files:
        raise UserError(f"no standard-library source under {root}; expected .py files there (is it a zipped Python?)")
    return split_by_file_name(root, files)


@remembered
def read_text_files(path: str, pattern: str, validation_tenths: int, is_text: bool = False) -> Corpus:
    """Read the user's text: a file, whose end becomes the validation text, or a folder, split by file name.

    Files that end in .gz, .bz2, .xz or .zst are decompressed.

    Args:
      path: a file or a folder.
      pattern: glob pattern of the files in a folder, without a compression's suffix.
      validation_tenths: tenths of the file's bytes, or of the folder's files, for validation.
      is_text: check that files are UTF-8.

    Raises:
      UserError: there is no such file, no file matches the pattern, or a file is not UTF-8, or is not text by its name.
    """
    root = local_path(path)
    if root.is_file():
        refuse_structured(root, "text")
        data = _read_file(root, is_text)
        cut = len(data) * (10 - validation_tenths) // 10
        cut += character_boundary(data[cut : cut + 4])
        return _make_corpus([(root.name, data)], data[:cut], data[cut:])
    files = matching(root, pattern)
    if not files:
        kind = f"has no file matching '{pattern}'" if root.is_dir() else "is neither a file nor a folder"
        raise UserError(f"path is '{path}', which {kind}; expected text to learn from")
    for file in files:
        refuse_structured(file, "text")
    held_out = {tenth(file.relative_to(root).as_posix().encode()) < validation_tenths for file in files}
    if len(held_out) == 1:
        files_are = "the only file is" if len(files) == 1 else f"all {len(files)} files are"
        raise UserError(
            f"path is '{path}', of which {files_are} {'validation' if True in held_out else 'training'} data, because "
            "a folder is split by file, by a hash of each name; expected more files, or the path of one file, which is "
            "split at its end"
        )
    return split_by_file_name(root, files, validation_tenths, is_text)


def _read_file(file: Path, is_text: bool) -> bytes:
    """Return the content of a file of text."""
    data = read_bytes(file)
    if is_text:
        decode_utf8(data, str(file))
    return data.removeprefix(BYTE_ORDER_MARK)


def split_by_file_name(root: Path, files: list[Path], validation_tenths: int = 1, is_text: bool = False) -> Corpus:
    """Return a corpus split by a hash of each file's name, so that other files do not change a file's side."""
    named = sorted((file.relative_to(root).as_posix(), _read_file(file, is_text)) for file in files)
    held_out = {name for name, _ in named if tenth(name.encode()) < validation_tenths}
    train = b"\n".join(data for name, data in named if name not in held_out)
    return _make_corpus(named, train, b"\n".join(data for name, data in named if name in held_out))


def tenth(data: bytes) -> int:
    """Return which of ten parts, 0 to 9, a name or a text falls in, by its digest alone."""
    return int(hashlib.sha256(data).hexdigest()[:8], 16) % 10


def _make_corpus(named: list[tuple[str, bytes]], train: bytes, validation: bytes) -> Corpus:
    digest = hashlib.sha256()
    for name, data in named:
        digest.update(f"{name} {hashlib.sha256(data).hexdigest()}\n".encode())
    sides = {"train": train, "validation": validation}
    arrays = {name: np.frombuffer(side, np.uint8) for name, side in sides.items()}
    return Corpus(**arrays, files=len(named), digest=digest.hexdigest())


def count_model_losses(
    train: np.ndarray, inputs: np.ndarray, targets: np.ndarray, vocabulary: int = 256
) -> dict[str, float]:
    """Return the mean cross-entropy, in nats per token, of unigram and bigram models.

    The models p(b) and p(b | previous token) are counts in the training tokens, with 1 added to each count.

    Args:
      train: the training tokens.
      inputs, targets: previous and next tokens to evaluate, of equal shape.
      vocabulary: number of token ids.
    """
    unigram, bigram = count_model_losses_by_target(train, inputs, targets, vocabulary)
    return {"unigram": float(unigram.mean()), "bigram": float(bigram.mean())}


def count_model_losses_by_target(
    train: np.ndarray, inputs: np.ndarray, targets: np.ndarray, vocabulary: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the losses of `count_model_losses` at each target, of the unigram and of the bigram model."""
    token_counts = np.bincount(train, minlength=vocabulary)
    unigram = np.log((token_counts + 1.0) / (train.size + vocabulary))
    # Counts by binary search in the sorted pairs, without a table of vocabulary² entries.
    narrow = np.min_scalar_type(vocabulary**2 - 1)  # sorts 5 to 10 times as fast
    pairs = np.sort((train[:-1].astype(np.int64) * vocabulary + train[1:]).astype(narrow))
    queries = (inputs.astype(np.int64) * vocabulary + targets).astype(narrow)
    pair_counts = np.searchsorted(pairs, queries, "right") - np.searchsorted(pairs, queries, "left")
    input_counts = np.bincount(train[:-1], minlength=vocabulary)[inputs]
    bigram = np.log((pair_counts + 1.0) / (input_counts + vocabulary))
    return -unigram[targets], -bigram
