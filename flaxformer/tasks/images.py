"""Image classification."""

import dataclasses
import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import jax.numpy as jnp
import numpy as np

from flaxformer.config import ModelConfig
from flaxformer.core.struct import static
from flaxformer.system.errors import UserError
from flaxformer.system.extras import library
from flaxformer.system.remembered import remembered
from flaxformer.system.remote_data import local_path
from flaxformer.tasks.base import Task
from flaxformer.tasks.batch import Batch
from flaxformer.tasks.examples import ExampleSource, permute

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclasses.dataclass(frozen=True, eq=False)
class Pictures:
    """Images [n, height, width, channels], usually from 0 to 1, their classes [n] from 0 on, and a digest of both."""

    images: np.ndarray
    labels: np.ndarray
    digest: str

    @property
    def classes(self) -> int:
        """Number of classes: the largest label plus one."""
        return int(self.labels.max()) + 1


class ImageTask(Task):
    """Base of image classification; the model reads patches of an image, or pixels (`Patches(size=1)`).

    `validation_tenths` of the images are held out; the split depends only on `split_seed`.
    """

    is_abstract: ClassVar[bool] = True

    validation_tenths: int = static(2, at_least=1, at_most=9)
    split_seed: int = static(0, at_least=0, below=2**32)

    def pictures(self) -> Pictures:
        """Return the data."""
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
        """1, the image; the model determines the number of its patches."""
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
            yield f"model.head is {head}; expected Classifier(classes={self.classes}), with one output per image"
        yield from self.source_problems(model)

    def load(self) -> ExampleSource:
        count = len(self.pictures().images)
        held_out = count * self.validation_tenths // 10
        if not held_out:
            raise UserError(f"{type(self).__name__}: {count} images, none of which are held out; expected at least 10")
        order = permute(count, self.split_seed)
        return ExampleSource(self._examples(order[held_out:]), self._examples(order[:held_out]), self)

    def _examples(self, rows: np.ndarray) -> Batch:
        data = self.pictures()
        return Batch(
            inputs=jnp.asarray(data.images[rows], jnp.float32),
            targets=jnp.asarray(data.labels[rows], jnp.int32),
            weights=jnp.ones(len(rows), jnp.float32),
        )

    def fingerprint(self) -> dict[str, object]:
        return {"sha256": self.pictures().digest, "images": len(self.pictures().images)}


class Digits(ImageTask):
    """Classification of the 1,797 handwritten digits of 8 × 8 pixels that scikit-learn contains; no download."""

    @property
    def shape(self) -> tuple[int, int, int]:
        return 8, 8, 1

    @property
    def classes(self) -> int:
        return 10

    def pictures(self) -> Pictures:
        return digits()


class Images(ImageTask):
    """Classification of your own images: a .npz file with arrays `images` and `labels`, or one folder per class.

    Images are [n, height, width] or [n, height, width, channels], integers from 0 to 255 (which are divided by 255) or
    real numbers (which are not); labels are integers [n] from 0 on. The classes of a folder are its subfolders in the
    order of their names. Image files (PNG, JPEG, …) must have one size; if all are grey, they have one channel, else 3.
    """

    path: str = static()

    def pictures(self) -> Pictures:
        return read_image_folder(self.path) if local_path(self.path).is_dir() else read_image_file(self.path)


@remembered
def digits() -> Pictures:
    """Return scikit-learn's digits, with pixels from 0 to 1."""
    data = library("sklearn.datasets", "images", "Digits").load_digits()
    return _make_pictures(data.images / 16, data.target)


@remembered
def read_image_file(path: str) -> Pictures:
    """Read the images of a .npz file, without executing code in it.

    Raises:
      UserError: the file is missing, or its arrays are invalid; the message names the array.
    """
    file = local_path(path)
    if not file.is_file():
        raise UserError(f"path is '{path}', which is not a file or folder; expected images with their classes")
    try:
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as arrays:
            images, labels = arrays["images"], arrays["labels"]
    except (ValueError, KeyError, OSError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise UserError(f"path is '{path}'; expected a .npz with arrays images and labels, but: {error}") from None
    for problem in _array_problems(images, labels):
        raise UserError(f"{path}: {problem}")
    return _make_pictures(images / 255 if np.issubdtype(images.dtype, np.integer) else images, labels)


@remembered
def read_image_folder(path: str) -> Pictures:
    """Read the images in the subfolders of a folder, without hidden files.

    Raises:
      UserError: no images, an image that cannot be read, or one of another size; the message names the file.
    """
    root = local_path(path)
    classes = sorted(folder for folder in root.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    files = [(label, file) for label, folder in enumerate(classes) for file in sorted(folder.iterdir())]
    labelled_images = [(label, file, _read_image(file)) for label, file in files if not file.name.startswith(".")]
    if not labelled_images:
        raise UserError(f"path is '{path}', a folder without images; expected one folder of images per class")
    _, first, image = labelled_images[0]
    for _, file, other in labelled_images:
        if other.size != image.size:
            size, first_size = ("{} × {}".format(*image_file.size) for image_file in (other, image))
            raise UserError(f"{file} has {size} pixels and {first} {first_size}; expected one size")
    mode = "L" if all(image.mode in ("1", "L") for *_, image in labelled_images) else "RGB"
    images = np.stack([np.asarray(image.convert(mode)) for *_, image in labelled_images])
    return _make_pictures(images / 255, np.array([label for label, *_ in labelled_images]))


def _read_image(file: Path) -> "Image":
    try:
        with library("PIL.Image", "images", f"reading {file}").open(file) as image:
            image.load()
            return image
    except OSError as error:  # Pillow's error for files that are not images or are truncated
        raise UserError(f"{file}: expected an image, but: {error}") from None


def _array_problems(images: np.ndarray, labels: np.ndarray) -> Iterator[str]:
    if images.ndim not in (3, 4) or images.dtype.kind not in "uif" or not images.size:
        images_form = f"images are {images.shape} of {images.dtype}"
        yield f"{images_form}; expected numbers [n, height, width] or [n, height, width, channels]"
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "ui":
        expected = f"integers, one per image, for {len(images)} images"
        yield f"labels are {labels.shape} of {labels.dtype}; expected {expected}"
    if labels.min() < 0:
        yield f"labels start at {labels.min()}; expected classes from 0"
    if not np.isfinite(images).all():
        yield "images have numbers that are not finite; expected finite ones"
    if images.dtype.kind in "ui" and (images.min() < 0 or images.max() > 255):
        yield f"images are integers from {images.min()} to {images.max()}; expected 0 to 255, or real numbers"


def _make_pictures(images: np.ndarray, labels: np.ndarray) -> Pictures:
    images = images.reshape(*images.shape[:3], -1).astype(np.float32)
    labels = labels.astype(np.int32)
    header = f"{images.shape} ".encode()
    return Pictures(images, labels, hashlib.sha256(header + images.tobytes() + labels.tobytes()).hexdigest())
