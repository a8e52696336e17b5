"""What commands of a script print: computed where they only compute, else named."""

from contextlib import suppress
from pathlib import Path

import pytest

from meshplan.executor.frameworks import read_config
from meshplan.executor.frameworks.shell.expansion.text import formatted
from meshplan.executor.frameworks.shell.pipelines import printed
from meshplan.planner.case.reading import UnreadableConfig

GPT = (
    "--tensor-model-parallel-size 4 --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
    "--seq-length 4096 --micro-batch-size 2 --global-batch-size 128 --bf16"
)
RUN = f"torchrun --nproc_per_node 8 pretrain_gpt.py {GPT}"


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([["echo", "8,4"], ["cut", "-d,", "-f2"]], "4"),
        ([["echo", "a b c"], ["awk", "{print $2}"]], "b"),
        ([["echo", "a_b"], ["awk", "-F_", "{print $NF}"]], "b"),
        ([["echo", "llama-70B"], ["tr", "A-Z", "a-z"], ["sed", "s/llama-//"]], "70b"),
        ([["seq", "4"], ["wc", "-w"]], "4"),
        ([["echo", "4*2"], ["bc"]], "8"),
        ([["basename", "/a/x.json", ".json"]], "x"),
        ([["nproc"], ["bc"]], None),
        ([["echo", "a"], ["sed", "s/.*/b/"]], None),
        ([["echo", "a"], ["awk", "BEGIN{print 1}"]], None),
        ([["echo", "a"], ["cut", "-f"]], None),
    ],
)
def test_a_pipeline_of_known_filters_is_computed(stages: list[list[str]], said: str | None) -> None:
    """By POSIX's rules; any other filter leaves what is printed unknown."""
    assert printed(stages) == said


@pytest.mark.parametrize(
    ("pattern", "words", "said"),
    [("%s-%02d", ["x", "3"], "x-03"), ("%s ", ["a", "b"], "a b "), ("100%%", [], "100%"),
     ("%d", ["x"], None), ("%q", ["x"], None), (r"a\x41", [], None)],
)  # fmt: skip
def test_printf_takes_words_numbers_and_percent(
    pattern: str, words: list[str], said: str | None
) -> None:
    """The pattern is used again while words are left."""
    assert formatted(pattern, words) == said


@pytest.mark.parametrize(
    "text",
    [
        f"{RUN} --seed 1 $(cat args.txt)", f"{RUN} $(cat args.txt)",
        f"{RUN} --swiglu $(cat args.txt) --disable-bias-linear",
        f"A=$(python args.py)\n{RUN} $A", f"{RUN} `cat args.txt`",
    ],
)  # fmt: skip
def test_arguments_that_a_command_prints_are_named(text: str) -> None:
    """They may say any degree: the file is not priced as if they said nothing."""
    try:
        unread = [str(fact.value) for fact in read_config(text, "run.sh").unread]
    except UnreadableConfig as error:
        unread = [str(error)]
    assert any("no command is run" in each for each in unread), unread


def test_the_value_of_a_flag_may_be_a_command_that_is_not_read() -> None:
    """Where nothing is priced of it."""
    reading = read_config(f"{RUN} --save $(pwd)/x --load $(mktemp -d) --swiglu", "run.sh")
    assert not reading.unread


def test_a_default_does_not_stand_for_the_output_of_a_command() -> None:
    """`${N:-1}` of `N=$(...)` is what the command prints, which is not known."""
    text = f"N=$(scontrol show hostnames | wc -l)\n{RUN} --context-parallel-size ${{N:-1}}"
    with pytest.raises(UnreadableConfig, match=r"context-parallel-size is '.*scontrol"):
        read_config(text, "run.sh")


@pytest.mark.parametrize(
    "starts",
    ["cat > job.sh <<EOF\n{}\nEOF\nsbatch job.sh\n", "sbatch <<'EOF'\n{}\nEOF\n",
     "bash <<EOF\n{}\nEOF\n", "ssh node1 <<EOF\n{}\nEOF\n",
     "sbatch --nodes=2 /dev/stdin <<EOF\n{}\nEOF\n"],
)  # fmt: skip
def test_a_script_that_a_shell_is_sent_is_followed(starts: str, tmp_path: Path) -> None:
    """Written before or sent as a here-document, with its own `#SBATCH` lines."""
    inner = f"#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\nsrun {RUN}"
    reading = read_config(starts.format(inner), str(tmp_path / "run.sh"))
    assert reading.facts["tensor_parallel"].value == 4
    assert not reading.unread


@pytest.mark.parametrize(
    "text",
    ["f() { f; echo 1; }\nA=$(f)", "f() { echo $(f); }\nf", "(" * 70 + "run" + ")" * 70,
     "A=1\n" + "A=$(echo $A$A)\n" * 60, "f() { local -n x=x; x=1; }\nf", "declare -n a=b b=a\na=1"],
)  # fmt: skip
def test_scripts_that_turn_in_circles_end(text: str) -> None:
    """By an answer or by one line, without a traceback."""
    with suppress(UnreadableConfig):
        assert read_config(f"{text}\n{RUN}", "run.sh").facts["gpus"].value == 8
