"""A proxy that answers for Google's buckets; `tests.helpers.buckets.served_buckets` starts its process.

    python -m tests.helpers.buckets.server   # pickled calls of `BucketServer` on its standard input

A proxy on loopback that answers TLS as `*.googleapis.com`: Google's addresses are fixed in both
TensorFlow's client and google-cloud-storage, but they honour `https_proxy` and take the authorities
from `CURL_CA_BUNDLE`. The authority is made for the server, and thrown away with it.

It is a process because TensorFlow closes files that could not be written while it holds Python's
lock: a thread of the same process could not answer it.

TensorFlow's uploads carry both `Content-Length` and chunked encoding: the chunks are right.
"""

import contextlib
import dataclasses
import datetime
import http.client
import pickle
import re
import socket
import socketserver
import ssl
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from tests.helpers.buckets.faults import Call, Fault, Faults, no_faults
from tests.helpers.buckets.object_store import Answer, Bucket, Change, ObjectStore, Request

HOST = "*.googleapis.com"
SLOW_SECONDS = 0.2


class BucketServer:
    """Serves a store; its public functions are what `served_buckets` can call.

    Args:
      folder: where the authority's certificate and key are written.
    """

    def __init__(self, folder: str) -> None:
        self._store = ObjectStore({})
        self._faults: Faults = no_faults
        self._delay = 0.0
        self._calls: list[Call] = []
        self._changes: list[Change] = []
        self._tls = _certified(Path(folder))
        self._proxy = _Proxy(("127.0.0.1", 0), _Connection)
        self._proxy.owner = self
        threading.Thread(target=self._proxy.serve_forever, args=(0.02,), daemon=True).start()

    def port(self) -> int:
        """Returns the proxy's port."""
        return self._proxy.server_address[1]

    def reset(self, buckets: dict[str, Bucket], tokens: set[str] | None) -> None:
        """Begins anew, without faults; see `ObjectStore`."""
        self._store = ObjectStore(buckets, tokens, self._changes.append)
        self._calls.clear()
        self._changes.clear()
        self.set_faults(no_faults)

    def set_faults(self, faults: Faults, delay: float = 0.0) -> None:
        """Sets what goes wrong from now on, and the seconds before each answer."""
        self._faults, self._delay = faults, delay

    def put(self, bucket: str, name: str, content: bytes) -> None:
        """Writes an object."""
        self._store.put(bucket, name, content)

    def files(self, bucket: str) -> dict[str, bytes]:
        """Returns the objects' contents by name."""
        return self._store.files(bucket)

    def calls(self) -> list[Call]:
        """Returns the requests, in the order of their answers."""
        return list(self._calls)

    def changes(self) -> list[Change]:
        """Returns what happened to objects, in order."""
        return list(self._changes)

    def _answer(self, request: Request, fault: Fault) -> Answer:
        kind, name = self._store.asked(request)
        if isinstance(fault, int):
            answer = Answer(fault, b'{"error": {"code": %d, "message": "injected"}}' % fault)
        else:
            answer = self._store.answer(request, stale=fault == "stale")
        time.sleep(self._delay + (SLOW_SECONDS if fault == "slow" else 0))
        self._write_down(kind, name, answer.status, fault)
        return answer

    def _write_down(self, kind: str, name: str, status: int, fault: Fault) -> None:
        self._calls.append(Call(kind, name, status, time.monotonic(), fault))


class _Proxy(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64
    owner: BucketServer

    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing: clients that are killed break their connections."""


class _Connection(socketserver.StreamRequestHandler):
    server: _Proxy
    # Otherwise each request waits 40 ms: an answer in two packets meets delayed acknowledgements.
    disable_nagle_algorithm = True

    def handle(self) -> None:
        """Takes the request for a tunnel, and then those in it."""
        words = self.rfile.readline(65537).split()
        _headers(self.rfile)
        if len(words) != 3 or words[0] != b"CONNECT":
            self.wfile.write(b"HTTP/1.1 501 Not Implemented\r\n\r\n")
            return
        host = words[1].decode().partition(":")[0]
        self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        if not host.endswith(HOST[1:]):
            return
        with contextlib.suppress(OSError):
            tunnel = self.server.owner._tls.wrap_socket(self.connection, server_side=True)
            with tunnel, tunnel.makefile("rb") as reader:
                while self._answer_one(host, tunnel, reader):
                    pass

    def _answer_one(self, host: str, tunnel: socket.socket, reader: BinaryIO) -> bool:
        """Answers the next request of the tunnel; returns whether another may follow."""
        words = reader.readline(65537).decode("latin-1").split()
        if len(words) != 3:
            return False
        headers = _headers(reader)
        if headers.get("expect", "").lower() == "100-continue":
            tunnel.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        request = Request(words[0], host, words[1], headers, _body(reader, headers))
        owner = self.server.owner
        fault = owner._faults(*owner._store.asked(request))
        if fault == "truncated":
            _take_half(owner._store, request)
        if fault in ("reset", "truncated"):
            owner._write_down(*owner._store.asked(request), 0, fault)
            return False
        answer = owner._answer(request, fault)
        if fault == "lost":
            return False
        tunnel.sendall(_head(answer, request))
        content = b"" if request.method == "HEAD" else answer.content
        if fault == "cut":
            tunnel.sendall(content[: len(content) // 2])
            return False
        tunnel.sendall(content)
        return headers.get("connection", "").lower() != "close"


def _take_half(store: ObjectStore, request: Request) -> None:
    """Keeps half of the bytes of a resumable upload; other uploads leave nothing."""
    match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", request.headers.get("content-range", ""))
    if match and len(request.body) > 1:
        half = request.body[: len(request.body) // 2]
        last = int(match[1]) + len(half) - 1
        headers = {**request.headers, "content-range": f"bytes {match[1]}-{last}/{match[3]}"}
        store.answer(dataclasses.replace(request, headers=headers, body=half))


def _headers(reader: BinaryIO) -> dict[str, str]:
    message = http.client.parse_headers(reader)
    return {name.lower(): value for name, value in message.items()}


def _body(reader: BinaryIO, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return reader.read(int(headers.get("content-length") or 0))
    pieces = []
    while size := int(reader.readline().partition(b";")[0], 16):
        pieces.append(reader.read(size))
        reader.readline()
    _headers(reader)
    return b"".join(pieces)


def _head(answer: Answer, request: Request) -> bytes:
    words = http.client.responses.get(answer.status, "Other")
    headers = {"Content-Length": str(len(answer.content)), **answer.headers}
    if answer.status == 204:
        del headers["Content-Length"]
    lines = [f"HTTP/1.1 {answer.status} {words}", *(f"{n}: {v}" for n, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _certified(folder: Path) -> ssl.SSLContext:
    """Makes an authority that certifies itself for Google's addresses, and a server's context."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a bucket for tests")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public, private = folder / "authority.pem", folder / "key.pem"
    public.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, private)
    return context


def main() -> None:
    """Answers pickled calls, (name of the function, its arguments), until the input ends."""
    server = BucketServer(sys.argv[1])
    answers = sys.stdout.buffer
    while True:
        try:
            name, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(getattr(server, name)(*arguments), answers)
        answers.flush()


if __name__ == "__main__":
    main()
