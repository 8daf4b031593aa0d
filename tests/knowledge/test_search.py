"""Ranking: what a question is taken for, and what speaks for a passage."""

from __future__ import annotations

import pytest

from rolecall.knowledge.search import (
    Candidate,
    Kind,
    Scale,
    Weights,
    defines,
    find_marks,
    looks_like,
    question,
    rank,
    score_quotes,
)
from rolecall.knowledge.words import stem


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("parse_config", "identifier"),
        ("ConfigParser.read_lines", "identifier"),
        ("std::vec::Vec", "identifier"),
        ("run()", "identifier"),
        ("send(message, 3)", "identifier"),
        ("--no-cache-dir", "identifier"),
        ("max-line-length", "identifier"),
        ("the port must lie between 1 and 65535", "error"),
        ("ValueError: malformed field", "error"),
        ("E       KeyError: nobody", "error"),
        ("requests.exceptions.ConnectionError: nobody listens", "error"),
        ("error: linker `cc` not found", "error"),
        ("invalid literal for int() with base 10: 'abc'", "error"),
        ("how are retries limited", "prose"),
        ("which rights does the installer need?", "prose"),
        ("Return the list of all handlers.", "prose"),
        ("Checks whether the value is not set.", "prose"),
    ],
)
def test_a_question_is_taken_for_a_name_a_message_or_a_sentence(text: str, kind: Kind) -> None:
    assert looks_like(text) == kind


LONG = "Send an answer. The stream must not be closed, or an error is raised; the body may be missing. "


def test_words_that_complain_do_not_make_a_message_of_a_text_but_an_exception_does() -> None:
    assert looks_like(LONG) == "error" and looks_like(LONG * 3) == "prose"
    assert looks_like(f'{LONG * 3}\n  File "a.py", line 3, in b\nlamp.LampError: no oil') == "error"


def test_words_that_fill_sentences_are_not_what_passages_of_a_sentence_are_gathered_by() -> None:
    asked = question("how does the cache work")
    assert asked.telling == ("cach", "work")
    assert len(asked.terms) == 5
    assert question("what is this").telling == question("what is this").terms
    assert question("is_in").telling == (stem("is_in"), "is", "in")


def test_what_was_filled_in_is_not_what_passages_of_a_message_are_gathered_by() -> None:
    asked = question("ValueError: the port 'abc' must lie between 1 and 65535, don't you think")
    assert "abc" in asked.terms and "65535" in asked.terms
    assert not {"abc", "65535", "1"} & set(asked.telling)
    assert {"port", "between", "think"} <= set(asked.telling)


def test_numbers_are_not_what_a_message_is_known_again_by() -> None:
    said = 'log.error("cannot reach host %s", host)'
    asked = question("2024-05-01 12:00:01,123 ERROR cannot reach host 10.0.0.7")
    assert asked.kind == "error" and score_quotes((), said, asked) == 1.0
    assert (stem("gate"), "7") in question("lanterns hang at gate 7").pairs


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("parse", "def parse(text):"),
        ("Parser.parse", "    async def parse(self):"),
        ("Parser", "class Parser(Base):"),
        ("LIMIT", "LIMIT = 3"),
        ("LIMIT", "LIMIT: Final[int] = 3"),
        ("Run", "func (s *Server) Run(ctx context.Context) error {"),
        ("run", "pub fn run(self) -> Result<()> {"),
        ("Shape", "export interface Shape {"),
        ("handler", "const handler = async () => {"),
        ("BUFFER_SIZE", "#define BUFFER_SIZE 4096"),
        ("node", "typedef struct node {"),
        ("max-line-length", "[tool]\nmax-line-length = 100"),
        ("timeout", "server:\n  timeout: 30"),
        ("tool.black", "[tool.black]\nx = 1"),
        ("retries", '{\n  "retries": 3\n}'),
        ("exports.load", "exports.load = function () {}"),
        ("--no-cache", 'parser.add_argument("-n", "--no-cache")'),
    ],
)
def test_a_definition_is_told_in_many_languages(name: str, text: str) -> None:
    assert defines((), text, question(name))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("parse", "return parse(text)"),
        ("parse", "def parse_all(text):"),
        ("LIMIT", "if LIMIT == 3:"),
        ("LIMIT", "DEFAULT_LIMIT = 3"),
        ("retry", "retry => retry + 1"),
        ("std", "std::move(x)"),
        ("--no-cache", "pip --no-cache-dir"),
        ("config.yaml", "yaml: 3"),
        ("src/parse", "def parse(text):"),
    ],
)
def test_a_use_is_no_definition_and_a_path_has_none(name: str, text: str) -> None:
    assert not defines((), text, question(name))


def test_of_a_function_in_several_pieces_the_one_with_its_name_defines_it() -> None:
    asked = question("Server::listen")
    assert defines(("Server", "listen"), "void Server::listen(int port) {\n  open();", asked)
    assert not defines(("Server", "listen"), "  close();\n}", asked)


def test_a_quote_may_have_values_between_its_words_and_words_left_out() -> None:
    said = 'raise ValueError(f"the port {port!r} must lie between {low} and {high}")'
    for text in ("the port must lie between 1 and 65535", "port must between and"):
        assert score_quotes((), said, question(text)) > 0.5
    assert (
        score_quotes((), "between the lines: a port, far away from what must be", question("port must lie"))
        == 0.0
    )
    assert score_quotes(("Reading order",), "", question("reading order")) == 1.0


def test_a_question_names_files_with_or_without_folders() -> None:
    asked = question("what does search.py do with ./docs/guide.md, e.g. today")
    assert asked.is_file("src/search.py") and asked.is_file("docs/guide.md")
    assert question('File "/home/ada/repo/src/search.py", line 3').is_file("src/search.py")
    assert not asked.is_file("research.py") and not asked.is_file("guide.md")


@pytest.mark.parametrize(
    "text",
    [
        'File "/home/ada/repo/src/lamp.py", line 12, in light',
        "src/lamp.py:12:5: error: unused import",
        "    at light (/app/src/lamp.py:12:5)",
        "lamp.py(12): warning",
    ],
)
def test_a_question_names_a_line_of_a_file_in_the_ways_of_programs(text: str) -> None:
    assert question(text).lines_of("src/lamp.py") == {12}
    assert question(text).lines_of("src/other.py") == set()


@pytest.mark.parametrize("piece", ["x", "a.", "' 'a ", "A.b(", "x: ", "x.py ", "--", "/.", "the ", "\n", "'"])
def test_a_question_without_end_is_read_in_time(piece: str) -> None:
    """What grows with the square of its length would not come to an end."""
    asked = question(piece * (200_000 // len(piece)))
    assert asked.name == ""


def candidate(number: int, *, file: int = 0, **given: float) -> Candidate:
    plain = {"words": 0.0, "trail": 0.0, "name": 0.0, "quotes": 0.0, "nearness": 0.0}
    flags = {
        "is_definition": bool(given.pop("is_definition", 0)),
        "is_of_file": bool(given.pop("is_of_file", 0)),
        "is_at_line": bool(given.pop("is_at_line", 0)),
    }
    return Candidate((0, number), file=file or number, lines=5, **{**plain, **given}, **flags)  # type: ignore[arg-type]


def order(kind: Kind, *candidates: Candidate) -> list[int]:
    found = rank(candidates, [Weights(1.0, 0.6)], [Scale(0.1, 0.9)], kind)
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    return [number for (_, number), _ in found]


def test_where_a_name_is_defined_comes_before_where_it_is_used_most() -> None:
    used, defined = candidate(1, words=9.0, nearness=0.9), candidate(2, words=4.0, is_definition=1)
    assert order("identifier", used, defined) == [2, 1]


def test_vectors_decide_only_as_far_as_words_are_in_doubt() -> None:
    near, said = candidate(1, words=6.0, nearness=0.9), candidate(2, words=8.0, nearness=0.1)
    assert order("prose", near, said) == [1, 2]
    quoted = said._replace(quotes=1.0)
    assert order("prose", near, quoted) == [2, 1]


def test_of_a_message_half_is_enough_to_be_sure() -> None:
    near, said = candidate(1, words=6.0, nearness=0.9), candidate(2, words=8.0, nearness=0.1)
    assert order("error", near, said) == [1, 2]
    assert order("error", near, said._replace(quotes=0.5)) == [2, 1]


@pytest.mark.parametrize("kind", ["prose", "error", "identifier"])
def test_a_line_that_is_named_leaves_nothing_to_vectors(kind: Kind) -> None:
    near, at_line = candidate(1, words=9.0, nearness=0.9, is_of_file=1), candidate(2, words=5.0, is_of_file=1)
    assert order(kind, near, at_line._replace(is_at_line=True)) == [2, 1]


def test_a_file_that_is_named_comes_first() -> None:
    assert order("prose", candidate(1, words=9.0), candidate(2, words=5.0, is_of_file=1)) == [2, 1]


def test_of_two_alike_the_one_whose_file_holds_more_that_fits_comes_first() -> None:
    alone, first = candidate(1, words=5.0, file=7), candidate(2, words=5.0, file=8)
    assert order("prose", alone, first, candidate(3, words=4.0, file=8)) == [2, 1, 3]
    assert order("prose", alone._replace(quotes=1.0), first, candidate(3, words=4.0, file=8))[0] == 1


def test_vectors_alone_are_ranked_by_nothing_else() -> None:
    near, others = candidate(1, nearness=0.9, file=7), [candidate(n, nearness=0.8, file=8) for n in (2, 3, 4)]
    found = rank([near, *others], [Weights(0.0, 1.0)], [Scale(0.1, 0.9)], "prose")
    assert [score for _, score in found] == pytest.approx([1.0, 0.875, 0.875, 0.875])


def test_ties_keep_their_order() -> None:
    assert order("prose", candidate(3, words=1.0), candidate(1, words=1.0), candidate(2, words=1.0)) == [
        1,
        2,
        3,
    ]


def test_marks_are_where_words_of_the_question_stand() -> None:
    text = "The retry_limit: tried 3 times, Retries."
    assert [text[start:stop] for start, stop in find_marks(text, "retry limits")] == [
        "retry_limit",
        "Retries",
    ]
