"""What is kept of a stream, however long it is and whatever it holds."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rolecall.agents.contract import Recorder, context_for
from rolecall.agents.transcript import LONGEST_ANSWER, Transcript, shorten, text_of


def transcript(folder: Path = Path("/work")) -> tuple[Transcript, Recorder]:
    recorder = Recorder()

    async def made() -> Transcript:
        return Transcript(context_for(folder, recorder, env={}))

    return asyncio.run(made()), recorder


def size(value: Any) -> int:
    return len(json.dumps(value, default=lambda item: vars(item)))


def test_pieces_of_one_message_are_one_turn_and_a_new_message_another() -> None:
    kept, recorder = transcript()
    kept.says("one ")
    kept.says("and", is_continued=True)
    kept.says("two")
    assert [turn.text for turn in kept.turns] == ["one and", "two"]
    assert kept.answer == "two"
    assert [body["text"] for body in recorder.bodies("text")] == ["one ", "and", "two"]


def test_calls_stand_with_the_words_before_them_and_what_follows_a_result_is_a_new_turn() -> None:
    kept, _ = transcript()
    kept.says("I look.")
    kept.calls("1", "Read", {"path": "a"})
    kept.calls("2", "Read", {"path": "b"})
    kept.returns("1", "text of a")
    kept.returns("2", [{"type": "text", "text": "text of b"}])
    kept.calls("3", "Write", {"path": "c"})
    first, second = kept.turns
    assert [(call.arguments["path"], call.result) for call in first.tool_calls] == [
        ("a", "text of a"),
        ("b", "text of b"),
    ]
    assert [call.name for call in second.tool_calls] == ["Write"]
    assert kept.answer == "I look."


def test_a_result_gives_its_call_back_and_one_without_a_call_nothing() -> None:
    kept, _ = transcript()
    kept.calls("1", "Read", {"path": "a"})
    assert kept.is_running("1")
    done = kept.returns("1", "x")
    assert done is not None
    assert (done.name, done.result, kept.is_running("1")) == ("Read", "x", False)
    assert kept.returns("1", "again") is None


def test_a_session_is_told_once() -> None:
    kept, recorder = transcript()
    for session in ("s", "s", "", "t"):
        kept.in_session(session)
    assert recorder.bodies("session") == [{"session": "s"}, {"session": "t"}]
    assert kept.session == "t"


def test_files_are_told_from_the_work_folder_and_those_outside_whole() -> None:
    kept, _ = transcript(Path("/work"))
    for path in ("/work/b/c.txt", "a.txt", "b/../a.txt", "/elsewhere/x", ""):
        kept.touches(path)
    assert kept.files == ("/elsewhere/x", "a.txt", "b/c.txt")


def test_thousands_of_turns_keep_the_first_and_the_last_and_say_how_many_are_missing() -> None:
    kept, _ = transcript()
    for number in range(5_000):
        kept.says(f"message {number}")
        kept.calls(f"c{number}", "Read", {"path": f"file {number}"})
        kept.returns(f"c{number}", "y" * 10_000)
    turns = kept.turns
    assert kept.count == 5_000
    assert (turns[0].text, turns[-1].text) == ("message 0", "message 4999")
    (gap,) = (turn for turn in turns if turn.role == "system")
    assert gap.text == f"{5_000 - (len(turns) - 1)} turns are left out here"
    assert len(turns) < 500
    assert size(turns) < 3_000_000
    assert turns[-1].tool_calls[0].result.startswith("yyy")


def test_thousands_of_calls_in_one_breath_are_bounded_too() -> None:
    kept, recorder = transcript()
    for number in range(50_000):
        kept.calls(f"c{number}", "Read", {"path": "x" * 100})
    assert size(kept.turns) < 10_000_000
    shown = recorder.bodies("tool_call")
    assert len(shown) < 50_000
    assert shown[-1]["more"] is True


def test_only_the_latest_message_is_kept_whole() -> None:
    kept, _ = transcript()
    tracemalloc.start()
    try:
        for number in range(100):
            kept.says(f"{number:02}" * 500_000)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept.answer == "99" * 500_000
    assert held < 10_000_000


def test_an_answer_of_many_small_pieces_is_put_together_up_to_its_bound() -> None:
    kept, recorder = transcript()
    piece = "0123456789" * 10
    for _ in range(LONGEST_ANSWER // len(piece) + 100):
        kept.says(piece, is_continued=True)
    assert len(kept.answer) == LONGEST_ANSWER
    assert kept.answer.endswith((piece * 2)[: LONGEST_ANSWER % len(piece) or len(piece)])
    assert sum(len(body["text"]) for body in recorder.bodies("text")) < LONGEST_ANSWER


def test_long_arguments_and_results_are_shortened_in_the_middle() -> None:
    kept, _ = transcript()
    kept.calls(
        "1", "n" * 10_000, {"content": "a" * 50_000 + "THE END", "k" * 5_000: 1, "deep": [["x"] * 9_000]}
    )
    kept.returns("1", "r" * 50_000 + "THE END")
    (call,) = kept.turns[0].tool_calls
    assert call.arguments["content"].endswith("THE END")
    assert call.result.endswith("THE END")
    assert size(call) < 20_000


def test_what_is_nested_beyond_sense_is_cut_off_and_not_followed() -> None:
    deep: Any = "bottom"
    for _ in range(100_000):
        deep = [deep]
    kept, _ = transcript()
    kept.calls("1", "Read", {"deep": deep, "wide": {"a": [1, {"b": None}]}})
    kept.returns("1", deep)
    (call,) = kept.turns[0].tool_calls
    assert dict(call.arguments) == {"deep": "…", "wide": {"a": [1, {"b": None}]}}
    assert call.result == "…"
    assert text_of({"unknown": deep}) == "…"


def test_the_text_of_a_result_is_found_in_the_shapes_agents_use() -> None:
    assert text_of([{"type": "text", "text": "a"}, {"content": [{"text": "b"}]}, None, ""]) == "a\nb"
    assert text_of({"output": {"result": 5}}) == "5"
    assert text_of(None) == ""


@given(st.text(max_size=300), st.integers(min_value=8, max_value=100))
def test_a_shortened_text_keeps_beginning_and_end(text: str, limit: int) -> None:
    short = shorten(text, limit)
    assert short == text or (
        len(text) > limit and short.startswith(text[: limit // 2]) and short.endswith(text[-1])
    )
    assert len(short) <= limit + 40


def test_signs_are_passed_on_up_to_a_number_and_the_last_one_says_so() -> None:
    kept, recorder = transcript()
    for number in range(20_000):
        kept.asks("x" * 5_000, is_allowed=False, reason="y" * 50_000)
        kept.calls(str(number), "Read", {})
    assert len(recorder.events) == 10_000
    assert [kind for kind, body in recorder.events if body.get("more")] == ["tool_call"]
    assert size(recorder.bodies("permission")[0]) < 5_000
