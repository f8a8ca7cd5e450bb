"""The objects below one URL, through obstore: get, list, and conditional put."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tilewright.errors import InputError, ResourceError, brief
from tilewright.formats.files import naming
from tilewright.formats.packages import install_command
from tilewright.runtime.stores.reasons import no_bucket, reason_of
from tilewright.runtime.stores.urls import parts

PART_BYTES = 16 << 20  # bytes per part of a multipart upload: S3 allows 10,000 parts, so an object of 160 GB
DELETED = 1000  # objects that one request deletes: S3's limit
SMALL_BYTES = 1 << 20  # that pass in 30 s on any line that is of use
PATIENT = {"timeout": "7 days", "read_timeout": "5 minutes"}  # of a request, and without an answer
VARIABLES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}  # obstore's variables, by scheme
CLIENT = (  # obstore ignores these variables if it gets options
    "allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only", "http2_only", "proxy_ca_certificate",
    "proxy_excludes", "proxy_url", "user_agent",
)  # fmt: skip

CREDENTIALS = "set the credentials of the store in the environment, and check the permissions of the bucket"


class Stat(NamedTuple):
    """The state of an object.

    size: bytes. tag: the ETag, or the version if the store has no ETags. modified: seconds since 1970 by the store's
    clock. version: the number of the object's version, if the store has one; Google's store compares it in `put`.
    """

    size: int
    tag: str
    modified: float
    version: str | None = None


@cache
def obstore() -> Any:
    """The package obstore. Raises ResourceError if it is not installed."""
    try:
        import obstore
    except ImportError as error:
        raise ResourceError("URLs need the package obstore, which is not installed",
                            remedy=f"install it: {install_command('cloud')}") from error  # fmt: skip
    return obstore


@cache
def open_bucket(bucket: str, *, bulk: bool = False) -> Any:
    """The client of "s3://bucket". obstore reads credentials and endpoint from the environment.

    bulk: for objects of any size on a slow line. By default obstore ends a request after 30 s, and a download after 3
    minutes, however much has arrived.
    """
    obstore()
    from obstore.store import from_url

    with naming_store(bucket):
        if not bulk:
            return from_url(bucket)
        prefix = VARIABLES.get(bucket.partition(":")[0], "")
        options: Any = {
            name: os.environ[prefix + name.upper()] for name in CLIENT if prefix + name.upper() in os.environ
        }
        return from_url(bucket, client_options=options | PATIENT, retry_config={"retry_timeout": timedelta(days=1)})


@contextmanager
def naming_store(url: str) -> Iterator[None]:
    """Convert an error of the store to a ResourceError with the URL. A missing object or a failed condition passes, but
    not a missing bucket."""
    kinds = obstore().exceptions
    try:
        yield
    except (FileNotFoundError, kinds.AlreadyExistsError, kinds.PreconditionError, kinds.NotModifiedError) as error:
        if missing := no_bucket(error, url):
            raise missing from None  # its cause would be a missing object
        raise
    except (kinds.PermissionDeniedError, kinds.UnauthenticatedError) as error:
        raise ResourceError(f"the store refuses: {_said(error)}", path=url, remedy=CREDENTIALS) from error
    except (kinds.BaseError, ValueError) as error:
        if known := reason_of(error, url):
            raise known from error
        raise ResourceError(f"the store fails: {_said(error)}", path=url,
                            remedy="check the URL, the credentials and the network") from error  # fmt: skip


def _said(error: BaseException) -> str:
    return brief(Exception(str(error).partition("Debug source")[0]))


class Objects:
    """The objects below `url`. A name is the part of an object's URL after `url/`; "" is the object `url` itself.

    bucket: `url` may name a whole bucket.

    All methods raise ResourceError with the URL if the store fails.
    """

    def __init__(self, url: str, *, bucket: bool = False) -> None:
        self.url = url.rstrip("/")
        self._bucket, self._key = parts(self.url, bucket=bucket)
        self._store, self._bulk = open_bucket(self._bucket), open_bucket(self._bucket, bulk=True)

    def where(self, name: str) -> str:
        """The URL of an object."""
        return f"{self.url}/{name}" if name else self.url

    def _path(self, name: str) -> str:
        return f"{self._key}/{name}" if name and self._key else name or self._key

    def stat(self, name: str) -> Stat | None:
        """Size, tag and time of an object; None if it is not there."""
        try:
            with naming_store(self.where(name)):
                return _stat(obstore().head(self._store, self._path(name)))
        except FileNotFoundError:
            return None

    def names(self, folder: str = "") -> dict[str, Stat]:
        """All objects below a folder. Their names include the folder's name."""
        prefix = self._path(folder)
        with naming_store(self.where(folder)):
            chunks = list(obstore().list(self._store, prefix=prefix or None))
        start = len(self._key) + bool(self._key)
        names = {found["path"][start:]: _stat(found) for chunk in chunks for found in chunk}
        if odd := [name for name in names if any(part in ("", ".", "..") for part in name.split("/")) and name]:
            raise InputError("a part of an object's name is empty, '.' or '..'", path=self.where(odd[0]),
                             remedy="give a folder without such objects")  # fmt: skip
        return {name: status for name, status in names.items() if name}  # "": some tools mark a folder by an object

    def get(self, name: str, start: int = 0) -> tuple[bytes, Stat] | None:
        """The bytes of an object from byte `start` on, with its status; None if it is not there."""
        options = {"range": {"offset": start}} if start else {}  # Azure cannot count from an object's end
        try:
            with naming_store(self.where(name)):
                got = obstore().get(self._store, self._path(name), options=options)
                return bytes(got.bytes()), _stat(got.meta)
        except FileNotFoundError:
            return None

    def put(self, name: str, data: bytes, *, absent: bool = False, match: Stat | None = None) -> str | None:
        """Write an object and return its tag, or None if the condition failed.

        absent: write only if the object does not exist. match: write only if the object still has this version.
        """
        kinds = obstore().exceptions
        over: Any = "overwrite"
        if match:
            over = {"e_tag": match.tag} | ({"version": match.version} if match.version else {})
        mode: Any = "create" if absent else over
        store = self._store if len(data) <= SMALL_BYTES else self._bulk
        try:
            with naming_store(self.where(name)):
                return obstore().put(store, self._path(name), data, mode=mode)["e_tag"] or ""
        except (FileNotFoundError, kinds.AlreadyExistsError, kinds.PreconditionError):
            return None

    def upload(self, name: str, path: str, *, keep: bool = False) -> str:
        """Upload a local file, in parts if it is large, and return the tag. The object appears complete or not at all.

        keep: do not replace an existing object; "" is returned for it.
        """
        if keep and os.path.getsize(path) <= PART_BYTES:
            return self.put(name, Path(path).read_bytes(), absent=True) or ""
        if keep and self.stat(name):
            return ""
        with naming(path, "read"), naming_store(self.where(name)):
            size = os.path.getsize(path)
            if size <= PART_BYTES:
                data = Path(path).read_bytes()
                return obstore().put(self._bulk, self._path(name), data, use_multipart=False)["e_tag"] or ""
            put = obstore().put(self._bulk, self._path(name), Path(path), use_multipart=True, chunk_size=PART_BYTES,
                                max_concurrency=4)  # fmt: skip
            return put["e_tag"] or ""

    def download(self, name: str, path: str, tag: str | None = None, beat: Callable[[], object] = lambda: None) -> None:
        """Download an object into a new local file. beat: called after each block.

        Raises InputError if the object does not exist or no longer has this tag.
        """
        try:
            with naming(path, "write"), naming_store(self.where(name)), open(path, "xb") as file:
                got = obstore().get(self._bulk, self._path(name))
                meta, size = _stat(got.meta), 0
                for block in got.stream(min_chunk_size=4 << 20):
                    file.write(block)
                    size += len(block)
                    beat()
        except ResourceError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise InputError("there is no such object", path=self.where(name), remedy="check the URL") from error
            raise
        if size != meta.size or (tag is not None and meta.tag.strip('"') != tag.strip('"')):  # Azure lists bare tags
            raise InputError("the object was replaced while it was downloaded", path=self.where(name),
                             remedy="let whatever writes it finish, then run again")  # fmt: skip

    def delete(self, names: list[str]) -> None:
        """Delete objects. Missing objects are ignored."""
        paths = [self._path(name) for name in names]
        for first in range(0, len(paths), DELETED):
            some = paths[first : first + DELETED]
            try:
                with naming_store(self.url):
                    obstore().delete(self._store, some)
            except FileNotFoundError:  # Google's store and Azure report a missing object, and others may still be there
                for path in some:
                    with suppress(FileNotFoundError), naming_store(self.url):
                        obstore().delete(self._store, path)


def _stat(meta: Any) -> Stat:
    modified: datetime = meta["last_modified"]
    return Stat(meta["size"], meta["e_tag"] or meta["version"] or "", modified.timestamp(), meta["version"])
