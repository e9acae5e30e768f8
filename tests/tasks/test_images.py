"""Image tasks: digits, user files, the split, and invalid files."""

import sys

import jax
import numpy as np
import pytest
from PIL import Image

from flaxformer.components import Classifier, Patches
from flaxformer.config import ModelConfig
from flaxformer.system.errors import UserError
from flaxformer.tasks import Digits, Images
from flaxformer.tasks.images import digits
from flaxformer.training import Run

SMALL = {"batch_size": 3, "evaluation_batches": 200}


def rows(batch):
    """Return the scored images with their labels."""
    counted = np.asarray(batch.weights).ravel() > 0
    images = np.asarray(batch.inputs).reshape(counted.size, -1)[counted]
    return listed(images, np.asarray(batch.targets).ravel()[counted])


def listed(images, labels):
    """Return the pixels of each image with its label, sorted."""
    pairs = zip(images.reshape(len(labels), -1).tolist(), labels.tolist(), strict=True)
    return sorted((*image, label) for image, label in pairs)


def test_digits_equal_those_of_scikit_learn_and_are_split():
    from sklearn.datasets import load_digits

    data = load_digits()
    known = listed(data.images / 16, data.target)
    source = Digits(**SMALL).load()
    train, held_out = rows(source.train), rows(source.held_out)
    assert len(held_out) == 1797 * 2 // 10
    assert sorted(train + held_out) == known
    assert rows(source.evaluation()) == held_out  # 600 are requested, and each is scored once
    batch = source.batch(jax.random.key(0), 0)
    assert batch.inputs.shape == (3, 8, 8, 1)
    assert set(rows(batch)) <= set(train)
    assert (Digits().shape, Digits().classes) == (digits().images.shape[1:], digits().classes)
    assert Digits().fingerprint()["images"] == 1797


def test_images_of_a_npz_file_are_read(files, tmp_path):
    task = Images(path=str(files / "one.npz"), **SMALL)
    data = np.load(files / "one.npz")
    source = task.load()
    expected = listed(np.float32(data["images"] / 255), data["labels"])
    assert sorted(rows(source.train) + rows(source.held_out)) == expected
    assert len(source.held_out.inputs) == 4
    assert (task.shape, task.classes) == ((3, 5, 1), 4)
    real = np.linspace(-1, 2, 10 * 2 * 3 * 5).reshape(10, 2, 3, 5)
    np.savez(tmp_path / "real.npz", images=real, labels=np.arange(10))
    own = Images(path=str(tmp_path / "real.npz"))
    assert own.shape == (2, 3, 5)
    assert float(own.load().train.inputs.max()) == pytest.approx(2, abs=0.5)  # real numbers are taken as they are
    assert own.fingerprint()["sha256"] != task.fingerprint()["sha256"]
    patches = Patches(height=2, width=3, size=1, channels=5)
    Run(task=own, model=ModelConfig(inputs=patches, head=Classifier(classes=10)))
    with pytest.raises(UserError, match=r"expected Patches\(height=2, width=3, channels=5"):
        Run(task=own, model=ModelConfig(inputs=patches.replace(channels=1), head=Classifier(classes=10)))


def drawn(folder, modes=("L", "L", "L")):
    """Write twelve images in three classes, each of one mode, and return their pixels from 0 to 255."""
    rng = np.random.default_rng(0)
    images = []
    for label, (name, mode) in enumerate(zip(("b", "a", "c"), modes, strict=True)):
        (folder / name).mkdir(parents=True)
        for i in range(4):
            pixels = rng.integers(0, 256, (3, 5) if mode == "L" else (3, 5, 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
            images.append((pixels, [1, 0, 2][label]))
    (folder / "c" / ".hidden").write_text("no image")
    return images


@pytest.mark.parametrize("modes", [("L", "L", "L"), ("L", "RGB", "L")])
def test_folder_has_one_subfolder_per_class(tmp_path, modes):
    images = drawn(tmp_path / "own", modes)
    task = Images(path=str(tmp_path / "own"), **SMALL)
    channels = 1 if "RGB" not in modes else 3
    assert (task.shape, task.classes) == ((3, 5, channels), 3)
    stacked = [np.broadcast_to(pixels.reshape(3, 5, -1), (3, 5, channels)) for pixels, _ in images]
    expected = listed(np.float32(np.array(stacked) / 255), np.array([label for _, label in images]))
    source = task.load()
    assert sorted(rows(source.train) + rows(source.held_out)) == expected


def test_invalid_image_folders_raise_an_error_that_names_the_file(tmp_path):
    drawn(tmp_path / "size")
    Image.fromarray(np.zeros((5, 3), np.uint8)).save(tmp_path / "size" / "c" / "z.png")
    drawn(tmp_path / "text")
    (tmp_path / "text" / "c" / "z.png").write_text("no image")
    drawn(tmp_path / "short")
    file = tmp_path / "short" / "c" / "3.png"
    file.write_bytes(file.read_bytes()[:60])
    (tmp_path / "empty").mkdir()
    for name, message in {
        "size": r"z.png has 3 × 5 pixels and .*0.png 5 × 3; expected one size",
        "text": r"z.png: expected an image, but",
        "short": r"3.png: expected an image, but",
        "empty": r"a folder without images; expected one folder of images per class",
        "nowhere": r"which is not a file or folder; expected images with their classes",
    }.items():
        with pytest.raises(UserError, match=message):
            Images(path=str(tmp_path / name)).load()


GOOD = {"images": np.zeros((10, 2, 3), np.uint8), "labels": np.arange(10)}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": GOOD["images"]}, "expected a .npz with arrays images and labels, but: .*labels"),
        (GOOD | {"images": np.array([{}] * 10)}, "expected a .npz with arrays images and labels, but: .*allow_pickle"),
        (GOOD | {"images": np.zeros((10, 2))}, r"images are \(10, 2\) of float64; expected numbers \[n, height"),
        (GOOD | {"images": np.full((10, 2, 3), "x")}, "images are .*; expected numbers"),
        (GOOD | {"images": np.zeros((10, 2, 0))}, r"images are \(10, 2, 0\)"),
        (GOOD | {"images": np.full((10, 2, 3), np.nan)}, "images have numbers that are not finite"),
        (GOOD | {"images": np.full((10, 2, 3), 256)}, "integers from 256 to 256; expected 0 to 255"),
        (
            GOOD | {"labels": np.arange(9)},
            r"labels are \(9,\) of int64; expected integers, one per image, for 10 images",
        ),
        (GOOD | {"labels": np.arange(10.0)}, "labels are .10,. of float64; expected integers"),
        (GOOD | {"labels": np.arange(10) - 1}, "labels start at -1; expected classes from 0"),
        ({name: array[:4] for name, array in GOOD.items()}, "Images: 4 images, none of which are held out"),
    ],
)
def test_invalid_arrays_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "some.npz", **arrays)
    with pytest.raises(UserError, match=message):
        Images(path=str(tmp_path / "some.npz")).load()


def test_missing_and_damaged_files_are_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"path is 'nowhere\.npz', which is not a file"):
        Images(path="nowhere.npz").load()
    for name, content in (("text.npz", b"hello"), ("empty.npz", b""), ("cut.npz", b"PK\x03\x04 and no more")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=f"{name}'; expected a .npz with arrays images and labels"):
            Images(path=str(tmp_path / name)).load()
    np.save(tmp_path / "one.npy", GOOD["images"])
    with pytest.raises(UserError, match=r"expected a \.npz with arrays images and labels"):
        Images(path=str(tmp_path / "one.npy")).load()
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    digits.cache_clear()
    with pytest.raises(UserError, match=r"Digits needs sklearn .*pip install 'flaxformer\[images\]'"):
        Digits().load()
