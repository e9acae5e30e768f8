"""Local copies of data in object storage: a file or a folder, downloaded once per version."""

import os
import secrets
import shutil
from pathlib import Path

from flaxformer.system import objects
from flaxformer.system.digests import digest
from flaxformer.system.errors import UserError
from flaxformer.system.files import flush_all, make_folder, safe_name
from flaxformer.system.links import check_not_dangling
from flaxformer.system.remembered import remembered

VARIABLE = "FLAXFORMER_CACHE"
"""Environment variable with the folder of all local copies."""


def cache_folder(kind: str, url: str) -> Path:
    """Return the folder of the local copies of a URL, which need not exist.

    It is in $FLAXFORMER_CACHE, or else in $XDG_CACHE_HOME/flaxformer (~/.cache/flaxformer).

    Args:
      kind: use of the copies, which is the name of a folder.
      url: the URL, by whose name and digest copies are told apart.
    """
    root = os.environ.get(VARIABLE)
    place = (
        Path(root).expanduser()
        if root
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flaxformer"
    )
    return place / kind / safe_name(url.partition("://")[2].replace("/", "_"), url)


def local_path(path: str | os.PathLike[str], name: str = "path") -> Path:
    """Return the file or folder of a path; that of a URL, such as s3://bucket/text.txt, is downloaded.

    A version that was downloaded before is not downloaded again. A process keeps the version that it read first.

    Args:
      path: a path of this machine, or a URL of an object or of all objects below it.
      name: of the path in messages.

    Raises:
      UserError: there is no such object, or it cannot be read.
    """
    url = objects.url_of(path)
    return Path(path).expanduser() if url is None else download_data(url, name)


@remembered
def download_data(url: str, name: str) -> Path:
    """Download an object, or all below a URL, and return its file or folder."""
    versions = _versions(url)
    if not versions:
        raise UserError(f"{name} is '{url}', where no object is; expected a file or a folder in object storage")
    number = digest("\n".join(f"{key} {entry.version}" for key, entry in sorted(versions.items())).encode())
    folder, last = cache_folder("data", url) / number, url.rpartition("/")[2]
    target = folder / last
    if folder.is_dir():
        return target
    check_not_dangling(folder)
    make_folder(folder.parent)
    beside = folder.with_name(f".{number}.{secrets.token_hex(8)}.partial")
    try:
        for key, entry in versions.items():
            file = beside / last / key if key else beside / last
            file.parent.mkdir(parents=True, exist_ok=True)
            objects.download(f"{url}/{key}".rstrip("/"), file)
            if file.stat().st_size != entry.bytes:
                raise FileNotFoundError(key)
        if _versions(url) != versions:
            raise FileNotFoundError(url)
        flush_all(beside)
        _rename(beside, folder)
    except (FileNotFoundError, NotADirectoryError, FileExistsError):
        raise UserError(
            f"{name} is '{url}', which changed while it was downloaded; run the same command again"
        ) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return target


def _versions(url: str) -> dict[str, objects.StoredObject]:
    """The objects of a URL by their names below it, that of a single object "" itself."""
    single = objects.info(url)
    return {"": single} if single is not None else objects.find(url)


def _rename(beside: Path, folder: Path) -> None:
    """Rename a complete copy, unless another process was faster."""
    try:
        beside.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
