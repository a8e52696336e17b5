"""The documentation says what is true: commands, pasted outputs, links."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from benchmarks.accuracy.tables import in_short
from benchmarks.commands.readme import (
    DOCUMENTS,
    GUIDE,
    PLACE,
    differences,
    pictures,
    renewed,
    words_of,
)
from benchmarks.models import page as models_page
from meshplan.planner.cli.main import COMMANDS, app, load_command

ROOT = Path(__file__).parent.parent
PAGES = [
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md"),
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").glob("*.md"))),
]


def commands() -> list[tuple[str, Any]]:
    """Every command and sub-command by its full name."""
    found = []
    for name in COMMANDS:
        command = load_command(name)
        found.append((name, command))
        inner = getattr(command, "commands", {})
        found += [(f"{name} {sub}", each) for sub, each in inner.items()]
    return found


@pytest.mark.parametrize(("name", "command"), commands(), ids=[name for name, _ in commands()])
def test_each_command_has_help_and_an_example(name: str, command: Any) -> None:
    """The help of a command opens with one sentence and shows one example of itself."""
    text = command.help or command.callback.__doc__ or ""
    first = text.strip().splitlines()[0]
    assert first.endswith((".", ":")), name
    assert re.search(rf"(?m)^\s*(Example:)?\s*meshplan {name}\b", text), f"{name} has no example"


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_each_command_is_documented(name: str) -> None:
    """docs/commands.md shows the help of every command."""
    places = {place["command"] for place in PLACE.finditer(read("docs/commands.md"))}
    assert f"meshplan {name} --help" in places


def test_every_option_says_what_it_does() -> None:
    """No option or argument is without help."""
    silent = [
        f"{name} {parameter.name}"
        for name, command in commands()
        for parameter in command.params
        if not getattr(parameter, "help", None) and parameter.name not in ("help", "as_json")
    ]
    assert silent == []


def test_help_shows_all_that_it_is_made_of() -> None:
    """No word of a command's help or of its options' is taken for markup, as `[...]` may be."""
    for name, command in commands():
        texts = [command.help or "", *(getattr(each, "help", "") or "" for each in command.params)]
        shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*name.split(), "--help"]).stdout
        words = {word for text in texts for word in text.split()}
        assert {word for word in words if word not in shown} <= {"\b"}, name


def test_an_example_is_pasted_whole() -> None:
    """In a window of 80 columns no line of an example breaks but behind a backslash, and what the
    lines say together is a command with its options.
    """
    for name, command in commands():
        shown = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*name.split(), "--help"]).stdout
        block = re.search(r"Example:(.*?)\n\s*\n", shown, re.S)
        assert block, name
        lines = re.sub(r"\\\s*\n", " ", block[1].strip()).split("\n")
        assert len(lines) == 1, lines
        program, *words = shlex.split(lines[0])
        assert program == "meshplan"
        assert words[: len(name.split())] == name.split()
        command.make_context(name, words[len(name.split()) :])


def test_an_option_is_spelt_alike_in_every_command() -> None:
    """`--json` is a flag, what is written goes to `-o`, `--out`, and an option that two commands
    have has the same first spelling in both.
    """
    options = [
        (name, each)
        for name, command in commands()
        for each in command.params
        if each.param_type_name == "option"
    ]
    json = [(name, each.is_flag) for name, each in options if "--json" in each.opts]
    assert len(json) > 10
    assert [name for name, is_flag in json if not is_flag] == []
    assert {tuple(each.opts[:2]) for _, each in options if {"-o", "--out"} & {*each.opts}} == {
        ("-o", "--out")
    }
    first = {next(word for word in each.opts if word.startswith("--")) for _, each in options}
    others = {word for _, each in options for word in each.opts if word.startswith("--")} - first
    assert others == {"--global-batch-size", "--micro-batch-size", "--output", "--every-stage"}


@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("document", DOCUMENTS)
def test_pasted_outputs_are_current(document: str, slow: bool) -> None:
    """Pasted outputs are what the commands print now, nightly those of sweeps too;
    `python -m benchmarks.commands.readme` renews them.
    """
    before = read(document)
    assert PLACE.search(before)
    assert differences(before, renewed(before, slow=slow)) == []


@pytest.mark.nightly
@pytest.mark.parametrize("page", GUIDE)
def test_the_guides_outputs_are_current(page: str) -> None:
    """What stands on a page of the guide is what its commands print now."""
    before = read(page)
    assert PLACE.search(before)
    assert differences(before, renewed(before)) == []


def test_the_page_of_models_is_current() -> None:
    """docs/models.md is what its command writes."""
    assert models_page.PAGE.read_text() == models_page.page(), "python -m benchmarks.models.page"


@pytest.mark.nightly
def test_pictures_are_current() -> None:
    """Each picture has the words that its command draws now; `just docs` renews it."""
    found = [each for name in DOCUMENTS for each in pictures(name)]
    assert found
    for path, drawn in found:
        assert len(words_of(drawn)) > 50
        assert words_of(path.read_text(encoding="utf-8")) == words_of(drawn)


@pytest.mark.parametrize("page", [*PAGES, *GUIDE, "docs/guide/README.md"])
def test_links_lead_somewhere(page: str) -> None:
    """A link within the project leads to a file that exists, and to a heading that is on it."""
    text = re.sub(r"```.*?```", "", read(page), flags=re.DOTALL)
    for target, _, anchor in re.findall(r"\]\(([^)#\s]*)(#([^)\s]+))?\)", text):
        if "://" in target:
            continue
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path.read_text("utf-8")), f"{target}#{anchor}"


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"(?ms)^```.*?^```", "", text)
    headings = [re.sub(r"[^\w\- ]", "", each.lower()) for each in re.findall(r"(?m)^#+ (.*)", text)]
    return {heading.strip().replace(" ", "-") for heading in headings}


def test_anchors_are_those_of_github() -> None:
    """Lower case, hyphens for spaces, no punctuation; what is in a fence is no heading."""
    text = "## A `step` in 8-bit: how long?\n```\n# comment\n```\n"
    assert anchors(text) == {"a-step-in-8-bit-how-long"}


WIDTH = 120
WIDE = {"docs/models.md"}
"""Pages that a program writes."""


@pytest.mark.parametrize("page", [*PAGES, *GUIDE])
def test_prose_is_wrapped(page: str) -> None:
    """No line of prose is wider than `WIDTH`; tables, code and what commands printed may be."""
    if page in WIDE:
        pytest.skip("written by a program")
    text = re.sub(r"(?ms)^ *```.*?^ *```", "", read(page))
    prose = re.sub(r"(?s)<!-- (\w.*?) -->.*?<!-- end(?: \1)? -->", "", text)
    lines = [each for each in prose.splitlines() if not each.lstrip().startswith(("|", "<", "!["))]
    assert [each for each in lines if len(each) > WIDTH] == []


def test_every_page_is_in_the_index() -> None:
    """docs/README.md says of each page who wants it."""
    listed = set(re.findall(r"\]\(([^)#/]+\.md)", read("docs/README.md")))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages <= listed


def test_readme_quotes_runnable_commands() -> None:
    """Each `meshplan` line of the README names a command and options that exist."""
    known = dict(commands())
    fences = "".join(
        text
        for language, text in re.findall(r"(?ms)^```(\w*)\n(.*?)^```$", read("README.md"))
        if not language
    )
    lines = re.findall(r"(?m)^(?:.*\.venv/bin/)?(meshplan [a-z].*)$", fences)
    assert len(lines) > 5
    for line in lines:
        words = line.split("#")[0].split()
        command = known[words[1]]
        options = {name for parameter in command.params for name in parameter.opts}
        used = {word for word in words if word.startswith("-") and word != "\\"}
        assert used <= options, line


FOLDERS = ("benchmarks", "hardware_profiles", "costmodels", "planner", "executor", "tests")
NAMED = re.compile(rf"`(?:python -m )?(?:meshplan\.)?((?:{'|'.join(FOLDERS)})(?:\.\w+)+)[` ]")


def exists(dotted: str) -> bool:
    """Whether a dotted name is a module or folder, or a name in one, or a field of that."""
    for cut in range(3):
        path = ROOT.joinpath(*dotted.split(".")[: -cut or None])
        found = [each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()]
        if found and cut:
            return (
                re.search(rf"\b{dotted.split('.')[-cut]}\b", found[0].read_text("utf-8"))
                is not None
            )
        if found or (path.is_dir() and not cut):
            return True
    return False


def test_each_module_named_exists() -> None:
    """A module that a page or a docstring names is there; benchmarks are named to be run."""
    sources = [ROOT / name for name in (*PAGES, *GUIDE, "justfile") if name != "CHANGELOG.md"]
    for folder in FOLDERS:
        sources += (ROOT / folder).rglob("*.py")
    texts = [path.read_text("utf-8") for path in sources]
    named = {name for text in texts for name in NAMED.findall(text)}
    assert len(named) > 100
    assert [name for name in sorted(named) if not exists(name)] == []
    run = {name for text in texts for name in re.findall(r"python -m (benchmarks[.\w]+\w)", text)}
    assert len(run) > 30
    assert [name for name in run if not (ROOT / f"{name.replace('.', '/')}.py").is_file()] == []


def test_accuracy_is_told_once() -> None:
    """The README's table of accuracy has four rows of that of docs/accuracy.md, and its last line
    of memory.
    """
    marked = r"(?s)<!-- {0} -->\n(.*?)\n<!-- end {0} -->"
    [whole] = re.findall(marked.format("accuracy summary"), read("docs/accuracy.md"))
    [short] = re.findall(marked.format("accuracy in short"), read("README.md"))
    assert list(in_short(whole)) == short.splitlines()
    assert len(short.splitlines()) == 8


def test_summaries_agree_with_the_commands() -> None:
    """The list of commands calls each by the verb that its own help opens with."""
    for name, listed in COMMANDS.items():
        command = load_command(name)
        text = (command.help or command.callback.__doc__ or "").strip()
        assert listed.summary.endswith(".")
        if not hasattr(command, "commands"):
            assert listed.summary.split()[0] == text.split()[0], name


def test_pre_commit_and_just_name_real_tools() -> None:
    """The hooks parse, and each runs a tool that the extra `dev` installs."""
    hooks = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"][0]["hooks"]
    assert {hook["entry"].split()[0] for hook in hooks} <= {"ruff", "mypy", "pytest"}
    just = read("justfile")
    installed = {"ruff", "mypy", "pytest", "pip", "python", "meshplan"}
    assert set(re.findall(r"\{\{bin\}\}/(\w+)", just)) == installed
    modules = re.findall(r"python -m (benchmarks[\w.]+)", just)
    assert "benchmarks.commands.readme" in modules
    assert all((ROOT / f"{module.replace('.', '/')}.py").is_file() for module in modules)


def test_bare_command_shows_the_commands() -> None:
    """`meshplan` alone lists every command; an unknown one is a usage error."""
    shown = CliRunner().invoke(app, [])
    assert all(name in shown.output for name in COMMANDS)
    assert CliRunner().invoke(app, ["plam"]).exit_code == 2
    assert isinstance(load_command("plan"), typer.core.TyperCommand)


def read(name: str) -> str:
    """The text of a file of the project."""
    return (ROOT / name).read_text(encoding="utf-8")
