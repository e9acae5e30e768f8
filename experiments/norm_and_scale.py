"""Does pre-norm remove the need for learning-rate warm-up, and what is the effect of dividing by √d?

Claims: Xiong et al. 2020 (pre-norm trains without warm-up); Vaswani et al. 2017, section 3.2.1, and "Transformers like
a physicist" (the logits of unscaled attention grow with d); "Self-Attention and Transformers, a mathematical approach".
Command: flaxformer run experiments/norm_and_scale.py
Cost: 96 runs in 2 compiled programs, 2½ to 4 minutes on 2 CPU cores.
Expected: four of the five claims supported; whether warm-up is worth 0.02 nats under pre-norm stays open (it improves
the loss by 0.014, 90 % interval 0.009 to 0.024).
"""

from flaxformer import (
    POST,
    PRE,
    AdamW,
    Attention,
    Axis,
    Claim,
    Dense,
    LearnedPositions,
    Linear,
    ModelConfig,
    Run,
    StandardLibrary,
    Study,
    Tokens,
    Training,
    Xavier,
)

study = Study(
    name="norm_and_scale",
    question="Does pre-norm remove the need for learning-rate warm-up, and what is the effect of dividing by √d?",
    baseline=Run(
        model=ModelConfig(
            layers=6,
            d_model=64,
            attention=Attention(heads=1),  # one head of width 64; at width 16 the scale hardly matters
            feed_forward=Dense(d_ff=256),
            # The initialiser is part of the claim: Xavier matrices, unit-variance embeddings of tokens and positions.
            initializer=Xavier(),
            inputs=Tokens(std=1.0),
            positions=LearnedPositions(max_length=32, std=1.0),
        ),
        task=StandardLibrary(length=32, batch_size=16),
        optimizer=AdamW(learning_rate=3e-3, beta1=0.9, beta2=0.98, decay=Linear()),
        training=Training(steps=200, evaluate_every=50),
    ),
    axes=[
        Axis("model.norm", {"pre": PRE, "post": POST}),
        Axis("optimizer.warmup_steps", {"none": 0, "100": 100}, name="warmup"),
        Axis("model.attention.scale_exponent", {"1/√d": 0.5, "none": 0, "1/d": 1}, name="scale"),
    ],
    seeds=range(2000, 2008),
    claims=[
        # The margin: 0.02 nats are 2 % of perplexity. A smaller gain is no need, since it is not worth one more number
        # to tune; and this study calls two scales equal within the same margin. It was fixed before any run at the
        # seeds above, which are new for this claim, but not in ignorance: at other seeds (from 1000), warm-up had
        # improved pre-norm by 0.009 nats (95 % interval 0.003 to 0.015).
        Claim(
            "under pre-norm, warm-up changes the loss by less than 0.02 nats",
            equal={"warmup": "100"},
            to={"warmup": "none"},
            where={"norm": "pre"},
            within=0.02,
            answers={
                "supported": "Yes: with pre-norm, warm-up changes the loss by less than 0.02 nats.",
                "refuted": "No: with pre-norm too, warm-up changes the loss by more than 0.02 nats.",
                "inconclusive": "The study cannot tell whether pre-norm still gains 0.02 nats from warm-up.",
            },
        ),
        Claim(
            "without warm-up, pre-norm reaches a lower loss than post-norm",
            lower={"norm": "pre"},
            than={"norm": "post"},
            where={"warmup": "none"},
        ),
        Claim(
            "warm-up helps post-norm more than pre-norm",
            lower={"warmup": "100"},
            than={"warmup": "none"},
            where={"norm": "post"},
            more_than_where={"norm": "pre"},
        ),
        Claim(
            "under pre-norm, dividing by √d beats not scaling",
            lower={"scale": "1/√d"},
            than={"scale": "none"},
            where={"norm": "pre"},
        ),
        Claim(
            "under pre-norm, 1/d and 1/√d do not differ by more than 0.02 nats",
            equal={"scale": "1/d"},
            to={"scale": "1/√d"},
            where={"norm": "pre"},
            within=0.02,
        ),
    ],
    caveats=[
        "One small model ({model.layers} layers, width {model.d_model}), one learning rate and {training.steps} steps. "
        "Whether post-norm catches up with a longer warm-up, a lower rate or more steps is not asked here.",
        "The initialiser is part of the answer: with N(0, 0.02) for every matrix and embedding, warm-up improved "
        "pre-norm by 0.40 nats (8 other seeds).",
        "Post-norm without warm-up stays near the unigram line, a network that hardly learns: no effect of the scale "
        "can be seen there.",
        "The equality of 1/d and 1/√d holds for these learned positions; with sinusoidal ones, 1/d was 0.017 nats "
        "worse (95 % interval 0.012 to 0.023), which leaves it open.",
    ],
)
