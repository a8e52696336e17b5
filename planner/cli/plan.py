"""`meshplan plan`: its options; what answers is imported when it is called, so not for `--help`."""

from meshplan.planner.answer.sizes import TOP
from meshplan.planner.cli import plan_options as options
from meshplan.planner.cli.start_up import import_numpy, importing
from meshplan.planner.processes.free_pages import collect_seldom, keep_freed


def plan(
    model: options.Model,
    gpus: options.Gpus,
    cluster: options.Cluster = None,
    gpu: options.Gpu = None,
    gpus_per_node: options.GpusPerNode = None,
    network: options.Network = None,
    seq_len: options.SeqLen = None,
    global_batch: options.GlobalBatch = None,
    global_batch_tokens: options.GlobalBatchTokens = None,
    precision: options.Precision = "bf16",
    optimizer: options.Optimizer = "adamw",
    packed_mean_length: options.PackedMeanLength = None,
    optimizer_states: options.OptimizerStates = None,
    lora_rank: options.LoraRank = None,
    lora_targets: options.LoraTargets = None,
    base_precision: options.BasePrecision = None,
    image_tokens: options.ImageTokens = None,
    audio_tokens: options.AudioTokens = None,
    images: options.Images = None,
    frozen: options.Frozen = None,
    expert_imbalance: options.ExpertImbalance = 1.0,
    engine: options.Engine = None,
    headroom: options.Headroom = None,
    learned: options.Learned = None,
    dp: options.Dp = None,
    tp: options.Tp = None,
    pp: options.Pp = None,
    vpp: options.Vpp = None,
    cp: options.Cp = None,
    ep: options.Ep = None,
    etp: options.Etp = None,
    zero: options.Zero = None,
    shard_group: options.ShardGroup = None,
    micro_batch: options.MicroBatch = None,
    schedule: options.Schedule = None,
    recompute: options.Recompute = None,
    recompute_modules: options.RecomputeModules = None,
    sequence_parallel: options.SequenceParallel = None,
    cp_kind: options.CpKind = None,
    dispatcher: options.Dispatcher = None,
    modules_apart: options.ModulesApart = None,
    offload_optimizer: options.OffloadOptimizer = None,
    offload_activations: options.OffloadActivations = None,
    out: options.Out = None,
    top: options.Top = TOP,
    robust: options.Robust = False,
    time_limit: options.TimeLimit = None,
    price_per_gpu_hour: options.PricePerGpuHour = None,
    compare: options.Compare = None,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Find the fastest layout that fits, and prove it.

    Example:
      meshplan plan llama-3.1-8b --gpus 64 --cluster dgx-h100 \\
        --global-batch-tokens 4M
    """
    given = locals()
    import_numpy()
    keep_freed()
    collect_seldom()
    with importing():
        from meshplan.planner.cli.planned import Wanted, answer, arguments_of

    wanted = Wanted(**{name: given[name] for name in Wanted.__dataclass_fields__})
    answer(arguments_of(given), gpus, wanted)
