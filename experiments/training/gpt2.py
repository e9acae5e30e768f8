"""GPT-2 of 124M weights, on 10 billion tokens of FineWeb: 12 layers, 12 heads, width 768, 1,024 tokens.

Data: FineWeb's sample of 10 billion tokens, 20 GB as tokens; pip install 'flaxformer[datasets,text]':
    curl --create-dirs -o data/gpt2.json https://huggingface.co/openai-community/gpt2/resolve/main/tokenizer.json
    flaxformer prepare hf:HuggingFaceFW/fineweb data/fineweb --subset sample-10BT --tokenizer data/gpt2.json --end
    For OpenWebText: hf:Skylion007/openwebtext without a subset.
Command: flaxformer train experiments/training/gpt2.py --mesh data=8
Cost: 124,475,904 weights, 855 MFLOP per token, 8.5 × 10¹⁸ in all: at 400 TFLOP/s per GPU, 45 min on 8 GPUs and 6 hours
    on one. A micro-batch is 64 sequences, 8 for each of 8 GPUs:
    training.micro_batches=16 halves its memory.
Published: validation loss 3.28 after 10 billion tokens of FineWeb (llm.c, 45 min on 8 H100; the
    starting point of modded-nanogpt); 2.85 on OpenWebText after 295 billion (nanoGPT, 600,000 steps of 491,520).
Measured: not trained except for 2 steps of 4 × 128 tokens of a small text on 2 CPU cores: from 10.96 nats to 9.58
    (ln 50,304 is 10.83). --plan times steps; without a GPU: --plan task.batch_size=1 training.micro_batches=1.
Deviations: the table has 50,304 rows, a multiple of 128, for 50,257 tokens and the end of a document, which has
    a token of its own rather than <|endoftext|>; a tenth of the documents is held out, where llm.c holds out 100
    million tokens, and windows are drawn at random from the rest; the output matrices of branches are drawn like the
    others, not 1/√(2L) as large; weight decay excludes embeddings; 19,000 steps of 524,288 tokens, where llm.c takes
    19,073.
"""

from flaxformer import (
    AdamW,
    Attention,
    Cosine,
    Dense,
    LanguageModel,
    LearnedPositions,
    ModelConfig,
    Normal,
    Run,
    TokenFiles,
    Tokens,
    Training,
)

run = Run(
    model=ModelConfig(
        vocabulary=50304,
        layers=12,
        d_model=768,
        attention=Attention(heads=12),
        feed_forward=Dense(activation="gelu_tanh"),
        positions=LearnedPositions(max_length=1024, std=0.02),
        head=LanguageModel(tied=True),
        initializer=Normal(deviation=0.02),
        inputs=Tokens(std=0.02),
    ),
    task=TokenFiles(path="data/fineweb", length=1024, batch_size=512, evaluation_batches=20),
    optimizer=AdamW(learning_rate=6e-4, warmup_steps=700, decay=Cosine(), beta2=0.95, weight_decay=0.1, clip=1.0),
    training=Training(steps=19_000, evaluate_every=250, micro_batches=8, precision="bfloat16"),
)
