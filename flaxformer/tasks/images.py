"""Images and their classes."""

import dataclasses
import functools
import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from flaxformer.config import ModelConfig
from flaxformer.extras import library
from flaxformer.struct import UserError, static
from flaxformer.tasks.base import Batch, Task
from flaxformer.tasks.examples import ExampleSource, shuffled


@dataclasses.dataclass(frozen=True, eq=False)
class Pictures:
    """Images [n, height, width, channels] as numbers about 0 to 1, a class from 0 for each, and their digest."""

    images: np.ndarray
    labels: np.ndarray
    digest: str

    @property
    def classes(self) -> int:
        """Number of classes: the largest label and one."""
        return int(self.labels.max()) + 1


class ImageTask(Task):
    """Say an image's class; the model cuts the image into patches, or reads it pixel by pixel (size=1).

    Held out are `validation_tenths` of the images, chosen by `split_seed` alone.
    """

    is_abstract: ClassVar[bool] = True

    validation_tenths: int = static(2, at_least=1, at_most=9)
    split_seed: int = static(0, at_least=0, below=2**32)

    def pictures(self) -> Pictures:
        """The data themselves."""
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of an image."""
        return self.pictures().images.shape[1:]

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.pictures().classes

    @property
    def vocabulary(self) -> int:
        return 0

    @property
    def sequence_length(self) -> int:
        """1, the image: into how many tokens it is cut is the model's choice."""
        return 1

    def tokens_read(self, model: ModelConfig) -> int:
        return model.inputs.count if model.inputs.reads == "images" else 0

    def problems_with(self, model: ModelConfig) -> Iterator[str]:
        inputs, head, (height, width, channels) = model.inputs, model.head, self.shape
        if inputs.reads != "images" or inputs.shape(model.sizes) not in (None, self.shape):
            images = f"height={height}, width={width}, channels={channels}"
            yield f"model.inputs is {inputs}; expected Patches({images}, size=…), for the task's images"
        elif model.max_length is not None and model.max_length < inputs.count:
            yield f"model.positions.max_length is {model.max_length}; expected at least the {inputs.count} patches"
        if head.predicts != "classes" or head.outputs(0) < self.classes or head.pool == "none":
            yield f"model.head is {head}; expected Classifier(classes={self.classes}), with one answer an image"
        yield from self.source_problems(model)

    def load(self) -> ExampleSource:
        count = len(self.pictures().images)
        held_out = count * self.validation_tenths // 10
        if not held_out:
            raise UserError(f"{type(self).__name__}: {count} images, none of them held out; expected at least 10")
        order = shuffled(count, self.split_seed)
        return ExampleSource(self._examples(order[held_out:]), self._examples(order[:held_out]), self)

    def _examples(self, rows: np.ndarray) -> Batch:
        data = self.pictures()
        return Batch(
            inputs=jnp.asarray(data.images[rows], jnp.float32),
            targets=jnp.asarray(data.labels[rows], jnp.int32),
            weights=jnp.ones(len(rows), jnp.float32),
        )

    def fingerprint(self) -> dict[str, Any]:
        return {"sha256": self.pictures().digest, "images": len(self.pictures().images)}


class Digits(ImageTask):
    """1,797 handwritten digits of 8 × 8 pixels, as scikit-learn ships them: nothing to download."""

    @property
    def shape(self) -> tuple[int, int, int]:
        return 8, 8, 1

    @property
    def classes(self) -> int:
        return 10

    def pictures(self) -> Pictures:
        return digits()


class Images(ImageTask):
    """Your own images: a .npz file with arrays `images` and `labels`, or a folder with a folder of images a class.

    images are [n, height, width] or [n, height, width, channels], whole numbers from 0 to 255 (divided by 255) or
    real numbers (taken as they are); labels are [n], whole numbers from 0. A folder's classes are its folders in the
    order of their names; images are of one size (PNG, JPEG, …), and grey where all of them are, else red, green, blue.
    """

    path: str = static()

    def pictures(self) -> Pictures:
        return image_folder(self.path) if Path(self.path).expanduser().is_dir() else image_file(self.path)


@functools.cache
def digits() -> Pictures:
    """The digits, with pixels from 0 to 1."""
    data = library("sklearn.datasets", "images", "Digits").load_digits()
    return _pictures(data.images / 16, data.target)


@functools.cache
def image_file(path: str) -> Pictures:
    """The images of a .npz file; nothing in it is executed.

    Raises:
      UserError: no such file, or not such arrays; the message says which and how.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"path is '{path}', which is not a file or folder; expected images and their classes")
    try:
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as arrays:
            images, labels = arrays["images"], arrays["labels"]
    except (ValueError, KeyError, OSError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise UserError(f"path is '{path}'; expected a .npz with arrays images and labels, but: {error}") from None
    for problem in _array_problems(images, labels):
        raise UserError(f"{path}: {problem}")
    return _pictures(images / 255 if np.issubdtype(images.dtype, np.integer) else images, labels)


@functools.cache
def image_folder(path: str) -> Pictures:
    """The images in the folders of a folder; hidden files are passed over.

    Raises:
      UserError: no images, one that cannot be read, or one of another size; the message says which.
    """
    root = Path(path).expanduser()
    classes = sorted(folder for folder in root.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    files = [(label, file) for label, folder in enumerate(classes) for file in sorted(folder.iterdir())]
    read = [(label, file, _image(file)) for label, file in files if not file.name.startswith(".")]
    if not read:
        raise UserError(f"path is '{path}', a folder without images; expected a folder for each class, with images")
    _, first, image = read[0]
    for _, file, other in read:
        if other.size != image.size:
            found = "{} × {}".format(*other.size)
            raise UserError(
                f"{file} has {found} pixels and {first} {image.size[0]} × {image.size[1]}; expected one size"
            )
    mode = "L" if all(image.mode in ("1", "L") for *_, image in read) else "RGB"
    images = np.stack([np.asarray(image.convert(mode)) for *_, image in read])
    return _pictures(images / 255, np.array([label for label, *_ in read]))


def _image(file: Path) -> Any:
    try:
        with library("PIL.Image", "images", f"reading {file}").open(file) as image:
            image.load()
            return image
    except OSError as error:  # what Pillow raises for what is no image, or is cut short
        raise UserError(f"{file}: expected an image, but: {error}") from None


def _array_problems(images: np.ndarray, labels: np.ndarray) -> Iterator[str]:
    if images.ndim not in (3, 4) or images.dtype.kind not in "uif" or not images.size:
        found = f"images are {images.shape} of {images.dtype}"
        yield f"{found}; expected numbers [n, height, width] or [n, height, width, channels]"
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "ui":
        expected = f"whole numbers, one for each of the {len(images)} images"
        yield f"labels are {labels.shape} of {labels.dtype}; expected {expected}"
    if labels.min() < 0:
        yield f"labels start at {labels.min()}; expected classes from 0"
    if not np.isfinite(images).all():
        yield "images have numbers that are not finite; expected finite ones"
    if images.dtype.kind in "ui" and (images.min() < 0 or images.max() > 255):
        yield f"images are whole numbers from {images.min()} to {images.max()}; expected 0 to 255, or real numbers"


def _pictures(images: np.ndarray, labels: np.ndarray) -> Pictures:
    images = images.reshape(*images.shape[:3], -1).astype(np.float32)
    labels = labels.astype(np.int32)
    header = f"{images.shape} ".encode()
    return Pictures(images, labels, hashlib.sha256(header + images.tobytes() + labels.tobytes()).hexdigest())
