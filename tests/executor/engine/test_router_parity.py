"""Routers against those of transformers' modules: the same experts, the same weights.

Needs transformers (docs/frameworks.md), and `pytest -m frameworks`.
"""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from meshplan.costmodels.model.numerics import Router  # noqa: E402
from meshplan.executor.engine.layers.feed_forward import choices  # noqa: E402

pytestmark = pytest.mark.frameworks

TOKENS, EXPERTS, HIDDEN = 512, 16, 32


def module_of(family: str, **fields):
    """The router of a family's first routed layer, with weights from a seed."""
    config = transformers.AutoConfig.for_model(
        family, hidden_size=HIDDEN, num_hidden_layers=1, vocab_size=64, **fields
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    mlp = model.model.layers[0].mlp
    router = mlp.gate if hasattr(mlp, "gate") else mlp.router
    torch.nn.init.normal_(router.weight)
    return router


@pytest.mark.parametrize(
    ("family", "fields", "router"),
    [
        pytest.param(
            "deepseek_v3",
            {"n_routed_experts": EXPERTS, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2,
             "first_k_dense_replace": 0, "norm_topk_prob": True, "routed_scaling_factor": 2.5},
            Router(score="sigmoid", normalised=True, bias=True, groups=4, top_groups=2, scale=2.5),
            id="DeepSeek-V3",
        ),
        pytest.param(
            "mixtral", {"num_local_experts": EXPERTS, "num_experts_per_tok": 4},
            Router(score="softmax", normalised=True), id="Mixtral",
        ),
        pytest.param(
            "qwen3_moe",
            {"num_experts": EXPERTS, "num_experts_per_tok": 4, "norm_topk_prob": False},
            Router(score="softmax", normalised=False), id="Qwen3-MoE, not normalised",
        ),
        pytest.param(
            "qwen3_moe",
            {"num_experts": EXPERTS, "num_experts_per_tok": 4, "norm_topk_prob": True},
            Router(score="softmax", normalised=True), id="Qwen3-MoE, normalised",
        ),
    ],
)  # fmt: skip
def test_choices_are_those_of_the_real_router(family: str, fields, router: Router) -> None:
    """Equal experts for every token, and weights to 1e-6."""
    module = module_of(family, **fields)
    x = torch.randn(TOKENS, HIDDEN)
    _, weights, chosen = module(x)
    ours_chosen, ours = choices(torch.nn.functional.linear(x, module.weight), router, 4)

    def by_expert(index, value):
        return torch.zeros(TOKENS, EXPERTS).scatter(-1, index, value.float())

    torch.testing.assert_close(
        by_expert(ours_chosen, ours), by_expert(chosen, weights), rtol=1e-6, atol=1e-6
    )
