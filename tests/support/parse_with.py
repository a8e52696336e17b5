"""Reads one exported file with a framework's own parser and prints what it understood, as JSON.

    python parse_with.py deepspeed ds_config.json WORLD_SIZE

A script, not a module: it runs in the interpreter that has the framework (docs/frameworks.md), so
it imports nothing of ours. A framework that is not there is exit code 77 with the reason; one that
is there and cannot read the file, or lacks a package of its own, fails.
"""

import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import types
import typing
from pathlib import Path

MISSING = 77


def deepspeed(path: Path, world: int) -> dict[str, object]:
    """DeepSpeed's config class, told the world size that a launcher would set."""
    os.environ.update(DS_ACCELERATOR="cpu", DS_BUILD_OPS="0")
    runtime = importlib.import_module("deepspeed.runtime.config")
    runtime.dist.get_rank = lambda *_: 0
    runtime.dist.get_world_size = lambda *_: world
    parsed = runtime.DeepSpeedConfig(json.loads(path.read_text()))
    return {
        "train_batch_size": parsed.train_batch_size,
        "micro_batch_size": parsed.train_micro_batch_size_per_gpu,
        "num_micro_batches": parsed.gradient_accumulation_steps,
        "zero_stage": int(parsed.zero_optimization_stage),
        "bf16": bool(parsed.bfloat16_config.enabled),
    }


def accelerate(path: Path, world: int) -> dict[str, object]:
    """Accelerate's launch file, then its ParallelismConfig with the values that it passes on."""
    arguments = importlib.import_module("accelerate.commands.config.config_args")
    parsed = arguments.load_config_from_file(str(path))
    values = parsed.parallelism_config
    if not values:
        return {"num_processes": parsed.num_processes, "kind": str(parsed.distributed_type.value)}
    module = importlib.import_module("accelerate.parallelism_config")
    sizes = {key.removeprefix("parallelism_config_"): size for key, size in values.items()}
    config = module.ParallelismConfig(**sizes)
    return {"num_processes": parsed.num_processes, "total_size": config.total_size, **sizes}


def torchtitan_02(path: Path, world: int) -> dict[str, object]:
    """torchtitan 0.2's ConfigManager on the TOML, and the mesh sizes that follow."""
    manager = importlib.import_module("torchtitan.config").ConfigManager()
    config = manager.parse_args([f"--job.config_file={path}"])
    degrees = config.parallelism
    dims = importlib.import_module("torchtitan.distributed").ParallelDims(
        dp_replicate=degrees.data_parallel_replicate_degree,
        dp_shard=degrees.data_parallel_shard_degree,
        cp=degrees.context_parallel_degree,
        tp=degrees.tensor_parallel_degree,
        pp=degrees.pipeline_parallel_degree,
        ep=degrees.expert_parallel_degree,
        etp=degrees.expert_tensor_parallel_degree,
        world_size=world,
    )
    return _titan(config, dims) | {"recompute": config.activation_checkpoint.mode}


def torchtitan_03(path: Path, world: int) -> dict[str, object]:
    """torchtitan 0.3's ConfigManager on the exported module, and the mesh sizes that follow."""
    sys.path.insert(0, str(path.parent))
    manager = importlib.import_module("torchtitan.config").ConfigManager()
    config = manager.parse_args(["--module", path.stem, "--config", "meshplan"])
    dims = importlib.import_module("torchtitan.distributed.parallel_dims").ParallelDims
    return _titan(config, dims.from_config(config.parallelism, world))


def _titan(config: object, dims: object) -> dict[str, object]:
    training, parallelism = config.training, config.parallelism
    return {
        "degrees": [dims.dp_replicate, dims.dp_shard, dims.cp, dims.tp, dims.pp, dims.ep],
        "local_batch_size": training.local_batch_size,
        "global_batch_size": training.global_batch_size,
        "seq_len": training.seq_len,
        "schedule": parallelism.pipeline_parallel_schedule,
        "stages": len(parallelism.module_fqns_per_model_part or [[]]),
        "reshard": parallelism.fsdp_reshard_after_forward,
    }


def megatron_core(path: Path, world: int) -> dict[str, object]:
    """Megatron-Core's TransformerConfig from the `model` section of the Bridge overrides."""
    yaml = importlib.import_module("yaml")
    torch = importlib.import_module("torch")
    config = importlib.import_module("megatron.core.transformer.transformer_config")
    model = yaml.safe_load(path.read_text())["model"]
    model.pop("seq_length", None)
    shape = {"num_layers": 80, "hidden_size": 8192, "num_attention_heads": 64, "bf16": True}
    parsed = config.TransformerConfig(
        **shape, **model, pipeline_dtype=torch.bfloat16, params_dtype=torch.bfloat16
    )
    return {
        "tensor_parallel": parsed.tensor_model_parallel_size,
        "pipeline_parallel": parsed.pipeline_model_parallel_size,
        "virtual_stages": parsed.virtual_pipeline_model_parallel_size,
        "context_parallel": parsed.context_parallel_size,
        "recompute": parsed.recompute_granularity,
    }


def megatron_bridge(path: Path, world: int) -> dict[str, object]:
    """Bridge's own merge of the overrides (YAML and Hydra's words) into its mixed precision, which
    it then sets up on optimizer and data parallelism; its recipes need GPU modules to import.
    """
    typing.__dict__.setdefault("override", lambda method: method)  # Python 3.12's
    found = importlib.util.find_spec("megatron.bridge")
    assert found is not None
    for name in ("megatron.bridge", "megatron.bridge.training"):  # without what they import
        package = types.ModuleType(name)
        package.__path__ = list(found.submodule_search_locations or ())
        if name.endswith("training"):
            package.__path__ = [f"{each}/training" for each in package.__path__]
        sys.modules[name] = package
    models = types.ModuleType("megatron.bridge.models")
    models.GPTModelProvider = models.T5ModelProvider = object  # type: ignore[attr-defined]
    sys.modules["megatron.bridge.models"] = models
    utils = importlib.import_module("megatron.bridge.training.utils.omegaconf_utils")
    precision = importlib.import_module("megatron.bridge.training.mixed_precision")
    ddp = importlib.import_module("megatron.core.distributed")
    sections = [("model", dict), ("train", dict), ("dataset", dict), ("optimizer", dict)]
    fields = [(name, kind, dataclasses.field(default_factory=kind)) for name, kind in sections]
    container = dataclasses.make_dataclass(
        "Container",
        [*fields, ("mixed_precision", object, "bf16_mixed"),
         ("ddp", object, dataclasses.field(default_factory=ddp.DistributedDataParallelConfig))],
    )  # fmt: skip
    words = path.with_name("overrides.txt").read_text().split()
    words = [word for word in words if word.startswith(("mixed_precision", "ddp."))]
    told = {}
    for kind, arguments in (("yaml", {"config_filepath": str(path)}),
                            ("words", {"cli_overrides": words})):  # fmt: skip
        config = utils.process_config_with_overrides(container(), **arguments)
        mixed = precision.get_mixed_precision_config(config.mixed_precision)
        mixed.finalize()
        mixed.setup(types.SimpleNamespace(), None, config.ddp)
        told[kind] = {
            "bf16": mixed.bf16, "params_dtype": str(mixed.params_dtype), "fp8": mixed.fp8,
            "grad_reduce_in_fp32": config.ddp.grad_reduce_in_fp32,
            "use_distributed_optimizer": config.ddp.use_distributed_optimizer,
        }  # fmt: skip
    assert told["yaml"] == told["words"], told
    return told["yaml"]


def megatron_lm(path: Path, world: int) -> dict[str, object]:
    """Megatron-LM's argparse and its `validate_args`, on what bash passes to torchrun."""
    words, connections = _launched(path)
    os.environ.update(WORLD_SIZE=str(world), RANK="0")
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    if connections:
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = connections
    typing.__dict__.setdefault("override", lambda method: method)  # Python 3.12's
    torch = importlib.import_module("torch")
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    arguments = importlib.import_module("megatron.training.arguments")
    arguments.get_device_arch_version = lambda: 9
    sys.argv = words
    parsed = arguments.validate_args(arguments.parse_args())
    names = ["data_parallel_size", "virtual_pipeline_model_parallel_size", "global_batch_size",
             "sequence_parallel", "recompute_granularity", "pipeline_model_parallel_layout",
             "num_experts", "fp8"]  # fmt: skip
    return {name: getattr(parsed, name) for name in names} | _built(arguments, parsed)


def _built(arguments: types.ModuleType, parsed: object) -> dict[str, object]:
    """The model's own configuration, which refuses what cannot be built, and its numerics."""
    rope = importlib.import_module("megatron.core.models.common.embeddings.rope_utils")
    for kernel in ("fused_apply_rotary_pos_emb", "fused_apply_rotary_pos_emb_thd"):
        setattr(rope, kernel, getattr(rope, kernel, None) or kernel)  # Transformer Engine's
    config = arguments.core_transformer_config_from_args(parsed)
    names = ["layernorm_epsilon", "init_method_std", "moe_router_score_function",
             "moe_router_enable_expert_bias", "moe_router_num_groups", "moe_router_group_topk",
             "moe_router_topk_scaling_factor", "rotary_scaling_factor", "rope_type"]  # fmt: skip
    built = {name: getattr(config, name, None) for name in names}
    return {"config": type(config).__name__, "rotary_base": parsed.rotary_base, **built}


def _launched(path: Path) -> tuple[list[str], str]:
    """The words after torchrun's own, and CUDA_DEVICE_MAX_CONNECTIONS, by a torchrun that tells."""
    folder = Path(tempfile.mkdtemp())
    stub = folder / "torchrun"
    stub.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "words = sys.argv[sys.argv.index('pretrain_gpt.py'):]\n"
        "print(json.dumps([words, os.environ.get('CUDA_DEVICE_MAX_CONNECTIONS', '')]))\n"
    )
    stub.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", str(path)], env=env, capture_output=True, check=True)
    words, connections = json.loads(done.stdout)
    return words, connections


class _Anything(types.ModuleType):
    """Stands for a GPU-only module that a config parser imports and never uses."""

    __version__ = "2.9.9"

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of NEVER_USED when they are not installed."""

    NEVER_USED = ("flash_attn", "datatrove", "grouped_gemm", "functorch", "datasets",
                  "transformers", "lighteval", "boto3", "triton", "ring_flash_attn",
                  "causal_conv1d", "mamba_ssm", "apex", "transformer_engine")  # fmt: skip

    def find_spec(self, name: str, path: object, target: object = None) -> object:
        if name.split(".")[0] not in self.NEVER_USED:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: object) -> types.ModuleType:
        return _Anything(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


def nanotron(path: Path, world: int) -> dict[str, object]:
    """nanotron's dacite reader, strict about unknown keys."""
    sys.meta_path.append(_Finder())
    config = importlib.import_module("nanotron.config").get_config_from_file(str(path))
    degrees = config.parallelism
    return {
        "world": degrees.dp * degrees.tp * degrees.pp * degrees.context_parallel_size,
        "global_batch_size": config.global_batch_size,
        "engine": type(degrees.pp_engine).__name__,
        "tp_mode": degrees.tp_mode.name,
        "recompute": degrees.recompute_layer,
        "zero_stage": config.optimizer.zero_stage,
        "layers": config.model.model_config.num_hidden_layers,
    }


def skypilot(path: Path, world: int) -> dict[str, object]:
    """SkyPilot's task, which checks keys and values against its schema and the files it mounts."""
    task = importlib.import_module("sky").Task.from_yaml(str(path))
    wanted = [resources.accelerators for resources in task.resources]
    return {
        "name": task.name,
        "num_nodes": task.num_nodes,
        "accelerators": sorted(wanted, key=lambda each: list(each)),
    }


def kubeflow(path: Path, world: int) -> dict[str, object]:
    """Kubeflow's and Kubernetes' own models of the objects; a key that they do not know is lost on
    the way back, which is an error here.
    """
    yaml = importlib.import_module("yaml")
    client = importlib.import_module("kubernetes.client")
    jobs = importlib.import_module("kubeflow.training.models")
    config, job = yaml.safe_load_all(path.read_text())
    models = {"ConfigMap": client.V1ConfigMap, "PyTorchJob": jobs.KubeflowOrgV1PyTorchJob}
    for name in dir(jobs):  # the client looks for its types among Kubernetes' models
        if name.startswith("KubeflowOrgV1"):
            setattr(client.models, name, getattr(jobs, name))
    api = client.ApiClient()
    understood = {}
    for document in (config, job):
        answer = types.SimpleNamespace(data=json.dumps(document))
        understood[document["kind"]] = api.deserialize(answer, models[document["kind"]])
        back = api.sanitize_for_serialization(understood[document["kind"]])
        if back != document:
            raise ValueError(f"not as it was written: {back}")
    spec = understood["PyTorchJob"].spec
    replicas = {kind: each.replicas for kind, each in spec.pytorch_replica_specs.items()}
    return {
        "kind": understood["PyTorchJob"].kind, "nproc_per_node": spec.nproc_per_node, **replicas,
    }  # fmt: skip


PARSERS = {
    "skypilot": skypilot,
    "kubeflow": kubeflow,
    "megatron-lm": megatron_lm,
    "nanotron": nanotron,
    "deepspeed": deepspeed,
    "accelerate": accelerate,
    "torchtitan-0.2": torchtitan_02,
    "torchtitan-0.3": torchtitan_03,
    "megatron-core": megatron_core,
    "megatron-bridge": megatron_bridge,
}

HOMES = {
    "skypilot": "sky",
    "kubeflow": "kubeflow.training",
    "megatron-lm": "megatron.training",
    "nanotron": "nanotron",
    "deepspeed": "deepspeed",
    "accelerate": "accelerate",
    "torchtitan-0.2": "torchtitan.config.job_config",  # 0.3 has no such module
    "torchtitan-0.3": "torchtitan.config.configs",  # 0.2 has no such module
    "megatron-core": "megatron.core",
    "megatron-bridge": "megatron.bridge",
}
"""The package or module whose absence means that a framework is not installed."""


def _is_here(name: str) -> bool:
    """Whether the module can be found; those that it is in are imported for that."""
    parent, _, _ = name.rpartition(".")
    if parent and not _is_here(parent):
        return False
    return importlib.util.find_spec(name) is not None


if __name__ == "__main__":
    parser, file, gpus = sys.argv[1:]
    if not _is_here(HOMES[parser]):
        print(f"{parser} is not installed here: no module {HOMES[parser]}", file=sys.stderr)
        sys.exit(MISSING)
    print(json.dumps(PARSERS[parser](Path(file), int(gpus))))
