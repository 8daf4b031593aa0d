"""`knowledge.yaml` -> values, with every problem at once. Pure: it is given the text.

include:   patterns as in a .gitignore; files that match one are indexed
exclude:   patterns of files and folders that are not
embedding: {provider, model, dimensions}; without it the embedded model, which needs no network
chunk:     {tokens, largestFile}        the most tokens of a passage, the most bytes of a file
weights:   {words, vectors} or {prose | identifier | error: {words, vectors}}

The same may stand below `knowledge` in the project's `rolecall.yaml`. The file is in git and may be anybody's: it
names a provider, and where that is and which key it is sent is in the configuration of whoever runs us.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rolecall.errors import UsageError
from rolecall.knowledge import globs
from rolecall.settings import yaml12
from rolecall.settings.yaml12 import Marks, Path, Problem

FILE = "knowledge.yaml"
INDEX = "knowledge.db"
EMBEDDED = "embedded"
TRANSFORMERS = "sentence-transformers"
KINDS = ("prose", "identifier", "error")
"""What a query can look like."""

_KEYS = ("include", "exclude", "embedding", "chunk", "weights")
_WEIGHTS = ("words", "vectors")
_MOST_DIMENSIONS = 8192


@dataclass(frozen=True)
class Embedding:
    """Which model turns texts into vectors."""

    provider: str = EMBEDDED
    model: str = ""
    dimensions: int | None = None


@dataclass(frozen=True)
class Settings:
    include: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    embedding: Embedding = Embedding()
    tokens: int = 400
    """The most tokens of a passage."""
    largest_file: int = 1_000_000
    """Bytes; what is larger is data."""
    weights: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """How much words and vectors count, by what the query looks like; what is not named is the model's own."""


def load(text: str, *, source: str = FILE, section: str | None = None) -> Settings:
    """The settings in a text, or in a section of it, or `UsageError` with every problem on a line of its own."""
    node, problems = yaml12.read(text, source=source)
    if node is None or problems:
        raise _wrong(source, problems)
    value = node.value
    if section is not None:
        value = value.get(section) if isinstance(value, dict) else {}
    settings, found = read(value, Marks(node), within=() if section is None else (section,))
    if found:
        raise _wrong(source, found)
    return settings


def read(value: Any, marks: Marks, *, within: Path) -> tuple[Settings, list[Problem]]:
    """What a value says, and everything that is wrong with it; `marks` know its places, `within` where it stands."""
    reader = _Reader(value, marks, within)
    return reader.settings(), reader.problems


def _wrong(source: str, problems: list[Problem]) -> UsageError:
    lines = "\n".join(
        f"  {problem}" for problem in sorted(problems, key=lambda each: (each.line, each.column))
    )
    count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
    return UsageError(f"{source} has {count}\n{lines}", hint="Correct the file; nothing was changed.")


class _Reader:
    def __init__(self, value: Any, marks: Marks, within: Path) -> None:
        self._value = value
        self._marks = marks
        self._within = within
        self.problems: list[Problem] = []

    def settings(self) -> Settings:
        top = self._mapping(self._value, (), "the file" if not self._within else f"`{self._within[0]}`")
        self._known(top, (), _KEYS, FILE)
        if not top.get("include"):
            self._report((), "`include` is missing", 'For example `include: ["**/*.py", "**/*.md"]`.')
        chunk = self._mapping(top.get("chunk"), ("chunk",))
        self._known(chunk, ("chunk",), ("tokens", "largestFile"), "chunk")
        return Settings(
            include=self._patterns(top, "include"),
            exclude=self._patterns(top, "exclude"),
            embedding=self._embedding(top.get("embedding")),
            tokens=self._count(chunk, ("chunk", "tokens"), 400, least=50, most=8000),
            largest_file=self._count(chunk, ("chunk", "largestFile"), 1_000_000, least=1000, most=50_000_000),
            weights=self._weights(top.get("weights")),
        )

    def _patterns(self, top: Mapping[str, Any], key: str) -> tuple[str, ...]:
        value = top.get(key)
        if isinstance(value, str):
            value = [value]
        if value is None:
            return ()
        if not isinstance(value, list):
            self._report((key,), f"`{key}` must be a list of patterns")
            return ()
        for index, pattern in enumerate(value):
            if not isinstance(pattern, str):
                self._report((key, index), f"a pattern must be text, not {pattern!r}", "Put it in quotes.")
            elif wrong := globs.problem(pattern):
                self._report((key, index), f"the pattern {pattern!r} {wrong}")
        return tuple(pattern for pattern in value if isinstance(pattern, str))

    def _embedding(self, value: Any) -> Embedding:
        if value is None or value == EMBEDDED:
            return Embedding()
        path = ("embedding",)
        section = self._mapping(value, path)
        for key in ("baseUrl", "apiKey", "apiKeyEnv"):
            if key in section:
                hint = f"Set `providers.NAME.{key}` in your own configuration, and `provider: NAME` here."
                self._report(
                    (*path, key),
                    f"`{key}` does not belong into a file that others can change",
                    hint,
                    key=True,
                )
        known = ("provider", "model", "dimensions", "baseUrl", "apiKey", "apiKeyEnv")
        self._known(section, path, known, "embedding")
        provider, model = (self._text(section, (*path, key)) for key in ("provider", "model"))
        if section and not provider:
            self._report(
                path,
                "`embedding` has no `provider`",
                f"{EMBEDDED}, {TRANSFORMERS}, or one of the configuration.",
            )
        if provider not in ("", EMBEDDED) and not model:
            self._report(path, f"the provider {provider!r} needs a `model`")
        if provider == EMBEDDED and (model or "dimensions" in section):
            self._report(
                path, "the embedded model is one, and has no options", f"Write `embedding: {EMBEDDED}`."
            )
        dimensions = self._count(section, (*path, "dimensions"), 0, least=1, most=_MOST_DIMENSIONS)
        return Embedding(provider or EMBEDDED, model, dimensions or None)

    def _weights(self, value: Any) -> dict[str, dict[str, float]]:
        path = ("weights",)
        section = self._mapping(value, path)
        self._known(section, path, (*_WEIGHTS, *KINDS), "weights")
        everywhere = self._pair(section, path)
        return {
            kind: {
                **everywhere,
                **self._pair(self._mapping(section.get(kind), (*path, kind)), (*path, kind), alone=True),
            }
            for kind in KINDS
            if everywhere or kind in section
        }

    def _pair(self, section: Mapping[str, Any], path: Path, *, alone: bool = False) -> dict[str, float]:
        if alone:
            self._known(section, path, _WEIGHTS, str(path[-1]))
        found: dict[str, float] = {}
        for key in _WEIGHTS:
            value = section.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 100:
                self._report((*path, key), f"`{key}` must be a number from 0 to 100, not {value!r}")
            else:
                found[key] = float(value)
        if len(found) == 2 and not any(found.values()):
            self._report(path, "`words` and `vectors` cannot both be 0")
        return found

    # -- plain values --

    def _report(self, path: Path, message: str, hint: str = "", *, key: bool = False) -> None:
        self.problems.append(
            Problem("error", message, *self._marks.at((*self._within, *path), key=key), hint)
        )

    def _known(self, section: Mapping[str, Any], path: Path, known: tuple[str, ...], owner: str) -> None:
        for key in section:
            if key not in known:
                from rolecall.settings.form import did_you_mean  # only here: it brings the whole of workflows

                hint = did_you_mean(key, known, what="Keys")
                self._report((*path, key), f"{key!r} is not a key of {owner}", hint, key=True)

    def _mapping(self, value: Any, path: Path, what: str = "") -> Mapping[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._report(path, f"{what or f'`{path[-1]}`'} must be a mapping")
            return {}
        return value

    def _text(self, section: Mapping[str, Any], path: Path) -> str:
        value = section.get(str(path[-1]), "")
        if not isinstance(value, str):
            self._report(path, f"`{path[-1]}` must be text")
            return ""
        return value.strip()

    def _count(self, section: Mapping[str, Any], path: Path, default: int, *, least: int, most: int) -> int:
        value = section.get(str(path[-1]), default)
        if value == default and str(path[-1]) not in section:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self._report(
                path, f"`{path[-1]}` must be a whole number from {least:,} to {most:,}, not {value!r}"
            )
            return default
        return value
