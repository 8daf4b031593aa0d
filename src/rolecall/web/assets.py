"""The files of the page, which come with the package."""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
import re
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
_PAGE = "index.html"


class Asset(NamedTuple):
    data: bytes
    packed: bytes
    etag: str
    type: str


class Assets:
    """The files of the page, by their paths under `static/`. The page refers to the files by addresses that contain the
    version, so that browsers can cache the files."""

    def __init__(self) -> None:
        found = dict(_read_files(resources.files("rolecall.web") / "static", ""))
        whole = hashlib.sha256(b"".join(found[path] for path in sorted(found)))
        self._version = whole.hexdigest()[:12]
        found[_PAGE] = found[_PAGE].replace(b"/static/", f"/static/{self._version}/".encode())
        self._files: dict[str, Asset] = {}
        for path, data in found.items():
            etag = f'"{hashlib.sha256(data).hexdigest()[:20]}"'
            kind = _TYPES.get(os.path.splitext(path)[1], "text/plain")
            self._files[path] = Asset(data, gzip.compress(data, 9, mtime=0), etag, kind)

    @property
    def policy(self) -> str:
        """The Content-Security-Policy. It allows only the site's own files, and the import map of the page by its
        hash."""
        found = re.search(rb'<script type="importmap">(.*?)</script>', self._files[_PAGE].data, re.S)
        digest = base64.b64encode(hashlib.sha256(found[1] if found else b"").digest()).decode()
        return (
            f"default-src 'none'; script-src 'self' 'sha256-{digest}'; style-src 'self'; connect-src 'self'; "
            "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )

    async def send_page(self, request: Request) -> Response:
        """Send the page itself, which is served at every other address."""
        return _send(request, self._files[_PAGE], "no-cache")

    async def send_file(self, request: Request) -> Response:
        path, cache = request.path_params["path"], "no-cache"
        version, _, rest = path.partition("/")
        if version == self._version:
            path, cache = rest, "public, max-age=31536000, immutable"
        found = self._files.get(path)
        return _send(request, found, cache) if found else Response("not found\n", 404)


def _send(request: Request, asset: Asset, cache: str) -> Response:
    headers = {"ETag": asset.etag, "Cache-Control": cache, "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(asset.packed, media_type=asset.type, headers=headers)
    return Response(asset.data, media_type=asset.type, headers=headers)


def _read_files(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found = []
    for item in folder.iterdir():
        if item.is_dir():
            found += _read_files(item, f"{prefix}{item.name}/")
        else:
            found.append((prefix + item.name, item.read_bytes()))
    return found
