"""CIFAR-10 from its official address: one archive, fetched, checked and unpacked."""

import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from o2nc_experiments.cifar10.data import BINARY, DataError, Layout, explain

PATIENCE = 30.0  # seconds without an answer of the server
BLOCK = 1 << 20

Report = Callable[[int, int | None], object]


def download(folder: Path, report: Report | None = None, *, layout: Layout = BINARY) -> Path:
    """Get the data set from its official address, unless it is there already; a download that broke off goes on.

    Args:
        folder: where the folder of the files will be; made if missing.
        report: called with the bytes that are there and those of the whole, None if the server does not say.
        layout: which form to get.

    Returns:
        The folder of the files, for `load`.

    Raises:
        DataError: the server cannot be reached, what it sends is not the data set, or the folder cannot be written.
    """
    folder = Path(folder)
    files = folder / layout.folder
    if all(_md5(files / file.name) == file.md5 for file in layout.files):
        return files
    archive = folder / (layout.url.rpartition("/")[2] + ".part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if _md5(archive) != layout.md5:  # else only the extraction is missing
            _fetch(layout.url, archive, report)
            if _md5(archive) != layout.md5:
                archive.unlink()
                raise DataError(f"what {layout.url} sent does not have the checksum of the official file; try again")
        _extract(archive, layout)
        archive.unlink()
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{folder} cannot be written: {explain(error)}") from error
    return files


def _md5(path: Path) -> str | None:
    """Return the checksum of a file, None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError:
        return None


def _fetch(url: str, path: Path, report: Report | None) -> None:
    """Write what is at ``url``, going on after the bytes that are there if the server can."""
    done = path.stat().st_size if path.exists() else 0
    try:
        answer = urlopen(Request(url, headers={"Range": f"bytes={done}-"} if done else {}), timeout=PATIENCE)
    except HTTPError as error:
        error.close()
        if not (done and error.code == 416):
            raise DataError(f"{url} cannot be fetched: {error}") from error
        path.unlink()  # it is as long as the whole, or longer, and still wrong: start again
        return _fetch(url, path, report)
    except (OSError, HTTPException) as error:
        raise DataError(f"{url} cannot be fetched: {explain(error)}") from error
    with answer:
        goes_on = getattr(answer, "status", None) == 206
        done = done if goes_on else 0
        length = answer.headers.get("Content-Length")
        total = done + int(length) if length else None
        with path.open("ab" if goes_on else "wb") as file:
            while True:
                try:
                    block = answer.read(BLOCK)
                except (OSError, HTTPException) as error:
                    raise DataError(f"{url} broke off: {explain(error)}; the same command goes on") from error
                if not block:
                    break
                file.write(block)
                done += len(block)
                if report is not None:
                    report(done, total)
    if total is not None and done < total:
        raise DataError(f"{url} broke off after {done} of {total} bytes; the same command goes on")


def _extract(archive: Path, layout: Layout) -> None:
    """Write the files of the layout beside the archive, and nothing else that may be in it."""
    wanted = {f"{layout.folder}/{file.name}" for file in layout.files}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            members = [member for member in tar if member.name in wanted and member.isreg()]
            missing = wanted - {member.name for member in members}
            if missing:
                raise DataError(f"{archive} lacks {', '.join(sorted(missing))}")
            tar.extractall(archive.parent, members, filter="data")
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(f"{archive} cannot be unpacked: {error}") from error
