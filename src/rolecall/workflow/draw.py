"""Draw a workflow as text for a terminal, as SVG or as Mermaid. The code is pure: it reads no files and prints nothing.

The text shows the roles one below the other, with rails next to them. The SVG is laid out in layers: loops are
reversed, and every edge becomes a chain of cells through the layers that it crosses. The label of an edge is one of
these cells, so no label overlaps a box or another label.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import NamedTuple
from unicodedata import east_asian_width

from rolecall.workflow.document import roles_in_order
from rolecall.workflow.model import (
    END,
    FAIL,
    START,
    Limits,
    StoredWorkflow,
    dump_limits,
    runs_processes,
    sandbox_of,
)

LONGEST_LABEL = 40
OTHERWISE = "otherwise"
"""The label of an edge that is taken if no other condition holds."""

_ENDINGS = (END, FAIL)
_UNSHOWN = re.compile(r"[\x00-\x20\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]+")


class Line(NamedTuple):
    """All edges from one place to another, drawn as one line."""

    source: str
    target: str
    label: str
    is_loop: bool
    """Whether the line leads back to an earlier place."""


class Picture(NamedTuple):
    """The contents of a drawing: the places from the start to the endings, and the lines between these places."""

    places: tuple[str, ...]
    layers: Mapping[str, int]
    lines: tuple[Line, ...]


def picture(workflow: StoredWorkflow) -> Picture:
    named = [edge.role for edges in workflow.graph.values() for edge in edges]
    teams = {name for role in workflow.roles.values() if role.group for name in role.group.roles}
    roles = [name for name in roles_in_order(workflow) if name not in teams or name in workflow.graph]
    inner = [START, *roles, *(name for name in named if name not in _ENDINGS)]
    places = [*dict.fromkeys(inner), *(name for name in _ENDINGS if name in named)]
    graph = workflow.graph
    targets = {place: list(dict.fromkeys(edge.role for edge in graph.get(place, ()))) for place in places}
    order, loops = _sort(places, targets)

    layers: dict[str, int] = {}
    for place in order:
        layers.setdefault(place, 0)
        for target in targets[place]:
            if (place, target) not in loops:
                layers[target] = max(layers.get(target, 0), layers[place] + 1)
    last = max(layers.values())
    layers |= {place: last for place in order if place in _ENDINGS}
    order.sort(key=lambda place: (layers[place], places.index(place)))
    lines = []
    for place in order:
        edges = workflow.graph.get(place, ())
        for target in targets[place]:
            labels = []
            for edge in (edge for edge in edges if edge.role == target):
                named = [one_line(text) for text in (edge.status, edge.condition) if text is not None]
                labels.append(" and ".join(named) or (OTHERWISE if edges[1:] else ""))
            label = ", ".join(dict.fromkeys(filter(None, labels)))
            lines.append(Line(place, target, label, (place, target) in loops))
    return Picture(tuple(order), layers, tuple(lines))


def _sort(
    places: Sequence[str], targets: Mapping[str, Sequence[str]]
) -> tuple[list[str], set[tuple[str, str]]]:
    """Return the places in an order in which every line except the loops leads forward, together with the loops."""
    loops: set[tuple[str, str]] = set()
    done: list[str] = []
    on_the_way: dict[str, Iterator[str]] = {}
    for first in places:
        if first not in done:
            on_the_way[first] = iter(targets[first])
        while on_the_way:
            place, following = next(reversed(on_the_way.items()))
            target = next(following, None)
            if target is None:
                del on_the_way[place]
                done.append(place)
            elif target in on_the_way:
                loops.add((place, target))
            elif target not in done:
                on_the_way[target] = iter(targets[target])
    return done[::-1], loops


def one_line(text: str, longest: int = LONGEST_LABEL) -> str:
    """Shorten text to one line without control characters."""
    text = _UNSHOWN.sub(" ", text).strip()
    return text if len(text) <= longest else text[: longest - 1] + "…"


def caption(workflow: StoredWorkflow, place: str) -> str:
    """Return who plays a group, such as `× each`, `× 3` or `backend + docs`, or an empty string for any other place."""
    group = workflow.roles[place].group if place in workflow.roles else None
    if group is None:
        return ""
    return " + ".join(group.roles) or f"× {group.times or 'each'}"


def sandbox_mark(workflow: StoredWorkflow, place: str) -> str:
    """Return `sandbox` or `no sandbox` if the workflow decides this for the processes of a role, or an empty string if
    it does not."""
    if place not in workflow.roles or not runs_processes(workflow.roles[place]):
        return ""
    sandbox = sandbox_of(workflow, place)
    return "" if sandbox is None else "no sandbox" if sandbox.is_off else "sandbox"


def limits_text(limits: Limits) -> str:
    """Return limits in words, such as `30 steps, 2.5 cost`, or an empty string if there are no limits."""
    return ", ".join(f"{value} {name}" for name, value in dump_limits(limits).items())


# -- text --


def to_text(workflow: StoredWorkflow) -> str:
    """Draw a workflow with box characters."""
    about = f": {one_line(workflow.description, 90)}" if workflow.description.strip() else ""
    rows = [_title(workflow) + about, "", *_Rails(picture(workflow), workflow).draw()]
    if workflow.conditions:
        width = max(map(_width, workflow.conditions))
        rows.append("")
        for name, condition in sorted(workflow.conditions.items()):
            rows.append(f"{_pad(name, width)}  {one_line(condition.expression, 100)}")
    if limits := limits_text(workflow.limits):
        rows.append(f"\nSuspended after {limits}.")
    return "\n".join(rows) + "\n"


def _title(workflow: StoredWorkflow) -> str:
    return f"{workflow.name} {one_line(workflow.version)}" if workflow.version else workflow.name


def _name(workflow: StoredWorkflow, place: str) -> str:
    about, mark = caption(workflow, place), sandbox_mark(workflow, place)
    between = " " if about.startswith("×") else ": "
    name = one_line(f"{place}{between}{about}", 60) if about else place
    return f"{name} ({mark})" if mark else name


@dataclass
class _Rail:
    """The vertical line that leads to one place from places that are not directly above it."""

    top: int = 1 << 30
    bottom: int = -1
    column: int = -1

    def stretch(self, row: int) -> None:
        self.top, self.bottom = min(self.top, row), max(self.bottom, row)


class _Rails:
    """A text drawing that shows places one below the other. A line to the next place goes straight down; other lines
    use rails."""

    def __init__(self, shown: Picture, workflow: StoredWorkflow) -> None:
        self._places = shown.places
        self._roles = workflow.roles
        self._names = {place: _name(workflow, place) for place in shown.places}
        self._box = max(map(_width, self._names.values())) + 4
        self._middle = (self._box - 1) // 2
        below = dict(pairwise(shown.places))
        self._straight = {line.source: line for line in shown.lines if below.get(line.source) == line.target}
        self._beside = [line for line in shown.lines if line is not self._straight.get(line.source)]
        self._rails = {line.target: _Rail() for line in self._beside}
        self._rows: list[str] = []
        self._ends: list[tuple[int, str, str]] = []
        """The row of each connection to a rail, the text that leads to the rail, and the rail's target."""

    def draw(self) -> list[str]:
        for place in self._places:
            self._draw_place(place)
            if place != self._places[-1]:
                line, indent = self._straight.get(place), " " * self._middle
                self._rows.append(indent + f"│ {line.label}".rstrip() if line else "")
                self._rows += [f"{indent}▼"] if line and line.target not in self._roles else []
        return self._add_rails()

    def _draw_place(self, place: str) -> None:
        leaving = [line for line in self._beside if line.source == place]
        is_boxed = place in self._roles
        if is_boxed:
            above = any(line.target == place for line in self._straight.values())
            self._rows.append(f"┌{self._draw_edge('▼' if above else '─')}┐")
        if place in self._rails:
            self._meet(len(self._rows), " ◀─", place)
        names = [self._names[place], *[""] * (len(leaving) - (place not in self._rails))]
        for name in names:
            width = self._box - 2
            inside = _pad(" " * ((width - _width(name)) // 2) + name, width)
            self._rows.append(f"│{inside}│" if is_boxed else f" {inside}".rstrip())
        for row, line in enumerate(leaving, len(self._rows) - len(leaving)):
            self._rows[row] = self._rows[row].removesuffix("│") + "├" if is_boxed else self._rows[row] + " ─"
            mark = "─↺" if line.is_loop else "──"
            self._meet(row, f"{mark} {line.label} ─" if line.label else f"{mark}─", line.target)
        if is_boxed:
            self._rows.append(f"└{self._draw_edge('┬' if place in self._straight else '─')}┘")

    def _draw_edge(self, mark: str) -> str:
        return "─" * (self._middle - 1) + mark + "─" * (self._box - 2 - self._middle)

    def _meet(self, row: int, text: str, target: str) -> None:
        self._ends.append((row, text, target))
        self._rails[target].stretch(row)

    def _add_rails(self) -> list[str]:
        # Short rails go inside long rails, and rails that do not overlap share a column.
        columns: list[list[_Rail]] = []
        for rail in sorted(self._rails.values(), key=lambda rail: rail.bottom - rail.top):
            free = (
                number
                for number, others in enumerate(columns)
                if all(rail.bottom < other.top or other.bottom < rail.top for other in others)
            )
            rail.column = next(free, len(columns))
            columns += [[]] if rail.column == len(columns) else []
            columns[rail.column].append(rail)

        texts = {row: text for row, text, _ in self._ends}
        left = 1 + max(_width(text + texts.get(row, "")) for row, text in enumerate(self._rows))
        shown = []
        for row, text in enumerate(self._rows):
            cells = [" "] * 3 * len(columns)
            for rail in self._rails.values():
                if rail.top < row < rail.bottom:
                    cells[3 * rail.column] = "│"
            for rail in (self._rails[target] for at, _, target in self._ends if at == row):
                # Draw the row up to its rail, across the rails in between.
                end = 3 * rail.column
                cells[:end] = ["┼" if cell == "│" else "─" for cell in cells[:end]]
                cells[end] = "┐" if row == rail.top else "┘" if row == rail.bottom else "┤"
                text += texts[row]
                text += "─" * (left - _width(text))
            shown.append((_pad(text, left) + "".join(cells)).rstrip())
        return shown


def _width(text: str) -> int:
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)


def _pad(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


# -- Mermaid --


def to_mermaid(workflow: StoredWorkflow) -> str:
    """Draw a workflow as a Mermaid flowchart."""
    shown = picture(workflow)
    ids = {place: f"n{number}" for number, place in enumerate(shown.places)}
    lines = ["flowchart TD"]
    for place, name in ids.items():
        opened, closed = ("[", "]") if place in workflow.roles else ("([", "])")
        if caption(workflow, place):
            opened, closed = "[[", "]]"
        lines.append(f'    {name}{opened}"{_mermaid_text(_name(workflow, place))}"{closed}')
    for line in shown.lines:
        arrow = "-.->" if line.is_loop else "-->"
        label = f'|"{_mermaid_text(line.label)}"|' if line.label else ""
        lines.append(f"    {ids[line.source]} {arrow}{label} {ids[line.target]}")
    return "\n".join(lines) + "\n"


def _mermaid_text(text: str) -> str:
    """Escape characters that could be syntax or HTML as entities, the only escapes that Mermaid has."""
    return re.sub(r"[^\w $.,:=+()/…×-]", lambda match: f"#{ord(match[0])};", text)


# -- SVG --

_FONT = 14
_SMALL = 11.5
_BOX_HEIGHT = 44
_LABEL_HEIGHT = 22
_LAYER_GAP = 18
_SIDE_GAP = 28
_MARGIN = 24
_SWEEPS = 12

_STYLE = """
text { font: 14px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1c2430;
  text-anchor: middle; }
.name { font-weight: 600; } .heading { font-size: 17px; font-weight: 600; text-anchor: start; }
.small { font-size: 11.5px; fill: #5d6b7e; } .about { font-size: 12.5px; fill: #5d6b7e; text-anchor: start; }
.label { font-size: 12px; } .looplabel { fill: #a84a12; } .paper, .halo { fill: #ffffff; } .halo { opacity: .9; }
rect { stroke-width: 1.4; } .box { fill: #f3f6fb; stroke: #8fa3bf; } .start { fill: #ffffff; stroke: #8fa3bf; }
.good { fill: #edf8f1; stroke: #2c7a4b; } .bad { fill: #fdf0ef; stroke: #b3261e; }
.line { fill: none; stroke: #6b7c93; stroke-width: 1.5; } .loop { stroke: #b4541a; stroke-dasharray: 5 4; }
.head { fill: #6b7c93; } .loophead { fill: #b4541a; }
@media (prefers-color-scheme: dark) {
  text { fill: #e8edf4; } .small, .about { fill: #9aa8ba; } .looplabel { fill: #f0a06a; }
  .paper, .halo { fill: #14181f; } .box { fill: #212936; stroke: #52647f; } .start { fill: #14181f; stroke: #52647f; }
  .good { fill: #16261d; stroke: #6fcf97; } .bad { fill: #2b1817; stroke: #ff8a80; }
  .line { stroke: #8b9bb0; } .loop { stroke: #f0a06a; } .head { fill: #8b9bb0; } .loophead { fill: #f0a06a; } }
""".strip()
"""The style sheet of the drawing. It repeats colours in each rule, because some SVG viewers do not support
variables."""


@dataclass
class _Cell:
    """A box, a label or a bend that takes up space in a layer."""

    width: float
    layer: int
    weight: float = 1.0
    """How much the cell's wanted position counts, compared with those of other cells."""
    x: float = 0.0
    above: list[_Cell] = field(default_factory=list)
    below: list[_Cell] = field(default_factory=list)


@dataclass
class _Chain:
    """A line and the cells that the line passes through, from the upper place to the lower place."""

    line: Line
    cells: list[_Cell]
    label: _Cell | None


class _Layout:
    """The positions of all boxes, labels and bends."""

    def __init__(self, shown: Picture, workflow: StoredWorkflow) -> None:
        self._workflow = workflow
        self.self_loops = {line.source: line for line in shown.lines if line.source == line.target}
        self.boxes: dict[str, _Cell] = {}
        self.layers: list[list[_Cell]] = [[] for _ in range(2 * max(shown.layers.values()) + 1)]
        for place in shown.places:
            loop = self.self_loops.get(place)
            beside = 2 * (44 + _text_width(loop.label, 12)) if loop else 0.0
            self.boxes[place] = _Cell(self.box_width(place) + beside, 2 * shown.layers[place])
            self.layers[2 * shown.layers[place]].append(self.boxes[place])
        self.chains = [self._add_chain(line) for line in shown.lines if line.source != line.target]
        self._order()
        for layer in self.layers:
            _place_in_order(layer, [0.0] * len(layer))
        for sweep in range(2 * _SWEEPS):
            for layer in self.layers if sweep % 2 == 0 else reversed(self.layers):
                wanted = []
                for cell in layer:
                    near = cell.above + cell.below if sweep > _SWEEPS else cell.above or cell.below
                    wanted.append(sum(other.x for other in near) / len(near) if near else cell.x)
                _place_in_order(layer, wanted)

    def box_width(self, place: str) -> float:
        return max(84.0, _text_width(place, _FONT * 1.06), _text_width(self.subtitle(place), _SMALL)) + 28

    def subtitle(self, place: str) -> str:
        role = self._workflow.roles.get(place)
        if role is None:
            return ""
        agents = ", ".join(role.group.agents) if role.group else ""
        about = one_line(" ".join(filter(None, (caption(self._workflow, place), agents or role.agent))))
        return ", ".join(filter(None, (about, sandbox_mark(self._workflow, place))))

    def _add_chain(self, line: Line) -> _Chain:
        ends = [self.boxes[line.source], self.boxes[line.target]]
        upper, lower = sorted(ends, key=lambda cell: cell.layer)
        if upper.layer == lower.layer:  # only in a broken graph in which one ending leads to another
            return _Chain(line, ends, None)
        middle = (upper.layer + lower.layer) // 2 | 1
        cells = [upper]
        for layer in range(upper.layer + 1, lower.layer):
            is_label = layer == middle and line.label
            cells.append(_Cell(_text_width(line.label, 12) + 8 if is_label else 10.0, layer, 4.0))
            self.layers[layer].append(cells[-1])
        cells.append(lower)
        for one, other in pairwise(cells):
            one.below.append(other)
            other.above.append(one)
        return _Chain(line, cells, cells[middle - upper.layer] if line.label else None)

    def _order(self) -> None:
        """Sort each layer by the mean position of its cells' neighbours, going down and up in turn, so that few lines
        cross."""
        for sweep in range(_SWEEPS):
            is_down = sweep % 2 == 0
            position = {id(cell): index for layer in self.layers for index, cell in enumerate(layer)}

            def mean(cell: _Cell) -> float:
                near = cell.above if is_down else cell.below  # noqa: B023 - used within the sweep
                positions = [position[id(other)] for other in near or [cell]]  # noqa: B023
                return sum(positions) / len(positions)

            for layer in self.layers if is_down else reversed(self.layers):
                layer.sort(key=mean)
                position |= {id(cell): index for index, cell in enumerate(layer)}


def _place_in_order(layer: Sequence[_Cell], wanted: Sequence[float]) -> None:
    """Place cells as near as possible to their wanted positions, keeping their order and distance.

    After each cell's offset from the first cell is subtracted, the positions only have to be non-decreasing. Averaging
    adjacent values that decrease gives the nearest non-decreasing sequence (isotonic regression).
    """
    offsets = [0.0]
    for one, other in pairwise(layer):
        offsets.append(offsets[-1] + (one.width + other.width) / 2 + _SIDE_GAP)
    pools: list[tuple[float, float, int]] = []
    for cell, want, offset in zip(layer, wanted, offsets, strict=True):
        pools.append((want - offset, cell.weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (value, weight, count), (before, weighed, counted) = pools.pop(), pools.pop()
            mean = (value * weight + before * weighed) / (weight + weighed)
            pools.append((mean, weight + weighed, count + counted))
    values = [value for value, _, count in pools for _ in range(count)]
    for cell, value, offset in zip(layer, values, offsets, strict=True):
        cell.x = value + offset


def _text_width(text: str, size: float) -> float:
    """Estimate the width of a text generously, because the viewer chooses the font."""
    return _width(text) * size * 0.58


def to_svg(workflow: StoredWorkflow, taken: Collection[tuple[str, str]] = ()) -> str:
    """Draw a self-contained SVG that follows the reader's light or dark preference. Highlight the edges in `taken`,
    which are the path of a thread."""
    return _Svg(workflow, taken).draw()


_TAKEN_STYLE = """
.taken .line, .taken > rect:not(.halo) { stroke: #2456c9; stroke-width: 2.4; stroke-dasharray: none; }
.taken .head, .taken .loophead { fill: #2456c9; } .taken .looplabel { fill: #1c2430; } .unused { opacity: .45; }
@media (prefers-color-scheme: dark) { .taken .line, .taken > rect:not(.halo) { stroke: #8ab0ff; }
  .taken .head, .taken .loophead { fill: #8ab0ff; } .taken .looplabel { fill: #e8edf4; } }
""".strip()


class _Svg:
    def __init__(self, workflow: StoredWorkflow, taken: Collection[tuple[str, str]]) -> None:
        self._workflow = workflow
        self._taken = set(taken)
        self._met = {place for way in taken for place in way}
        self._layout = _Layout(picture(workflow), workflow)
        self._title, self._about = _title(workflow), one_line(workflow.description, 90)
        cells = [cell for layer in self._layout.layers for cell in layer]
        heading = max(_text_width(self._title, 18), _text_width(self._about, 12.5))
        left = min(cell.x - cell.width / 2 for cell in cells)
        right = max(cell.x + cell.width / 2 for cell in cells)
        spare = max(0.0, heading - (right - left)) / 2
        self._shift = _MARGIN - left + spare
        self._width = right - left + 2 * spare + 2 * _MARGIN
        self._top = _MARGIN + (52 if self._about else 34)
        self._height = self._y(len(self._layout.layers) - 1) + _BOX_HEIGHT / 2 + _MARGIN

    def draw(self) -> str:
        width, height, title = round(self._width), round(self._height), _xml(self._title)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            f' role="img" aria-label="{title}">',
            f"<title>{title}</title>",
            f"<style>{_STYLE}{_TAKEN_STYLE if self._taken else ''}</style>",
            f'<rect class="paper" width="{width}" height="{height}"/>',
            f'<text class="heading" x="{_MARGIN}" y="{_MARGIN + 6}" dy="0.35em">{title}</text>',
            f'<text class="about" x="{_MARGIN}" y="{_MARGIN + 28}" dy="0.35em">{_xml(self._about)}</text>',
            *self._mark((chain.line, self._draw_line(chain)) for chain in self._layout.chains),
            *self._mark((line, self._draw_loop(place)) for place, line in self._layout.self_loops.items()),
            *(part for place in self._layout.boxes for part in self._draw_box(place)),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _y(self, layer: int) -> float:
        """Return the vertical centre of a layer. Layers of boxes and layers of labels alternate."""
        return self._top + _BOX_HEIGHT / 2 + layer * (_BOX_HEIGHT / 2 + _LABEL_HEIGHT / 2 + _LAYER_GAP)

    def _x(self, cell: _Cell) -> float:
        return cell.x + self._shift

    def _mark(self, lines: Iterable[tuple[Line, Iterator[str]]]) -> Iterator[str]:
        """Yield the lines in an order in which highlighted lines come last, so that no other line covers them."""
        if not self._taken:
            for _, parts in lines:
                yield from parts
            return
        for line, parts in sorted(lines, key=lambda item: (item[0].source, item[0].target) in self._taken):
            kind = "taken" if (line.source, line.target) in self._taken else "unused"
            yield from (f'<g class="{kind}">', *parts, "</g>")

    def _draw_line(self, chain: _Chain) -> Iterator[str]:
        cells = chain.cells
        if cells[0].layer == cells[-1].layer:
            return
        points = [(self._x(cell), self._y(cell.layer)) for cell in cells]
        points[0] = (self._port(chain, cells[0]), points[0][1] + _BOX_HEIGHT / 2)
        points[-1] = (self._port(chain, cells[-1]), points[-1][1] - _BOX_HEIGHT / 2)
        if self._layout.boxes[chain.line.source] is cells[-1]:
            points.reverse()

        # A smooth line through the points, vertical at both ends, and an arrowhead.
        tip, is_loop = points[-1], chain.line.is_loop
        down = 1.0 if tip[1] > points[0][1] else -1.0
        ends = [*points[:-1], (tip[0], tip[1] - down * 8)]
        around = [(ends[0][0], 2 * ends[0][1] - ends[1][1]), *ends, (tip[0], 2 * ends[-1][1] - ends[-2][1])]
        slopes = [
            (after[0] - before[0]) / (after[1] - before[1])
            for before, after in zip(around, around[2:], strict=False)
        ]
        slopes[0] = slopes[-1] = 0.0
        path = f"M{ends[0][0]:.1f} {ends[0][1]:.1f}"
        for ((x0, y0), slope0), ((x1, y1), slope1) in pairwise(zip(ends, slopes, strict=True)):
            reach = (y1 - y0) * 0.4
            path += f"C{x0 + slope0 * reach:.1f} {y0 + reach:.1f} {x1 - slope1 * reach:.1f} {y1 - reach:.1f}"
            path += f" {x1:.1f} {y1:.1f}"
        yield f'<path class="line{" loop" if is_loop else ""}" d="{path}"/>'
        yield _arrowhead(tip, (0.0, down), is_loop=is_loop)
        if chain.label:
            yield from _label_at(chain.line, self._x(chain.label), self._y(chain.label.layer))

    def _port(self, chain: _Chain, cell: _Cell) -> float:
        """Return the x position at which a line meets a box. Lines that meet the same side of a box are spaced in the
        order of their next cells."""
        is_upper = chain.cells[0] is cell
        beside = [other for other in self._layout.chains if other.cells[0 if is_upper else -1] is cell]
        beside.sort(key=lambda other: other.cells[1 if is_upper else -2].x)
        place = next(name for name, box in self._layout.boxes.items() if box is cell)
        apart = min(26.0, (self._layout.box_width(place) - 30) / len(beside))
        return self._x(cell) + (beside.index(chain) - (len(beside) - 1) / 2) * apart

    def _draw_loop(self, place: str) -> Iterator[str]:
        line, cell = self._layout.self_loops[place], self._layout.boxes[place]
        x, y = self._x(cell) + self._layout.box_width(place) / 2, self._y(cell.layer)
        path = f"M{x:.1f} {y - 10:.1f}C{x + 34:.1f} {y - 18:.1f} {x + 34:.1f} {y + 18:.1f} {x + 7:.1f} {y + 11:.1f}"
        yield f'<path class="line loop" d="{path}"/>'
        yield _arrowhead((x, y + 10), (-1.0, -0.2), is_loop=True)
        if line.label:
            yield from _label_at(line, x + 34 + _text_width(line.label, 12) / 2, y)

    def _draw_box(self, place: str) -> Iterator[str]:
        cell, width = self._layout.boxes[place], self._layout.box_width(place)
        x, y = self._x(cell), self._y(cell.layer)
        kind = {START: "start", END: "good", FAIL: "bad"}.get(place, "box")
        round_by = 9 if kind == "box" else _BOX_HEIGHT / 2
        role = self._workflow.roles.get(place)
        yield f'<g class="{"taken" if place in self._met else "unused"}">' if self._taken else "<g>"
        if role and role.description.strip():
            yield f"<title>{_xml(one_line(role.description, 300))}</title>"
        # A group is drawn as a stack of boxes.
        for behind in (4, 0) if role and role.group else (0,):
            left, top = x - width / 2 + behind, y - _BOX_HEIGHT / 2 - behind
            size = f'width="{width:.1f}" height="{_BOX_HEIGHT}" rx="{round_by:g}"'
            yield f'<rect class="{kind}" x="{left:.1f}" y="{top:.1f}" {size}/>'
        subtitle = self._layout.subtitle(place)
        yield f'<text class="name" x="{x:.1f}" y="{y - (8 if subtitle else 0):.1f}" dy="0.35em">{_xml(place)}</text>'
        if subtitle:
            yield f'<text class="small" x="{x:.1f}" y="{y + 10:.1f}" dy="0.35em">{_xml(subtitle)}</text>'
        yield "</g>"


def _arrowhead(tip: tuple[float, float], way: tuple[float, float], *, is_loop: bool) -> str:
    (x, y), (dx, dy) = tip, way
    back = (x - dx * 9, y - dy * 9)
    corners = [(x, y), (back[0] - dy * 4.5, back[1] + dx * 4.5), (back[0] + dy * 4.5, back[1] - dx * 4.5)]
    shown = " ".join(f"{cx:.1f},{cy:.1f}" for cx, cy in corners)
    return f'<polygon class="{"loophead" if is_loop else "head"}" points="{shown}"/>'


def _label_at(line: Line, x: float, y: float) -> Iterator[str]:
    width = _text_width(line.label, 12) + 6
    yield f'<rect class="halo" x="{x - width / 2:.1f}" y="{y - 9:.1f}" width="{width:.1f}" height="18" rx="4"/>'
    kind = "label looplabel" if line.is_loop else "label"
    yield f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" dy="0.35em">{_xml(line.label)}</text>'


def _xml(text: str) -> str:
    return escape(one_line(text, 400), quote=True)
