"""The metadata server and the TPU API on this machine: one HTTP server, for tests."""

import contextlib
import http.server
import json
import threading

TOKEN = "a-token"


class Google(http.server.ThreadingHTTPServer):
    """Answers as a TPU VM's metadata server and as the TPU API.

    Attributes:
      metadata: path below computeMetadata/v1 -> text.
      nodes: a TPU's name -> what the API says of it; an int is a status.
      asked: the paths that were asked for.
    """

    daemon_threads = True

    def __init__(self, metadata=None, nodes=None):
        super().__init__(("127.0.0.1", 0), _Answer)
        self.metadata = {
            "project/project-id": "my-project",
            "instance/zone": "projects/123/zones/europe-west4-a",
            "instance/service-accounts/default": json.dumps({"email": "default", "scopes": []}),
            "instance/service-accounts/default/token": json.dumps(
                {"access_token": TOKEN, "expires_in": 3000}
            ),
            **(metadata or {}),
        }
        self.nodes = nodes or {}
        self.asked = []

    @property
    def address(self):
        return f"127.0.0.1:{self.server_address[1]}"

    @property
    def environment(self):
        """The variables that lead TensorFlow's client, and ours, here."""
        discovery = f"http://{self.address}/discovery/{{api}}/{{apiVersion}}"
        # oauth2client looks for a metadata server at the address alone.
        own = dict.fromkeys(("GCE_METADATA_HOST", "GCE_METADATA_IP"), self.address)
        return {**own, "TPU_API_DISCOVERY_URL": discovery}


def tpu_vm(kind="v3-32", worker="0", **more):
    """The metadata of a TPU VM."""
    return {
        "instance/attributes/tpu-env": f"ACCELERATOR_TYPE: '{kind}'\nWORKER_ID: '{worker}'\n",
        **more,
    }


def node(kind="v3-32", state="READY", endpoints=(), **more):
    """What the API says of a TPU."""
    listed = [{"ipAddress": host, "port": port} for host, port in endpoints]
    return {"acceleratorType": kind, "state": state, "networkEndpoints": listed, **more}


class _Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        google = self.server
        path = self.path.partition("?")[0].strip("/")
        google.asked.append(path)
        if not path:
            self._send(200, "computeMetadata/")
        elif path.startswith("computeMetadata/v1/"):
            assert self.headers["Metadata-Flavor"] == "Google"
            value = google.metadata.get(path.removeprefix("computeMetadata/v1/"))
            self._send(404 if value is None else 200, value or "")
        elif path == "discovery/tpu/v1":
            self._send(200, json.dumps(_discovery(google.address)))
        elif path.startswith("v1/projects/"):
            self._node(path)
        else:
            self._send(404, "{}")

    def _node(self, path):
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self._send(401, json.dumps({"error": {"message": "who are you"}}))
            return
        _, _, project, _, zone, _, name = path.split("/")
        found = self.server.nodes.get(name, 404)
        if (project, zone) != ("my-project", "europe-west4-a"):
            found = 404
        if isinstance(found, int):
            self._send(found, json.dumps({"error": {"message": f"no node {name}."}}))
        else:
            self._send(200, json.dumps(found))

    def _send(self, status, text):
        content = text.encode()
        self.send_response(status)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args):
        pass


def _discovery(address):
    """The part of the TPU API's discovery document that asks for a TPU."""
    get = {
        "id": "tpu.projects.locations.nodes.get",
        "path": "v1/{+name}",
        "flatPath": "v1/{+name}",
        "httpMethod": "GET",
        "parameterOrder": ["name"],
        "parameters": {"name": {"location": "path", "required": True, "type": "string"}},
    }
    return {
        "kind": "discovery#restDescription",
        "name": "tpu",
        "version": "v1",
        "rootUrl": f"http://{address}/",
        "servicePath": "",
        "batchPath": "batch",
        "resources": {
            "projects": {
                "resources": {"locations": {"resources": {"nodes": {"methods": {"get": get}}}}}
            }
        },
    }


@contextlib.contextmanager
def serving(metadata=None, nodes=None):
    """Yields a running `Google`."""
    google = Google(metadata, nodes)
    thread = threading.Thread(target=google.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield google
    finally:
        google.shutdown()
        google.server_close()
