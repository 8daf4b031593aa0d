"""HTTP requests that follow no redirect, because only the configured address is allowed to receive their content."""

from __future__ import annotations

from typing import Any
from urllib import request


class _NoRedirect(request.HTTPRedirectHandler):
    def redirect_request(self, *_arguments: Any, **_more: Any) -> None:
        return None


open_address = request.build_opener(_NoRedirect).open
