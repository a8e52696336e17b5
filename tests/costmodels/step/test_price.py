"""The closed form against the simulation of the same layout, and rows against single layouts."""

from collections.abc import Callable
from dataclasses import fields, replace
from itertools import product

import numpy as np
import pytest
from first_shown import first_shown, habits_of
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import cases as examples

from meshplan.costmodels.layout import CONTEXT_KINDS, DISPATCHERS, MODES, Layout, Stage
from meshplan.costmodels.layouts import Layouts
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.prices.passes import pass_seconds
from meshplan.costmodels.prices.prices import Prices, price
from meshplan.costmodels.ranks.recompute_sets import recompute_sets
from meshplan.costmodels.ranks.rendezvous import once_s as beside_s
from meshplan.costmodels.schedule.in_flight import in_flight
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.training import Images, Lora, Training
from meshplan.hardware_profiles.engines import engine_names, load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.hardware_profiles.network_schema import Pod
from meshplan.hardware_profiles.schema import Cluster
from meshplan.hardware_profiles.tunings import Tuning

RELATIVE = 1e-9
SLACK = Tuning(
    launch_s=4e-6, boundary_s=1e-4, pipelined_rank_s=1e-6, held_gathers_pipelined=2.0,
    queued_gathers=3.0,
    state_slack_fraction=0.02, activation_slack_fraction=0.1,
)  # fmt: skip
COMMON = settings(max_examples=examples(25, nightly=1000))


def priced(case) -> Prices:
    return price(case.layouts, case.setting)


def column(case, mode: str) -> int:
    """Where the prices have what the layers of `case` recompute under `mode`."""
    sets = recompute_sets(case.setting)
    if mode == "selective":
        return 1 + sets.index(case.layout.selective_modules)
    return {"none": 0, "full": 1 + len(sets)}[mode]


def parts_of(case) -> list[dict[tuple[int, str], int]]:
    """The layers of each stage and, where the engine places them, its prediction modules."""
    parts = [dict(counts) for counts in case.step.stage_counts]
    if case.setting.places_modules:
        parts[case.step.stage_of_end[2]][len(case.setting.model.kinds), "none"] = 1
    return parts


def chunk_times_s(prices: Prices, case) -> list[float]:
    """Seconds of one micro-batch in each stage, as the stage problem adds them up."""
    times = []
    for counts in parts_of(case):
        layers = (
            n * prices.layer_s[0, kind, column(case, mode)] for (kind, mode), n in counts.items()
        )
        times.append(sum(layers) + prices.send_s[0])
    times[0] += prices.embedding_s[0]
    times[-1] += prices.head_s[0]
    return [float(t) for t in times]


def once_s(prices: Prices, case) -> float:
    """D: the largest once-per-step seconds of a rank."""
    sums = [
        sum(n * prices.layer_step_s[0, kind] for (kind, _), n in counts.items())
        for counts in parts_of(case)
    ]
    sums[0] += prices.embedding_step_s[0]
    sums[-1] += prices.head_step_s[0]
    return float(max(sums))


def latency_s(prices: Prices, case) -> float:
    """Of `fixed_step_s` the latencies of what is sent once, as the mean rank hides them."""
    host_s = case.step.m * case.setting.tuning.micro_batch_s
    return float(prices.fixed_step_s[0] - beside_s(case.setting, case.layouts)[0]) - host_s


def step_s(prices: Prices, case) -> float:
    """(m - 1) X + sum c_j + D, the objective of the search for one chunk per rank."""
    times, m = chunk_times_s(prices, case), case.layout.num_micro_batches(case.setting.training)
    fixed = float(prices.fixed_step_s[0])
    return (m - 1) * max(times) + sum(times) + once_s(prices, case) + fixed


def peaks_bytes(prices: Prices, case) -> list[float]:
    """Bytes that each rank needs, as the stage problem adds them."""
    pp, m = case.layout.pipeline_parallel, case.layout.num_micro_batches(case.setting.training)
    peaks = []
    for s, counts in enumerate(parts_of(case)):
        first, last = s == 0, s == pp - 1
        states = first * prices.embedding_state_bytes[0] + last * prices.head_state_bytes[0]
        update = first * prices.embedding_update_bytes[0] + last * prices.head_update_bytes[0]
        saved = first * prices.embedding_saved_bytes[0] + last * prices.head_saved_bytes[0]
        transient = last * prices.head_transient_bytes[0]
        for (kind, mode), n in counts.items():
            states += n * prices.layer_state_bytes[0, kind]
            update += n * prices.layer_update_bytes[0, kind]
            saved += n * prices.layer_saved_bytes[0, kind, column(case, mode)]
            transient = max(transient, prices.transient_bytes[0, column(case, mode)])
        held = in_flight("1f1b", pp, 1, m)[s][0][0] * saved
        peaks.append(float(prices.fixed_bytes[0] + states + max(held + transient, update)))
    return peaks


@COMMON
@given(data=st.data())
def test_one_rank_is_priced_exactly(cases: Callable[..., st.SearchStrategy], data: st.DataObject):
    """Without a pipeline nothing is left to bound: the closed form is the simulation."""
    case = data.draw(cases(pipelined=False, uniform=True))
    expected = case.step.time().step_time_s
    assert step_s(priced(case), case) == pytest.approx(expected, rel=RELATIVE)


@COMMON
@given(data=st.data())
def test_pipeline_is_bounded(cases: Callable[..., st.SearchStrategy], data: st.DataObject):
    """The closed form exceeds the simulation by at most what follows the slowest stage.

    A rank cannot be done before it has run all micro-batches after the first one reached it, so
    the step is at least m X + sum of c_j before the slowest stage. A rank with more than the mean
    rank's layers hides more, so D may be counted in vain, its latencies too.
    """
    case = data.draw(cases(pipelined=True, uniform=True, plain=True))
    prices = priced(case)
    most_s = follows_s(prices, case) + once_s(prices, case) + latency_s(prices, case)
    assert step_s(prices, case) - case.step.time().step_time_s <= most_s + RELATIVE


def follows_s(prices: Prices, case) -> float:
    """What follows the slowest stage."""
    times = chunk_times_s(prices, case)
    return sum(times[times.index(max(times)) + 1 :])


def test_latencies_are_of_what_is_counted_once(models, case_of) -> None:
    """Five of eight layers and the tower on the first of four stages, 64 replicas: the mean rank's
    two layers hide less of the latencies than that rank does. Without them the bound is too low.
    """
    layout = real_layout(4, 4, 64, (5, 1, 1, 1))
    training = Training(seq_len=512, global_batch_size=64 * 7, images=Images(tokens=256, number=1))
    engine, cluster = load_engine("megatron-bridge"), load_cluster("dgx-h100")
    case = case_of(Setting(models["seeing"], training, cluster, engine, SLACK), layout)
    prices = priced(case)
    excess_s = step_s(prices, case) - case.step.time().step_time_s
    without_s = follows_s(prices, case) + once_s(prices, case)
    assert without_s < excess_s <= without_s + latency_s(prices, case)


def test_a_placed_module_is_a_part_of_the_stack(models, case_of) -> None:
    """Its passes and parameters are those of the end that it is, under each recompute mode alike,
    and the head is left with the losses; an engine that places no module has both in the head.
    """
    model, training = models["latent"], Training(seq_len=4096, global_batch_size=8)
    layout = Layout(pipeline_parallel=3, stages=(Stage(4), Stage(4), Stage(0)))
    for name, placed in (("megatron", True), ("native", False)):
        engine, cluster = load_engine(name), load_cluster("dgx-h100")
        case = case_of(Setting(model, training, cluster, engine, SLACK), layout)
        passes, kinds = pass_seconds(case.layouts, case.setting), len(model.kinds)
        (_, loss, module), modules = case.step.ends, float(case.step.ends[2].forward.total_s)
        assert passes.layer_s.shape[1] == kinds + placed
        at_head = float(loss.forward.total_s) + (0 if placed else modules)
        waits_s = passes.blocking_s[0]  # of every forward but the last one, that of the head
        assert passes.head_s[0, 0] == pytest.approx(at_head - waits_s)
        if placed:
            assert passes.layer_s[0, kinds, :, 0] == pytest.approx(modules)
            backward = float(module.input_grad.total_s)
            assert passes.layer_s[0, kinds, :, 1] == pytest.approx(backward)
            assert passes.dense[0, kinds] == float(case.step.end_parameters[2].dense)
            assert passes.dense[0, -1] == float(case.step.end_parameters[1].dense)


def real_layout(tp: int, pp: int, dp: int, counts: tuple[int, ...], **traits: int) -> Layout:
    return Layout(
        tensor_parallel=tp, pipeline_parallel=pp, data_parallel=dp, sequence_parallel=tp > 1,
        zero_stage=1, stages=tuple(Stage(n) for n in counts), **traits,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "seq_len", "batch", "layout"),
    [
        pytest.param(
            "llama-3.1-8b", 8192, 512, real_layout(2, 4, 8, (8,) * 4), id="8B: 4 stages, m 64"
        ),
        pytest.param(
            "llama-3.1-70b", 8192, 512, real_layout(8, 4, 8, (20, 20, 20, 20)), id="70B: m 64"
        ),
        pytest.param(
            "llama-3.1-405b", 8192, 2048, real_layout(8, 16, 128, (7, *(8,) * 14, 7)),
            id="405B as Meta ran it: 16 stages, m 16",
        ),
        pytest.param(
            "deepseek-v3", 4096, 15360,
            real_layout(1, 16, 128, (3, *(4,) * 14, 2), expert_parallel=64),
            id="DeepSeek-V3: 16 stages, 64-way experts, m 120",
        ),
        pytest.param(
            "mixtral-8x22b", 4096, 1024, real_layout(4, 4, 8, (14,) * 4, expert_parallel=8),
            id="Mixtral 8x22B: m 128",
        ),
    ],
)  # fmt: skip
def test_real_pipelines_are_close(name: str, seq_len: int, batch: int, layout: Layout, case_of):
    """On layouts that one would run the closed form is within 2 % of the simulation, not above."""
    model = model_from_config(load_model_config(name), name)
    training = Training(seq_len=seq_len, global_batch_size=batch)
    engine, cluster = load_engine("megatron"), load_cluster("dgx-h100")
    case = case_of(Setting(model, training, cluster, engine, Tuning()), layout)
    ratio = step_s(priced(case), case) / case.step.time().step_time_s
    print(f"{name}: closed form / simulation = {ratio:.4f}")
    assert 0.98 <= ratio <= 1.005


@COMMON
@given(data=st.data())
def test_memory_is_never_underestimated(
    cases: Callable[..., st.SearchStrategy], data: st.DataObject
):
    """A rank's priced peak is the simulated one, or more where it holds only the smaller kinds."""
    case = data.draw(cases(plain=True))
    model = case.setting.model
    parts = zip(peaks_bytes(priced(case), case), parts_of(case), case.step.memory(), strict=True)
    for rank, (peak, counts, memory) in enumerate(parts, start=1):
        needed = float(memory.allocated) + case.step.slack_bytes(memory) + case.step.context_bytes
        assert peak >= needed * (1 - RELATIVE)
        moments = case.setting.engine.kernels.counts_passes  # each moment counted: a bound only
        moments |= case.layout.activation_offload > 0  # buffers of the largest layer: a bound only
        elsewhere = model.mtp_layers > 0 and rank < case.layout.pipeline_parallel
        moments |= elsewhere and case.setting.engine.kernels.keeps_buffers  # the modules' buffers
        if not moments and {kind for kind, _ in counts} == set(range(len(model.kinds))):
            modes = {mode for _, mode in counts}
            assert len(modes) > 1 or peak == pytest.approx(needed, rel=RELATIVE)


@COMMON
@given(data=st.data())
def test_row_equals_one_layout(cases: Callable[..., st.SearchStrategy], data: st.DataObject):
    """A layer without recompute costs a row what it costs `StepModel`; ends and transfers too."""
    case = data.draw(cases())
    prices, step = priced(case), case.step
    for kind in range(len(case.setting.model.kinds)):
        alone = [step.layer_cost(kind, mode) for mode in MODES]
        assert prices.layer_s[0, kind, 0] == pytest.approx(float(alone[0].total_s), rel=RELATIVE)
        slack = 1 + case.setting.tuning.activation_slack_fraction
        on_device = 1 - case.layout.activation_offload
        saved = [slack * float(cost.saved_bytes) * on_device for cost in alone]
        columns = [column(case, mode) for mode in MODES]
        found = prices.layer_saved_bytes[0, kind, columns]
        assert list(found) == pytest.approx(saved, rel=RELATIVE)
        for at, cost in zip(columns[1:], alone[1:], strict=True):
            # less gradient communication is seen where the backward is longer
            assert prices.layer_s[0, kind, at] <= float(cost.total_s) * (1 + RELATIVE)
    host_s = case.setting.tuning.micro_batch_s / 2 / case.layout.virtual_stages
    blocking_s = step.work.forward_s[0] - float(step.stage_costs[0].forward.total_s) - host_s
    assert prices.send_s[0] == pytest.approx(2 * blocking_s, abs=1e-12)
    last = 2 if case.setting.places_modules else len(step.ends)
    parts = ([0], list(range(1, last)))
    ends = [float(step.ends_cost(part).total_s) - blocking_s for part in parts]
    assert [prices.embedding_s[0], prices.head_s[0]] == pytest.approx(ends, rel=RELATIVE)


def each_row_costs_what_it_costs_alone(setting: Setting, layouts: Layouts) -> None:
    """Fails where it does not."""
    together = price(layouts, setting)
    for row in range(len(layouts)):
        alone = price(layouts.take(np.array([row])), setting)
        for f in fields(Prices):
            if f.name != "capacity_bytes":
                np.testing.assert_allclose(
                    getattr(together, f.name)[row], getattr(alone, f.name)[0], rtol=RELATIVE,
                    err_msg=f"{f.name}, row {row}",
                )  # fmt: skip


@settings(max_examples=8)
@given(data=st.data())
def test_rows_do_not_see_each_other(cases: Callable[..., st.SearchStrategy], data: st.DataObject):
    """The price of a row is the same alone and among others."""
    some = [data.draw(cases()) for _ in range(4)]
    each_row_costs_what_it_costs_alone(some[0].setting, joined([case.layouts for case in some]))


def neighbours(layouts: Layouts) -> Layouts:
    """The one row of `layouts`, and rows that differ from it in one column each."""
    changed = {f.name: 2 * getattr(layouts, f.name) for f in fields(Layouts)}
    changed["sequence_parallel"] = 1 - layouts.sequence_parallel
    changed["zero_stage"] = (layouts.zero_stage + 1) % 4
    changed["schedule"] = 5 - layouts.schedule
    changed["context_kind"] = (layouts.context_kind + 1) % (1 + len(CONTEXT_KINDS))
    changed["dispatcher"] = (layouts.dispatcher + 1) % (1 + len(DISPATCHERS))
    changed["pipeline_parallel"] = 3 - layouts.pipeline_parallel
    changed["optimizer_offload"] = 0.5 - layouts.optimizer_offload / 4
    changed["activation_offload"] = 0.5 - layouts.activation_offload / 4
    rows = [layouts, *(replace(layouts, **{name: column}) for name, column in changed.items())]
    deeper = replace(layouts, pipeline_parallel=4 * layouts.pipeline_parallel)
    return joined([*rows, deeper])


def joined(grids: list[Layouts]) -> Layouts:
    """The rows of all `grids`, one after the other."""
    columns = {f.name: [getattr(layouts, f.name) for layouts in grids] for f in fields(Layouts)}
    return Layouts(**{name: np.concatenate(column) for name, column in columns.items()})


SPREAD = {  # of each model a layout of which some groups cross nodes, or just do not
    "latent": Layout(
        data_parallel=16, tensor_parallel=4, context_parallel=2, pipeline_parallel=2, zero_stage=1,
        expert_parallel=8, expert_tensor_parallel=2, sequence_parallel=True,
        stages=(Stage(4), Stage(4)),
    ),
    "tied": Layout(
        data_parallel=2, tensor_parallel=2, pipeline_parallel=2, zero_stage=2, micro_batch_size=2,
        stages=(Stage(4), Stage(4)),
    ),
    "windowed": Layout(
        data_parallel=4, tensor_parallel=2, expert_parallel=8, zero_stage=3, sequence_parallel=True,
        stages=(Stage(8),),
    ),
}  # fmt: skip


QUICK = first_shown(engine_names(), habits_of)  # with every change; all of them nightly
PODS = load_cluster("dgx-h100").model_copy(update={"pod": Pod(gpus=192, oversubscription=7.0)})


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("engine", "name", "cluster"),
    [pytest.param(engine, "latent", load_cluster("dgx-h100"),
                  marks=[] if engine in QUICK else [pytest.mark.nightly])
     for engine in engine_names()]
    + [pytest.param(engine, name, load_cluster("dgx-h100"),
                    marks=[] if at in (0, 3, 4) else [pytest.mark.nightly])
       for at, (engine, name) in enumerate(product(
           ("megatron-bridge", "native", "torchtitan", "meta", "nanotron"), ("tied", "windowed")
       ))]
    + [("megatron-bridge", "windowed", PODS), ("torchtitan", "latent", PODS)],
    ids=lambda given: "pods" if given is PODS else "" if isinstance(given, Cluster) else given,
)  # fmt: skip
def test_no_column_is_missing_from_a_key(engine: str, name: str, cluster: Cluster, models, case_of):
    """Beside rows that differ in one column each, a row costs what it costs alone: what prices are
    looked up by holds everything that changes one.
    """
    layout = SPREAD[name]
    training = Training(seq_len=4096, global_batch_size=8 * layout.data_parallel * 2)
    case = case_of(Setting(models[name], training, cluster, load_engine(engine), SLACK), layout)
    each_row_costs_what_it_costs_alone(case.setting, neighbours(case.layouts))


def test_adapters_beside_experts_in_a_batch(models, case_of):
    """LoRA on every matrix but the experts': rows with one expert each and with all of them."""
    training = Training(seq_len=512, global_batch_size=64, lora=Lora(rank=16))
    engine, cluster = load_engine("automodel"), load_cluster("dgx-h100")
    setting = Setting(models["moe"], training, cluster, engine, Tuning())
    layouts = [
        Layout(data_parallel=16, expert_parallel=ranks, stages=(Stage(8),)) for ranks in (1, 16)
    ]
    some = [case_of(setting, layout) for layout in layouts]
    together = price(joined([case.layouts for case in some]), setting)
    for row, case in enumerate(some):
        alone_s = float(case.step.layer_cost(1, "none").total_s)
        assert together.layer_s[row, 1, 0] == pytest.approx(alone_s, rel=RELATIVE)


def test_rows_differ_where_weights_leave_the_node(models, case_of):
    """Data parallel alone decides under what gathers hide: the same, together and alone."""
    engine, cluster = load_engine("torchtitan"), load_cluster("dgx-h100")
    training = Training(seq_len=512, global_batch_size=64)
    setting = Setting(models["dense"], training, cluster, engine, Tuning())
    layouts = [
        Layout(
            data_parallel=ranks, tensor_parallel=4, sequence_parallel=True, zero_stage=3,
            stages=(Stage(8),),
        )
        for ranks in (2, 32)
    ]  # fmt: skip
    some = [case_of(setting, layout) for layout in layouts]
    layouts = joined([case.layouts for case in some])
    together = price(layouts, setting)
    for row, case in enumerate(some):
        alone_s = float(case.step.layer_cost(0, "none").total_s)
        assert together.layer_s[row, 0, 0] == pytest.approx(alone_s, rel=RELATIVE)
        room = case.step.layer_cost(0, "none").forward
        assert (room.more_room_s > 0) == (row == 1)
