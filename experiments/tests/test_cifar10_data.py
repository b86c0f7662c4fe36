"""CIFAR-10 is read as it is, or refused by name."""

import errno
import hashlib
import os
import pickle
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from cifar10_made import as_binary, images_and_labels, refused
from o2nc_experiments.cifar10 import data
from o2nc_experiments.cifar10.data import BINARY, PYTHON, load

pytestmark = pytest.mark.usefixtures("one_thread")

N = 3  # images of a file
BATCHES = [(pixels, labels.tolist()) for pixels, labels in (images_and_labels(N, seed) for seed in range(6))]
PIXELS, LABELS = BATCHES[0]


def as_python(pixels, labels):
    """Pickle a batch as Python 2 did, opcode by opcode: Python 3 has other strings, and numpy other modules."""

    def text(s):
        return b"U" + bytes([len(s)]) + s

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
        b"(K\x01K" + bytes([len(pixels)]) + b"M\x00\x0c\x86"
        b"cnumpy\ndtype\n"
        + text(b"u1")
        + b"K\x00K\x01\x87R(K\x03"
        + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
        b"K\x00tb\x89T" + pixels.size.to_bytes(4, "little") + pixels.tobytes() + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    head = b"\x80\x02}(" + text(b"batch_label") + text(b"training batch 1 of 5")
    return head + text(b"labels") + numbers + text(b"data") + array + b"u."


FORMS = {"binary": as_binary, "python": as_python}
both_layouts = pytest.mark.parametrize("layout", [BINARY, PYTHON], ids=lambda layout: layout.name)


def write(folder, layout):
    folder.mkdir(parents=True, exist_ok=True)
    for file, batch in zip(layout.files, BATCHES, strict=True):
        (folder / file.name).write_bytes(FORMS[layout.name](*batch))
    return folder


@pytest.fixture
def binary(tmp_path):
    return write(tmp_path / "binary", BINARY)


@pytest.fixture
def python(tmp_path):
    return write(tmp_path / "python", PYTHON)


@both_layouts
@pytest.mark.parametrize("inside", [False, True])
def test_what_was_written_is_read(layout, inside, tmp_path):
    write(tmp_path / layout.folder if inside else tmp_path, layout)
    read = load(tmp_path, verify=False)
    pixels = np.stack([p for p, _ in BATCHES]).reshape(6, N, 3, 32, 32)
    labels = np.stack([y for _, y in BATCHES])
    assert read.layout == layout.name
    assert (read.train_images.dtype, read.train_labels.dtype) == (torch.uint8, torch.int64)
    assert read.train_images.is_contiguous()
    np.testing.assert_array_equal(read.train_images, pixels[:5].reshape(5 * N, 3, 32, 32))
    np.testing.assert_array_equal(read.train_labels, labels[:5].ravel())
    np.testing.assert_array_equal(read.test_images, pixels[5])
    np.testing.assert_array_equal(read.test_labels, labels[5])


def test_both_layouts_have_one_digest(binary, python):
    digest = load(binary, verify=False).digest
    assert digest == load(python, verify=False).digest
    pixels, labels = zip(*BATCHES, strict=True)
    parts = [*pixels[:5], *map(bytes, labels[:5]), pixels[5], bytes(labels[5])]
    assert digest == hashlib.sha256(b"".join(map(bytes, parts))).hexdigest()
    file = binary / "test_batch.bin"
    file.write_bytes(file.read_bytes()[:-1] + b"\x00")
    assert load(binary, verify=False).digest != digest


@pytest.mark.parametrize(("limit", "train", "test"), [(1, 1, 1), (7, 7, 1), (10, 10, 2), (10**9, 5 * N, N)])
def test_a_limit_keeps_the_first_images(limit, train, test, binary):
    whole, part = load(binary, verify=False), load(binary, verify=False, limit=limit)
    for name, n in [("train_images", train), ("train_labels", train), ("test_images", test), ("test_labels", test)]:
        assert torch.equal(getattr(part, name), getattr(whole, name)[:n])
    assert (part.layout, part.digest) == (whole.layout, whole.digest)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit, tmp_path):
    with pytest.raises(ValueError, match=f"limit must be an integer >= 1, got {limit}"):
        load(tmp_path, limit=limit)


def test_a_limit_spares_no_check(binary):
    os.truncate(binary / "test_batch.bin", 5)
    with refused(binary / "test_batch.bin", "truncated"):
        load(binary, verify=False, limit=1)


def test_pickles_of_today_are_read_too(python):
    for order in ("C", "F"):
        batch = {b"data": np.array(PIXELS, order=order), b"labels": LABELS}
        (python / "data_batch_1").write_bytes(pickle.dumps(batch, protocol=4))
        np.testing.assert_array_equal(load(python, verify=False).train_images[:N].flatten(1), PIXELS)


@pytest.mark.parametrize("place", ["nowhere", "."])
def test_a_missing_data_set_tells_both_ways_to_get_it(place, tmp_path):
    with refused(f"there is no CIFAR-10 in {tmp_path / place}: ", "--data DIR", "--download"):
        load(tmp_path / place)


@both_layouts
def test_an_archive_that_was_not_unpacked_is_named(layout, tmp_path):
    archive = tmp_path / layout.url.rpartition("/")[2]
    archive.write_bytes(b"")
    with refused(f"{archive} is not unpacked: tar -xzf {archive.name}"):
        load(tmp_path)


@both_layouts
@pytest.mark.parametrize("missing", [[3], [2, 5]])
def test_missing_files_are_listed(missing, layout, tmp_path):
    folder = write(tmp_path / layout.folder, layout)
    names = [layout.files[i].name for i in missing]
    for name in names:
        (folder / name).unlink()
    with refused(f"{folder} lacks {', '.join(names)}: ", "--data DIR", "--download"):
        load(tmp_path)


def test_a_complete_layout_is_taken_before_a_begun_one(tmp_path):
    write(tmp_path, PYTHON)
    write(tmp_path, BINARY)
    assert load(tmp_path, verify=False).layout == "binary"
    (tmp_path / "test_batch.bin").unlink()
    assert load(tmp_path, verify=False).layout == "python"


def test_a_file_in_the_place_of_the_folder_is_refused(binary):
    with refused(f"{binary / 'test_batch.bin'} cannot be read: Not a directory"):
        load(binary / "test_batch.bin")


@pytest.mark.parametrize("name", ["data_batch_1.bin", "test_batch.bin"])
def test_a_folder_in_the_place_of_a_file_is_refused(name, binary):
    (binary / name).unlink()
    (binary / name).mkdir()
    with refused(f"{binary / name} cannot be read: Is a directory"):
        load(binary, verify=False)


def test_no_permission_is_reported(binary, monkeypatch):
    """Simulated, since root may read everything."""
    denied = Mock(side_effect=PermissionError(errno.EACCES, os.strerror(errno.EACCES), "path"))
    monkeypatch.setattr(Path, "read_bytes", denied)
    with refused(f"{binary / 'data_batch_1.bin'} cannot be read: Permission denied"):
        load(binary)
    monkeypatch.setattr(os, "listdir", denied)
    with refused(f"{binary} cannot be read: Permission denied"):
        load(binary)


def cut(contents):
    return contents[:-1]


def flip(contents):
    middle = len(contents) // 2
    return contents[:middle] + bytes([contents[middle] ^ 1]) + contents[middle + 1 :]


@both_layouts
@pytest.mark.parametrize("which", [0, 5])
@pytest.mark.parametrize(
    ("damage", "problem"), [(cut, "bytes, the official file "), (flip, "does not have the checksum")]
)
def test_one_damaged_byte_is_found(damage, problem, which, layout, tmp_path, monkeypatch):
    contents = [(write(tmp_path, layout) / file.name).read_bytes() for file in layout.files]
    sums = [hashlib.md5(c).hexdigest() for c in contents]
    files = [f._replace(size=len(c), md5=s) for f, c, s in zip(layout.files, contents, sums, strict=True)]
    monkeypatch.setattr(data, layout.name.upper(), layout._replace(files=files))  # as if these were the official ones
    assert load(tmp_path).digest == load(tmp_path, verify=False).digest
    path = tmp_path / files[which].name
    path.write_bytes(damage(contents[which]))
    with refused(f"{path} ", problem):
        load(tmp_path)


@both_layouts
def test_files_that_are_not_the_official_ones_are_refused(layout, tmp_path):
    file, path = layout.files[0], write(tmp_path, layout) / layout.files[0].name
    with refused(f"{path} has {path.stat().st_size} bytes, the official file {file.size}"):
        load(tmp_path)
    os.truncate(path, file.size)
    with refused(f"{path} does not have the checksum of the official file"):
        load(tmp_path)


def test_official_sizes_are_those_of_ten_thousand_records():
    assert {file.size for file in BINARY.files} == {10_000 * 3073}
    assert all(file.size > 10_000 * 3072 for file in PYTHON.files)
    assert len({file.md5 for file in BINARY.files + PYTHON.files}) == 12


@pytest.mark.parametrize("size", [0, 1, 3072, 2 * 3073 - 1])
def test_truncated_records_are_refused(size, binary):
    os.truncate(binary / "data_batch_4.bin", size)
    with refused(binary / "data_batch_4.bin", f"truncated: {size} bytes"):
        load(binary, verify=False)


@pytest.mark.parametrize("size", [0, 1, 60, 1000, -1])
def test_truncated_pickles_are_refused(size, python):
    path = python / "test_batch"
    os.truncate(path, size % path.stat().st_size)
    with refused(path, "truncated"):
        load(python, verify=False)


@both_layouts
def test_labels_outside_the_classes_are_refused(layout, tmp_path):
    path = write(tmp_path, layout) / layout.files[1].name
    path.write_bytes(FORMS[layout.name](PIXELS, [3, 10, 255]))
    with refused(f"{path} has the label 10 in record 2, outside 0 to 9"):
        load(tmp_path, verify=False)


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        ([1, 2], "no dictionary with data and labels"),
        ({b"data": PIXELS}, "no dictionary with data and labels"),
        ({b"data": PIXELS[:, 1:], b"labels": LABELS}, "shape (3, 3071)"),
        ({b"data": PIXELS.reshape(N, 3, 32, 32), b"labels": LABELS}, "shape (3, 3, 32, 32)"),
        ({b"data": PIXELS[:0], b"labels": []}, "shape (0, 3072)"),
        ({b"data": PIXELS.tolist(), b"labels": LABELS}, "type list"),
        ({b"data": PIXELS.astype(np.float32), b"labels": LABELS}, "dtype 'f4'"),
        ({b"data": PIXELS.astype(object), b"labels": LABELS}, "dtype 'O8'"),
        ({b"data": PIXELS, b"labels": LABELS[:2]}, "not a list of 3 integers"),
        ({b"data": PIXELS, b"labels": PIXELS}, "not a list of 3 integers"),
        ({b"data": PIXELS, b"labels": ["1", "2", "3"]}, "not a list of 3 integers"),
        ({b"data": PIXELS, b"labels": [0, 0, -1]}, "label -1 in record 3"),
        ({b"data": PIXELS, b"labels": [0, 0, 2**70]}, f"label {2**70} in record 3"),
        ({b"data": PIXELS, b"labels": LABELS, b"more": {1}.__class__}, "asks for builtins.set"),
    ],
)
def test_pickles_of_something_else_are_refused(batch, problem, python):
    path = python / "data_batch_5"
    path.write_bytes(pickle.dumps(batch, protocol=4))
    with refused(path, problem):
        load(python, verify=False)


class Command:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("function", [os.mkdir, np.memmap, getattr, torch.load])
def test_a_pickle_runs_no_code(function, protocol, python, tmp_path):
    trap = tmp_path / "trap"
    pickled = pickle.dumps({b"data": Command(function, str(trap), 511), b"labels": []}, protocol=protocol)
    (python / "data_batch_1").write_bytes(pickled)
    with refused(python / "data_batch_1", "asks for "):
        load(python, verify=False)
    assert not trap.exists()
