"""Follows a launch script as far as the words of the commands that it would run.

`read_script` runs what only computes: assignments, arrays, conditions, `case`, loops, functions,
`eval` and `bash -c`. Every other command is recorded with its words and counts as having worked.
No command is run. A file that is sourced is followed where it lies beside the script. The
environment and the script's own arguments are unknown: empty in conditions, named (`$TP`) in the
words of a command.

Source: GNU Bash manual 5.2, chapter 3. The tests compare with what bash does.
Leaves out: sourced files that lie elsewhere, `read` but of a here-string or here-document, `trap`
of signals, job control.
"""

from collections.abc import Mapping
from contextlib import suppress

from meshplan.executor.frameworks.shell.endings import Stops
from meshplan.executor.frameworks.shell.follower import Follower
from meshplan.executor.frameworks.shell.given import set_start
from meshplan.executor.frameworks.shell.grammar.parser import parse
from meshplan.executor.frameworks.shell.grammar.words import split_words
from meshplan.executor.frameworks.shell.jobs.arrays import array_tasks
from meshplan.executor.frameworks.shell.launching.gpus import slurm_variables
from meshplan.executor.frameworks.shell.options import set_by_first_line
from meshplan.executor.frameworks.shell.record import Script, joined
from meshplan.executor.frameworks.shell.variables import line_of, shown_text
from meshplan.executor.frameworks.shell.work import shared_work
from meshplan.planner.case.reading import Fact

SCRIPTS = (".sh", ".slurm", ".sbatch", ".bash")


def read_script(text: str, environment: Mapping[str, str] | None = None, path: str = "") -> Script:
    """Follow the script `text` at `path`, of a job array once for each of its tasks; raises
    `UnreadableConfig` on what is no script.

    `environment`: variables by name and arguments by number that it is started with; what Slurm
    sets by the script's own `#SBATCH` lines is known without it.
    """
    given = {**slurm_variables(text), **(environment or {})}
    tasks, notes = array_tasks(text, given)
    with shared_work():
        return joined([_followed(text, {**given, **task}, path) for task in tasks], notes)


def _followed(text: str, given: Mapping[str, str], path: str) -> Script:
    follower = Follower(path)
    set_start(follower.variables, given)
    set_by_first_line(follower.variables, text)
    follower.exported |= given.keys()
    with suppress(Stops):
        follower.run(parse(split_words(text)))
    ended = follower.place.said()
    follower.at_exit()
    known = follower.variables
    script = follower.script
    script.variables = {
        name: [Fact(shown_text(item), line_of(item, 1)) for item in items]
        for name, items in known.values.items()
    }
    script.waits = tuple(dict.fromkeys(what for _, what in sorted(known.guesses.items())))
    guessed = (_guess(line, what) for line, what in sorted(known.guesses.items()))
    ends = (
        f"line {line}: bash stops here where {name} is not set; --env {name}=VALUE sets it"
        for name, line in known.demanded.items()
    )
    left = (
        f"line {line}: {name} is not set in the script: {number}, its default; --env {name}=VALUE "
        "says another"
        for name, (number, line) in known.left.items()
    )
    said = [*script.notes, *guessed, *ends, *left, *ended]
    script.notes = list(dict.fromkeys(said))
    return script


def _guess(line: int, what: str) -> str:
    if what.startswith("(("):  # a command of arithmetic, or the head of a loop
        return f"line {line}: {what} waits for what is not known: taken as false"
    return f"line {line}: {what} is not set in the script: taken as empty in this condition"
