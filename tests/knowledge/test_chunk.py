"""Texts cut into passages."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecall.knowledge.chunk import Passage, is_prose, passages
from rolecall.knowledge.chunk.code import LANGUAGES
from rolecall.knowledge.words import tokens


def cut(path: str, text: str, limit: int = 400) -> list[Passage]:
    return passages(path, dedent(text).lstrip("\n"), limit=limit)


def places(path: str, text: str) -> dict[str, tuple[int, int]]:
    """The lines of each passage by its trail."""
    return {".".join(each.trail): (each.start, each.end) for each in cut(path, text)}


# -- code --


def test_python_is_cut_into_functions_and_what_is_left_of_classes() -> None:
    found = places(
        "a.py",
        '''
        """What the module is for, in a sentence that is long enough to stand alone."""
        import os

        # What a parser does.
        @final
        class Parser(Base):
            """Reads one file after the other."""

            limit = 3

            # Reads.
            @property
            def read(self):
                def inner():
                    return 1
                return inner

            class Options:
                def get(self): return 1

        if os.name == "posix":
            def fork(): return 0
        ''',
    )
    assert found == {
        "": (1, 2),
        "Parser": (4, 9),
        "Parser.read": (11, 16),
        "Parser.Options": (18, 18),
        "Parser.Options.get": (19, 19),
        "fork": (21, 22),
    }


def test_typescript_is_cut_into_functions_however_they_are_written() -> None:
    found = places(
        "a.ts",
        """
        /** What it does. */
        export default class Store<T> extends Base {
          load = async () => {
            return 1;
          };
          static make(name: string): Store {
            return 2;
          }
        }
        export const visit = (node) => {
          return node;
        };
        namespace Inner {
          function hidden() { return 3; }
        }
        interface Shape { area: number }
        type Name = string;
        exports.legacy = function () { return 4; };
        """,
    )
    assert found["Store"] == (1, 2)
    assert found["Store.load"] == (3, 5)
    assert found["Store.make"] == (6, 8)
    assert found["visit"] == (10, 12)
    assert set(found) >= {"Inner.hidden", "Shape", "Name", "legacy"}


def test_go_methods_carry_their_type() -> None:
    found = places(
        "a.go",
        """
        package main

        // Run starts it.
        // It blocks.
        func (s *Server[T]) Run() {
        }
        func main() {}
        type Config struct { Name string }
        """,
    )
    assert found["Server.Run"] == (1, 6)  # the package goes with what follows it
    assert set(found) >= {"main", "Config"}


def test_rust_is_cut_through_its_impls_and_modules() -> None:
    found = places(
        "a.rs",
        """
        /// A point.
        #[derive(Debug)]
        pub struct Point { x: i32 }
        impl<T> Shape for Point<T> {
            /// Its area.
            fn area(&self) -> i32 { 0 }
        }
        mod tests {
            #[test]
            fn adds() {}
        }
        """,
    )
    assert found["Point.area"] == (5, 6)
    assert found["tests.adds"] == (9, 10)
    assert "Point" in found


def test_java_and_c_and_cpp_are_cut_by_their_functions() -> None:
    java = places(
        "A.java", "/** About. */\nclass A {\n  int x;\n  /** Runs. */\n  void run() {\n  }\n  A() {\n  }\n}\n"
    )
    assert java["A"] == (1, 3)
    assert java["A.run"] == (4, 6)
    assert java["A.A"] == (7, 8)
    c = places(
        "a.c",
        """
        #ifdef UNIX
        static char *copy(const char *text) {
          return 0;
        }
        #endif
        typedef struct { int a; } pair_t;
        struct node { int b; };
        """,
    )
    assert c["copy"] == (1, 4)
    assert set(c) >= {"pair_t", "node"}
    cpp = places(
        "a.cpp",
        "namespace n {\ntemplate <class T>\nclass X {\n  int f() const { return 1; }\n};\n}\nint X<int>::g() {\n}\n",
    )
    assert cpp["n.X"] == (2, 3)
    assert cpp["n.X.f"] == (4, 4)
    assert cpp["X.g"] == (7, 8)


def test_code_that_does_not_compile_is_cut_as_far_as_it_can_be() -> None:
    found = places(
        "a.py", "def good():\n    return 1\n\ndef broken(:\n    return\n\ndef other():\n    return 2\n"
    )
    assert found["good"] == (1, 2)
    assert "other" in found


def test_a_line_or_two_between_functions_goes_with_what_follows() -> None:
    found = places("a.py", "def one():\n    return 1\n\n\n# -- the rest --\n\n\ndef two():\n    return 2\n")
    assert found == {"one": (1, 2), "two": (5, 9)}


# -- documents and settings --


def test_markdown_is_cut_at_its_headings() -> None:
    found = places(
        "a.md",
        """
        ---
        title: x
        ---
        Before.

        # One

        ## Two

        Text.
        ```sh
        # no heading
        ```

        Three
        -----
        - item
        ---
        ## Four ##
        end
        """,
    )
    assert found == {"": (1, 4), "One.Two": (6, 13), "One.Three": (15, 18), "One.Four": (19, 20)}
    assert is_prose("docs/a.md") and not is_prose("a.py")


def test_rest_is_cut_at_its_headings_by_the_order_of_their_signs() -> None:
    found = places(
        "a.rst",
        """
        =====
        Title
        =====

        Intro.

        Part
        ----
        Example::

           Indented
           --------

        Detail
        ~~~~~~
        x

        Other
        -----
        y
        """,
    )
    assert found == {
        "Title": (1, 5),
        "Title.Part": (7, 12),
        "Title.Part.Detail": (14, 16),
        "Title.Other": (18, 20),
    }


def test_yaml_is_cut_by_its_outer_keys_and_large_ones_by_those_below() -> None:
    long = "word " * 120
    found = places(
        "a.yaml",
        f"""
        # The name.
        name: x
        jobs:
          # Builds.
          build:
            run: |
              key: no key
          test:
            text: {long}
        "on": [push]
        """,
    )
    assert found == {"name": (1, 2), "jobs.build": (3, 7), "jobs.test": (8, 9), "on": (10, 10)}


def test_toml_is_cut_by_its_tables() -> None:
    found = places("a.toml", 'top = 1\n[tool.x]\ntext = """\n[no.table]\n"""\n# About it.\n[[list]]\na = 1\n')
    assert found == {"": (1, 1), "tool.x": (2, 5), "list": (6, 8)}


def test_other_texts_are_cut_by_lines_at_empty_ones() -> None:
    block = "\n".join(f"line {number} of a text" for number in range(20))
    found = cut("notes.txt", "\n\n".join([block] * 6), limit=200)
    assert len(found) > 3
    assert all(each.trail == () and tokens(each.text) <= 200 for each in found)
    starts = [each.text.split("\n")[0] for each in found]
    assert starts.count("line 0 of a text") == len(starts)


# -- every kind --


def test_a_function_that_is_too_long_is_cut_into_parts_that_carry_its_name() -> None:
    body = "\n".join(f"    value_{number} = compute({number})" for number in range(300))
    found = cut("a.py", f"def long():\n{body}\n")
    assert len(found) > 3
    assert {each.trail for each in found} == {("long",)}
    assert all(tokens(each.text) <= 400 for each in found)
    assert all(one.end + 1 == two.start for one, two in pairwise(found))


def test_a_line_without_end_is_cut_within() -> None:
    found = cut("a.js", "var data = '" + "abc " * 20_000 + "';\n")
    assert len(found) > 10
    assert {(each.start, each.end) for each in found} == {(1, 1)}
    assert all(tokens(each.text) <= 1000 for each in found)


def test_what_holds_no_word_is_no_passage() -> None:
    assert cut("a.py", "\n\n") == []
    assert cut("a.md", "---\n\n***\n") == []
    assert cut("a.txt", "") == []


def test_every_word_of_our_own_sources_is_in_a_passage_at_its_line() -> None:
    root = Path(__file__).parents[2]
    files = [*root.glob("src/rolecall/**/*.py"), *root.glob("docs/*.md"), root / "pyproject.toml"]
    assert len(files) > 50
    for path in files:
        text = path.read_text(encoding="utf-8")
        lines = text.split("\n")
        covered: set[int] = set()
        for each in passages(path.name, text, limit=400):
            assert each.text == "\n".join(lines[each.start - 1 : each.end])
            assert not covered.intersection(range(each.start, each.end + 1)), (path, each)
            covered.update(range(each.start, each.end + 1))
        left = [line for number, line in enumerate(lines, 1) if number not in covered]
        assert not any(character.isalnum() for line in left for character in line), path


SUFFIXES = [*LANGUAGES, ".md", ".rst", ".yaml", ".toml", ".txt"]


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(st.text(alphabet="ab(){}[]:;#=-~*<>@\"'`|/\\. \n\t", max_size=300))
def test_no_text_of_any_kind_is_an_error_or_loses_its_words(suffix: str, text: str) -> None:
    found = passages(f"x{suffix}", text, limit=50)
    whole = "".join(each.text for each in found)
    assert sum(map(str.isalnum, whole)) >= sum(map(str.isalnum, text))
    assert all(1 <= each.start <= each.end <= text.count("\n") + 1 for each in found)
