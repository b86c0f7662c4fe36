"""A download ends in the official files or in a sentence."""

import errno
import hashlib
import io
import os
import re
import tarfile
from pathlib import Path
from unittest.mock import Mock
from urllib.error import HTTPError, URLError

import pytest

from cifar10_made import as_binary, images_and_labels, refused
from o2nc_experiments.cifar10.data import BINARY, download, load

pytestmark = pytest.mark.usefixtures("one_thread")

URLOPEN = "o2nc_experiments.cifar10.data.urlopen"
FILES = sorted(str(Path(BINARY.folder, file.name)) for file in BINARY.files)
MEMBERS = [
    (f"{BINARY.folder}/{file.name}", as_binary(*images_and_labels(3, seed))) for seed, file in enumerate(BINARY.files)
]


def pack(path, members):
    """Write an archive of (name, contents), the contents None for a link to /etc/passwd; return a layout for it."""
    with tarfile.open(path, "w:gz") as tar:
        for name, contents in members:
            member = tarfile.TarInfo(name)
            if contents is None:
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            else:
                member.size = len(contents)
            tar.addfile(member, io.BytesIO(contents or b""))
    files = {Path(name).name: contents for name, contents in members if contents is not None}
    return BINARY._replace(
        url=path.as_uri(),
        md5=hashlib.md5(path.read_bytes()).hexdigest(),
        files=tuple(f._replace(md5=hashlib.md5(files.get(f.name, b"")).hexdigest()) for f in BINARY.files),
    )


@pytest.fixture
def served(tmp_path):
    """The place of the archive on the server."""
    return tmp_path / "served.tar.gz"


@pytest.fixture
def archive(served):
    """The layout that is served."""
    return pack(served, MEMBERS)


@pytest.fixture
def to(tmp_path):
    return tmp_path / "to"


@pytest.fixture
def part(to):
    """The place of the archive while it is fetched."""
    return to / "served.tar.gz.part"


@pytest.fixture
def unpacked(tmp_path):
    """The files of the archive, by hand."""
    (tmp_path / BINARY.folder).mkdir()
    for name, contents in MEMBERS:
        (tmp_path / name).write_bytes(contents)
    return tmp_path / BINARY.folder


def tree(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_download_fetches_unpacks_and_cleans_up(archive, served, unpacked, to, monkeypatch):
    reported = []
    folder = download(to / "new", lambda *state: reported.append(state), layout=archive)
    assert folder == to / "new" / BINARY.folder
    assert tree(to / "new") == FILES
    for place in (folder, to / "new"):
        assert load(place, verify=False).digest == load(unpacked, verify=False).digest
    assert reported[-1] == (served.stat().st_size,) * 2

    monkeypatch.setattr(URLOPEN, None)  # what is there is not fetched again
    assert download(to / "new", layout=archive) == folder
    (folder / "test_batch.bin").write_bytes(b"damaged")
    with pytest.raises(TypeError):
        download(to / "new", layout=archive)


def test_damaged_files_are_fetched_again(archive, to):
    file = download(to, layout=archive) / "data_batch_1.bin"
    whole = file.read_bytes()
    os.truncate(file, 5)
    download(to, layout=archive)
    assert file.read_bytes() == whole


def test_a_wrong_checksum_is_refused_and_nothing_stays(archive, to):
    with refused(archive.url, "does not have the checksum"):
        download(to, layout=archive._replace(md5="0" * 32))
    assert tree(to) == []


def test_only_the_expected_files_leave_the_archive(served, to, tmp_path):
    strange = [
        ("../evil", b"1"),
        (f"{BINARY.folder}/../../evil", b"1"),
        (str(tmp_path / "absolute"), b"1"),
        (f"{BINARY.folder}/readme.html", b"1"),
        (f"{BINARY.folder}/link", None),
    ]
    download(to, layout=pack(served, [*strange, *MEMBERS]))
    assert tree(tmp_path) == sorted([served.name, *(str(Path(to.name, name)) for name in FILES)])


@pytest.mark.parametrize("bad", [(f"{BINARY.folder}/test_batch.bin", None), ("../test_batch.bin", b"1")])
def test_an_expected_file_must_be_a_plain_one_in_its_place(bad, served, to, part, tmp_path):
    with refused(f"{part} lacks {BINARY.folder}/test_batch.bin"):
        download(to, layout=pack(served, [*MEMBERS[:5], bad]))
    assert tree(tmp_path) == sorted([served.name, str(part.relative_to(tmp_path))])


def test_what_is_no_archive_is_refused(archive, served, to, part):
    for contents in (b"<html>", served.read_bytes()[:5000]):
        served.write_bytes(contents)
        with refused(f"{part} cannot be unpacked"):
            download(to, layout=archive._replace(md5=hashlib.md5(contents).hexdigest()))


def test_no_server_no_folder(archive, to, tmp_path):
    lost = archive._replace(url=(tmp_path / "lost.tar.gz").as_uri())
    with refused(f"{lost.url} cannot be fetched: "):
        download(to, layout=lost)
    (tmp_path / "file").write_text("")
    with refused(f"{tmp_path / 'file' / 'below'} cannot be written: "):
        download(tmp_path / "file" / "below", layout=archive)


def test_a_full_disk_costs_no_second_download(archive, to, part, monkeypatch):
    with monkeypatch.context() as patch, refused(f"{to} cannot be written: the disk is full"):
        patch.setattr(
            tarfile.TarFile, "extractall", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        )
        download(to, layout=archive)
    assert tree(to) == [part.name]
    monkeypatch.setattr(URLOPEN, None)  # the archive was kept: only the extraction is repeated
    download(to, layout=archive)
    assert tree(to) == FILES


class Server:
    """A stand-in for `urlopen`: sends ``limit`` bytes at most, then ends silently or with ``error``."""

    def __init__(self, contents):
        self.contents, self.ranges, self.limit, self.error, self.asked = contents, True, 10**9, None, []

    def __call__(self, request, timeout):
        assert 0 < timeout < 120
        asked = request.get_header("Range")
        self.asked.append(asked)
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and self.ranges else 0
        if asked and self.ranges and start >= len(self.contents):
            raise HTTPError(request.full_url, 416, "Range Not Satisfiable", {}, io.BytesIO())
        return Answer(self, self.contents[start:], 206 if asked and self.ranges else 200)


class Answer:
    def __init__(self, server, rest, status):
        self.headers, self.status, self.server = {"Content-Length": str(len(rest))}, status, server
        self.body = io.BytesIO(rest[: server.limit])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def read(self, n):
        block = self.body.read(min(n, 1000))
        if not block and self.server.error is not None:
            raise self.server.error
        return block


@pytest.fixture
def server(archive, served, monkeypatch):
    server = Server(served.read_bytes())
    monkeypatch.setattr(URLOPEN, server)
    return server


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize(
    "error", [None, ConnectionResetError(104, "Connection reset by peer"), TimeoutError("timed out")]
)
def test_an_interrupted_download_goes_on(ranges, error, archive, server, to, part):
    server.ranges, server.limit, server.error = ranges, 4096, error
    with refused("broke off", "the same command goes on"):
        download(to, layout=archive)
    assert part.stat().st_size == 4096
    server.limit, server.error, reported = 10**9, None, []
    download(to, lambda *state: reported.append(state), layout=archive)
    assert server.asked == [None, "bytes=4096-"]
    assert reported[0] == (4096 * ranges + 1000, len(server.contents))
    assert reported[-1] == (len(server.contents),) * 2
    assert tree(to) == FILES


def test_ctrl_c_keeps_what_was_fetched(archive, server, to):
    def stop(done, total):
        if done >= 3000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(to, stop, layout=archive)
    download(to, layout=archive)
    assert server.asked == [None, "bytes=3000-"]


def test_a_wrong_part_is_fetched_anew(archive, server, to, part):
    """Too long: the server has no more to send. Too short: the checksum says so, and the next try is clean."""
    to.mkdir()
    part.write_bytes(b"?" * (len(server.contents) + 1))
    download(to, layout=archive)
    assert server.asked[1:] == [None]
    (to / FILES[0]).unlink()
    part.write_bytes(b"?" * 100)
    with refused("does not have the checksum"):
        download(to, layout=archive)
    download(to, layout=archive)
    assert server.asked[2:] == ["bytes=100-", None]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (URLError(OSError(-2, "Name or service not known")), "cannot be fetched: Name or service not known"),
        (URLError("unknown url type: x"), "cannot be fetched: unknown url type: x"),
        (TimeoutError("timed out"), "cannot be fetched: timed out"),
        (HTTPError(BINARY.url, 503, "Service Unavailable", {}, io.BytesIO()), "HTTP Error 503: Service Unavailable"),
    ],
)
def test_a_server_out_of_reach_is_named(error, reason, tmp_path, monkeypatch):
    monkeypatch.setattr(URLOPEN, Mock(side_effect=error))
    with refused(BINARY.url, reason):
        download(tmp_path)
    assert tree(tmp_path) == []
