"""Object stores in memory, which answer the requests of Google's JSON and XML interfaces.

    store = ObjectStore({"b": Bucket()})
    store.put("b", "cache/toy/info.train.json", b"{}")
    store.answer(Request("GET", "storage.googleapis.com", "/b/cache/toy/info.train.json"))
    # Answer(status=200, content=b"{}", ...)

Objects have generations, and appear whole when their upload ends. Answered are metadata of buckets
and objects, listings (prefix, delimiter, pages), reads (ranges), uploads (media, multipart,
resumable), copies, rewrites, deletions, and which permissions the caller has.
`tests.helpers.buckets.server` serves a store to TensorFlow's `gs://` and to google-cloud-storage.
"""

import base64
import dataclasses
import hashlib
import itertools
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping

import google_crc32c

READ, WRITE = "read", "write"
# Permission of Google's -> the one of ours that it needs.
_PERMISSIONS = {
    "storage.buckets.get": READ,
    "storage.objects.get": READ,
    "storage.objects.list": READ,
    "storage.objects.create": WRITE,
    "storage.objects.delete": WRITE,
}


@dataclasses.dataclass(frozen=True)
class Request:
    """A request.

    Attributes:
      method: GET, POST, PUT, PATCH or DELETE.
      host: the server that the client asked for.
      target: path and query, as sent.
      headers: with names in small letters.
      body: the bytes that came.
    """

    method: str
    host: str
    target: str
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    body: bytes = b""

    @property
    def path(self) -> str:
        """The path, not unquoted."""
        return self.target.partition("?")[0]

    @property
    def query(self) -> dict[str, str]:
        """The last value of each parameter."""
        return dict(urllib.parse.parse_qsl(self.target.partition("?")[2], keep_blank_values=True))

    @property
    def token(self) -> str | None:
        """The caller's token; None for an anonymous caller."""
        kind, _, token = self.headers.get("authorization", "").partition(" ")
        return token if kind.lower() == "bearer" else None


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer."""

    status: int
    content: bytes = b""
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class StoredObject:
    """One generation of an object."""

    content: bytes
    generation: int

    @property
    def crc32c(self) -> str:
        """The checksum as Google writes it: big-endian, in base 64."""
        return base64.b64encode(google_crc32c.value(self.content).to_bytes(4, "big")).decode()


@dataclasses.dataclass(frozen=True)
class Change:
    """A write or a deletion.

    Attributes:
      name: bucket and object.
      content: None for a deletion.
      seconds: when (`time.monotonic`).
    """

    name: str
    content: bytes | None
    seconds: float


@dataclasses.dataclass
class Bucket:
    """A bucket.

    Attributes:
      location: the region, as Google writes it.
      tokens: token (None: anonymous) -> what its caller may do; None where everybody may do all.
      page: most names of a page of a listing.
      objects: name -> object.
      before: the objects before the last change, which a stale listing has.
    """

    location: str = "US-CENTRAL1"
    tokens: dict[str | None, set[str]] | None = None
    page: int = 1000
    objects: dict[str, StoredObject] = dataclasses.field(default_factory=dict)
    before: dict[str, StoredObject] = dataclasses.field(default_factory=dict)

    def allows(self, token: str | None, permission: str) -> bool:
        """Returns whether the caller may do that."""
        return self.tokens is None or permission in self.tokens.get(token, ())


class _Refused(Exception):
    """An answer other than the one asked for."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclasses.dataclass
class _Upload:
    bucket: str
    name: str
    match: str | None
    content: bytes = b""


def _json(content: object, **headers: str) -> Answer:
    return Answer(
        200, json.dumps(content).encode(), {"Content-Type": "application/json", **headers}
    )


class ObjectStore:
    """Buckets by name, and answers to requests about them.

    Args:
      buckets: name -> bucket.
      tokens: the tokens that are valid; None where all are. Others are answered by 401.
      changed: called after each change.
    """

    def __init__(
        self,
        buckets: dict[str, Bucket],
        tokens: set[str] | None = None,
        changed: Callable[[Change], None] = lambda change: None,
    ) -> None:
        self.buckets = buckets
        self.tokens = tokens
        self._changed = changed
        self._uploads: dict[str, _Upload] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def put(self, bucket: str, name: str, content: bytes) -> StoredObject:
        """Writes an object."""
        made = StoredObject(content, next(self._numbers))
        held = self.buckets[bucket]
        held.before = dict(held.objects)
        held.objects[name] = made
        self._changed(Change(f"{bucket}/{name}", content, time.monotonic()))
        return made

    def files(self, bucket: str) -> dict[str, bytes]:
        """Returns the contents by name, without the empty objects that stand for folders."""
        objects = dict(self.buckets[bucket].objects)
        return {name: objects[name].content for name in sorted(objects) if not name.endswith("/")}

    def asked(self, request: Request) -> tuple[str, str]:
        """Returns what a request asks for, and the bucket and object that it is about."""
        kind, names, _ = _route(request)
        if kind == "bytes":
            upload = self._uploads.get(names[0])
            names = [upload.bucket, upload.name] if upload else names
        if kind == "upload" and request.query.get("uploadType") == "resumable":
            kind = "begin"
        return kind, "/".join(names[-2:])  # of a copy, the new object

    def answer(self, request: Request, *, stale: bool = False) -> Answer:
        """Returns what the bucket answers, after it did what was asked.

        Args:
          request: the request.
          stale: whether a listing has the names of before the last change.
        """
        _, names, handler = _route(request)
        with self._lock:
            try:
                if request.token is not None and self.tokens is not None:
                    _require(request.token in self.tokens, 401, "Invalid Credentials")
                if handler is ObjectStore._list:
                    return self._list(request, *names, stale=stale)
                return handler(self, request, *names)
            except _Refused as refused:
                error = {"error": {"code": refused.status, "message": str(refused)}}
                return dataclasses.replace(_json(error), status=refused.status)

    # What each request does. The lock is held.

    def _bucket(self, request: Request, name: str, permission: str) -> Bucket:
        bucket = self.buckets.get(name)
        if bucket is None:
            raise _Refused(404, "The specified bucket does not exist.")
        if not bucket.allows(request.token, permission):
            who = "Anonymous caller" if request.token is None else "The caller"
            status = 401 if request.token is None else 403
            verb = {READ: "get", WRITE: "create"}[permission]
            raise _Refused(status, f"{who} does not have storage.objects.{verb} access to {name}.")
        return bucket

    def _object(self, request: Request, bucket: str, name: str) -> StoredObject:
        found = self._bucket(request, bucket, READ).objects.get(name)
        if found is None:
            raise _Refused(404, f"No such object: {bucket}/{name}")
        return found

    def _describe_bucket(self, request: Request, name: str) -> Answer:
        bucket = self._bucket(request, name, READ)
        return _json(
            {
                "kind": "storage#bucket",
                "name": name,
                "id": name,
                "location": bucket.location,
                "locationType": "region" if "-" in bucket.location else "multi-region",
            }
        )

    def _test_permissions(self, request: Request, name: str) -> Answer:
        bucket = self.buckets.get(name)
        if bucket is None:
            raise _Refused(404, "The specified bucket does not exist.")
        asked = urllib.parse.parse_qs(request.target.partition("?")[2]).get("permissions", [])
        held = [name for name in asked if bucket.allows(request.token, _PERMISSIONS.get(name, ""))]
        return _json({"permissions": held})

    def _list(self, request: Request, name: str, *, stale: bool) -> Answer:
        bucket, query = self._bucket(request, name, READ), request.query
        objects = bucket.before if stale else bucket.objects
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        found: dict[str, bool] = {}  # name -> whether it is a prefix
        for key in sorted(objects):
            if key.startswith(prefix):
                cut = key.find(delimiter, len(prefix)) if delimiter else -1
                found[key if cut < 0 else key[: cut + len(delimiter)]] = cut >= 0
                if cut >= 0 and query.get("includeTrailingDelimiter") and key.endswith(delimiter):
                    found[key] = False
        most = min(int(query.get("maxResults", bucket.page)), bucket.page)
        after = query.get("pageToken", "")
        names = sorted(key for key in found if key > after)
        page = names[:most]
        content = {
            "items": [_described(name, key, objects[key]) for key in page if not found[key]],
            "prefixes": [key for key in page if found[key]],
        }
        if len(names) > most:
            content["nextPageToken"] = page[-1]
        return _json(content)

    def _stat(self, request: Request, bucket: str, name: str) -> Answer:
        if request.query.get("alt") == "media":
            return self._read(request, bucket, name)
        return _json(_described(bucket, name, self._object(request, bucket, name)))

    def _read(self, request: Request, bucket: str, name: str) -> Answer:
        found = self._object(request, bucket, name)
        headers = {
            "X-Goog-Generation": str(found.generation),
            "X-Goog-Hash": f"crc32c={found.crc32c}",
            "ETag": f'"{found.generation}"',
        }
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
        if not asked:
            return Answer(200, found.content, headers)
        start, size = int(asked[1]), len(found.content)
        _require(start < size, 416, "The requested range cannot be satisfied.")
        end = min(int(asked[2] or size - 1), size - 1)
        headers["Content-Range"] = f"bytes {start}-{end}/{size}"
        return Answer(206, found.content[start : end + 1], headers)

    def _upload(self, request: Request, bucket: str, name: str) -> Answer:
        self._bucket(request, bucket, WRITE)
        kind, match = request.query.get("uploadType"), request.query.get("ifGenerationMatch")
        if kind == "resumable":
            number = f"upload-{next(self._numbers)}"
            self._uploads[number] = _Upload(bucket, name, match)
            place = f"https://{request.host}/upload/session/{number}"
            return Answer(200, headers={"Location": place})
        content = request.body if kind == "media" else _parts(request)[1]
        return self._finish(_Upload(bucket, name, match, content))

    def _finish(self, upload: _Upload) -> Answer:
        held = self.buckets[upload.bucket].objects.get(upload.name)
        wanted = held.generation if held else 0
        _require(upload.match in (None, str(wanted)), 412, "Precondition Failed")
        made = self.put(upload.bucket, upload.name, upload.content)
        return _json(_described(upload.bucket, upload.name, made))

    def _continue_upload(self, request: Request, number: str) -> Answer:
        upload = self._uploads.get(number)
        if upload is None:
            raise _Refused(404, "No such upload")
        asked = request.headers.get("content-range", f"bytes 0-{len(request.body) - 1}/*")
        first, _, total = re.fullmatch(r"bytes (\d+|\*)(-\d+)?/(\d+|\*)", asked).groups()
        if first != "*":
            _require(int(first) == len(upload.content), 400, "not the next bytes")
            upload.content += request.body
        if total == "*" and "content-range" not in request.headers:
            total = str(len(upload.content))
        if total == "*" or len(upload.content) < int(total):
            held = len(upload.content)
            return Answer(308, headers={"Range": f"bytes=0-{held - 1}"} if held else {})
        answer = self._finish(upload)
        del self._uploads[number]
        return answer

    def _copy(self, request: Request, bucket: str, name: str, to: str, new: str) -> Answer:
        found = self._object(request, bucket, name)
        self._bucket(request, to, WRITE)
        made = self.put(to, new, found.content)
        size = str(len(found.content))
        described = _described(to, new, made)
        if "/rewriteTo/" not in request.path:
            return _json(described)
        return _json(
            {"done": True, "objectSize": size, "totalBytesRewritten": size, "resource": described}
        )

    def _delete(self, request: Request, bucket: str, name: str) -> Answer:
        place = self._bucket(request, bucket, WRITE)
        held = place.objects.get(name)
        if held is None:
            raise _Refused(404, f"No such object: {bucket}/{name}")
        match = request.query.get("ifGenerationMatch")
        _require(match in (None, str(held.generation)), 412, "Precondition Failed")
        place.before = dict(place.objects)
        del place.objects[name]
        self._changed(Change(f"{bucket}/{name}", None, time.monotonic()))
        return Answer(204)


def _require(holds: bool, status: int, reason: str) -> None:
    if not holds:
        raise _Refused(status, reason)


def _no_such(store: ObjectStore, request: Request, path: str) -> Answer:
    raise _Refused(404, f"no such address: {request.method} {request.host}{request.path}")


def _described(bucket: str, name: str, found: StoredObject) -> dict[str, str]:
    return {
        "kind": "storage#object",
        "name": name,
        "bucket": bucket,
        "generation": str(found.generation),
        "metageneration": "1",
        "size": str(len(found.content)),
        "crc32c": found.crc32c,
        "md5Hash": base64.b64encode(hashlib.md5(found.content).digest()).decode(),
        "updated": "2026-01-01T00:00:00.000Z",
        "timeCreated": "2026-01-01T00:00:00.000Z",
    }


def _parts(request: Request) -> tuple[dict[str, str], bytes]:
    """Returns the metadata and the content of a multipart upload."""
    boundary = re.search(r'boundary="?([^";]+)', request.headers.get("content-type", ""))
    _require(boundary is not None, 400, "no boundary")
    pieces = request.body.split(b"--" + boundary[1].encode())[1:-1]
    _require(len(pieces) == 2, 400, "not two parts")
    facts, content = pieces
    return (
        json.loads(facts.partition(b"\r\n\r\n")[2]),
        content.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n"),
    )


def _named(request: Request) -> str:
    """Returns the name of an upload that gives it in its body."""
    if request.query.get("uploadType") == "multipart":
        return _parts(request)[0].get("name", "")
    return json.loads(request.body or b"{}").get("name", "")


def _routes() -> Iterator[tuple[str, re.Pattern[str], str, Callable[..., Answer]]]:
    rows = (
        ("GET", "/storage/v1/b/BUCKET/o", "list", ObjectStore._list),
        ("GET", "/storage/v1/b/BUCKET/iam/testPermissions", "iam", ObjectStore._test_permissions),
        ("GET", "/storage/v1/b/BUCKET", "bucket", ObjectStore._describe_bucket),
        ("GET", "/storage/v1/b/BUCKET/o/OBJECT", "stat", ObjectStore._stat),
        ("GET", "/download/storage/v1/b/BUCKET/o/OBJECT", "read", ObjectStore._read),
        ("DELETE", "/storage/v1/b/BUCKET/o/OBJECT", "delete", ObjectStore._delete),
        ("POST", "/storage/v1/b/BUCKET/o/OBJECT/(?:rewriteTo|copyTo)/b/BUCKET/o/OBJECT", "copy",
         ObjectStore._copy),
        ("POST", "/upload/storage/v1/b/BUCKET/o", "upload", ObjectStore._upload),
        ("PUT|POST", "/upload/session/BUCKET", "bytes", ObjectStore._continue_upload),
        ("GET", "/BUCKET/ANY", "read", ObjectStore._read),
    )  # fmt: skip
    groups = {"BUCKET": "([^/]+)", "OBJECT": "([^/]+)", "ANY": "(.+)"}
    for method, path, kind, handler in rows:
        pattern = re.sub("BUCKET|OBJECT|ANY", lambda match: groups[match[0]], path)
        yield method, re.compile(pattern), kind, handler


_ROUTES = tuple(_routes())


def _route(request: Request) -> tuple[str, list[str], Callable[..., Answer]]:
    """Returns what a request asks for, the names in it, and what answers it."""
    for method, pattern, kind, handler in _ROUTES:
        match = pattern.fullmatch(request.path)
        if match and request.method in method.split("|"):
            names = [urllib.parse.unquote(group) for group in match.groups()]
            if kind == "upload":
                names.append(request.query.get("name") or _named(request))
            return kind, names, handler
    return "unknown", [request.path], _no_such
