"""Reports are pure: what goes in is plain values, so these tests need no store."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from rolecall.threads import html_report, report


def step(number: int = 1, **fields: Any) -> dict[str, Any]:
    return {
        "id": "8M0Q8N9CMRCR1", "number": number, "role": "writer", "agent": "test", "status": "done",
        "output": {"$status": "done"}, "body": "The text.", "raw": "", "prompt": "Do it.",
        "timestamp": 1_700_000_000_000, "durationMs": 1500, "session": "s-1",
        "usage": {"input_tokens": 30, "output_tokens": 12}, "turns": [],
        "files": [], "attempts": [], "cwd": "/work", "ending": "", "reason": "",
    } | fields  # fmt: skip


def card(**fields: Any) -> dict[str, Any]:
    return {
        "thread": "01M7F7ENWPXA6KQE21XKJP7N4T", "workflow": "5A470KKMK5PQH", "name": "write-text",
        "status": "completed", "title": "Write", "reason": None, "currentRole": None, "steps": 1,
        "created": 1_700_000_000_000, "cwd": "/work", "forkedFrom": None, "continue": None,
        "prompt": "Write about rain.", "attempts": [],
        "usage": {"steps": 1, "tokens": 42, "minutes": 0.025, "roles": {"writer": {"steps": 1, "tokens": 42}}},
    } | fields  # fmt: skip


ATTEMPT: dict[str, Any] = {
    "id": "2BD66HEZ7SHMN", "role": "writer", "agent": "test", "error": "the model is away", "ending": "failed",
    "session": None, "usage": {}, "timestamp": 1_700_000_000_000, "durationMs": 20, "raw": "Half",
    "prompt": "", "turns": [],
}  # fmt: skip
TURN: dict[str, Any] = {
    "role": "assistant",
    "text": "Let me look.",
    "tool_calls": [{"name": "shell", "arguments": {"cmd": "ls"}, "result": "a\nb"}],
}


class Page(HTMLParser):
    """Collects what a browser would fetch or run, and whether every element is closed."""

    VOID = frozenset({"meta", "br", "img", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.cells: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.links += [str(value) for name, value in attrs if name in ("href", "src")]
        if tag not in self.VOID:
            self.open.append(tag)
        if tag in ("th", "td"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data
        if self.open and self.open[-1] in ("th", "td"):
            self.cells[-1] += data


def test_the_page_is_whole_and_fetches_nothing() -> None:
    text = html_report.render(
        card(), [step(turns=[TURN], attempts=[ATTEMPT], files=["a.py"]), step(2, role="editor")]
    )
    page = Page(text)
    assert page.open == []
    assert not page.tags & {"script", "link", "img", "iframe", "object", "base", "form"}
    assert not page.attributes & {"src", "srcset", "onload", "onclick"}
    assert all(link.startswith("#") for link in page.links)
    assert "http://" not in text
    assert "https://" not in text
    assert "url(" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text


HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=y>\"'&\u202e\x1b[31m"


@pytest.mark.parametrize("place", ["title", "prompt", "cwd", "reason", "name", "continue"])
def test_nothing_of_the_thread_becomes_markup(place: str) -> None:
    page = Page(html_report.render(card(**{place: HOSTILE}), [step()]))
    assert page.open == []
    assert not page.tags & {"script", "img"}
    assert "<script>alert(1)</script>" in page.text


@pytest.mark.parametrize("place", ["role", "agent", "body", "prompt", "status"])
def test_nothing_of_a_step_becomes_markup(place: str) -> None:
    turn = {
        "role": HOSTILE,
        "text": HOSTILE,
        "tool_calls": [{"name": HOSTILE, "arguments": HOSTILE, "result": HOSTILE}],
    }
    hostile = step(output={"x": HOSTILE}, files=[HOSTILE], turns=[turn]) | {place: HOSTILE}
    page = Page(
        html_report.render(card(), [hostile | {"attempts": [ATTEMPT | {"error": HOSTILE, "raw": HOSTILE}]}])
    )
    assert page.open == []
    assert not page.tags & {"script", "img"}
    assert "\u202e" not in page.text
    assert "\x1b" not in page.text
    assert "\\u202e\\u001b[31m" in page.text


def test_texts_of_agents_are_markdown_without_markup_of_their_own() -> None:
    body = (
        "# Plan\n\nThe **sum** in `calc.py`\n\n- one\n- two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
        "[web](https://example.com) [mail](mailto:a@b.c) [here](#step-1) [no](javascript:alert(1)) "
        "[nor](data:text/html,x) [nor](file:///etc) <b onclick=x>raw</b> ![p](https://example.com/p.png)\n\n"
        "```py\nx = '<i>'\n```\n"
    )
    page = Page(html_report.render(card(prompt="Do *it*."), [step(body=body)]))
    assert page.open == []
    assert {"strong", "code", "li", "table", "em", "pre"} <= page.tags
    assert not page.tags & {"script", "img", "b", "i"} and "onclick" not in page.attributes
    outward = [link for link in page.links if not link.startswith("#")]
    assert outward == ["https://example.com", "mailto:a@b.c", "https://example.com/p.png"]
    assert "[no](javascript:alert(1))" in page.text
    assert "<b onclick=x>raw</b>" in page.text


def test_a_text_of_any_shape_is_shown_whole_and_soon() -> None:
    for text in (">" * 60, "[" * 20_000, "**a*" * 5_000, "a" + "`" * 500, "- " * 40):
        page = Page(html_report.render(card(), [step(body=f"{text} the end")], limit=None))
        assert page.open == [] and "the end" in page.text
    long = "word " * 30_000
    assert long.strip() in Page(html_report.render(card(), [step(body=long)], limit=None)).text


def test_the_task_comes_first_then_the_contents_and_nothing_empty() -> None:
    steps = [step(), step(2, role="editor", output={"$status": "good", "notes": ["a", "b"]}, body="")]
    page = html_report.render(card(usage={"steps": 2, "roles": {"writer": {"steps": 2}}}), steps)
    headings = re.findall(r"<h2>([^<]+)</h2>", page)
    assert headings == ["Task", "Contents", "Result", "Steps", "Time and tokens", "Thread"]
    assert "<table" not in page and "<dl></dl>" not in page
    contents = page[page.index("<nav") : page.index("</nav>")]
    assert re.findall(r'href="#([^"]+)">([^<]+)<', contents) == [
        ("task", "Task"), ("result", "Result"), ("steps", "Steps"), ("step-1", "1: writer, done"),
        ("step-2", "2: editor, done"), ("time-and-tokens", "Time and tokens"), ("thread", "Thread"),
    ]  # fmt: skip
    assert "<dt>notes</dt><dd><ul><li>a</li><li>b</li></ul></dd>" in page


def test_files_diffs_and_the_graph_are_part_of_the_page() -> None:
    diff = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old <b>\n+new\n same\n"
    page = html_report.render(
        card(), [step()], files=["x", "y z"], diffs={"worktree": diff}, graph="<svg></svg>"
    )
    assert "<li><code>x</code></li><li><code>y z</code></li>" in page
    assert '<span class="less">-old &lt;b&gt;</span><span class="more">+new</span><span> same</span>' in page
    assert 'src="data:image/svg+xml;base64,PHN2Zz48L3N2Zz4="' in page
    long = html_report.render(card(), [step()], diffs={"copy": "+x\n" * 20_000})
    assert "more characters)" in long
    assert long.count("+x") < html_report.render(
        card(), [step()], diffs={"copy": "+x\n" * 20_000}, limit=None
    ).count("+x")


def test_the_page_has_a_bar_for_the_time_and_the_tokens_of_each_step() -> None:
    text = html_report.render(card(), [step(), step(2, durationMs=3000), step(3, usage={})])
    heights = [float(height) for height in re.findall(r'<rect [^>]*y="[\d.]+" height="([\d.]+)"', text)]
    assert heights == [45.0, 60.0, 90.0, 60.0, 45.0]
    assert "<title>Step 2: writer: 3 s, 42 tokens</title>" in text


def test_what_was_used_is_told_in_the_order_of_the_steps_and_only_what_there_is() -> None:
    roles = {
        "editor": {"steps": 1, "tokens": 1_234_567},
        "writer": {"steps": 2, "tokens": 12, "cost": 0.5},
    }
    usage = {"steps": 3, "tokens": 1_234_579, "cost": 0.5, "roles": roles}
    whole = card(usage=usage)
    steps = [step(), step(2, role="editor"), step(3)]
    page = Page(html_report.render(whole, steps))
    assert page.cells == [
        "role", "steps", "tokens", "cost",
        "writer", "2", "12", "$0.50",
        "editor", "1", "1,234,567", "",
        "all", "3", "1,234,579", "$0.50",
    ]  # fmt: skip
    assert "| writer | 2 | 12 | $0.50 |\n| editor | 1 | 1,234,567 |  |" in report.markdown(whole, steps)


def test_of_a_command_that_an_agent_ran_the_command_alone_is_told() -> None:
    arguments = {"command": "ls -l", "description": "List files", "timeout": 120000}
    assert report.call_text(arguments) == "ls -l"
    assert report.call_text({"command": ["bash", "-lc", "ls"]}) == "bash -lc ls"
    assert report.call_text({"file_path": "a.py", "limit": 3}) == "a.py 3"
    assert report.call_text("ls") == ""


def test_one_tool_call_is_told_as_one() -> None:
    assert "Conversation: 1 turn, 1 tool call<" in html_report.render(card(), [step(turns=[TURN])])
    two = {**TURN, "tool_calls": TURN["tool_calls"] * 2}
    assert "Conversation: 2 turns, 3 tool calls<" in html_report.render(card(), [step(turns=[TURN, two])])


def test_the_labels_of_the_chart_are_text_of_the_page_and_do_not_shrink_with_it() -> None:
    text = html_report.render(card(), [step(), step(2)])
    assert "<text" not in text
    assert "time of each step, up to 1.5 s" in Page(text).text
    assert "tokens, up to 42" in Page(text).text


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (7, "7"), (1_500_000, "1,500,000"), (0.25, "0.25"), (90.0, "90"), (0.00001, "1e-05")],
)
def test_amounts_read_easily(value: float, shown: str) -> None:
    assert report.amount(value) == shown


def test_a_thread_without_steps_has_a_report_too() -> None:
    empty = card(steps=0, usage={}, status="suspended", reason="a question", attempts=[ATTEMPT])
    assert "the model is away" in Page(html_report.render(empty, [])).text
    text = report.markdown(empty, [])
    assert "- reason: a question" in text
    assert "### Failed attempt: writer" in text
    assert "## Usage" not in text


def test_markdown_holds_status_usage_steps_and_tools() -> None:
    text = report.markdown(card(), [step(turns=[TURN], attempts=[ATTEMPT], files=["a.py"])])
    assert text.startswith("# Write\n")
    assert "- status: completed" in text
    assert "| role | steps | tokens | time |" in text
    assert "| writer | 1 | 42 |  |" in text
    assert "| all | 1 | 42 | 1.5 s |" in text
    assert text.index("## Task") < text.index("## Usage")
    assert "## Step 1: writer" in text
    assert 'Tool `shell`\n\n```json\n{\n  "cmd": "ls"\n}\n```\n\n```\na\nb\n```' in text
    assert "the model is away" in text
    assert "- a.py" in text


def test_long_texts_are_shortened_unless_all_is_asked_for() -> None:
    long = step(body="x" * 9000, prompt="y" * 9000, turns=[{**TURN, "text": "z" * 9000}])
    for render in (report.markdown, html_report.render):
        assert not re.search(r"x{2001}|y{2001}|z{2001}", render(card(), [long]))
        assert "(7,000 more characters)" in render(card(), [long])
        whole = render(card(), [long], limit=None)
        assert all(letter * 9000 in whole for letter in "xyz")


def test_a_fence_is_longer_than_any_in_the_text() -> None:
    assert report.code_block("a\n```\nb\n````\nc") == "`````\na\n```\nb\n````\nc\n`````"


def test_an_answer_that_is_also_the_last_turn_is_shown_once() -> None:
    view = step(
        raw="---\n$status: done\n---\nThe text.",
        turns=[{**TURN, "text": "---\n$status: done\n---\nThe text."}],
    )
    text = report.detail_markdown(view)
    assert text.count("The text.") == 1
    assert "Tool `shell`" in text


def test_a_person_and_a_fork_are_told_in_words() -> None:
    said = step(
        2,
        role="$PERSON",
        agent="person",
        output={"reason": "Which?", "answer": "The first.", "role": "writer"},
    )
    assert report.step_markdown(said).startswith("## Step 2: a person answered")
    assert "> writer had asked: Which?\n\nThe first." in report.step_markdown(said)
    mark = step(3, role="$FORK", agent="rolecall", output={"from": "8M0Q8N9CMRCR1"})
    assert "from 8M0Q8N9CMRCR1" in report.step_markdown(mark)
    assert "The first." in Page(html_report.render(card(), [said, mark])).text


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (0, "0 s"),
        (350, "0.3 s"),
        (999, "1 s"),
        (4000, "4 s"),
        (1500, "1.5 s"),
        (61_000, "1 min 1 s"),
        (3_700_000, "1 h 1 min"),
        (None, ""),
    ],
)
def test_durations_read_easily(ms: int | None, shown: str) -> None:
    assert report.duration(ms) == shown


def test_a_step_is_read_with_its_tools_in_brief_and_what_went_against_the_rules() -> None:
    note = "writer is read-only, but the work folder has changed: added x"
    text = report.step_markdown(step(turns=[TURN] * 20, notes=[note], children=["01CHILD"]))
    assert "- `shell` `ls` → a b" in text
    assert text.count("- `shell`") == 12
    assert "- and 8 more: rc.step('8M0Q8N9CMRCR1')" in text
    assert f"> **Note:** {note}" in text and "Played by thread 01CHILD" in text
    whole = report.detail_markdown(step(turns=[TURN], sessionReason="new: ephemeral"))
    assert "- session: s-1 · new: ephemeral" in whole and whole.count("`shell`") == 1
    page = html_report.render(card(), [step(notes=[note], children=["01CHILD"])])
    assert "but the work folder has changed" in page and "Played by thread 01CHILD" in page


def test_a_file_is_on_one_line_whatever_its_name() -> None:
    change = {"path": "a\n- b (removed)", "kind": "changed", "added": 1, "removed": 0}
    assert report.change_text(change) == "a\\n- b (removed) +1"
