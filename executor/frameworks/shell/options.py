"""What `set` and a script's first line say: options of the shell, and its arguments.

Source: GNU Bash manual 5.2, 4.3.1 The Set Builtin.
"""

import re

from meshplan.executor.frameworks.shell.variables import Part, Text, Variables, is_unset, plain

_LETTERS = {"a": "allexport", "e": "errexit"}
_FIRST_LINE = re.compile(r"#!\S*sh[ \t]+(-[A-Za-z]+)\s")


def set_options(variables: Variables, words: list[Text]) -> None:
    """`set -euo pipefail`, `set +e`, `set -- A B`; what is not known sets nothing."""
    left = list(words)
    while left and not is_unset(left[0]) and (sign := plain(left[0])[:1]) in ("-", "+"):
        word = plain(left.pop(0))
        if word in ("-", "--"):
            if left or word == "--":
                variables.arguments, variables.told = left, True
            return
        named = {_LETTERS.get(letter, letter) for letter in word[1:]}
        if "o" in named and left:
            named.add(plain(left.pop(0)))
        variables.options = variables.options | named if sign == "-" else variables.options - named
    if left and not is_unset(left[0]):
        variables.arguments, variables.told = left, True


def set_by_first_line(variables: Variables, script: str) -> None:
    """`#!/bin/bash -e`."""
    if found := _FIRST_LINE.match(script):
        set_options(variables, [(Part(found[1], 1),)])
