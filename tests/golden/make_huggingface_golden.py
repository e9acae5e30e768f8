"""Write huggingface/<case>/: tiny random Hugging Face models, and their outputs.

Run by hand, with torch and transformers >= 5 installed, from the repository root:

    python tests/golden/make_huggingface_golden.py

A folder holds config.json and model.safetensors as save_pretrained writes them, and expected.npz:

    tokens, valid, logits            [B, T] twice, True at real tokens; [B, T, V], computed in float64
    source, source_valid             [B, S] of the encoder, where there is one
    types                            [B, T], each token's type, of BERT
    prompt, prompt_valid, generated  [B, P] twice, padded on the left; [B, steps] of greedy generation, without an end

All weights are random, norms and biases too, so that none can be lost unnoticed. No model's epsilon or rotary base is
its class's own.
"""

import copy
import functools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

FOLDER = Path(__file__).with_name("huggingface")
B, T, S, P, STEPS, VOCABULARY = 2, 11, 13, 5, 9, 53
DEVIATION = 0.35
"""Standard deviation of the weights."""
CLEAREST = 2e-3
"""Smallest lead of a generated token over the next best, so that rounding cannot change it."""
FEWEST = 4
"""Smallest number of different generated tokens, since a repeated token would test little."""
ROUGHEST = 5e-6
"""Largest difference of logits in float32 and float64, so that a parity of 1e-5 is visible."""


class UnclearError(Exception):
    """Error for outputs that are unsuitable as a test; another seed may be suitable."""


GPT2 = functools.partial(
    transformers.GPT2Config, n_positions=23, n_embd=15, n_layer=2, n_head=3, n_inner=19, layer_norm_epsilon=0.013
)
BERT = functools.partial(
    transformers.BertConfig,
    hidden_size=15,
    num_hidden_layers=2,
    num_attention_heads=5,
    intermediate_size=19,
    max_position_embeddings=17,
    type_vocab_size=3,
    layer_norm_eps=0.011,
)
T5 = functools.partial(
    transformers.T5Config,
    d_model=13,
    d_kv=5,
    d_ff=19,
    num_layers=2,
    num_decoder_layers=3,
    use_cache=False,  # transformers counts the cache's layers by the encoder's
    num_heads=3,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=11,
    layer_norm_epsilon=0.017,
    decoder_start_token_id=0,
)
BART = functools.partial(
    transformers.BartConfig,
    d_model=14,
    encoder_layers=1,
    decoder_layers=2,
    encoder_attention_heads=7,
    decoder_attention_heads=2,
    encoder_ffn_dim=17,
    decoder_ffn_dim=19,
    max_position_embeddings=23,
)
LLAMA = functools.partial(
    transformers.LlamaConfig,
    hidden_size=18,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=4,
    intermediate_size=23,
    rms_norm_eps=0.019,
    rope_parameters={"rope_type": "default", "rope_theta": 300.0},
)
CLASSES = {
    "gpt2": transformers.GPT2LMHeadModel,
    "bert": transformers.BertForMaskedLM,
    "t5": transformers.T5ForConditionalGeneration,
    "bart": transformers.BartForConditionalGeneration,
    "llama": transformers.LlamaForCausalLM,
}
CASES = {
    "gpt2": GPT2,
    "bert": BERT,
    "t5": T5,
    "t5_v1_1": functools.partial(T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "bart": BART,
    "llama": functools.partial(LLAMA, tie_word_embeddings=True),
    "llama_biases": functools.partial(LLAMA, attention_bias=True, mlp_bias=True),
}


def random_model(config: Any, seed: int) -> Any:
    """Return a model of the config's class with random weights."""
    torch.manual_seed(seed)
    model = CLASSES[config.model_type](config).eval()
    if config.model_type == "t5" and not config.scale_decoder_outputs:  # transformers ties a new model of version 1.1
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
        model.all_tied_weights_keys.pop("lm_head.weight")
    with torch.no_grad():
        for name, weight in [*model.named_parameters(), *model.named_buffers()]:
            if weight.is_floating_point() and "inv_freq" not in name:
                centre = 1.0 if "norm" in name.lower() or ".ln_" in name else 0.0
                deviation = DEVIATION if name.endswith("weight") else DEVIATION / 4  # or one token would always win
                weight.copy_(centre * name.endswith("weight") + torch.randn_like(weight) * deviation)
    return model


def expected(model: Any, seed: int) -> dict[str, np.ndarray]:
    """Return inputs, logits and a greedy continuation."""
    kind, draw = model.config.model_type, np.random.default_rng(seed)
    tokens = draw.integers(1, model.config.vocab_size, (B, T))
    valid = np.arange(T) < np.array([[T], [T - 4]])
    found = {"tokens": tokens, "valid": valid}
    given = {}
    if kind == "bert":
        found["types"] = draw.integers(0, model.config.type_vocab_size, (B, T))
        given = {"token_type_ids": torch.tensor(found["types"])}
    read = {"input_ids": tokens, "attention_mask": valid}
    if model.config.is_encoder_decoder:
        found["source"] = draw.integers(1, model.config.vocab_size, (B, S))
        found["source_valid"] = np.arange(S)[::-1] < np.array([[S - 3], [S]])
        read = {"input_ids": found["source"], "attention_mask": found["source_valid"]}
        given = {"decoder_input_ids": torch.tensor(tokens), "decoder_attention_mask": torch.tensor(valid)}
    read = {name: torch.tensor(array) for name, array in read.items()}
    with torch.no_grad():
        rounded = model(**read, **given).logits.numpy()
        found["logits"] = copy.deepcopy(model).double()(**read, **given).logits.float().numpy()
    if (rounding := np.abs(rounded - found["logits"]).max()) > ROUGHEST:
        raise UnclearError(f"rounding of {rounding}")
    return found if kind == "bert" else found | generation(model, read, draw)


def generation(model: Any, read: dict[str, torch.Tensor], draw: np.random.Generator) -> dict[str, np.ndarray]:
    """Return a greedy continuation of a prompt padded on the left, or of an encoder-decoder's start token."""
    how = transformers.GenerationConfig(
        do_sample=False,
        max_new_tokens=STEPS,
        pad_token_id=0,
        decoder_start_token_id=0,
        use_cache=model.config.use_cache,
    )
    more = {"output_scores": True, "return_dict_in_generate": True}
    if model.config.is_encoder_decoder:
        prompt, valid = np.zeros((B, 1), int), np.ones((B, 1), bool)
    else:
        prompt, valid = draw.integers(1, VOCABULARY, (B, P)), np.arange(P)[::-1] < np.array([[P], [P - 2]])
        read = {"input_ids": torch.tensor(prompt), "attention_mask": torch.tensor(valid)}
    model.generation_config = how
    with torch.no_grad():
        answer = model.generate(**read, **more)
    generated = answer.sequences[:, -STEPS:].numpy()
    lead = min(scores.topk(2).values.diff().abs().min().item() for scores in answer.scores)
    if lead < CLEAREST or len(np.unique(generated)) < FEWEST:
        raise UnclearError(f"a lead of {lead}, tokens {generated}")
    return {"prompt": prompt, "prompt_valid": valid, "generated": generated}


def drawn(config: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """Return a model and its outputs, of the first suitable seed."""
    for seed in range(300):
        model = random_model(config, seed)
        try:
            return model, expected(model, seed)
        except UnclearError:
            continue
    raise UnclearError(f"300 seeds of {config}")


def main() -> None:
    """Write the folder of every case."""
    for name, config in CASES.items():
        folder = FOLDER / name
        shutil.rmtree(folder, ignore_errors=True)
        model, numbers = drawn(config(vocab_size=VOCABULARY))
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        np.savez_compressed(folder / "expected.npz", **numbers)
        print(name, sum(path.stat().st_size for path in folder.iterdir()), "bytes", numbers.get("generated"))


if __name__ == "__main__":
    main()
