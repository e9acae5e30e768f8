"""GPT-NeoX and Pythia (Black et al. 2022; Biderman et al. 2023), as in GPTNeoXForCausalLM."""

from flaxformer.components import PRE, LanguageModel, LayerNorm, Rotary, Tokens
from flaxformer.config import ModelConfig
from flaxformer.interop.huggingface.attributes import activation, flag, number, rate, unused_attribute
from flaxformer.interop.huggingface.family import Family, classifier, final_vectors
from flaxformer.interop.huggingface.layer_kinds import FULL, LayerKinds
from flaxformer.interop.tensors import TensorLayout

PER_HEAD = TensorLayout(
    shape=lambda spec: (spec.shape[1], 1, spec.shape[2], spec.shape[0]),
    load=lambda weight, spec: weight[:, 0].transpose(2, 0, 1),
    save=lambda weight, spec: weight.transpose(1, 2, 0)[:, None],
    axis=1,
    joined=lambda shape: (shape[0] * shape[1] * shape[2], shape[3]),
)
"""[out, in], with the query, key and value of the first head, then of the second."""
PER_HEAD_BIAS = TensorLayout(
    shape=lambda spec: (spec.shape[0], 1, spec.shape[1]),
    load=lambda weight, spec: weight[:, 0],
    save=lambda weight, spec: weight[:, None],
    axis=1,
    joined=lambda shape: (shape[0] * shape[1] * shape[2],),
)
TENSORS = """
gpt_neox.embed_in                              embedding/tokens                      table
gpt_neox.layers.*.input_layernorm              blocks/*/attention_connection/pre     norm
gpt_neox.layers.*.attention.query_key_value    blocks/*/attention/query+key+value    per_head
gpt_neox.layers.*.attention.dense              blocks/*/attention/out
gpt_neox.layers.*.post_attention_layernorm     blocks/*/feed_forward_connection/pre  norm
gpt_neox.layers.*.mlp.dense_h_to_4h            blocks/*/feed_forward/up
gpt_neox.layers.*.mlp.dense_4h_to_h            blocks/*/feed_forward/down
gpt_neox.final_layer_norm                      final_norm                            norm
embed_out                                      head                                  head
"""
FAMILY = Family(
    name="gpt_neox",
    architectures=("GPTNeoXForCausalLM",),
    heads={
        "GPTNeoXModel": final_vectors,
        "GPTNeoXForSequenceClassification": classifier("last", bias=False),
        "GPTNeoXForTokenClassification": classifier("none", bias=True),
    },
    classifier="score",
    base=ModelConfig(
        inputs=Tokens(std=0.02),
        norm=PRE,
        norm_kind=LayerNorm(),
        positions=Rotary(),
        head=LanguageModel(),
        mask_pattern="causal",
    ),
    attributes=(
        number("vocab_size", "vocabulary"),
        number("hidden_size", "d_model"),
        number("num_hidden_layers", "layers"),
        number("num_attention_heads", "attention.heads"),
        number("intermediate_size", "feed_forward.d_ff"),
        activation("hidden_act", "feed_forward.activation", default="gelu"),
        number("layer_norm_eps", "norm_kind.epsilon", default=1e-5),
        flag("use_parallel_residual", "parallel", default=True),
        flag("attention_bias", "attention.bias", "attention.out_bias", default=True),
        flag("tie_word_embeddings", "head.tied", default=False),
        rate("hidden_dropout", "dropout", default=0.0),
        unused_attribute("attention_dropout"),
    ),
    groups=(LayerKinds(bases={FULL: ("rotary_emb_base", 10_000.0)}, share=("rotary_pct", 0.25)),),
    tensors=TENSORS,
    kinds={"per_head": ((".weight", "", PER_HEAD), (".bias", "_bias", PER_HEAD_BIAS))},
    ignored={"a limit that the function does not have": "max_position_embeddings"},
    prefix="gpt_neox.",
    outer=("embed_out.", "lm_head.", "score."),
    renamed=((r"^lm_head\.", "embed_out."),),
    aliases={"embed_out.weight": "gpt_neox.embed_in.weight"},
    dropped=(r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",),
)
