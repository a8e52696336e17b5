"""Towers: parameters and FLOPs against transformers' modules, and what they add to a step.

`tower_configs.json` is made by `python -m benchmarks.models.towers`.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshplan.costmodels.layout import InvalidLayout, Layout, even_stages
from meshplan.costmodels.model.config_fields import Fields, UnsupportedModel
from meshplan.costmodels.model.hf_config import left_out, model_from_config, why_no_tower
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.costmodels.model.towers.parameters import own_parameters_per_rank, tower_parameters
from meshplan.costmodels.model.towers.vision import tower_of
from meshplan.costmodels.model.transformer import Model, Tower
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import AttentionCore, Communication, Matmul
from meshplan.costmodels.operations.rank_share import Shard
from meshplan.costmodels.operations.tower import TowerWork, tower_work
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.costmodels.training import Images, Lora, Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.hardware_profiles.tunings import Tuning
from meshplan.planner.space.engine_rules import check_engine, check_images

CONFIGS: dict[str, Any] = json.loads(Path(__file__).with_name("tower_configs.json").read_text())
COUNTED = sorted(name for name in CONFIGS if "weight_flops" in CONFIGS[name])
BUFFERS = {"kimi_k25": 58 * 256}
"""Correction biases of DeepSeek-V3's router, which the module has as buffers."""


def model_named(name: str) -> Model:
    return model_from_config(CONFIGS[name]["config"], name)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_parameters_are_those_of_the_real_module(name: str) -> None:
    """Language model, tower and joiner together, exact to the parameter."""
    model = model_named(name)
    assert model.tower is not None
    counted = model_parameters(model).without_mtp + tower_parameters(model.tower)
    assert counted - BUFFERS.get(name, 0) == CONFIGS[name]["parameters"]


SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304,
    "num_attention_heads": 16, "num_hidden_layers": 27, "image_size": 896, "patch_size": 14,
    "vision_use_head": False,
}  # fmt: skip
LLAMA_4 = {
    "model_type": "llama4_vision_model", "hidden_size": 1408, "intermediate_size": 5632,
    "num_attention_heads": 16, "num_hidden_layers": 34, "image_size": 336, "patch_size": 14,
    "pixel_shuffle_ratio": 0.5, "projector_input_dim": 4096, "projector_output_dim": 4096,
    "vision_output_dim": 4096, "vision_feature_layer": -1,
}  # fmt: skip


def with_tower(name: str, model_type: str, vision: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The catalogue's language model, and its published vision part."""
    text = load_model_config(name)
    return {"model_type": model_type, "text_config": text, "vision_config": vision, **more}


@pytest.mark.parametrize(
    ("config", "published"),
    [
        pytest.param(
            with_tower(f"gemma-3-{size}", "gemma3", SIGLIP, mm_tokens_per_image=256), total,
            id=f"gemma-3-{size}: safetensors summary of google/gemma-3-{size}-it",
        )
        for size, total in (("4b", 4300079472), ("12b", 12187325040), ("27b", 27432406640))
    ] + [
        pytest.param(
            with_tower("llama-4-scout", "llama4", LLAMA_4), 109676279296 - 202048 * 5120,
            id="llama 4 scout: as counted in public, less the embedding that is counted twice",
        ),
    ],
)  # fmt: skip
def test_published_models_have_the_published_size(config: dict[str, Any], published: int) -> None:
    """Language model and tower together, to the parameter; the catalogue's own are in
    `test_published_parameters`.
    """
    model = model_from_config(config, "published")
    assert model.tower is not None, why_no_tower(config, model)
    assert model_parameters(model).total + tower_parameters(model.tower) == published


OMNI = {
    "model_type": "qwen2_5_omni", "talker_config": {"model_type": "qwen2_5_omni_talker"},
    "thinker_config": {
        "model_type": "qwen2_5_omni_thinker", "tie_word_embeddings": False,
        "text_config": load_model_config("qwen2.5-7b") | {"model_type": "qwen2_5_omni_text"},
        "vision_config": {
            "model_type": "qwen2_5_omni_vision_encoder", "depth": 32, "hidden_size": 3584,
            "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584, "patch_size": 14,
        },
        "audio_config": {"model_type": "qwen2_5_omni_audio_encoder", "encoder_layers": 32},
    },
}  # fmt: skip


def test_of_a_model_that_speaks_its_thinker_is_read() -> None:
    """Qwen2.5-Omni: the text of Qwen2.5-7B, to the published parameter, and the vision tower of its
    class's module; what hears and what speaks is named as left out."""
    model = model_from_config(OMNI, "x")
    assert model.tower is not None
    assert model_parameters(model).total == 7615616512
    assert tower_parameters(model.tower) == 3083025152
    assert left_out(OMNI) == ("vision tower", "audio tower", "part that speaks")


AVERAGED = {"gemma4": 2 * 16 * 144 * 768}
"""FLOPs of an average of 144 tokens to 16 that its module writes as a product."""


def work_of(tower: Tower, tokens: int, *, tp: float = 1.0, cut: bool = True) -> TowerWork:
    """Of one sequence whose one image gives so many tokens."""
    shard = Shard(
        seq_len=4096, document_len=4096, tokens=4096.0, tokens_outside=4096.0, tp=tp, cp=1.0,
        ep=1.0, etp=1.0, sequence_parallel=0.0,
    )  # fmt: skip
    site = Site(model_named("qwen3_vl"), shard, load_engine("generic").kernels)
    return tower_work(site, tower, Images(tokens=tokens, number=1), cut=cut)


@pytest.mark.parametrize("name", COUNTED)
def test_flops_are_those_that_torch_counts(name: str) -> None:
    """Of the features of one image or clip: products with weights and attention within 0.1 %,
    SAM's, whose windows are filled up, within 5 %.
    """
    entry = CONFIGS[name]
    section = "audio_config" if "audio_config" in entry else "vision_config"
    config = entry["config"] | {section: entry[section]}
    tower = tower_of(Fields(config, name), model_named(name).hidden)
    assert tower is not None
    work = work_of(tower, entry["image_tokens"])
    operations = (*work.own, *work.joiner)
    weights = sum(float(op.forward_flops) for op in operations if isinstance(op, Matmul))
    cores = [op for op in operations if isinstance(op, AttentionCore)]
    near = 0.05 if name == "got_ocr2" else 1e-3
    assert weights == pytest.approx(entry["weight_flops"], rel=near)
    attention = sum(float(op.full_forward_flops) for op in cores) + AVERAGED.get(name, 0)
    assert attention == pytest.approx(entry["attention_flops"], rel=near)
    assert all(op.keys == op.all_keys for op in cores)  # no causal mask


def test_tensor_parallel_cuts_a_tower_or_repeats_it() -> None:
    """Of two ranks each has half of the layers' products and all-reduces, or all and none."""
    tower = model_named("qwen3_vl").tower
    assert tower is not None

    def flops(work: TowerWork) -> float:
        layers = (op for op in work.own if isinstance(op, Matmul) and op.name != "patch_embedding")
        return sum(float(op.forward_flops) for op in layers)

    def sends(work: TowerWork) -> int:
        return sum(isinstance(op, Communication) for op in work.own)

    whole = work_of(tower, 256)
    cut, repeated = work_of(tower, 256, tp=2.0), work_of(tower, 256, tp=2.0, cut=False)
    assert flops(cut) == flops(whole) / 2
    assert flops(repeated) == flops(whole)
    assert (sends(cut), sends(repeated)) == (4 * 27, 0)
    own = float(own_parameters_per_rank(tower, 1.0))
    assert own / 2 < float(own_parameters_per_rank(tower, 2.0)) < own


LAYOUT = Layout(stages=even_stages(32, 2), pipeline_parallel=2, data_parallel=2, tensor_parallel=2)
TRAINING = Training(seq_len=4096, global_batch_size=16)


def step_of(images: Images | None, lora: Lora | None = None) -> StepModel:
    training = replace(TRAINING, images=images, lora=lora)
    engine, cluster = load_engine("megatron-bridge"), load_cluster("dgx-h100")
    setting = Setting(model_named("qwen3_vl"), training, cluster, engine, Tuning())
    return StepModel(setting, LAYOUT)


def test_a_tower_makes_the_first_stage_heavier_and_no_other() -> None:
    """Its parameters, seconds, FLOPs and saved bytes are on rank 0; frozen, none of them is kept
    for a backward and only the joiner (here a quarter of it) is updated.
    """
    text, trained, frozen = (
        step_of(images) for images in (None, Images(tokens=1024), Images(tokens=1024, frozen=True))
    )
    tower = model_named("qwen3_vl").tower
    assert tower is not None
    before, after = text.rank_parameters, trained.rank_parameters
    assert before[1] == after[1]
    own = float(own_parameters_per_rank(tower, 2.0))
    whole = float(after[0].dense - before[0].dense)
    of_frozen = frozen.rank_parameters[0]
    assert of_frozen.frozen == own
    assert float(of_frozen.dense - before[0].dense) == pytest.approx(whole - own)
    kept = [model.state_memory(model.rank_parameters[0]) for model in (frozen, trained)]
    assert float(kept[0].weights) == pytest.approx(float(kept[1].weights))
    assert float(kept[0].gradients) < float(kept[1].gradients)
    costs = [model.rank_costs for model in (text, frozen, trained)]
    assert len({each[1] for each in costs}) == 1
    for what in ("total_s", "saved_bytes", "model_flops"):
        least, middle, most = (float(getattr(each[0], what)) for each in costs)
        assert least < middle < most
    joined = text.rank_costs[0].backward_s + trained.rank_costs[0].forward.total_s
    assert frozen.rank_costs[0].backward_s < joined
    saved = [model.stage_saved_bytes for model in (text, frozen, trained)]
    assert saved[0][0] < saved[1][0] < saved[2][0]
    assert saved[0][1] == saved[2][1]


def test_a_frozen_tower_runs_forward_alone() -> None:
    """A third of the FLOPs of its layers: 2 of 6 for each parameter and token; beside LoRA the
    joiner's too.
    """
    text, trained, frozen = (
        float(step_of(images).rank_costs[0].full_model_flops)
        for images in (None, Images(tokens=1024), Images(tokens=1024, frozen=True))
    )
    tower = model_named("qwen3_vl").tower
    assert tower is not None
    work = work_of(tower, 1024, tp=2.0)
    own, joiner = (
        sum(
            float(op.forward_flops if isinstance(op, Matmul) else op.full_forward_flops)
            for op in part
            if isinstance(op, Matmul | AttentionCore)
        )
        for part in (work.own, work.joiner)
    )
    assert trained - text == pytest.approx(3 * (own + joiner))
    assert frozen - text == pytest.approx(own + 3 * joiner)
    lora = Lora(rank=8)
    beside = step_of(Images(tokens=1024), lora).rank_costs[0].full_model_flops
    without = step_of(None, lora).rank_costs[0].full_model_flops
    assert float(beside) - float(without) == pytest.approx(own + joiner)


@pytest.mark.parametrize(
    ("engine", "images", "said"),
    [
        ("torchtitan", Images(tokens=256), "engines of which it is: .*megatron"),
        ("megatron", Images(tokens=8192), "more than the 4096 tokens"),
        ("megatron", Images(tokens=255, number=2), "use a multiple of 2"),
    ],
)
def test_images_that_cannot_be_are_refused(engine: str, images: Images, said: str) -> None:
    """An engine whose towers are not known, more image than sequence, images of unequal size."""
    training = replace(TRAINING, images=images)
    with pytest.raises(InvalidLayout, match=said):
        check_images(training, model_named("qwen3_vl"), load_engine(engine))


def test_the_tower_must_divide_over_the_tensor_parallel_ranks() -> None:
    """GLM-4.5V's tower has 12 heads: 8 ranks do not divide them, though the text's 96 they do."""
    training = replace(TRAINING, images=Images(tokens=256))
    layout = Layout(stages=even_stages(46, 1), tensor_parallel=8)
    with pytest.raises(InvalidLayout, match="tower's heads 12"):
        check_engine(layout, model_named("glm4v_moe"), training, load_engine("megatron"))


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("qwen3_vl", {"window_layers": [1]}, "'window_layers' of vision_config is not read"),
        ("internvl", {"use_qk_norm": True}, "use_qk_norm"),
        ("gemma4", {"use_clipped_linears": True}, "use_clipped_linears"),
        ("qwen3_vl", {"num_heads": 7}, "does not divide by 7"),
        ("qwen3_vl", {"depth": 10**9}, "at most 10000"),
        ("llama4", {"pixel_shuffle_ratio": 1e-200}, "not between 0.001 and 1"),
        ("gemma3", {"image_size": 8}, "image_size 8 is less than its patch_size"),
    ],
)
def test_a_tower_that_is_not_wholly_read_is_left_out_and_said(
    name: str, changes: dict[str, Any], said: str
) -> None:
    """The text part is read all the same; why its images are not priced is said."""
    config = CONFIGS[name]["config"]
    config = config | {"vision_config": config["vision_config"] | changes}
    model = model_from_config(config, name)
    assert model.tower is None
    assert said in why_no_tower(config, model)
    assert "vision tower" in left_out(config)


def test_a_tower_of_another_family_is_refused_by_name() -> None:
    """A vision part is never taken for one that it is not."""
    with pytest.raises(UnsupportedModel, match="the vision tower of model_type 'aria'"):
        tower_of(Fields({"model_type": "aria", "vision_config": {"depth": 2}}, "aria"), 1024)


def test_older_names_of_a_towers_fields() -> None:
    """Kimi K2.5's own file begins four sizes with `vt_`; a tower that merges otherwise is named."""
    config = CONFIGS["kimi_k25"]["config"]
    sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
    older = {f"vt_{key}" if key in sizes else key: value
             for key, value in config["vision_config"].items()}  # fmt: skip
    written = config | {"vision_config": older | {"merge_type": "sd2_tpool"}}
    tower, renamed = (model_from_config(each, "x").tower for each in (config, written))
    assert tower is not None
    assert renamed == tower
    other = config | {"vision_config": older | {"merge_type": "none"}}
    assert "merge_type of vision_config" in why_no_tower(other, model_from_config(other, "x"))
