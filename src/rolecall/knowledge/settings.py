"""Parses `knowledge.yaml` and reports all its problems at once.

    include:   patterns as in a .gitignore file; files that match a pattern are indexed
    exclude:   patterns of files and folders that are not indexed
    embedding: {provider, model, dimensions}; without this key, the embedded model, which needs no network
    chunk:     {tokens, largestFile}        the maximum tokens in a passage, the maximum bytes in a file
    weights:   {words, vectors} or {prose | identifier | error: {words, vectors}}

The same settings can be under `knowledge` in the project's `rolecall.yaml`. The file is in git and not trusted: it only
names a provider, whose address and key come from the user's own configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rolecall.errors import UsageError
from rolecall.knowledge import globs
from rolecall.settings import form
from rolecall.settings.form import (
    At,
    Choice,
    Converted,
    Either,
    Field,
    Form,
    ListOf,
    Number,
    Record,
    RefusedKey,
    Section,
    Text,
)
from rolecall.store.canonical import JsonObject, Schema

FILE = "knowledge.yaml"
INDEX = "knowledge.db"
EMBEDDED = "embedded"
TRANSFORMERS = "sentence-transformers"
KINDS = ("prose", "identifier", "error")
"""The kinds of questions."""


@dataclass(frozen=True)
class Embedding:
    """The model that turns texts into vectors."""

    provider: str = EMBEDDED
    model: str = ""
    dimensions: int | None = None


@dataclass(frozen=True)
class KnowledgeSettings:
    include: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    embedding: Embedding = Embedding()
    tokens: int = 400
    """The maximum number of tokens in a passage."""
    largest_file: int = 1_000_000
    """The maximum size of a file in bytes; a larger file is assumed to be data."""
    weights: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The weights of words and vectors for each kind of question; for a missing kind, the defaults of the model
    apply."""


def load(text: str, *, source: str = FILE, section: str = "") -> KnowledgeSettings:
    """Load the settings from a text or from one of its sections. Raise `UsageError` with each problem on its own
    line."""
    try:
        return form.load(SETTINGS, text, source=source, section=section).require()
    except UsageError as error:
        raise UsageError(error.message, hint="Correct the file; nothing was changed.") from None


class _Pattern(Form[str]):
    def read(self, value: Any, at: At) -> str | form.Unreadable:
        if not isinstance(value, str):
            return at.expect("a pattern", value, "Put it in quotes.")
        if wrong := globs.problem(value):
            return at.report(f"the pattern {value!r} {wrong}")
        return value

    def schema(self) -> Schema:
        return {"type": "string"}


def _check_embedding(made: Embedding, at: At) -> None:
    if made.provider != EMBEDDED and not made.model:
        at.report(f"the provider {made.provider!r} needs a `model`")
    if made.provider == EMBEDDED and made != Embedding():
        at.report("the embedded model has no options", f"Write `embedding: {EMBEDDED}`.")


def _check_weights(made: JsonObject, at: At) -> None:
    if made.get("words") == 0 == made.get("vectors"):
        at.report("`words` and `vectors` cannot both be 0")


def _spread_weights(given: JsonObject) -> dict[str, dict[str, float]]:
    """Return the weights for each kind of question. Top-level `words` and `vectors` apply to all kinds."""
    everywhere = {key: given[key] for key in _PAIR if key in given}
    return {
        kind: {key: float(value) for key, value in {**everywhere, **given.get(kind, {})}.items()}
        for kind in KINDS
        if everywhere or kind in given
    }


_EMBEDDING = Record(
    Embedding,
    "embedding",
    {
        "provider": Field(
            Text(least=1),
            f"{EMBEDDED}, {TRANSFORMERS}, or a provider of the configuration.",
            required=True,
            hint=f"{EMBEDDED}, {TRANSFORMERS}, or one of the configuration.",
        ),
        "model": Field(Text(least=1), "The provider's name of the model."),
        "dimensions": Field(
            Number(whole=True, least=1, most=8192), "The length of its vectors; by default, the model's own."
        ),
        **{
            key: RefusedKey(
                f"`{key}` does not belong in a file that others can change",
                f"Set `providers.NAME.{key}` in your own configuration, and `provider: NAME` here.",
            )
            for key in ("baseUrl", "apiKey", "apiKeyEnv")
        },
    },
    check=_check_embedding,
)
_PAIR = {
    "words": Field(Number(least=0, most=100), "How much words count."),
    "vectors": Field(Number(least=0, most=100), "How much vectors count."),
}
_OF_KIND = Section("the weights of a kind", _PAIR, check=_check_weights)
_WEIGHTS = Section(
    "weights",
    {**_PAIR, **{kind: Field(_OF_KIND, f"For questions of the kind {kind}.") for kind in KINDS}},
    check=_check_weights,
)
_CHUNK: Record[dict[str, int]] = Record(
    dict,
    "chunk",
    {
        "tokens": Field(Number(whole=True, least=50, most=8000), "The most tokens of a passage (400)."),
        "largestFile": Field(
            Number(whole=True, least=1000, most=50_000_000),
            "The most bytes of a file (1000000).",
            to="largest_file",
        ),
    },
)
SETTINGS = Record(
    lambda chunk=None, **fields: KnowledgeSettings(**fields, **(chunk or {})),
    FILE,
    {
        "include": Field(
            ListOf(_Pattern(), "a list of patterns", least=1, allow_single=True),
            "Patterns, as in a .gitignore, of the files that are indexed.",
            required=True,
            hint='For example `include: ["**/*.py", "**/*.md"]`.',
        ),
        "exclude": Field(
            ListOf(_Pattern(), "a list of patterns", allow_single=True),
            "Patterns of files and folders that are not indexed.",
        ),
        "embedding": Field(
            Either(
                f"{EMBEDDED}, or {{provider, model}}",
                {str: Converted(Choice(EMBEDDED), lambda _: Embedding()), dict: _EMBEDDING},
            ),
            f"The model that makes vectors ({EMBEDDED}).",
        ),
        "chunk": Field(_CHUNK, "How files are cut."),
        "weights": Field(
            Converted(_WEIGHTS, _spread_weights),
            "How much words and vectors count, for all questions or for those of a kind.",
        ),
    },
)
