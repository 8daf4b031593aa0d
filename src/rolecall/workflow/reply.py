"""Parse an agent's answer, which consists of frontmatter and Markdown, into a validated output or a reason.

The code is pure. It never asks a model and never raises an error, however broken the answer is. If the answer cannot be
parsed, the result is a `ReplyProblem`, which `prompt.correction` turns into a message to the agent.

The answer is the first block, after at most a short preamble, that names a field of the schema. If a later block would
be a valid but different answer, the text is ambiguous. A block is the text between two `---` lines or inside a code
fence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import accumulate
from typing import Any, NamedTuple

from rolecall.errors import InvalidValue, UsageError
from rolecall.settings import yaml12
from rolecall.store import canonical
from rolecall.store.canonical import JsonObject
from rolecall.store.schema import Type, pattern_test
from rolecall.workflow.model import STANDARD_FIELDS, STATUS_KEYS, SUSPEND

MAX_FRONTMATTER = 256 * 1024
"""The maximum size of frontmatter, in bytes. Longer texts belong below the frontmatter."""
PREAMBLE_LINES = 20
PREAMBLE_CHARACTERS = 2000
MAX_BLOCKS = 64
"""The maximum number of later blocks that are compared; with more, a text counts as ambiguous."""
MAX_LINES = 100_000
"""The maximum number of lines. Very many short lines would take many times their size in memory."""
_LONGEST_REASON = 400
"""The maximum length of the reason why frontmatter cannot be read, in characters."""


class ParsedReply(NamedTuple):
    """The output and the body of an answer."""

    output: JsonObject
    """The output, which fits the schema and has a canonical form."""
    body: str = ""
    """The text below the frontmatter, preceded by fields that are not part of the output."""
    repairs: tuple[str, ...] = ()
    """Descriptions of the corrections that were made during parsing."""


class Suspension(NamedTuple):
    """The answer of an agent that cannot continue without a person."""

    reason: str
    body: str = ""


class ReplyProblem(NamedTuple):
    """The reason why an answer has no usable output."""

    reason: str
    misfits: tuple[str, ...] = ()
    """All mismatches between the output and the schema, each with its path."""


def parse(text: str, schema: JsonObject) -> ParsedReply | Suspension | ReplyProblem:
    """Parse an answer. If the schema names no field, frontmatter is not needed, and the whole text is the body."""
    shape = Shape(schema)
    if text.count("\n") > MAX_LINES and shape.declared:
        return ReplyProblem(f"the answer has more than {MAX_LINES:,} lines")
    lines = _printable(text.replace("\r\n", "\n").lstrip(_INVISIBLE + " \t\n\r")).split("\n")
    blocks = _blocks(lines)
    for block in blocks:
        if not block.is_early:
            break
        result = _read(block, lines, shape) if shape.is_mentioned_in(block.text) else None
        if isinstance(result, ReplyProblem):
            return result
        if result is not None:
            return _rival_problem(result, block, blocks, lines, shape) or result
    if not shape.declared and not shape.misfits({}):
        return ParsedReply({}, "\n".join(lines).strip("\n"))

    if not any(lines):
        return ReplyProblem("the answer is empty")
    late = next((block for block in blocks if not block.is_early and shape.is_mentioned_in(block.text)), None)
    if late is not None:
        where = f"does not begin until line {late.opening + 1}"
        return ReplyProblem(f"the frontmatter {where}: the answer must begin with it")
    if any(block.is_early for block in blocks):
        return ReplyProblem("the frontmatter has none of the expected fields", shape.misfits({}))
    if lines[0].strip() == "---":
        reason = "a line with exactly `---` must follow the fields"
        return ReplyProblem(f"the frontmatter is never closed: {reason}")
    return ReplyProblem("the answer has no frontmatter: it must begin with a line `---`")


def fit(given: JsonObject, schema: JsonObject) -> ParsedReply | Suspension | ReplyProblem:
    """Check fields that are already values, such as a model's JSON, as `parse` checks frontmatter."""
    result = _fit(given, Shape(schema))
    return _suspend(result.reason, result.body) if isinstance(result, Suspension) else result


def from_words(text: str, schema: JsonObject) -> ParsedReply | ReplyProblem:
    """Make an output from a person's words. The words fit if the schema has exactly one place for them: its only free
    text, or the body if nothing else is needed. If there are several statuses, the words must begin with a status,
    alone on the first line or before a colon, because decisions are not guessed. With any schema, a text that `parse`
    can read and a JSON object are accepted as well."""
    given = parse(text, schema)
    if text.lstrip().startswith("{") and not isinstance(given, ParsedReply):
        with suppress(ValueError, RecursionError):
            given = fit(dict(json.loads(text)), schema)
    if isinstance(given, ParsedReply):
        return given
    shape = Shape(schema)
    forms = {variant.status: variant.schema for variant in shape.variants}
    forms = forms or dict.fromkeys(shape.statuses, shape.schema)
    first = _FIRST_WORD.match(text)
    named = [status for status in forms if first and status.casefold() == first[1].strip().casefold()]
    if len(forms) > 1 and len(named) != 1:
        return ReplyProblem(f"it must begin with {' or '.join(forms)}", shape.misfits({}))

    words = text[first.end() :] if named and first else text
    status = next(iter(named or forms), "")
    output: dict[str, Any] = {shape.status_field: status} if status and shape.status_field else {}
    form = Shape(forms.get(status, shape.schema))
    free = [
        name
        for name, (item, *_) in form.declared.items()
        if name in form.strings and name not in output and not {"const", "enum"} & item.keys()
    ]
    places = [name for name in free if name in form.schema.get("required", ())] or free
    takes = len(places) == 1 and bool(words.strip())
    output |= {places[0]: words.strip()} if takes else {}
    if misfits := shape.misfits(output):
        return ReplyProblem(f"{repr(status) if status else 'it'} needs more than words", misfits)
    return ParsedReply(output, "" if takes else words.strip())


def render(output: JsonObject, body: str = "") -> str:
    """Write a well-formed answer that `parse` can read."""
    lines = [f"{_scalar(name)}: {_scalar(value)}" for name, value in output.items()]
    return "\n".join(["---", *lines, "---", "", body]).rstrip("\n") + "\n"


# -- the fields that a schema declares at the top level --


class SchemaVariant(NamedTuple):
    """One branch of a schema that is selected by a constant status."""

    status: str
    schema: JsonObject


class Shape:
    """The fields that a schema names in any of its branches."""

    def __init__(self, schema: JsonObject) -> None:
        self.schema = dict(schema)
        self.declared: dict[str, list[JsonObject]] = {}
        self._named: list[Callable[[str], bool]] = []
        for branch in _branches(self.schema):
            for name, item in branch.get("properties", {}).items():
                self.declared.setdefault(name, []).append(item)
            for pattern in branch.get("patternProperties", {}):
                with suppress(ValueError):  # the validator reports an invalid regular expression
                    self._named.append(pattern_test(pattern))
            if isinstance(branch.get("additionalProperties"), Mapping):
                self._named.append(lambda _name: True)
        self.status_field = next((name for name in STATUS_KEYS if name in self.declared), None)
        items = self.declared.get(self.status_field or "", ())
        values = [value for item in items for value in (item.get("const"), *item.get("enum", ()))]
        self.statuses = tuple(dict.fromkeys(value for value in values if isinstance(value, str)))
        self.variants = _variants(self.schema)
        self.strings = frozenset(name for name, items in self.declared.items() if all(map(_is_text, items)))
        known = "|".join(map(re.escape, {*self.declared, *STATUS_KEYS, *STANDARD_FIELDS}))
        key = r"[^\s:,{]+" if self._named else known
        self._mention = re.compile(rf"(?:^|[{{,])[ \t]*[\"']?(?:{key})[\"']?[ \t]*:", re.MULTILINE)
        self._type = Type(self.schema)

    def names(self, name: Any) -> bool:
        return isinstance(name, str) and (name in self.declared or any(test(name) for test in self._named))

    def knows(self, name: Any) -> bool:
        return self.names(name) or name in STATUS_KEYS or name in STANDARD_FIELDS

    def is_mentioned_in(self, text: str) -> bool:
        """Return whether a field name occurs where a YAML key can be. This is much cheaper than parsing the YAML."""
        return self._mention.search(text, 0, MAX_FRONTMATTER) is not None

    def misfits(self, output: JsonObject) -> tuple[str, ...]:
        try:
            canonical.encode(dict(output))
        except InvalidValue as exc:
            return (exc.message,)
        misfits = tuple(self._type.misfits(output))
        # Report only the branch that the status selects, because "fits none of the branches" would not help.
        for variant in self.variants if misfits else ():
            if any(output.get(name) == variant.status for name in STATUS_KEYS):
                return tuple(Type(dict(variant.schema)).misfits(output)) or misfits
        if misfits and self.variants and self.status_field:
            known = " or ".join(variant.status for variant in self.variants)
            given = f"not {output[self.status_field]}" if self.status_field in output else "and is not given"
            unknown = ", ".join(name for name in output if name not in self.declared)
            problem = f"/{self.status_field}: must be {known}, {given}"
            return (problem, f"unknown: {unknown}") if unknown else (problem,)
        return misfits


def _branches(schema: JsonObject) -> Iterator[JsonObject]:
    yield schema
    for keyword in ("allOf", "anyOf", "oneOf"):
        for branch in schema.get(keyword, ()):
            yield from _branches(branch)
    for keyword in ("if", "then", "else"):
        if keyword in schema:
            yield from _branches(schema[keyword])


def _variants(schema: JsonObject) -> tuple[SchemaVariant, ...]:
    """Return the branches if each of them has a constant status of its own, or an empty tuple otherwise."""
    branches = schema.get("oneOf") or schema.get("anyOf") or ()
    shared = {key: value for key, value in schema.items() if key not in ("oneOf", "anyOf")}
    found = []
    for branch in branches:
        declared = branch.get("properties", {})
        status: JsonObject = next((declared[name] for name in STATUS_KEYS if name in declared), {})
        values = [status["const"]] if "const" in status else status.get("enum", [])
        if len(values) != 1 or not isinstance(values[0], str):
            return ()
        merged = {**shared, **branch}
        for keyword in ("properties", "patternProperties"):
            if keyword in shared and keyword in branch:
                merged[keyword] = {**shared[keyword], **branch[keyword]}
        if "required" in shared and "required" in branch:
            merged["required"] = list(dict.fromkeys([*shared["required"], *branch["required"]]))
        found.append(SchemaVariant(values[0], merged))
    return tuple(found) if len({variant.status for variant in found}) == len(found) else ()


def _is_text(item: JsonObject) -> bool:
    if "type" in item:
        return bool(item["type"] in ("string", ["string"]))
    values = [item["const"]] if "const" in item else item.get("enum", [])
    return bool(values) and all(isinstance(value, str) for value in values)


_FIRST_WORD = re.compile(r"\s*([^\n:]{1,80}?)[ \t.!]*(?:\n|:|\Z)\s*")
"""A status at the beginning of a person's words."""


# -- finding the blocks of a text --

_FENCE = re.compile(r"(`{3,}|~{3,})[ \t]*([\w-]*)[ \t]*$")
_FENCE_KINDS = frozenset(("", "yaml", "yml", "json", "markdown", "md", "frontmatter", "text"))
_INVISIBLE = "\ufeff\u200b\u2060"


class _Block(NamedTuple):
    opening: int
    """The number of the line with the opening `---` or fence."""
    closing: int
    text: str
    is_fenced: bool
    """Whether a code fence opens right before the `---`."""
    is_early: bool


def _printable(text: str) -> str:
    """Replace lone surrogates, which are not characters and cannot be stored."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def _blocks(lines: list[str]) -> list[_Block]:
    fences = _fence_pairs(lines)
    found: list[_Block] = []
    counts, sizes = accumulate(bool(line.strip()) for line in lines), accumulate(map(len, lines))
    # the last line on which an answer can begin
    early = sum(
        n <= PREAMBLE_LINES and size <= PREAMBLE_CHARACTERS for n, size in zip(counts, sizes, strict=True)
    )
    next_rule = len(lines)
    for index in range(len(lines) - 1, -1, -1):
        line = lines[index].rstrip()
        is_fenced, closing = index - 1 in fences, len(lines)
        if line.lstrip() == "---":
            closing = min(next_rule, fences[index - 1]) if is_fenced else next_rule
        elif index in fences and lines[index + 1].rstrip() != "---":
            is_fenced, closing = False, fences[index]
        if closing < len(lines):
            text = "".join(f"{line}\n" for line in lines[index + 1 : closing])
            found.append(_Block(index, closing, text, is_fenced, index <= early))
        if line in ("---", "..."):
            next_rule = index
    return found[::-1]


def _fence_pairs(lines: list[str]) -> dict[int, int]:
    """Return the lines that open a code fence which can contain an answer. Map each such line to the line that closes
    the fence."""
    pairs: dict[int, int] = {}
    opening, mark, kind = -1, "", ""
    for index, line in enumerate(lines):
        match = _FENCE.match(line)
        if match is None:
            continue
        if opening < 0:
            opening, mark, kind = index, match[1], match[2].lower()
        elif match[1].startswith(mark) and not match[2]:
            if kind in _FENCE_KINDS:
                pairs[opening] = index
            opening = -1
    return pairs


# -- reading a block --


def _read(block: _Block, lines: list[str], shape: Shape) -> ParsedReply | Suspension | ReplyProblem | None:
    """Read the answer in `block`. Return None if the block is a mapping with other content."""
    given, repairs = _load(block, shape)
    if isinstance(given, ReplyProblem):
        return given
    if not any(shape.knows(name) for name in given):
        return None
    result = _fit(given, shape)
    if isinstance(result, ReplyProblem):
        return result
    rest = lines[block.closing + 1 :]
    if block.is_fenced and not _FENCE.match(lines[block.closing]):
        rest = _without_outer_fence(rest)
    body = "\n\n".join(part for part in (result.body, "\n".join(rest).strip("\n")) if part)
    if isinstance(result, Suspension):
        return _suspend(result.reason or body.partition("\n\n")[0], body)
    return result._replace(body=body, repairs=(*repairs, *result.repairs))


def _load(block: _Block, shape: Shape) -> tuple[JsonObject | ReplyProblem, tuple[str, ...]]:
    size = len(block.text.encode())
    if size > MAX_FRONTMATTER:
        reason = f"the frontmatter has {size:,} bytes; at most {MAX_FRONTMATTER:,} are read"
        return ReplyProblem(f"{reason}: put long text below it"), ()
    given = _load_yaml(block)
    is_broken = isinstance(given, ReplyProblem)
    before = {} if isinstance(given, ReplyProblem) else given
    if not is_broken and not any(isinstance(before.get(name), (bool, int, float)) for name in shape.strings):
        return given, ()
    quoted, names = _quote_strings(block.text, shape.strings)
    again = _load_yaml(block._replace(text=quoted)) if names else given
    if isinstance(again, ReplyProblem):
        return given, ()
    changed = [name for name in names if again[name] != before.get(name)]
    return again, tuple(f"{name} is read as if it were quoted" for name in changed)


def _load_yaml(block: _Block) -> JsonObject | ReplyProblem:
    place = f"the frontmatter that begins in line {block.opening + 1}"
    try:
        value = yaml12.load(block.text, source="the frontmatter", max_bytes=2 * MAX_FRONTMATTER)
    except UsageError as exc:
        reason = f"{exc.message} {exc.hint}".rstrip()
        # An agent's answer can have thousands of problems, and the reason becomes part of a prompt.
        reason = reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]} …"
        return ReplyProblem(f"{place} cannot be read: {reason}")
    if not isinstance(value, dict):
        return ReplyProblem(f"{place} is not a mapping of fields to values")
    return value


def _quote_strings(text: str, names: frozenset[str]) -> tuple[str, list[str]]:
    """Quote the plain one-line values of the fields `names`.

    If the schema declares a string, the value is taken literally, although YAML would read `1.10` as a number and
    reject `Fixed: the crash`. Values with YAML syntax, such as quotes, blocks, anchors and tags, and values that
    continue on the next line are left unchanged.
    """
    changed: list[str] = []
    lines = text.split("\n")
    for index, line in enumerate(lines):
        match = re.match(r"([\w$-]+):[ \t]+([^\s\"'|>&!#].*)$", line)
        goes_on = index + 1 < len(lines) and lines[index + 1].startswith((" ", "\t"))
        if match is None or match[1] not in names or goes_on:
            continue
        value = re.split(r"[ \t]#", match[2], maxsplit=1)[0].rstrip()
        lines[index] = f"{match[1]}: {_quote(value)}"
        changed.append(match[1])
    return "\n".join(lines), changed


def _fit(given: JsonObject, shape: Shape) -> ParsedReply | Suspension | ReplyProblem:
    # `status` is accepted for the `$status` that the schema declares, and vice versa.
    wanted = shape.status_field or ""
    other = {"$status": "status", "status": "$status"}.get(wanted, "")
    if wanted not in given and other in given and other not in shape.declared:
        given = {(wanted if name == other else name): value for name, value in given.items()}
    status = given.get("$status", given.get("status"))
    if isinstance(status, str) and status.strip().upper() == SUSPEND:
        rest = {name: value for name, value in given.items() if name not in (*STATUS_KEYS, "reason")}
        reason = given.get("reason")
        text = reason.strip() if isinstance(reason, str) else "" if reason is None else _scalar(reason)
        return Suspension(text, _lines(rest))

    own = {name: value for name, value in given.items() if shape.names(name)}
    repairs: tuple[str, ...] = ()
    status = own.get(wanted)
    if isinstance(status, str) and status not in shape.statuses:
        meant = [known for known in shape.statuses if known.casefold() == status.strip().casefold()]
        if len(meant) == 1:  # the status differs from the schema's only in case
            own[wanted] = meant[0]
            repairs = (f"{wanted} {status!r} is read as {meant[0]!r}",)
    if misfits := shape.misfits(own):
        return ReplyProblem("the fields do not fit the schema", misfits)
    for name in STANDARD_FIELDS:
        if name in given and name not in own and not shape.misfits({**own, name: given[name]}):
            own[name] = given[name]
    rest = {name: value for name, value in given.items() if name not in own}
    return ParsedReply(own, _lines(rest), repairs)


def _suspend(reason: str, body: str) -> Suspension | ReplyProblem:
    if not reason.strip():
        what = "a field `reason` that says what a person has to decide"
        return ReplyProblem(f"the status {SUSPEND} needs {what}")
    return Suspension(_printable(reason), body)


# -- the rest of the text --


def _without_outer_fence(rest: list[str]) -> list[str]:
    """Remove the end of a fence that opens before the frontmatter. The fence closes either right after the frontmatter
    or after the text.

    Fences inside the text come in pairs, so an unpaired fence is the outer one.
    """
    fences = [index for index, line in enumerate(rest) if _FENCE.match(line)]
    if not fences:
        return rest
    closes_at_once = not any(line.strip() for line in rest[: fences[0]])
    bare = [index for index in fences if not _FENCE.match(rest[index])[2]]  # type: ignore[index]
    if closes_at_once and bare[:1] == fences[:1]:
        return rest[fences[0] + 1 :]
    if len(fences) % 2 and bare:
        return [*rest[: bare[-1]], *rest[bare[-1] + 1 :]]
    return rest


def _rival_problem(
    result: ParsedReply | Suspension, block: _Block, blocks: list[_Block], lines: list[str], shape: Shape
) -> ReplyProblem | None:
    later = (other for other in blocks if other.opening > block.opening)
    rivals = [other for other in later if shape.is_mentioned_in(other.text)]
    for rival in rivals[:MAX_BLOCKS]:
        other = _read(rival, lines, shape)
        if isinstance(other, (ParsedReply, Suspension)) and _content_of(other) != _content_of(result):
            places = f"lines {block.opening + 1} and {rival.opening + 1}"
            return ReplyProblem(f"the answer has two blocks that could be the frontmatter, in {places}")
    if len(rivals) > MAX_BLOCKS:
        return ReplyProblem(f"the answer has more than {MAX_BLOCKS} blocks that could be the frontmatter")
    return None


def _content_of(result: ParsedReply | Suspension) -> Any:
    return result.output if isinstance(result, ParsedReply) else result.reason


# -- writing --

_PLAIN = re.compile(r"[$A-Za-z][\w$./-]*(?: [\w$./-]+)*", re.ASCII)
_NOT_STRINGS = frozenset(("true", "false", "null", "y", "n", "yes", "no", "on", "off"))


def _lines(fields: Mapping[Any, Any]) -> str:
    return _printable("\n".join(f"{_scalar(name)}: {_scalar(value)}" for name, value in fields.items()))


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _NOT_STRINGS
        return value if is_plain else _quote(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_quote(str(name))}: {_scalar(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_scalar, value)) + "]"
    return json.dumps(value) if isinstance(value, (bool, int, float, type(None))) else _quote(str(value))


def _quote(text: str) -> str:
    """Write a text as a double-quoted YAML scalar. JSON's quoting leaves characters that YAML does not allow."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(one if one.isprintable() else f"\\U{ord(one):08x}" for one in quoted)
