"""Makes docs/models.md: the families that are read, the catalogue, and what is refused.

`python -m benchmarks.models.page` writes it; `--check` fails where it is stale.
"""

import json
import sys

from benchmarks.models.families import GATES_IN_BLOCKS, WITH_TOWERS
from benchmarks.models.published import PUBLISHED, without_a_file
from benchmarks.pages import ROOT
from benchmarks.usage import check_usage
from meshplan.costmodels.model.families import FAMILIES
from meshplan.costmodels.model.hf_config import NOT_PRICED, model_from_config
from meshplan.costmodels.model.parameters import active_parameters, model_parameters
from meshplan.costmodels.model.text_parts import (
    BESIDE_TEXT,
    DEEPSEEK_VL,
    ERNIE_VL,
    LLAVA,
    WITH_LLM,
)
from meshplan.costmodels.model.towers.audio import AUDIO_TOWERS
from meshplan.costmodels.model.towers.parameters import tower_parameters
from meshplan.costmodels.model.towers.vision import TOWERS
from meshplan.costmodels.model.transformer import Model
from meshplan.hardware_profiles.load_models import load_model_config, model_names

PAGE = ROOT / "docs" / "models.md"
COUNTED = ROOT / "tests" / "costmodels" / "model" / "family_configs.json"

HEAD = """# Models

`meshplan plan MODEL` takes a name of the catalogue, a repository of Hugging Face that the catalogue
has (`Qwen/Qwen3-32B`), a `config.json`, or its folder. A configuration's `model_type` says which
family it is; what a family's fields mean is a few lines in
`costmodels/model/families/`, over a vocabulary of layer kinds. A field that changes the cost and
that the family does not read is refused by its name; one that no family knows and whose name speaks
of sizes is named in a warning.

`plan --image-tokens 1024` trains on images too: so many tokens of each sequence come from the
model's vision tower, which is trained with the rest (`--frozen vision`: its joiner alone is) on the
first pipeline stage. Towers that are read: {towers}. Where an engine places a tower is in
its file (`vision_tower`): cut by tensor parallelism as in Megatron, or whole on each of its ranks;
an engine of which it is not known is refused by name. Without the option a tower is left out, and a
warning says so. `--audio-tokens 750` is the same of sound, in clips of 30 seconds, with engines
that place any module: {heard}.

Whether the head is tied either part of a multimodal file may say. Where the whole part is silent,
the file is read as the transformers that wrote it reads it (`transformers_version`), and refused
where its two readings differ and nothing says which.

Of a model that speaks (`qwen2_5_omni`, `qwen3_omni_moe`) the thinker is read: its text, its images.
Of files of code beside their weights the language model is, be it a section ({sections}) or between
fields of images ({flat}).

Text alone may pass less than a model holds. ERNIE 4.5 VL's experts of images are held, with
gradients and optimizer states like any weight, and idle; an optimizer that makes its states at the
first gradient keeps less. Phi-4 multimodal's adapters are left out: its code turns them off there.

LLaDA and Dream denoise: each token attends to all of its document, and the head and the loss are
priced over all tokens, though only masked ones are trained on. Making the noise is not priced.

Not modelled: video, other audio towers (the Omni models', Gemma 3n's), a vision and an audio tower
together, towers on ranks of their own, their recomputation, images that fall unevenly on
data-parallel ranks, encoder-decoders, and what stands at the end of this page.
StableLM's `qk_layernorm` is a norm with weights of its own for each head: StableLM 2 12B has
12,143,185,920 parameters.
A recurrent layer's scan runs at the share of the GPU's peak that published benchmarks reach
(`costmodels/operations/recurrent.py`), and which framework can train such a layer is not checked.
Attention residuals (Kimi K3) are one kernel for each half of a layer; a pipeline is charged the
mean of all cuts for the sums of earlier blocks that it sends, and what a stage holds of them is not
counted (`costmodels/operations/attention_residuals.py`). Inkling's biases by distance are those of
each query's nearest tokens, not spread over all pairs (`costmodels/operations/convolutions.py`).
Several streams of hidden states (DeepSeek-V4, GLM-5.3-Flash, HYV4, Qwen4; Gemma 3n) are priced as
fused kernels (`costmodels/operations/streams.py`, `alternating.py`): what an unfused module
keeps beside them is not. Qwen4's table of n-grams stands on the stage of its layer, cut by tensor
parallelism, with gradients and optimizer states like any weight: a table left on the host is not
priced. A field that a file leaves out means what the family's class in transformers says; one that
is null has none.
"""


def page() -> str:
    """The whole page."""
    counted = json.loads(COUNTED.read_text())
    names = {entry["config"].get("text_config", entry["config"])["model_type"]
             for entry in counted.values()}  # fmt: skip
    exact = sorted(set(counted) - set(WITH_TOWERS))
    followed = sum("weight_flops" in counted[name] for name in set(exact) - set(GATES_IN_BLOCKS))
    towers = ", ".join(f"`{name}`" for name in sorted((*TOWERS, "fuyu")))
    heard = ", ".join(f"`{name}`" for name in sorted(AUDIO_TOWERS))
    sections = ", ".join(f"`{name}`" for name in sorted((*WITH_LLM, DEEPSEEK_VL)))
    flat = ", ".join(f"`{name}`" for name in sorted((*LLAVA, *BESIDE_TEXT, ERNIE_VL)))
    without = without_a_file()
    stored = len(FAMILIES) - len(without)
    lines = [
        HEAD.format(towers=towers, heard=heard, sections=sections, flat=flat),
        f"## {len(FAMILIES)} families\n",
        f"{len(names)} of them are held, with {len(counted)} configurations, against the modules",
        "that transformers 5.24 builds on the meta device",
        "(`python -m benchmarks.models.families`):",
        f"parameters exact in {len(exact)} (the others have towers, which are held on their own,",
        "`python -m benchmarks.models.towers`), FLOPs of products with weights within 0.1 % of",
        f"torch's counter in {followed}. `python -m benchmarks.models.published` counts the",
        "catalogue's files, and any other, the same way. Thirteen more configurations, written",
        "down from memory of their published files (LFM2, Falcon-H1, Granite 4.0 H, DeepSeek-MoE,",
        "GLM-4, Ling, ERNIE 4.5, Jamba and others), count within 0.5 % of the published sizes.\n",
        ", ".join(f"`{name}`" for name in sorted(FAMILIES)) + "\n",
        f"Published files of {stored} of them are stored, in the catalogue or",
        f"in `{PUBLISHED.relative_to(ROOT)}`. Of the others none was found whole, most searched",
        "for by `model_type` and class in public repositories (frameworks' tests, serving engines,",
        "model zoos, pages that print a configuration):\n",
        ", ".join(f"`{name}`" for name in without) + "\n",
        f"## {len(model_names())} models in the catalogue\n",
        "| name | parameters | active | layers | |",
        "|---|---|---|---|---|",
        *map(_row, model_names()),
        "\n## Refused by name\n",
        *(
            f"- {reason}: {', '.join(f'`{t}`' for t in types)}"
            for reason, types in NOT_PRICED.items()
        ),
    ]
    return "\n".join(lines) + "\n"


def _row(name: str) -> str:
    model = model_from_config(load_model_config(name), name)
    total, active = model_parameters(model).without_mtp, active_parameters(model).without_mtp
    if model.tower:
        total, active = (each + tower_parameters(model.tower) for each in (total, active))
    shown = f"{active / 1e9:.1f}B" if active != total else ""
    return f"| {name} | {total / 1e9:.1f}B | {shown} | {model.num_layers} | {_parts(model)} |"


def _parts(model: Model) -> str:
    """What mixes its tokens, in the order of how many layers have it; a tower has its own."""
    words: dict[str, int] = {}
    if model.tower and model.tower.layers:
        words["vision tower"] = model.tower.layers.num_layers
    for kind in model.pattern:
        layer = model.kinds[kind]
        at = layer.attention
        found = [layer.recurrent.kind] if layer.recurrent else []
        if at.heads:
            found.append("latent attention" if at.is_mla else "attention")
        if at.indexer:
            found.append("indexer")
        if at.compression:
            found.append("compressed keys")
        if at.window:
            found.append("window")
        for word in found:
            words[word] = words.get(word, 0) + 1
    return ", ".join(
        f"{word} {count}" for word, count in sorted(words.items(), key=lambda w: -w[1])
    )


if __name__ == "__main__":
    check_usage(str(__doc__), "--check")
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text() == page() else f"{PAGE} is stale: python -m {__spec__.name}")
    PAGE.write_text(page())
