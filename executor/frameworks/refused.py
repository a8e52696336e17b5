"""Formats that are known by name and not read, each with what to do instead."""

import re
from collections.abc import Callable, Mapping

from meshplan.executor.frameworks.nemo.recipe_functions import claims as is_recipe
from meshplan.executor.frameworks.nemo.rl_fields import plan_fields as fields_of_nemo_rl
from meshplan.executor.frameworks.refused_scripts import BY
from meshplan.executor.frameworks.shell.script import SCRIPTS
from meshplan.executor.frameworks.verl.read import claims as is_sft
from meshplan.executor.frameworks.verl.rl_fields import plan_fields as fields_of_verl
from meshplan.executor.frameworks.verl.sft_fields import plan_fields as fields_of_verl_sft
from meshplan.planner.case.reading import NothingToRead, Reading, UnreadableConfig

_SET = r"""(?:\w+=(?:"[^"\n]*"|'[^'\n]*'|[^\s"']*)[ \t]+)*"""
"""Variables that a command line sets before its command."""

_RECIPES = "NeMo 2 or Megatron-Bridge recipe in Python"
_SFT = "verl's SFT trainer"
_OWN_NAMES = "its names are its own; check a plan of the same layout"

REFUSED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "Primus": ((r"[ \t]*framework:[ \t]*(megatron(_bridge)?|torchtitan)\b", r"[ \t]*config:"),
               "it includes files of other folders; check the Megatron arguments that it prints"),
    "Primus's model": ((r"(includes|extends|bases):[ \t]*$", r"[ \t]*- [\w./]+\.yaml[ \t]*$"),
                       "it includes files of other folders; check the arguments that it prints"),
    "OLMo-core": ((r"(from|import) olmo_core\b", r"[^#\n]*(?<!class )\bTrainerConfig\("),
                  "a Python program; check its model by an inline plan"),
    _RECIPES: (
        (r"from (nemo\.collections|megatron\.bridge\.recipes)\b",),
        "a Python program; check run_config.yaml, which a checkpoint of it holds, or the script "
        "that runs it with overrides such as model.tensor_model_parallel_size=2"),
    "a test case of a NeMo 2 recipe": (
        (r"MODEL_ARGS:[ \t]*$", r"[ \t]+trainer\.(?:num_nodes|devices|strategy)\b"),
        "the recipe, a Python program, has the model; check a plan of the same layout"),
    "FlagScale": ((r"system:[ \t]*$", r"model:[ \t]*$",
                   r"[ \t]+(?:use_distributed_optimizer|tensor_model_parallel_size|no_shared_fs):"),
                  "its runner makes Megatron's arguments of it; check the script that it writes "
                  "(logs/scripts/host_0_..._run.sh)"),
    "FlagScale's runner": ((r"experiment:[ \t]*$", r"[ \t]+(?:runner|task):[ \t]*$",
                            r"[ \t]+exp_(?:name|dir):"),
                           "it names a file of the model, and tunes or serves; check the script "
                           "that its runner writes (logs/scripts/host_0_..._run.sh)"),
    "open-instruct": ((r"(?:with_tracking|use_slow_tokenizer):",
                       r"(?:dataset_mix(?:er(?:_list)?|_dir)|train_file|dataset_name):"),
                      "its programs have names and defaults of their own; check the Accelerate or "
                      "DeepSpeed file that they are launched with, with --model, --seq-len, "
                      "--micro-batch, --global-batch and --gpus"),
    "LLaMA-Factory v1": ((r"model:[ \t]+\S", r"train_dataset:",
                          r"(?:dist_config|kernel_config|peft_config|sample_backend):"),
                         _OWN_NAMES),
    _SFT: ((r"[^#\n]*-m[ \t]+(?:[\w.]+[ \t]+)?verl\.trainer\.(?:fsdp_)?sft_trainer\b",),
           "`-m verl.trainer.sft_trainer` on its FSDP engine is, without another program around "
           "it; check a plan of the same layout"),
    "verl": ((r"(?:[ \t]*_target_:[ \t]*verl\.|[^#\n]*\bactor_rollout_ref[.:]|"
              r"[^#\n]*-m[ \t]+(?:[\w.]+[ \t]+)?verl\.trainer\.)",),
             "it trains and generates in turn; check the Megatron or FSDP part as a plan"),
    "SkyRL": ((rf"(?:{BY}-m[ \t]+skyrl\w*\.|[^#\n]*\btrainer\.policy\.\w+\.)",),
              "its names are its own, and most of its programs generate in turn; check a plan of "
              "the same layout"),
    "ROLL": ((r"(?:actor_train|reference):[ \t]*$", r"[ \t]+strategy_args:",
              r"rollout_batch_size:"),
             "it trains and generates in turn; check a plan of the same layout"),
    "RLinf": ((r"(?:cluster|runner):[ \t]*$", r"actor:[ \t]*$", r"[ \t]+component_placement:"),
              "it trains and generates in turn; check a plan of the same layout"),
    "NeMo RL": ((r"policy:", r"[ \t]+(megatron_cfg|dtensor_cfg|generation|dynamic_batching):"),
                "its update is its own, and most of its recipes generate in turn; check a plan of "
                "the same layout"),
    "LitGPT": ((r"train:[ \t]*$", r"(out_dir|checkpoint_dir|logger_name|model_name):"),
               _OWN_NAMES),
    "InternEvo": ((r"parallel[ \t]*=[ \t]*dict\(", r"(hybrid_zero_optimizer|JOB_NAME)[ \t]*="),
                  "a Python program; check a plan of the same layout"),
    "PaddleNLP": ((r"[{ \t]*\"?(tensor|pipeline|sharding)_parallel_degree\"?[ \t]*:",
                   r"[{ \t]*\"?per_device_train_batch_size\b"),
                  _OWN_NAMES),
    "ms-swift's reinforcement learning": (
        (r"rlhf_type:",), "it trains and generates in turn; check a plan of the same layout"),
    "ms-swift's args.json": ((r"[ \t]*\"swift_version\":",),
                             "its arguments are its own; check a plan of the same layout"),
    "ms-swift's `swift rlhf`": ((rf"(?:[ \t]*{_SET}swift[ \t]+rlhf|[^#\n]*--rlhf_type)\b",),
                                "it trains and generates in turn; check a plan of the same layout"),
    "ms-swift on Megatron": ((rf"[ \t]*{_SET}megatron[ \t]+(sft|pt|rlhf)\b",),
                             "its defaults are its own; check a plan of the same layout"),
    "ms-swift on Megatron, in YAML": (
        (r"(?:tuner_type|train_type|load_safetensors|mcore_model):",
         r"(?:micro_batch_size|global_batch_size):"),
        "its defaults are its own; check a plan of the same layout"),
    "slime": ((r"(?:[^#\n]*[ \t(])?--(?:rollout-[a-z]|num-rollout\b)",),
              "its batches are made of rollouts; check a plan of the same layout"),
    "OpenRLHF": ((r".*\b(?:openrlhf\.cli\.train_|cd /openrlhf\b)",),
                 "check the DeepSpeed part as a plan"),
    "VeOmni": (
        (r"train:[ \t]*$", r"[ \t]+train_path:",
         r"[ \t]+(fsdp_config|data_parallel_mode|ulysses_parallel_size|bsz_warmup_ratio):"),
        _OWN_NAMES),
    "MaxText": (
        (r"[^#\n]*\b(?:(?:ici|dcn)_[a-z_]+_parallelism\b|MaxText[./]train\b)",),
        "it runs in JAX, and its meshes are its own; check a plan of the same layout"),
    "ArcticTraining": (
        (r"type:[ \t]*\w", r"deepspeed:[ \t]*$", r"model:[ \t]*$", r"[ \t]+name_or_path:"),
        _OWN_NAMES),
    "OLMo": ((r"device_train_microbatch_size:", r"[ \t]+wrapping_strategy:"), _OWN_NAMES),
    "Modalities": ((r"[ \t]+component_key:", r"[ \t]+variant_key:"), _OWN_NAMES),
    "lingua": ((r"distributed:[ \t]*$", r"[ \t]+fsdp_type:"), _OWN_NAMES),
    "Oumi": ((r"model:[ \t]*$", r"training:[ \t]*$",
              r"[ \t]+trainer_type:[ \t]*[\"']?(?:TRL_|HF\b|OUMI\b|VERL_)"), _OWN_NAMES),
    "LLaMA-Factory on Megatron": (
        (r"finetuning_type:", r"(tensor|pipeline|context|expert)_model_parallel_size:"),
        "its names are neither Megatron's nor its Trainer's; check a plan of the same layout"),
}  # fmt: skip
"""Formats that are known and not read: how the lines that mark one begin, and what to do instead.

Each pattern is looked for at the beginnings of lines and stays within its line, so that a search
costs the length of the text.
"""


_FIELDS: Mapping[str, Callable[[str, str], str]] = {
    "verl": lambda text, _: fields_of_verl(text),
    _SFT: fields_of_verl_sft,
    "NeMo RL": fields_of_nemo_rl,
}
"""What of a plan a file of them says."""


def claims(name: str, text: str) -> bool:
    """Whether a file is of a format that is known and not read."""
    ends = (".py", ".yaml", ".yml", ".json", *SCRIPTS)
    title = _refused(text) if name.endswith(ends) else None
    read = (title == _RECIPES and is_recipe(name, text)) or (title == _SFT and is_sft(name, text))
    return title is not None and not read


def _refused(text: str) -> str | None:
    found = (
        title
        for title, (marks, _) in REFUSED.items()
        if all(re.search(f"^{mark}", text, re.M) for mark in marks)
    )
    return next(found, None)


def refuse(text: str, path: str) -> Reading:
    """Raises `UnreadableConfig` that names the format and the way on."""
    title = _refused(text) or "format"
    if title == _RECIPES and "megatron.bridge" in text and not re.search(r"^def ", text, re.M):
        raise NothingToRead("a Python program without a function of its own")
    fields = _FIELDS[title](text, path) if title in _FIELDS else ""
    said = f"{REFUSED[title][1]}; {fields}" if fields else REFUSED[title][1]
    raise UnreadableConfig(f"{title}: not read ({said})")
