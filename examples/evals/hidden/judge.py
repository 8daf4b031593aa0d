"""Calls the function of the task with cases that no agent has seen.

The function runs in a process of its own, which gets only arguments: code that ends its process, or replaces what
compares, gains nothing.
"""

import json
import os
import subprocess
import sys

CASES = {
    "add": [([2, 3], 5), ([-1, 1], 0)],
    "double": [([3], 6), ([0], 0)],
    "is-even": [([4], True), ([7], False)],
    "last": [([[1, 2, 3]], 3)],
    "total": [([[1, 2, 3]], 6), ([[]], 0)],
    "smallest": [([[3, 1, 2]], 1)],
    "shout": [(["hi"], "HI")],
    "backwards": [(["abc"], "cba")],
    "count-words": [(["a b"], 2), (["a  b"], 2), ([""], 0)],
    "initials": [([["ada", "lovelace"]], "al"), ([["ada", ""]], "a")],
    "unique": [([[2, 1, 2]], [2, 1])],
    "clamp": [([5, 0, 3], 3), ([-1, 0, 3], 0)],
    "mean": [([[1, 2, 3]], 2), ([[]], 0)],
    "is-leap": [([1900], False), ([2000], True), ([2024], True)],
    "median": [([[3, 1, 2]], 2), ([[4, 1, 2, 3]], 2.5)],
    "rotate": [([[1, 2, 3], 2], [3, 1, 2]), ([[1, 2, 3], 4], [2, 3, 1])],
    "is-palindrome": [(["Anna"], True), (["ab"], False), (["A man, a plan, a canal: Panama"], True)],
    "round-half": [([2.5], 3), ([-2.5], -3)],
    "title": [(["it is"], "It Is"), (["it's"], "It's")],
    "intersect": [([[3, 1, 2], [2, 3]], [3, 2])],
    "digits": [([-12], 2), ([7], 1)],
    "power": [([2, 5], 32), ([3, 2], 9)],
    "flatten": [([[1, [2, [3]]]], [1, 2, 3])],
    "roman": [([4], "IV"), ([9], "IX")],
}
CALL = """
import json, sys
import functions
name, calls = json.load(sys.stdin)
print(json.dumps([getattr(functions, name)(*arguments) for arguments in calls]))
"""

with open(os.environ["ROLECALL_RESULT"], encoding="utf-8") as file:
    task = json.load(file)["task"]
cases = CASES[task]
given = json.dumps([task.replace("-", "_"), [arguments for arguments, _ in cases]])
done = subprocess.run([sys.executable, "-c", CALL], input=given, capture_output=True, text=True)
try:
    found = json.loads(done.stdout)
except ValueError:
    found = []
right = sum(one == wanted for one, (_, wanted) in zip(found, cases, strict=False))
with open(os.environ["ROLECALL_REPORT"], "w", encoding="utf-8") as file:
    json.dump({"score": right / len(cases), "details": {"found": found}}, file)
sys.exit(right < len(cases))
