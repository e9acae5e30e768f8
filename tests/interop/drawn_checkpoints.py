"""Random Hugging Face models of drawn options, and their outputs; needs torch and transformers.

From the repository root, this measures the parity of families, each over as many draws as asked for:

    PYTHONPATH=. python tests/interop/drawn_checkpoints.py 20 llama qwen3
"""

import json
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
import torch
import transformers

from flaxformer.interop import load, save
from flaxformer.model import ArrayIndex, apply, generate

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
B, T, P, STEPS, VOCABULARY = 2, 17, 5, 8, 53
FULL, SLIDING = "full_attention", "sliding_attention"


def pick(dice, *values):
    return values[dice.integers(len(values))]


def rope(dice, length=64):
    """Parameters of rotary positions, of any supported type."""
    theta = {"rope_theta": float(pick(dice, 300.0, 10_000.0, 500_000.0))}
    original = {"original_max_position_embeddings": int(pick(dice, 8, 16, length))}
    return theta | pick(
        dice,
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": float(pick(dice, 1.0, 2.0, 3.5))},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0} | original,
        {"rope_type": "yarn", "factor": float(pick(dice, 2.0, 4.0)), "beta_fast": 4.0, "beta_slow": 1.0} | original,
        {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.2, "truncate": False} | original,
        {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.5} | original,
    )


def sizes(dice, d_head=True):
    """Sizes of a decoder with Llama's names."""
    groups, per_group, width = pick(dice, 1, 2, 3), pick(dice, 1, 2), pick(dice, 4, 6, 8)
    heads = int(groups * per_group)
    own = {"head_dim": int(pick(dice, 4, 6, 10))} if d_head else {}
    return own | {
        "vocab_size": VOCABULARY,
        "hidden_size": heads * int(width),
        "num_hidden_layers": int(pick(dice, 1, 2, 3, 5)),
        "num_attention_heads": heads,
        "num_key_value_heads": int(groups),
        "intermediate_size": int(pick(dice, 11, 19)),
        "rms_norm_eps": float(pick(dice, 1e-6, 0.013)),
        "tie_word_embeddings": bool(pick(dice, False, True)),
        "max_position_embeddings": 64,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip


def act(dice, name="hidden_act"):
    return {name: pick(dice, "silu", "gelu", "gelu_pytorch_tanh", "relu")}


def layer_types(dice, layers):
    return pick(dice, {}, {"layer_types": [pick(dice, FULL, SLIDING) for _ in range(layers)]})


def bias(dice, *names):
    return {name: bool(pick(dice, False, True)) for name in names or ("attention_bias",)}


def llama(dice):
    made = sizes(dice) | act(dice) | bias(dice, "attention_bias", "mlp_bias")
    return transformers.LlamaConfig(**made, rope_parameters=rope(dice))


def mistral(dice):
    return transformers.MistralConfig(
        **sizes(dice), **act(dice), rope_parameters=rope(dice), sliding_window=pick(dice, None, 3, 6)
    )


def _qwen(dice, kind, **more):
    made = sizes(dice, d_head=kind is transformers.Qwen3Config) | act(dice) | more
    windows = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": int(pick(dice, 0, 1, 2))}
    own = layer_types(dice, made["num_hidden_layers"])
    windows = pick(dice, {}, windows, windows | own)
    return kind(**made, **windows, rope_parameters=rope(dice))


def qwen2(dice):
    return _qwen(dice, transformers.Qwen2Config)


def qwen3(dice):
    return _qwen(dice, transformers.Qwen3Config, **bias(dice))


def olmo2(dice):
    return transformers.Olmo2Config(**sizes(dice, d_head=False), **act(dice), **bias(dice), rope_parameters=rope(dice))


def two_ropes(dice):
    return {"rope_parameters": {FULL: rope(dice), SLIDING: {"rope_type": "default", "rope_theta": 7_000.0}}}


def olmo3(dice):
    made = sizes(dice, d_head=False) | act(dice) | bias(dice) | pick(dice, {}, two_ropes(dice))
    return transformers.Olmo3Config(
        **made, sliding_window=int(pick(dice, 2, 5)), **layer_types(dice, made["num_hidden_layers"])
    )


def smollm3(dice):
    made = sizes(dice, d_head=False) | act(dice) | bias(dice, "attention_bias", "mlp_bias")
    layers = made["num_hidden_layers"]
    windows = pick(dice, {}, {"use_sliding_window": True, "sliding_window": 4})
    own = layer_types(dice, layers) if windows else {}
    none = pick(
        dice, {}, {"no_rope_layer_interval": 2}, {"no_rope_layers": [int(pick(dice, 0, 1)) for _ in range(layers)]}
    )
    return transformers.SmolLM3Config(**made, **windows, **own, **none, rope_parameters=rope(dice))


def _gemma(dice):
    made = sizes(dice) | act(dice, "hidden_activation") | bias(dice)
    scalar, window = int(pick(dice, 4, 7, made["head_dim"])), int(pick(dice, 2, 5))
    caps = {"attn_logit_softcapping": pick(dice, None, 5.0), "final_logit_softcapping": pick(dice, None, 8.0)}
    own = layer_types(dice, made["num_hidden_layers"])
    return made | caps | own | {"query_pre_attn_scalar": scalar, "sliding_window": window}


def gemma2(dice):
    return transformers.Gemma2Config(**_gemma(dice), rope_parameters=rope(dice))


def gemma3_text(dice):
    made = (
        _gemma(dice)
        | {"attn_logit_softcapping": None}
        | pick(dice, {}, two_ropes(dice))
        | pick(dice, {}, {"sliding_window_pattern": 2})
    )
    return transformers.Gemma3TextConfig(**made)


def gpt_neox(dice):
    heads, width = int(pick(dice, 1, 2, 3)), int(pick(dice, 4, 8, 12))
    return transformers.GPTNeoXConfig(
        vocab_size=VOCABULARY, hidden_size=heads * width, num_hidden_layers=int(pick(dice, 1, 2, 3)),
        num_attention_heads=heads, intermediate_size=int(pick(dice, 11, 19)), **act(dice), **bias(dice),
        layer_norm_eps=float(pick(dice, 1e-5, 0.013)), use_parallel_residual=bool(pick(dice, False, True)),
        tie_word_embeddings=bool(pick(dice, False, True)), hidden_dropout=0.1,
        rope_parameters=rope(dice) | {"partial_rotary_factor": float(pick(dice, 0.5, 1.0))},
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


DRAWS = {
    draw.__name__: draw for draw in (llama, mistral, qwen2, qwen3, olmo2, olmo3, smollm3, gemma2, gemma3_text, gpt_neox)
}


def random_model(config, seed):
    """A model with random weights: norms and biases too, so that none can be lost unnoticed."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, weight in [*model.named_parameters(), *model.named_buffers()]:
            if weight.is_floating_point() and "inv_freq" not in name and "embed_scale" not in name:
                is_gain = name.endswith("weight") and ("norm" in name.lower()) and "gemma" not in config.model_type
                deviation = 0.35 if name.endswith("weight") else 0.09
                weight.copy_(is_gain + torch.randn_like(weight) * deviation)
    return model


def outputs(model, dice):
    """Inputs padded on the right with logits, and a prompt padded on the left with its greedy continuation."""
    tokens = dice.integers(3, VOCABULARY, (B, T))
    valid = np.arange(T) < np.array([[T], [T - 4]])
    prompt = dice.integers(3, VOCABULARY, (B, P))
    prompt_valid = np.arange(P)[::-1] < np.array([[P], [P - 2]])
    how = transformers.GenerationConfig(do_sample=False, max_new_tokens=STEPS, pad_token_id=0)
    model.generation_config = how
    with torch.no_grad():
        logits = model(input_ids=torch.tensor(tokens), attention_mask=torch.tensor(valid)).logits.numpy()
        answer = model.generate(
            input_ids=torch.tensor(prompt), attention_mask=torch.tensor(prompt_valid), generation_config=how,
            output_scores=True, return_dict_in_generate=True,
        )  # fmt: skip
    lead = min(scores.topk(2).values.diff().abs().min().item() for scores in answer.scores)
    return {
        "tokens": tokens, "valid": valid, "logits": logits, "prompt": prompt, "prompt_valid": prompt_valid,
        "generated": answer.sequences[:, P:].numpy(), "lead": lead,
    }  # fmt: skip


def compare(family, seed):
    """Largest difference of the logits of one draw; everything else must be exact."""
    dice = np.random.default_rng(seed)
    model = random_model(DRAWS[family](dice), seed)
    wanted = outputs(model, dice)
    with tempfile.TemporaryDirectory() as folder:
        theirs, ours = Path(folder) / "theirs", Path(folder) / "ours"
        model.save_pretrained(theirs)
        config, params = load(theirs)
        found = jax.jit(lambda params: apply(params, config, wanted["tokens"], valid=wanted["valid"]))(params)
        answer = generate(params, config, wanted["prompt"], steps=STEPS, valid=wanted["prompt_valid"])
        difference = np.abs(np.asarray(found) - wanted["logits"])[wanted["valid"]].max()
        if wanted["lead"] > 1e-4:
            length = wanted["generated"].shape[1]
            got = np.asarray(answer.tokens)[:, :length]
            ended = np.cumsum(wanted["generated"] == 2, -1) - (wanted["generated"] == 2) > 0
            np.testing.assert_array_equal(np.where(ended, 0, got), np.where(ended, 0, wanted["generated"]))
        save(ours, config, params)
        again, params_again = load(ours)
        assert again == config, (again, config)
        jax.tree.map(np.testing.assert_array_equal, params_again, params)
        kind = type(model)
        back, report = kind.from_pretrained(ours, attn_implementation="eager", output_loading_info=True)
        assert not any(report.values()), report
        state = back.state_dict()
        for name, weight in model.state_dict().items():
            np.testing.assert_array_equal(state[name].numpy(), weight.numpy(), err_msg=name)
        with torch.no_grad():
            logits = back(
                input_ids=torch.tensor(wanted["tokens"]), attention_mask=torch.tensor(wanted["valid"])
            ).logits.numpy()
        again_difference = np.abs(logits - wanted["logits"])[wanted["valid"]].max()
        written = json.loads((ours / "config.json").read_text())
        assert again_difference < 1e-5, (again_difference, written)
    return float(difference), float(np.abs(wanted["logits"]).max())


def main():
    count, *families = sys.argv[1:]
    for family in families or DRAWS:
        results = []
        for seed in range(int(count)):
            try:
                results.append(compare(family, seed))
            except Exception as error:
                print(family, "seed", seed, type(error).__name__, str(error)[:1500])
        worst = max(results, default=(None, None))
        print(family, len(results), "of", count, "draws, worst difference", worst, flush=True)


if __name__ == "__main__":
    main()
