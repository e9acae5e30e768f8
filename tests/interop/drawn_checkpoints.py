"""Random Hugging Face models of drawn options, and their outputs; needs torch and transformers.

From the repository root, this measures the parity of families, each over as many draws as asked for:

    PYTHONPATH=. python tests/interop/drawn_checkpoints.py 20 llama qwen3

With "write" in place of the number, it writes tests/golden/families/FAMILY: config.json and model.safetensors as
save_pretrained writes them, and expected.npz with inputs, logits computed in float64, and a greedy continuation of a
prompt that is padded on the left.
"""

import copy
import json
import shutil
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
import torch
import transformers

from flaxformer.interop import load, save
from flaxformer.model import ArrayIndex, apply, generate

jax.config.update("jax_disable_most_optimizations", True)  # since most time is that of compilation
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


def gpt_oss(dice):
    made = sizes(dice) | bias(dice)
    experts = int(pick(dice, 2, 3, 5))
    experts = {"num_local_experts": experts, "num_experts_per_tok": int(dice.integers(1, experts + 1))}
    clipped = pick(dice, {}, {"swiglu_alpha": 1.2, "swiglu_limit": 0.7})
    own = layer_types(dice, made["num_hidden_layers"]) | pick(dice, {}, {"rope_parameters": rope(dice)})
    return transformers.GptOssConfig(**made, **experts, **clipped, **own, sliding_window=int(pick(dice, 2, 5)))


def opt(dice):
    heads = int(pick(dice, 1, 2, 3))
    return transformers.OPTConfig(
        vocab_size=VOCABULARY, hidden_size=heads * int(pick(dice, 3, 4)), num_hidden_layers=int(pick(dice, 1, 2, 3)),
        num_attention_heads=heads, ffn_dim=int(pick(dice, 11, 19)), max_position_embeddings=29,
        activation_function=pick(dice, "relu", "gelu"), do_layer_norm_before=bool(pick(dice, False, True)),
        **bias(dice, "_remove_final_layer_norm", "layer_norm_elementwise_affine"),
        **bias(dice, "enable_bias", "tie_word_embeddings"), pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


def roberta(dice):
    heads = int(pick(dice, 1, 2, 3))
    return transformers.RobertaConfig(
        vocab_size=VOCABULARY, hidden_size=heads * int(pick(dice, 3, 4)), num_hidden_layers=int(pick(dice, 1, 2, 3)),
        num_attention_heads=heads, intermediate_size=int(pick(dice, 11, 19)), max_position_embeddings=29,
        type_vocab_size=int(pick(dice, 1, 2)), layer_norm_eps=float(pick(dice, 1e-12, 0.013)),
        **act(dice), pad_token_id=1, bos_token_id=0, eos_token_id=2,
    )  # fmt: skip


def distilbert(dice):
    heads = int(pick(dice, 1, 2, 3))
    return transformers.DistilBertConfig(
        vocab_size=VOCABULARY, dim=heads * int(pick(dice, 3, 4)), n_layers=int(pick(dice, 1, 2, 3)), n_heads=heads,
        hidden_dim=int(pick(dice, 11, 19)), max_position_embeddings=29, activation=pick(dice, "gelu", "relu"),
        sinusoidal_pos_embds=bool(pick(dice, False, True)), tie_word_embeddings=bool(pick(dice, False, True)),
        pad_token_id=0,
    )  # fmt: skip


def modernbert(dice):
    heads, layers = int(pick(dice, 1, 2, 3)), int(pick(dice, 1, 2, 3, 5))
    own = pick(dice, {}, {"global_attn_every_n_layers": 2}, layer_types(dice, layers))
    bases = {FULL: float(pick(dice, 300.0, 160_000.0)), SLIDING: float(pick(dice, 77.0, 10_000.0))}
    ropes = {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()}
    return transformers.ModernBertConfig(
        vocab_size=VOCABULARY, hidden_size=heads * int(pick(dice, 4, 6)), num_hidden_layers=layers,
        num_attention_heads=heads, intermediate_size=int(pick(dice, 11, 19)), **act(dice, "hidden_activation"),
        classifier_activation=pick(dice, "gelu", "silu"), norm_eps=float(pick(dice, 1e-5, 0.013)),
        local_attention=int(pick(dice, 2, 4, 6)), **own, **pick(dice, {}, {"rope_parameters": ropes}),
        **bias(dice, "norm_bias", "attention_bias", "mlp_bias", "decoder_bias", "classifier_bias"),
        **bias(dice, "tie_word_embeddings"), pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1,
        sep_token_id=2,
    )  # fmt: skip


def marian(dice):
    stacks = {
        f"{stack}_{name}": int(pick(dice, *values))
        for stack in ("encoder", "decoder")
        for name, values in {"layers": (1, 2, 3), "attention_heads": (1, 2, 4), "ffn_dim": (11, 19)}.items()
    }
    return transformers.MarianConfig(
        vocab_size=VOCABULARY, d_model=int(pick(dice, 8, 12)), **stacks, scale_embedding=bool(pick(dice, False, True)),
        activation_function=pick(dice, "gelu", "swish", "relu"), max_position_embeddings=29,
        pad_token_id=0, decoder_start_token_id=0, eos_token_id=2, forced_eos_token_id=None,
    )  # fmt: skip


def mt5(dice):
    layers = int(pick(dice, 1, 2, 3))
    return transformers.MT5Config(
        vocab_size=VOCABULARY, d_model=int(pick(dice, 8, 13)), d_kv=int(pick(dice, 4, 5)), d_ff=int(pick(dice, 11, 19)),
        num_layers=layers, num_decoder_layers=pick(dice, layers, layers + 1), num_heads=int(pick(dice, 1, 2, 3)),
        relative_attention_num_buckets=8, relative_attention_max_distance=11, use_cache=False,
        layer_norm_epsilon=float(pick(dice, 1e-6, 0.017)),
        feed_forward_proj=pick(dice, "gated-gelu", "relu", "gated-silu"), decoder_start_token_id=0,
        pad_token_id=0, eos_token_id=2,
    )  # fmt: skip


def vit(dice):
    heads, patch, rows, columns = int(pick(dice, 1, 2, 3)), *(int(dice.integers(1, 4)) for _ in range(3))
    size = pick(dice, {"image_size": [patch * rows, patch * columns]}, {"image_size": patch * rows})
    return transformers.ViTConfig(
        hidden_size=heads * int(pick(dice, 3, 4)), num_hidden_layers=int(pick(dice, 1, 2, 3)),
        num_attention_heads=heads, intermediate_size=int(pick(dice, 11, 19)), **act(dice), **size,
        layer_norm_eps=float(pick(dice, 1e-12, 0.013)), patch_size=patch, num_channels=int(pick(dice, 1, 3)),
        qkv_bias=bool(pick(dice, False, True)), num_labels=int(pick(dice, 2, 5)),
    )  # fmt: skip


DRAWS = {
    draw.__name__: draw
    for draw in (
        llama, qwen2, qwen3, mistral, olmo2, gpt_neox, gemma2, gemma3_text, smollm3, olmo3,
        roberta, distilbert, modernbert, opt, marian, mt5, vit, gpt_oss,
    )
}  # fmt: skip
MASKED = ("roberta", "distilbert", "modernbert")
"""Families of encoders, which generate nothing."""
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
AUTO = {
    "roberta": transformers.AutoModelForMaskedLM,
    "distilbert": transformers.AutoModelForMaskedLM,
    "modernbert": transformers.AutoModelForMaskedLM,
    "marian": transformers.AutoModelForSeq2SeqLM,
    "mt5": transformers.AutoModelForSeq2SeqLM,
    "vit": transformers.AutoModelForImageClassification,
}


def random_model(config, seed):
    """A model with random weights: norms and biases too, so that none can be lost unnoticed."""
    torch.manual_seed(seed)
    auto = AUTO.get(config.model_type, transformers.AutoModelForCausalLM)
    model = auto.from_config(config, **EAGER).eval()
    if config.model_type == "mt5" and seed % 3:  # the published models are not tied; transformers ties a new one
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
        model.all_tied_weights_keys.pop("lm_head.weight")
    computed = ("inv_freq", "embed_scale", *(["embed_positions"] if config.model_type == "marian" else []))
    with torch.no_grad():
        for name, weight in [*model.named_parameters(), *model.named_buffers()]:
            if weight.is_floating_point() and not any(word in name for word in computed):
                is_gain = name.endswith("weight") and "norm" in name.lower() and "gemma" not in config.model_type
                deviation = 0.35 if name.endswith(("weight", "proj")) else 0.09
                weight.copy_(is_gain + torch.randn_like(weight) * deviation)
    return model


def inputs_of(model, dice):
    """Inputs of transformers, and those of this package: padded, on the right or on the left."""
    config = model.config
    if config.model_type == "vit":
        shape = model.vit.embeddings.patch_embeddings.image_size
        images = dice.standard_normal((B, config.num_channels, *shape)).astype(np.float32)
        return {"pixel_values": images}, (images.transpose(0, 2, 3, 1),), {}
    tokens = dice.integers(3, VOCABULARY, (B, T))
    valid = np.arange(T) < np.array([[T], [T - 4]])
    tokens = np.where(valid, tokens, config.pad_token_id)
    if not config.is_encoder_decoder:
        return {"input_ids": tokens, "attention_mask": valid}, (tokens,), {"valid": valid}
    source = dice.integers(3, VOCABULARY, (B, T + 1))
    source_valid = np.arange(T + 1)[::-1] < np.array([[T - 2], [T + 1]])
    theirs = {"input_ids": source, "attention_mask": source_valid, "decoder_input_ids": tokens}
    given = {"source": source, "source_valid": source_valid, "source_positions": ArrayIndex()}
    return theirs | {"decoder_attention_mask": valid}, (tokens,), given | {"valid": valid}


def logits_of(model, theirs):
    with torch.no_grad():
        return model(**{name: torch.tensor(array) for name, array in theirs.items()}).logits.numpy()


def continuation(model, theirs, dice):
    """A prompt padded on the left, or the start token of a decoder; its greedy continuation, and the smallest lead."""
    how = {"do_sample": False, "max_new_tokens": STEPS, "pad_token_id": 0, "eos_token_id": 2}
    if model.config.is_encoder_decoder:
        prompt, valid = np.zeros((B, 1), int), np.ones((B, 1), bool)
        read = {name: theirs[name] for name in ("input_ids", "attention_mask")}
        how |= {"decoder_start_token_id": 0, "use_cache": model.config.use_cache}
    else:
        prompt = dice.integers(3, VOCABULARY, (B, P))
        valid = np.arange(P)[::-1] < np.array([[P], [P - 2]])
        read = {"input_ids": prompt, "attention_mask": valid}
    model.generation_config = transformers.GenerationConfig(**how)
    with torch.no_grad():
        answer = model.generate(
            **{name: torch.tensor(array) for name, array in read.items()},
            output_scores=True,
            return_dict_in_generate=True,
        )
    lead = min(scores.topk(2).values.diff().abs().min().item() for scores in answer.scores)
    return prompt, valid, answer.sequences[:, prompt.shape[1] :].numpy(), lead


def until_end(tokens, end=2):
    """Tokens with zeros after the first end."""
    tokens = np.asarray(tokens)
    return np.where(np.cumsum(tokens == end, -1) - (tokens == end) > 0, 0, tokens)


def compare(family, seed):
    """Largest difference of the logits of one draw, and the largest logit; everything else must be exact."""
    dice = np.random.default_rng(seed)
    model = random_model(DRAWS[family](dice), seed)
    theirs, ours, given = inputs_of(model, dice)
    wanted, valid = logits_of(model, theirs), given.get("valid", ...)
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder) / "first", Path(folder) / "second"
        model.save_pretrained(first)
        config, params = load(first)
        found = jax.jit(lambda params: apply(params, config, *ours, **given))(params)
        difference = np.abs(np.asarray(found) - wanted)[valid].max()
        assert np.isfinite(difference)
        if model.can_generate() and family not in MASKED and seed % 4 == 0:
            prompt, prompt_valid, generated, lead = continuation(model, theirs, dice)
            steps = generated.shape[1]
            source = {name: value for name, value in given.items() if name.startswith("source")}
            answer = generate(params, config, prompt, steps=steps, valid=prompt_valid, **source)
            if lead > 1e-4:
                np.testing.assert_array_equal(until_end(answer.tokens), until_end(generated))
        save(second, config, params)
        again, params_again = load(second)
        without_settings = [json.loads(made.checkpoint or "{}").get("config.json") for made in (again, config)]
        assert without_settings[0] == without_settings[1]
        assert again.replace(checkpoint="") == config.replace(checkpoint=""), (again, config)
        jax.tree.map(np.testing.assert_array_equal, params_again, params)
        back, report = type(model).from_pretrained(second, **EAGER, output_loading_info=True)
        assert not any(report.values()), report
        unread = 2 if family in ("opt", "roberta") else 0
        state = back.state_dict()
        for name, weight in model.state_dict().items():
            rows = unread if "position" in name else 0
            np.testing.assert_array_equal(state[name][rows:].numpy(), weight[rows:].numpy(), err_msg=name)
        np.testing.assert_allclose(logits_of(back, theirs)[valid], wanted[valid], rtol=1e-5, atol=1e-5)
    return float(difference), float(np.abs(wanted).max())


def is_telling(model):
    """True if a model is small, and has the options that distinguish its family."""
    config = model.config
    layers, types = getattr(config, "num_hidden_layers", 2), getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", 1)
    mixed = types is None or len({*types}) > 1 or config.model_type == "smollm3"
    scaled = "scaled" if "yarn" in str(getattr(config, "rope_parameters", "")) else ""
    needs = {"llama": scaled, "mistral": window, "olmo3": scaled, "smollm3": 0 in getattr(config, "no_rope_layers", [])}
    count = sum(weight.numel() for weight in model.parameters())
    return layers in (2, 3) and mixed and needs.get(config.model_type, True) and 2_000 < count < 9_000


def write(family):
    """Write the golden files of a family, from the first suitable draw."""
    folder = Path(__file__).parents[1] / "golden" / "families" / family
    for seed in range(1000):
        dice = np.random.default_rng(seed)
        model = random_model(DRAWS[family](dice), seed)
        if not is_telling(model):
            continue
        theirs, (inputs,), given = inputs_of(model, dice)
        numbers = {"inputs": inputs} | {name: given[name] for name in given if name != "source_positions"}
        double = copy.deepcopy(model).double()
        wide = {name: x.astype(float) if x.dtype == np.float32 else x for name, x in theirs.items()}
        numbers["logits"] = logits_of(double, wide).astype(np.float32)
        if np.isnan(numbers["logits"]).any():  # transformers rounds the mask of padding within windows to −∞
            for row, length in enumerate(given["valid"].sum(-1)):
                alone = logits_of(double, {"input_ids": inputs[row : row + 1, :length]})
                numbers["logits"][row, :length] = alone[0]
                numbers["logits"][row, length:] = 0
        valid = given.get("valid", ...)
        if not np.abs(logits_of(model, theirs) - numbers["logits"])[valid].max() < 1e-5:
            continue
        if family not in (*MASKED, "vit"):
            prompt, prompt_valid, generated, lead = continuation(model, theirs, dice)
            if lead < 2e-3 or len(np.unique(generated)) < 4:
                continue
            numbers |= {"prompt": prompt, "prompt_valid": prompt_valid, "generated": until_end(generated)}
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        np.savez_compressed(folder / "expected.npz", **numbers)
        print(family, "seed", seed, sum(path.stat().st_size for path in folder.iterdir()), "bytes", flush=True)
        return


def main():
    count, *families = sys.argv[1:]
    for family in families or DRAWS:
        if count == "write":
            write(family)
            continue
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
