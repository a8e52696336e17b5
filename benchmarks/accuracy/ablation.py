"""What each effect of the cost model contributes: the error on measured runs without it.

    python -m benchmarks.accuracy.ablation [RUNS.csv]

Each line takes one effect out and predicts grades A and B again: the mean over suites of the median
|error| of the step time, and the suites whose medians move most; those that nothing was fitted to
are not in that mean. Effects are data, so taking one out changes a run's own data, and only runs
that change are predicted again. Without a file of runs the table is written into the page.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

from benchmarks.accuracy.rows import runs_of
from benchmarks.pages import TABLES, put
from benchmarks.usage import check_usage
from meshplan.costmodels.stage_split import split_evenly, stages_with
from meshplan.hardware_profiles.built_in import load_kernels
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.network_schema import Link
from meshplan.hardware_profiles.tunings import Tuning, load_fit
from meshplan.planner.runs.runs import BUILT_IN, Run
from meshplan.planner.runs.validate import predict_run

Change = Callable[[Run, Tuning], tuple[Run, Tuning]]


def _tuned(**values: float) -> Change:
    return lambda run, tuning: (run, tuning.model_copy(update=values))


def _engine(part: str, **values: object) -> Change:
    def change(run: Run, tuning: Tuning) -> tuple[Run, Tuning]:
        habits = getattr(run.engine, part).model_copy(update=values)
        return replace(run, engine=run.engine.model_copy(update={part: habits})), tuning

    return change


def _qkv_alone(run: Run, tuning: Tuning) -> tuple[Run, Tuning]:
    lora = run.training.lora and replace(run.training.lora, targets="qkv")
    return replace(run, training=replace(run.training, lora=lora)), tuning


def _links(**values: float) -> Change:
    def change(run: Run, tuning: Tuning) -> tuple[Run, Tuning]:
        def link(old: Link) -> Link:
            return old.model_copy(update=values)

        update = {"node": link(run.cluster.node), "network": link(run.cluster.network)}
        return replace(run, cluster=run.cluster.model_copy(update=update)), tuning

    return change


def _kernels(**values: float) -> Change:
    def change(run: Run, tuning: Tuning) -> tuple[Run, Tuning]:
        assert run.cluster.kernels is not None
        kernels = run.cluster.kernels.model_copy(update=values)
        return replace(run, cluster=run.cluster.model_copy(update={"kernels": kernels})), tuning

    return change


def _rates_of_peak(run: Run, tuning: Tuning) -> tuple[Run, Tuning]:
    gpu, kernels = run.cluster.gpu.name, run.cluster.kernels
    assert kernels is not None
    base = load_kernels(SAME_DIE[gpu]) if gpu in SAME_DIE else kernels
    update = {key: getattr(base, key) for key in ("matmul_efficiency", "grouped_efficiency")}
    cluster = run.cluster.model_copy(update={"kernels": kernels.model_copy(update=update)})
    return replace(run, cluster=cluster), tuning


SAME_DIE = {
    "b300": "b200", "gb200": "b200", "gb300": "b200", "h100-96gb-hbm2e-500w": "h100-sxm",
}  # fmt: skip


def _even(run: Run, tuning: Tuning) -> tuple[Run, Tuning]:
    counts = split_evenly(run.model.num_layers, len(run.layout.stages), ends_count=False)
    stages = stages_with(counts, run.layout.recompute)
    return replace(run, layout=replace(run.layout, stages=stages)), tuning


def _none_of_some(run: Run, tuning: Tuning) -> tuple[Run, Tuning]:
    stages = run.layout.stages
    if all(stage.full_layers in (0, stage.layers) for stage in stages):
        return run, tuning
    bare = tuple(replace(stage, full_layers=0) for stage in stages)
    return replace(run, layout=replace(run.layout, stages=bare)), tuning


def _amd_as_h100(run: Run, tuning: Tuning) -> tuple[Run, Tuning]:
    kernels, h100 = run.cluster.kernels, load_kernels("h100-sxm")
    if run.cluster.gpu.vendor != "amd" or kernels is None:
        return run, tuning
    share = kernels.matmul_efficiency["bf16"] / h100.matmul_efficiency["bf16"]
    return _kernels(
        attention_forward=share * h100.attention_forward,
        attention_backward=share * h100.attention_backward,
        attention_half_forward=h100.attention_half_forward,
        attention_half_backward=h100.attention_half_backward,
    )(run, tuning)


def _usual(run: Run, tuning: Tuning) -> tuple[Run, Tuning]:
    usual = load_engine(run.engine.name)
    own = {key: getattr(usual.kernels, key) for key in ("attention", "flash_attention", "dropout")}
    kernels = run.engine.kernels.model_copy(update=own)
    update = {"kernels": kernels, "overlap": usual.overlap}
    return replace(run, engine=run.engine.model_copy(update=update)), tuning


def _as_its_base(run: Run, _: Tuning) -> tuple[Run, Tuning]:
    return run, load_fit("megatron-deepspeed", run.cluster.gpu.name).tuning


def _without_modules(run: Run, tuning: Tuning) -> tuple[Run, Tuning]:
    return _even(replace(run, model=replace(run.model, mtp_layers=0)), tuning)


def _where(concerns: Callable[[Run], bool], change: Change) -> Change:
    return lambda run, tuning: change(run, tuning) if concerns(run) else (run, tuning)


def _is_megatron(run: Run) -> bool:
    return run.engine.name == "megatron"


NO_OVERLAP = dict.fromkeys(
    ("data_reduce", "weight_gather", "tensor", "pipeline", "context", "expert",
     "expert_interleaved"), 0.0,
)  # fmt: skip
COMPILED = {"fused_norm": True, "fused_gated": True, "fused_rope": True}
EFFECTS: dict[str, Change] = {
    "without fitted constants": lambda run, tuning: (run, Tuning()),
    "without host floors": _tuned(launch_s=0, routing_s=0, pipelined_rank_s=0, micro_batch_s=0),
    "without pipeline boundary waits": _tuned(boundary_s=0),
    "without tensor parallel waiting beside a pipeline": _tuned(pipelined_rank_s=0),
    "without ring-step latency": _links(latency_s=0.0),
    "without stalls of a slow network": _links(stall_s=0.0),
    "without buckets of gradients": _engine("state", reduce_bucket=0.0),
    "without late gradients of nanotron's ZeRO-1": _engine("state", zero_1_reduces_late=False),
    "rates by peak instead of power": _rates_of_peak,
    "without slow attention sinks": _engine("kernels", sink_token_s=0.0, sink_8bit_token_s=0.0),
    "with every framework compiled": _engine("kernels", **COMPILED),
    "without products that a compiler pads": _engine("kernels", pads_products=False),
    "without graphs of a whole step": _engine("kernels", step_graph=False),
    "with some layers recomputed as if none were": _none_of_some,
    "without graphs of a part of a layer": _engine("kernels", graphed=()),
    "with adapters beside query, key and value alone": _qkv_alone,
    "without exchanges behind another micro-batch": _engine("overlap", expert_interleaved=0.0),
    "without casts around experts": _engine("kernels", expert_casts=1),
    "without bringing gradients to their buffers": _engine("kernels", gradient_add="fused"),
    "without multi-token prediction": _where(
        lambda run: bool(run.model.mtp_layers), _without_modules
    ),
    "without copies of gathered weights": _engine("state", unpacks_gathered=False),
    "with torchao's casts as cheap as others": _engine("kernels", cast_bytes=0.0),
    "with casts of gathered inputs": _engine("kernels", gathers_cast=False),
    "with every loss in one kernel": _engine("kernels", fused_cross_entropy=True),
    "with FlashAttention in every run": _where(
        lambda run: not run.engine.kernels.flash_attention,
        _engine("kernels", attention="flash2", flash_attention=True),
    ),
    "without heads exchanged for tokens": _engine("kernels", context="ring"),
    "without slower FlashAttention-2": _kernels(flash2_fraction=1.0),
    "with short attention as fast as long": _kernels(
        attention_half_forward=0.0, attention_half_backward=0.0
    ),
    "without kernel launch time": _kernels(launch_s=0.0),
    "without any overlap": _engine("overlap", **NO_OVERLAP),
    "without overlap's interference": _tuned(interference=0),
    "without allocator pressure": _tuned(pressed_s=0),
    "without one copy per node in dispatch": _engine("kernels", dispatch="all_to_all"),
    "with even stages": _even,
    "with scans at a twentieth of the peak": _kernels(scan_forward=0.05, scan_backward=0.05),
    "with AMD's attention in proportion to an H100's": _amd_as_h100,
    "with every engine's usual attention and overlap": _usual,
    "with userbuffers in every run of Megatron-LM": _where(
        _is_megatron, _engine("overlap", tensor=load_engine("nemo").overlap.tensor)
    ),
    "with GPT-NeoX on Megatron-DeepSpeed's constants": _where(
        lambda run: run.engine.name.startswith("gpt-neox"), _as_its_base
    ),
    "with Megatron-LM of 2023 fused as it is today": _where(
        _is_megatron, _engine("kernels", fused_gated=True, fused_rope=True)
    ),
}
NEVER_FITTED = {"internlm.csv": "internlm", "elsewhere.csv": "elsewhere"}
SEEN, SHOWN = 0.005, 5  # of a median: changes that are worth a word, and how many of them


def main() -> None:
    """Write or print the table."""
    given = Path(sys.argv[1]) if sys.argv[1:] else None
    runs = [(run.suite, run) for run in _runs(given or BUILT_IN)]
    fitted = {suite for suite, _ in runs}
    for file, name in {} if given else NEVER_FITTED.items():
        runs += [(f"{name} {run.grade}", run) for run in _runs(BUILT_IN.parent / file)]
    tunings = [load_fit(run.engine.name, run.cluster.gpu.name).tuning for _, run in runs]
    usual = [_error(run, tuning) for (_, run), tuning in zip(runs, tunings, strict=True)]
    before = _medians(runs, usual)
    lines, unseen = [_head(before, fitted), "|---|---|---|"], []
    for name, change in EFFECTS.items():
        changed = [change(run, own) for (_, run), own in zip(runs, tunings, strict=True)]
        errors = [
            error if each == (run, own) else _error(*each)
            for each, (_, run), own, error in zip(changed, runs, tunings, usual, strict=True)
        ]
        after = _medians(runs, errors)
        moved = _moved(before, after)
        if moved:
            lines.append(f"| {name} | {_mean_of(after, fitted)} | {moved} |")
        else:
            unseen.append(name)
        print(lines[-1] if moved else name, flush=True)
    text = "\n".join([*lines, "", f"No median moves by {SEEN:.1%}: {'; '.join(unseen)}."])
    if given is None:
        put(TABLES, "ablation", text)


def _error(run: Run, tuning: Tuning) -> float:
    error = predict_run(run, tuning).step_error
    assert error is not None
    return abs(error)


def _medians(runs: list[tuple[str, Run]], errors: list[float]) -> dict[str, float]:
    by_suite: dict[str, list[float]] = {}
    for (suite, _), error in zip(runs, errors, strict=True):
        by_suite.setdefault(suite, []).append(error)
    return {suite: median(found) for suite, found in sorted(by_suite.items())}


def _mean_of(medians: dict[str, float], fitted: set[str]) -> str:
    return f"{mean(medians[suite] for suite in fitted):.1%}"


def _head(before: dict[str, float], fitted: set[str]) -> str:
    mean_of = f"mean of {len(fitted)} suites' medians, {_mean_of(before, fitted)} with everything"
    return f"| effect | {mean_of} | medians that move most |"


def _moved(before: dict[str, float], after: dict[str, float]) -> str:
    """The suites whose medians move most, in words."""
    far = sorted(before, key=lambda suite: -abs(after[suite] - before[suite]))
    seen = [suite for suite in far if abs(after[suite] - before[suite]) >= SEEN]
    return ", ".join(f"{suite} {before[suite]:.1%} to {after[suite]:.1%}" for suite in seen[:SHOWN])


def _runs(path: Path) -> list[Run]:
    return [run for run in runs_of(path) if run.grade in ("A", "B") and run.measured.step_time_s]


if __name__ == "__main__":
    check_usage(str(__doc__))
    main()
