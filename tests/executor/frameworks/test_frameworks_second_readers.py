"""nanotron's and AutoModel's YAML, Bridge's overrides and torchtitan's Python against readers that
share nothing with ours: plain loaders with names written apart, and the Python program run upon
stubs.
"""

from pathlib import Path

import pytest
import second_readers
import yaml
from hypothesis import given
from hypothesis import strategies as st

from meshplan.executor.frameworks import read_config
from meshplan.planner.case.reading import Reading

FOLDER = Path(__file__).parents[2] / "data" / "framework_configs"
PUBLISHED = sorted([*FOLDER.glob("nanotron/*.yaml"), *FOLDER.glob("bridge/*.yaml"),
                    *FOLDER.glob("torchtitan/*.py")])  # fmt: skip
DEGREES = st.sampled_from([1, 2, 4, 8])


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.name)
def test_published_files(path: Path) -> None:
    """What the second reader finds in a published file is what we read."""
    verdicts = second_readers.compared(path)
    assert verdicts
    assert all(verdict.startswith("same") for verdict, _ in verdicts), verdicts


NANOTRON_KEYS = st.fixed_dictionaries(
    {"dp": DEGREES, "tp": DEGREES, "pp": DEGREES},
    optional={"pp_engine": st.sampled_from(["1f1b", "afab"]), "recompute_layer": st.booleans(),
              "tp_mode": st.sampled_from(["REDUCE_SCATTER", "ALL_REDUCE"]),
              "context_parallel_size": DEGREES, "expert_parallel_size": DEGREES},
)  # fmt: skip
TOKENS = st.fixed_dictionaries(
    {"micro_batch_size": DEGREES, "sequence_length": st.sampled_from([512, 4096]),
     "batch_accumulation_per_replica": DEGREES}
)  # fmt: skip


@given(NANOTRON_KEYS, TOKENS, st.integers(0, 1), st.sampled_from(["bfloat16", "float16"]))
def test_nanotron(degrees: dict, tokens: dict, stage: int, dtype: str) -> None:
    """Any degrees and batch, as PyYAML finds them."""
    document = {"parallelism": degrees, "tokens": tokens, "optimizer": {"zero_stage": stage},
                "model": {"dtype": dtype}}  # fmt: skip
    text = yaml.safe_dump(document)
    assert not second_readers.different(read_config(text, "a.yaml"), second_readers.nanotron(text))


SPLIT = st.fixed_dictionaries(
    {"tp_size": st.sampled_from([1, 2, None]), "pipeline": st.fixed_dictionaries(
        {"pp_schedule": st.just("1f1b")}, optional={"pp_microbatch_size": st.sampled_from([1, 2])}
    )},
    optional={"pp_size": st.sampled_from([1, 2, 4, None]), "cp_size": st.sampled_from([1, 2]),
              "ep_size": st.sampled_from([1, 8, None]), "sequence_parallel": st.booleans(),
              "activation_checkpointing": st.sampled_from([True, False, "full", None]),
              "reshard_after_forward": st.sampled_from([True, False, None]),
              "moe": st.fixed_dictionaries({}, optional={"reshard_after_forward": st.booleans()}),
              "dp_size": st.sampled_from(["none", None]), "strategy": st.just("fsdp2")},
)  # fmt: skip


@given(SPLIT, DEGREES, st.sampled_from(["seq_len", "seq_length"]), st.sampled_from([0, 1024]))
def test_automodel(split: dict, more: int, length: str, packed: int) -> None:
    """Any degrees, sharding, batch and length, as PyYAML finds them."""
    document = {"distributed": split, "dataset": {length: 4096}, "optimizer": {"lr": 1},
                "step_scheduler": {"local_batch_size": 8, "global_batch_size": 64 * more},
                "packed_sequence": {"packed_sequence_size": packed}}  # fmt: skip
    text = yaml.safe_dump(document)
    found = read_config(text, "a.yaml", "automodel")
    assert not second_readers.different(found, second_readers.automodel(text))


NANOTRON = """
parallelism: {dp: 2, pp: 1, tp: 1%s}
model:
  make_vocab_size_divisible_by: %s
  model_config: {hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, vocab_size: 100%s}
optimizer: {zero_stage: 0, accumulate_grad_in_fp32: %s}
tokens: {micro_batch_size: 1, sequence_length: 64, batch_accumulation_per_replica: 1}
"""


@pytest.mark.parametrize(
    ("degrees", "multiple", "sizes", "wide", "named"),
    [
        pytest.param("", 1, "", "true", "", id="as it is priced"),
        # huggingface/nanotron examples/mup, examples/moe
        pytest.param("", 1, "", "false", "accumulate_grad_in_fp32", id="gradients of 16 bit"),
        # loubnabnl/nanotron-smol-cluster brrr/cosmopedia/config_llama_1b.yaml
        pytest.param(", recompute_granularity: SELECTIVE", 1, "", "true", "recompute_granularity",
                     id="an older word for recompute"),
        # its brrr/starcoder2, and swiss-ai/nanotron-multilingual examples/xglm
        pytest.param("", 1, ", is_starcoder2_config: true", "true", "another family", id="family"),
        pytest.param("", 1, ", attn_pdrop: 0.1", "true", "dropout", id="dropout"),
        pytest.param("", 1, ", sliding_window_size: 8", "true", "window", id="a window"),
        pytest.param("", 64, "", "true", "make_vocab_size", id="100 is not a multiple of 64"),
        pytest.param("", 1, ", half_of_it: 2", "true", "half_of_it", id="a key of no list"),
    ],
)  # fmt: skip
def test_nanotrons_keys_are_a_closed_list(
    degrees: str, multiple: int, sizes: str, wide: str, named: str
) -> None:
    """A key that changes bytes or sizes and is not read is named; the usual ones are not."""
    reading = read_config(NANOTRON % (degrees, multiple, sizes, wide), "a.yaml")
    unread = "; ".join(str(fact.value) for fact in reading.unread)
    assert named in unread
    assert bool(unread) is bool(named)


HEAD = """
import dataclasses
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.models.llama3.config_registry import llama3_8b
from torchtitan.trainer import Trainer
TP = 4
PARTS = ParallelismConfig(tensor_parallel_degree=8)

def base() -> Trainer.Config:
    return Trainer.Config(
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
        training=TrainingConfig(seq_len=2048, local_batch_size=1), activation_checkpoint=None,
    )

def wide(c):
    c.parallelism.tensor_parallel_degree = 8

def wanted() -> Trainer.Config:
    c = base()
"""
READ = {
    "a constant": "c.parallelism.tensor_parallel_degree = TP",
    "a product": "c.training.seq_len = 4 * 1024",
    "a new section": "c.parallelism = ParallelismConfig(pipeline_parallel_degree=2)",
    "twice": "c.training.seq_len = 64\n    c.training.seq_len = 32",
    "a function of the file": "wide(c)",
    "annotated": "c.training.seq_len: int = 64",
    "augmented": "c.training.seq_len *= 2",
    "a branch": "if TP == 3:\n        c.training.seq_len = 16",
    "the other branch": "if TP > 3 and not (TP is None):\n        c.training.seq_len = 16",
    "unpacked": "c.parallelism = ParallelismConfig(**{'tensor_parallel_degree': 8})",
    "another name": "p = c.parallelism\n    p.tensor_parallel_degree = 8",
    "by name": "setattr(c.parallelism, 'tensor_parallel_degree', 8)",
    "a loop": "for key in ('tensor_parallel_degree',):\n        setattr(c.parallelism, key, 8)",
    "a pair": "c.training.seq_len, c.training.x = 8, 2",
    "no literal": "c.training.seq_len = len('four') * TP",
    "a constant section": "c = Trainer.Config(parallelism=PARTS, training=TrainingConfig())",
    "a lambda's neighbour": "c.job = lambda: 1\n    c.training.seq_len = max(TP, 2**4 // 2)",
    "a comprehension": "c.training.seq_len = sum([2 * n for n in range(5) if n != 3])",
    "in a function": "def inner(n=TP):\n        return n * 2\n    c.training.seq_len = inner(n=8)",
    "a mapping": "sizes = {'long': 64, **{'short': 8}}\n    c.training.seq_len = sizes['short']",
}
NAMED = {
    "two targets": "c.parallelism.context_parallel_degree = c.parallelism.x = 2",
    "without a name": "c.parallelism = ParallelismConfig(1, 8)",
    "an unknown branch": "if unknown():\n        c.training.seq_len = 16",
    "an unknown loop": "for part in unknown():\n        c.training.seq_len = part",
    "a loop without end": "while unknown():\n        c.training.seq_len += 1",
    "an unknown hand": "unknown(c)",
    "an unknown section": "unknown(c.training)",
    "a method": "c.training.update(seq_len=4)",
    "an unknown number": "c.training.seq_len = unknown(4)",
    "an index that is not there": "c.training.seq_len = [4][TP]",
    "another file's": "c = llama3_8b()\n    c.training.seq_len = 16",
}


def _python(body: str) -> tuple[list[str], list[str]]:
    """How the case `wanted` differs from what the program does, and what it names."""
    case, text = _wanted(body)
    said = second_readers.torchtitan(text, "wanted")
    return second_readers.different(case, said), [str(fact.value) for fact in case.unread]


def _wanted(body: str) -> tuple[Reading, str]:
    text = f"{HEAD}    {body}\n    return c\n"
    reading = read_config(text, "registry.py")
    cases = {second_readers.function_of(case, text): case for case in (reading, *reading.others)}
    return cases["wanted"], text


@pytest.mark.parametrize("body", READ.values(), ids=READ.keys())
def test_torchtitans_python_is_read_as_it_runs(body: str) -> None:
    """What the function returns when it runs is what was read, and nothing is left open."""
    assert _python(body) == ([], [])


@pytest.mark.parametrize("body", NAMED.values(), ids=NAMED.keys())
def test_what_only_running_would_tell_is_named(body: str) -> None:
    """A condition, a loop or a call that is not known, a base of another file: all are named."""
    assert _wanted(body)[0].unread


def test_shards_on_the_host_are_not_modelled() -> None:
    """torchtitan's enable_cpu_offload moves all sharded state: named, not a note beside a price."""
    text = "[parallelism]\ntensor_parallel_degree = 2\n[training]\nenable_cpu_offload = true\n"
    named = [str(fact.value) for fact in read_config(text, "a.toml").unread]
    assert "enable_cpu_offload" in str(named)
