"""What a plan says of the space that was searched, and of what was left open in it."""

import pytest

from meshplan.costmodels.layout import SELECTIVE
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.hardware_profiles.engines import engine_names, load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.answer.answer import report_of, solve
from meshplan.planner.answer.models import read_model
from meshplan.planner.case.search_report import SearchReport
from meshplan.planner.report.proof import proof_lines, search_lines
from meshplan.planner.search.rows.priced_space import Question
from meshplan.planner.space.pins import Pins, parse_pins
from meshplan.planner.space.stage_splits import can_split
from meshplan.planner.space.words import space_words

ENDS_OR_EVEN = ("ends", "even")
REPORT = SearchReport(
    price="event simulation", space=(), status="FEASIBLE", bound_s=9.0, gap=0.0, candidates=1,
    priced=1, cpsat_solves=0, simulated=1, wall_s=0.1, dropped={},
)  # fmt: skip


ON_HOST = {"activation_offload": "0,0.5"}


def words_of(
    model: Model,
    engine: Engine,
    pins: dict[str, str] | None = None,
    *,
    all_degrees: bool = True,
) -> tuple[str, ...]:
    """What is said where all cuts were looked at, on 64 H100."""
    training = Training(seq_len=4096, global_batch_size=64)
    setting = Setting.fitted(model, training, load_cluster("dgx-h100"), engine)
    allowed = parse_pins(pins or {})
    return space_words(setting, 64, allowed, (SELECTIVE,), "all", all_degrees=all_degrees)


@pytest.mark.parametrize("named", ["mixtral-8x7b", "jamba-v0.1"])
@pytest.mark.parametrize("name", engine_names())
def test_memory_that_is_only_bounded_is_called_so(name: str, named: str) -> None:
    """Where activations may be on the host beside recomputation or several chunks a rank may need
    less than decides what fits. There a mix that recomputes more may be the faster.
    """
    _, model = read_model(named)
    engine = load_engine(name)
    counts, any_way = engine.kernels.counts_passes, engine.legality.activation_offload == "any"
    for fractions, on_host in (("0", False), ("0,0.5", any_way)):
        words = words_of(model, engine, {"activation_offload": fractions})
        assert any("an upper bound of its memory" in line for line in words) == on_host
        assert any("recomputing more" in line for line in words) == on_host
        assert any("at any moment" in line for line in words) == counts


@pytest.mark.parametrize(
    "name",
    [each for each in engine_names() if load_engine(each).legality.uneven_stages in ENDS_OR_EVEN],
)
def test_ends_in_place_of_a_layer_are_said(name: str) -> None:
    """79 layers in 2 chunks of 4 ranks: only where the embedding or the head counts as the 80th."""
    config, _ = read_model("llama-3.1-70b")
    model = model_from_config({**config, "num_hidden_layers": 79}, "79 layers")
    engine = load_engine(name)
    cut, *_ = words_of(model, engine)
    told = "the embedding and the head may each count as a layer" in cut
    assert told == can_split(model, engine.legality, 4, 2)


@pytest.mark.parametrize(
    ("pins", "told"),
    [
        pytest.param({}, "context parallelism or dispatcher", id="several of each"),
        pytest.param({"context_kind": "ring"}, "dispatcher", id="one kind"),
        pytest.param({"context_kind": "ring", "dispatcher": "deepep"}, "", id="one of each"),
    ],
)
def test_kinds_that_are_left_out_are_said(pins: dict[str, str], told: str) -> None:
    """A kind than which another takes no longer in any pass may still end a little earlier."""
    _, model = read_model("qwen3-30b-a3b")
    words = words_of(model, load_engine("megatron"), pins)
    said = [f"left out: a kind of {told} if another is at least as fast in every pass"]
    assert [line for line in words if "another is at least as fast" in line] == said * bool(told)


@pytest.mark.parametrize(
    ("gap", "said"),
    [
        pytest.param(0.0001, "less than 0.1% below", id="0.01 % was left open: not 0.0%"),
        pytest.param(0.0005, "0.1% below", id="0.05 % rounds up"),
        pytest.param(0.0235, "2.4% below", id="2.35 %"),
    ],
)
def test_a_gap_is_never_called_nothing(gap: float, said: str) -> None:
    """A plan that was not proved says by how much it might be beaten."""
    claim = proof_lines(REPORT.model_copy(update={"gap": gap}))[0]
    assert claim.startswith("FEASIBLE")
    assert said in claim


@pytest.mark.parametrize(("solves", "said"), [(0, "0 CP-SAT solves"), (1, "1 CP-SAT solve")])
def test_one_solve_is_singular(solves: int, said: str) -> None:
    """In the last line, which says what the search did."""
    work = search_lines(REPORT.model_copy(update={"cpsat_solves": solves}))[-1]
    assert work == f"1 layout in 0.10 s: 1 priced, 1 stage split simulated, {said}"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("megatron", "as many in each"),
        ("torchtitan", "the same in all layers"),
        ("native", "in any layers"),
    ],
)
def test_which_layers_may_recompute_is_said(name: str, said: str) -> None:
    """As the options of each engine have it."""
    _, model = read_model("mixtral-8x7b")
    words = words_of(model, load_engine(name))
    (line,) = (line for line in words if line.startswith("recompute as memory requires"))
    assert line.endswith(said)


@pytest.mark.parametrize(
    ("name", "engine", "pins", "cuts"),
    [
        pytest.param("deepseek-v2-lite", "torchtitan", {}, "listed", id="chunks may be cut anyhow"),
        pytest.param("qwen3-8b", "native", {}, "all", id="any cut is bounded"),
        pytest.param("qwen3-8b", "native", {"virtual_stages": "1"}, "all", id="any cut is solved"),
        pytest.param("qwen3-8b", "native", {"pipeline_parallel": "1"}, "all", id="nothing to cut"),
        pytest.param("qwen3-8b", "megatron", {}, "all", id="its options say every cut"),
    ],
)
def test_optimal_is_over_every_cut(name: str, engine: str, pins: dict[str, str], cuts: str) -> None:
    """A proof over a list of cuts is FEASIBLE, with the bound of all beside that of the list."""
    _, model = read_model(name)
    question = Question(
        model=model, training=Training(seq_len=4096, global_batch_size=64), gpus=16,
        cluster=load_cluster("dgx-h100"), engine=load_engine(engine), pins=parse_pins(pins),
    )  # fmt: skip
    result = solve(question, 1)
    best_s = result.solutions[0].step_time_s
    assert (result.cuts, result.listed_bound_s) == (cuts, best_s)
    assert result.status == ("OPTIMAL" if cuts == "all" else "FEASIBLE")
    assert (result.bound_s < best_s) == (cuts == "listed")
    said = proof_lines(report_of(result, ()))[0]
    assert ("over the listed stage splits none beats" in said) == (cuts == "listed")
    assert "under the event simulation no layout of the space " in said
    no_more = report_of(result, ()).model_copy(update={"listed_bound_s": result.bound_s})
    assert "over the listed" not in proof_lines(no_more)[0]
    words = " ".join(
        space_words(question.setting, 16, question.pins, [("mlp",)], result.cuts, True)
    )
    assert ("what more memory buys are of these splits, too: others may be faster" in words) == (
        cuts == "listed"
    )


@pytest.mark.few(1)
@pytest.mark.parametrize(("k", "cuts"), [(1, "all"), (3, "runners-up listed")])
def test_runners_up_may_be_of_a_list_where_the_plan_is_not(k: int, cuts: str) -> None:
    """The plan has one stage per rank; what may be faster than the third has several."""
    _, model = read_model("llama-3.1-8b")
    question = Question(
        model=model, training=Training(seq_len=8192, global_batch_size=128), gpus=16,
        cluster=load_cluster("dgx-h100"), engine=load_engine("torchtitan"), pins=Pins(),
    )  # fmt: skip
    result = solve(question, k)
    assert result.solutions[0].layout.virtual_stages == 1
    assert result.cuts == cuts


@pytest.mark.parametrize("status", ["OPTIMAL", "FEASIBLE"])
@pytest.mark.parametrize(
    ("name", "engine", "pins", "all_degrees", "said"),
    [
        pytest.param("mixtral-8x7b", "megatron", {}, True, "", id="alike: the bound is the need"),
        pytest.param("deepseek-v3", "megatron", {}, True, "", id="they differ"),
        pytest.param("deepseek-v3", "megatron", ON_HOST, True, "",
                     id="they may be on the host, all kept"),
        pytest.param("deepseek-v3", "generic", ON_HOST, True, "that fits by an upper",
                     id="they may be on the host, recomputed or not"),
        pytest.param("qwen3-8b", "native", {}, False, "which an upper", id="some left open"),
        pytest.param("qwen3-8b", "native", {}, True, "", id="all are settled"),
    ],
)  # fmt: skip
def test_a_proof_says_what_decides_which_layouts_fit(
    name: str, engine: str, pins: dict[str, str], all_degrees: bool, said: str, status: str
) -> None:
    """Where a bound of memory may leave out what fits, in the claim itself."""
    space = words_of(read_model(name)[1], load_engine(engine), pins, all_degrees=all_degrees)
    report = REPORT.model_copy(update={"status": status, "gap": 0.1, "space": tuple(space)})
    claim = proof_lines(report)[0]
    assert "no layout of the space" in claim
    assert ("bound of its memory" in claim, "bound of memory narrows" in claim) == (
        said == "that fits by an upper", said == "which an upper",
    )  # fmt: skip
    assert said in claim
    assert ("recomputes no more than" in claim) == (said == "that fits by an upper")


@pytest.mark.parametrize(
    ("name", "pins", "said"),
    [
        ("generic", {}, {"optimizer", "activation"}),
        ("generic", {"optimizer_offload": "0,0.5"}, {"activation"}),
        ("deepspeed", {}, {"optimizer"}),
        ("torchtitan", {}, set()),
    ],
)  # fmt: skip
def test_what_may_wait_on_the_host_is_said(name: str, pins: dict[str, str], said: set[str]) -> None:
    """Of what a pin would move there, in engines that can: without it a plan keeps all."""
    _, model = read_model("llama-3.1-8b")
    lines = words_of(model, load_engine(name), pins)
    (line,) = (line for line in lines if line.startswith("searched only if pinned"))
    assert {each for each in ("optimizer", "activation") if f"{each} offload" in line} == said


@pytest.mark.parametrize(
    ("gpus", "sequences", "said"),
    [
        pytest.param(16, 64, "tensor parallelism over more than 8 ranks", id="of 8 in a node"),
        pytest.param(32, 3, "tensor parallelism over more than 16 ranks",
                     id="fewer sequences than nodes"),
        pytest.param(16, 128, "tensor parallelism over more than 8 ranks; micro-batches of other "
                     "sizes than 1 to 16, 20, 24, 32, 40, 48 and 64", id="128 divides 128"),
        pytest.param(8, 63, "micro-batches of other sizes than 1 to 16, 20, 24, 32, 40, 48 and 64",
                     id="21 divides 63"),
        pytest.param(8, 64, "", id="all of it is in the usual ranges"),
    ],
)  # fmt: skip
def test_what_only_a_pin_opens(gpus: int, sequences: int, said: str) -> None:
    """Of this question, not of any: and what no pin opens there is as it is with every pin."""
    _, model = read_model("llama-3.1-8b")
    setting = Setting.fitted(
        model, Training(seq_len=4096, global_batch_size=sequences), load_cluster("dgx-h100"),
        load_engine("nanotron"),
    )  # fmt: skip
    lines = space_words(setting, gpus, Pins(), (SELECTIVE,), "all", all_degrees=True)
    found = [line for line in lines if line.startswith("searched only if pinned: ")]
    assert [line.removeprefix("searched only if pinned: ") for line in found] == [said] * bool(said)


def test_processes_are_not_called_gpus() -> None:
    """In the words of the space of a plan for CPUs."""
    _, model = read_model("mixtral-8x7b")
    training, engine = Training(seq_len=4096, global_batch_size=64), load_engine("native")
    setting = Setting.fitted(model, training, load_cluster("local-cpu"), engine)
    words = space_words(setting, 2, Pins(), (SELECTIVE,), "all", all_degrees=True)
    assert words
    assert not any("GPU" in line for line in words)


@pytest.mark.parametrize("name", engine_names())
def test_why_gpipe_is_left_out(name: str) -> None:
    """Where passes wait for what is sent, and 1F1B runs too: it holds more and is never faster."""
    _, model = read_model("llama-3.1-8b")
    engine = load_engine(name)
    words = words_of(model, engine)
    told = any(
        "at least as long as 1F1B (passes wait for sends) and needs more" in line for line in words
    )
    both = {"gpipe", "1f1b"} <= set(engine.legality.schedules)
    assert told == (both and not engine.legality.hides_sends)


def test_axes_that_a_pin_closes_have_no_words() -> None:
    """One stage, no context parallelism, no expert parallelism: nothing is to be said of how."""
    _, model = read_model("mixtral-8x7b")
    axes = {"layers per stage:": "pipeline_parallel", "context parallelism:": "context_parallel",
            "expert dispatcher:": "expert_parallel"}  # fmt: skip
    for pins in ({}, {"pipeline_parallel": "2"}, *({axis: "1"} for axis in axes.values())):
        words = words_of(model, load_engine("megatron"), pins)
        said = {begin for begin in axes if any(line.startswith(begin) for line in words)}
        assert said == {begin for begin, axis in axes.items() if pins.get(axis) != "1"}
