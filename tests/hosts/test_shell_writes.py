"""What a shell command visibly writes is seen, what it does not is not claimed, and no text is too odd."""

from __future__ import annotations

import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecall.hosts.shell_writes import LONGEST, find_patched_files, read_command

WRITES: dict[str, list[str]] = {
    # redirections
    "echo a > x": ["x"],
    "echo a >x 2>&1": ["x"],
    "echo a >> log 2>>errors": ["log", "errors"],
    "echo a >| x": ["x"],
    "make &> all": ["all"],
    "make &>> all": ["all"],
    "make >& all": ["all"],
    "exec 3<> both": ["both"],
    "> empty": ["empty"],
    "echo a > 'two words' > \"and three\"": ["two words", "and three"],
    "echo a > back\\ slash": ["back slash"],
    "cat a | sort > b": ["b"],
    "done_it() { echo > f; }; done_it": ["f"],
    "for f in a b; do echo $f; done > list": ["list"],
    "if true; then echo > x; fi": ["x"],
    # here-documents
    "cat <<EOF > f\nhello > world\nrm -rf src\nEOF\ntouch g": ["f", "g"],
    "cat > f <<-'END'\n\ttouch a\n\tEND\nrm k": ["f", "k"],
    "tee f <<< 'touch a'": ["f"],
    "cat > f <<'END-OF-FILE'\na > b\nEND-OF-FILE\ncat > g <<\\EOF\na > b\nEOF": ["f", "g"],
    "apply_patch <<'X'\n*** Begin Patch\n*** Update File: a/b.py\n*** Move to: c.py\n*** Add File: d\nX": [
        *("a/b.py", "c.py", "d"),
    ],
    # programs
    "tee -a a b < c": ["a", "b"],
    "cp a b": ["b"],
    "mv c d": ["c", "d"],
    "rm -rf -- -odd e": ["-odd", "e"],
    "touch -d yesterday f": ["f"],
    "mkdir -p -m 700 a/b": ["a/b"],
    "sed -i s/a/b/ f1 f2": ["f1", "f2"],
    "sed -i.bak -e s/a/b/ f": ["f"],
    "sed -Ei 's/a/b/' f": ["f"],
    "perl -pi -e 's/a/b/' f": ["f"],
    "truncate -s 0 f": ["f"],
    "ln -s /etc/passwd link": ["link"],
    # what stands before, and around
    "cd sub && echo > z": ["sub/z"],
    "cd sub/; cd ..; touch a": ["sub/../a"],
    "(cd sub; touch a); touch b": ["sub/a", "b"],
    "pushd sub && touch a": ["sub/a"],
    "sudo -E tee f": ["f"],
    "A=1 env -i B=2 timeout 5 nice -n 3 rm x": ["x"],
    "sudo -E env A=1 nohup setsid rm x": ["x"],
    "timeout -k 9 5m tee f": ["f"],
    "ls | xargs -I{} cp {} dest": ["dest"],
    "ls | xargs -0 -n 1 -P4 sh -c 'touch f'": ["f"],
    "/bin/rm x; \\rm y; 'rm' z": ["x", "y", "z"],
    "! rm x": ["x"],
    "bash -lc 'cd sub; echo hi > q'": ["sub/q"],
    "x=$(touch inside); echo `rm ticks`": ["inside", "ticks"],
    "git commit -m \"$(cat <<'EOF'\nIt's > that\nEOF\n)\" && rm x": ["x"],
    "rm x # don't touch > y\nrm z": ["x", "z"],
    "# Let's see\nmake 2>/dev/null > out.txt": ["out.txt"],
    "rm -f \\\n  x": ["x"],
    "echo ${X:-$(touch default)}": ["default"],
    "tee >(cat > copy) < a": ["copy"],
    "echo > $PWD/x > \"${PWD}/y\"": ["./x", "./y"],
    "rm *.o build/{a,b}": ["*.o", "build/{a,b}"],
    "[ a > b ]": ["b"],
}  # fmt: skip

NOTHING = [
    *("ls -la", "cat a b", "grep -r x .", "git status", "git diff > /dev/null", "python -c 'open(\"x\", \"w\")'"),
    *("echo '>' x", 'echo ">" x', "echo \\> x", "echo a 2>&1", "cat < in", "echo # > x", "[[ a > b ]]"),
    *("(( a > b ))", "echo $((1 > 2))", "echo hi > $FILE", "cd $DIR && touch a", "cd - && rm a", "sed -n p f"),
    *("perl -MList::Util -e 'print 1' f", "make", "npm install", "pytest", "cp a", "gzip -c a", "bash script.sh"),
    *("grep '>' x", "echo ${A#b} $#", "python3 - <<'EOF'\nopen('x', 'w')\nEOF", "bash <<EOF\nrm x\nEOF", "eval 'rm x'"),
    *("sudo apt-get install -y jq", "timeout 60 pip install foo", "timeout 9 grep -rn rm src"),
    *("ls | xargs rm", "command -v rm", "ls | xargs grep rm a", "git checkout -- a", "git apply p", "tar xf a.tgz"),
    *("sed -i", "rm ''", "tee ''", "touch -d"),
    *('echo "$(rm x)"', "echo > $'x'", "", "   ", "\n\n", "#!/bin/sh", "rolecall task add T"),
]  # fmt: skip


@pytest.mark.parametrize("command", WRITES)
def test_what_a_command_writes_is_seen(command: str) -> None:
    found = [path for path in read_command(command, "/p").writes if path != "/dev/null"]
    assert found == [f"/p/{name}" for name in WRITES[command]]


@pytest.mark.parametrize("command", NOTHING)
def test_what_a_command_does_not_visibly_write_is_not_claimed(command: str) -> None:
    assert [path for path in read_command(command, "/p").writes if path != "/dev/null"] == []


def test_absolute_paths_and_the_home_are_what_they_are() -> None:
    found = read_command("echo > /etc/x; touch ~/y; cd /tmp && rm w", "/p").writes
    assert found[0] == "/etc/x" and found[2:] == ("/tmp/w",)
    assert found[1].startswith("/") and found[1].endswith("/y") and "~" not in found[1]


def test_our_own_commands_are_seen_with_their_words() -> None:
    calls = read_command(
        "cd x && rolecall task add 'A title' --context c; A=1 /usr/bin/uwf plan decide 1 yes", "/p"
    ).calls
    assert calls == (("task", "add", "A title", "--context", "c"), ("plan", "decide", "1", "yes"))
    assert read_command("bash -c 'rolecall task close'", "/p").calls == (("task", "close"),)
    assert read_command("/usr/bin/python3 -m rolecall task close", "/p").calls == (("task", "close"),)
    assert read_command("echo rolecall task close", "/p").calls == ()


@pytest.mark.parametrize(
    "start",
    [
        *(
            "python -P -m rolecall",
            "/opt/v/bin/python3.12 -u -W error -Pm rolecall",
            "python3 -X dev -m rolecall",
            "python -mrolecall",
            "python3 -W error -Pmrolecall",
        ),
        *("uvx rolecall", "uv run --with x rolecall", "pipx run rolecall", "poetry run rolecall"),
        *(
            "uvx rolecall@latest",
            "uvx rolecall==1.0",
            "uvx 'rolecall>=1'",
            "uvx 'rolecall<2'",
            "uvx rolecall~=1.0",
        ),
        *(
            "uv run python -mrolecall",
            "uvx 'rolecall @ git+https://example.org/x'",
            "uv run /opt/a@1/bin/rolecall",
        ),
        *("uvx 'rolecall!=1.1'", "pipx run 'rolecall[service]'", "uv run .venv/bin/rolecall"),
    ],
)
def test_our_own_commands_are_seen_however_rolecall_is_started(start: str) -> None:
    assert read_command(f"{start} task close", "/p").calls == (("task", "close"),)
    assert read_command(f"{start.replace('rolecall', 'other')} task close", "/p").calls == ()


@pytest.mark.parametrize(
    "start",
    [
        "uvx --from rolecall rolecall",
        "uvx --from 'rolecall[service]==1.0' rolecall",
        "uv run --with rolecall rolecall",
        "pipx run --spec rolecall@latest rolecall",
    ],
)
def test_what_stands_behind_the_package_is_not_taken_for_all_that_rolecall_is_told(start: str) -> None:
    assert read_command(f"{start} task close", "/p").calls[-1] == ("task", "close")


@pytest.mark.parametrize(
    "command",
    [
        *("uvx rolecaller run x", "uvx my-rolecall run x", "uv run --with=x pytest tests/rolecall.py run"),
        *("python -mother rolecaller", "python -mrolecall.x run"),
    ],
)
def test_what_is_only_named_like_rolecall_is_not_taken_for_it(command: str) -> None:
    assert read_command(command, "/p").calls == ()


def test_a_patch_says_which_files_it_is_about() -> None:
    text = "*** Begin Patch\n*** Add File: a b.py\r\n+x\n*** Delete File: c\n*** Update File:d\n*** End Patch"
    assert find_patched_files(text) == ["a b.py", "c", "d"]


# -- any text --


@given(st.text(st.sampled_from("abc'\"`$(){}<>|&;\n\\ \t#[]=-~1/*\0é") | st.characters(), max_size=200))
def test_no_text_is_too_odd(command: str) -> None:
    for path in read_command(command, "/p").writes:
        assert path.startswith("/") and "\0" not in path


HOSTILE = {
    "brackets": "(",
    "substitutions": "$(",
    "quotes": "'",
    "backticks": "`",
    "escaped backticks": "`\\",
    "braces": "${",
    "arithmetic": "((a",
    "documents": "<<A ",
    "documents on lines": "cat <<A\n",
    "variables": "$a",
    "empty parts": "''$a",
    "wrappers": "sudo ",
    "starts": "uv rolecall ",
    "open tests": "[[",
    "open documents": "<<A\n",
    "backslashes": "\\",
    "tests": "[[ ",
    "redirections": "> ",
    "assignments": "a=b ",
    "evals": "eval ",
    "processes": "<(",
    "operands": "rm a ",
    "letters": "x",
}


@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE)
def test_no_text_takes_long(piece: str) -> None:
    text = piece * (4 * LONGEST // len(piece))
    began = time.process_time()
    read_command(text, "/p")
    assert time.process_time() - began < 0.5


def test_what_lies_behind_the_longest_command_is_not_looked_at() -> None:
    padding = " " * LONGEST
    assert read_command(f"rm a;{padding}rm b", "/p").writes == ("/p/a",)


@given(st.text(string.printable, max_size=60).filter(lambda text: "$" not in text and text[:1] != "~"))
def test_a_quoted_text_is_one_word_whatever_it_holds(text: str) -> None:
    import shlex

    word = shlex.quote(text)
    expected = () if text in ("", "-") or "\0" in text else (text if text.startswith("/") else f"/p/{text}",)
    assert read_command(f"tee -- {word}", "/p").writes == expected
