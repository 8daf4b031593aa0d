"""Sign-in: browsers use a one-time link and then a cookie. Other clients use a token, and so do browsers on other
machines.

The key that signs cookies is kept in Rolecall's home, so that a browser stays signed in when the server restarts. A
cookie is valid for one port, one token and one mode (`--read-only` or not), because browsers send cookies to every port
of a host, and all servers of a home share the key. A file next to the key lists signed-out cookies until they expire.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from time import monotonic, time
from typing import Literal, NamedTuple

from rolecall.errors import StorageError

_DAYS = 30
_KEY_FILE = "web.key"
_KEY_BYTES = 32
_ENDED_FILE = "web.ended"
"""The file with one line for each signed-out cookie: when the cookie expires, and its signature."""
_COOKIE = "Path=/; HttpOnly; SameSite=Strict"
LINK_MINUTES = 10
_MOST_LINKS = 20


class _Link(NamedTuple):
    word: str
    until: float


class BrowserSignIn:
    def __init__(
        self,
        home: str,
        *,
        token: str | None,
        is_read_only: bool = False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`clock` returns the time in seconds by which links expire."""
        self._key = _load_key(home)
        self._scope = f"{is_read_only}|{sha256((token or '').encode()).hexdigest()}"
        self._token = token.encode() if token else None
        self._clock = clock
        self._links: list[_Link] = []
        self._ended_path = os.path.join(home, _ENDED_FILE)
        self._ended = _load_ended(self._ended_path)

    @property
    def takes_token(self) -> bool:
        return self._token is not None

    def make_link(self) -> str:
        """Return the secret of a new link. The link signs in one browser, once, within a few minutes. Only the newest
        links are valid."""
        word = secrets.token_urlsafe(24)
        self._links = [*self._links, _Link(word, self._clock() + LINK_MINUTES * 60)][-_MOST_LINKS:]
        return word

    def take_link(self, word: str) -> Literal["valid", "old", "unknown"]:
        """Return whether a link is valid, old or unknown. A link can be used only once."""
        for link in self._links:
            if hmac.compare_digest(link.word.encode(), word.encode()):
                self._links.remove(link)
                return "valid" if self._clock() < link.until else "old"
        return "unknown"

    def is_token(self, given: str) -> bool:
        return self._token is not None and hmac.compare_digest(given.encode(), self._token)

    def make_cookie(self, name: str) -> str:
        claim = f"{int(time()) + _DAYS * 86_400}.{secrets.token_urlsafe(12)}"
        return f"{claim}.{self._sign(name, claim)}"

    def is_cookie(self, name: str, value: str) -> bool:
        claim, _, signature = value.rpartition(".")
        expiry = claim.partition(".")[0]
        is_ours = hmac.compare_digest(signature.encode(), self._sign(name, claim).encode())
        is_timely = expiry.isdecimal() and time() < int(expiry)
        return is_ours and is_timely and signature not in self._ended

    def end_cookie(self, name: str, value: str) -> None:
        """Make a cookie invalid. If this cannot be saved in the home, the cookie is valid again after a restart."""
        if not self.is_cookie(name, value):
            return
        signature = value.rpartition(".")[2]
        self._ended.add(signature)
        try:
            with open(os.open(self._ended_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as file:
                file.write(f"{value.partition('.')[0]} {signature}\n")
        except OSError as error:
            raise StorageError(
                f"this browser is signed out, but {self._ended_path} cannot be written ({error.strerror})",
                hint="A copy of its cookie works again after the server restarts; removing web.key ends all cookies.",
            ) from error

    def header(self, name: str) -> str:
        """Return the Set-Cookie header that signs a browser in."""
        return f"{name}={self.make_cookie(name)}; Max-Age={_DAYS * 86_400}; {_COOKIE}"

    def header_out(self, name: str) -> str:
        """Return the Set-Cookie header that makes a browser forget its cookie."""
        return f"{name}=; Max-Age=0; {_COOKIE}"

    def _sign(self, name: str, claim: str) -> str:
        """Return the signature of a cookie, whose name contains the port."""
        return hmac.new(self._key, f"{name}|{self._scope}|{claim}".encode(), "sha256").hexdigest()


def _load_key(home: str) -> bytes:
    """Read the key from the home, or create the key. Another server might create it at the same moment."""
    path = os.path.join(home, _KEY_FILE)
    try:
        os.makedirs(home, exist_ok=True)
        own = f"{path}.{os.getpid()}"
        with open(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
        with suppress(FileExistsError):
            os.link(own, path)
        os.unlink(own)
        with open(path, "rb") as file:
            key = file.read()
    except OSError as error:
        raise StorageError(
            f"the key of the web page cannot be kept in {home}: {error.strerror}",
            hint="Set ROLECALL_HOME to a folder that can be written to.",
        ) from error
    if len(key) < _KEY_BYTES:
        raise StorageError(f"{path} is too short to be a key", hint="Remove it; everybody signs in again.")
    return key


def _load_ended(path: str) -> set[str]:
    try:
        with open(path, encoding="ascii") as file:
            lines = [line.split() for line in file]
    except FileNotFoundError:
        return set()
    except (OSError, ValueError) as error:
        raise StorageError(f"{path} cannot be read: {error}", hint="Remove it and web.key.") from error
    return {line[1] for line in lines if len(line) == 2 and line[0].isdecimal() and int(line[0]) > time()}
