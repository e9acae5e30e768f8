"""German to English, captions of images (Multi30k), by an encoder-decoder of 3 + 3 layers.

Data: github.com/multi30k/dataset, for non-commercial research, and a vocabulary of its words:
    git clone https://github.com/multi30k/dataset data/multi30k-dataset; mkdir data/multi30k
    for f in train val test_2016_flickr; do for l in de en; do
        gunzip -c data/multi30k-dataset/data/task1/raw/$f.$l.gz > data/multi30k/$f.$l; done; done
    python experiments/training/words.py data/multi30k/words.json data/multi30k/train.de data/multi30k/train.en
Command: flaxformer train experiments/training/multi30k.py
    flaxformer generate runs/multi30k --input data/multi30k/test_2016_flickr.de --beams 4 > data/multi30k/translated
    sacrebleu data/multi30k/test_2016_flickr.en -i data/multi30k/translated --lowercase --confidence
    training.steps=454 trains for two epochs.
Cost: 8 min per epoch on 2 CPU cores, with 227 steps of 128 pairs (5,400 tokens with padding); 8 epochs need a GPU.
    14,497,869 weights.
Published: validation perplexity 20.5, 9.9, 7.3, 6.1, 5.5, 5.2, 5.1, 5.1 by epoch; test 5.3, BLEU 36.5 (bentrevett/
    pytorch-seq2seq, tutorial 6). Perplexity is exp(validation loss).
Measured: perplexity on the validation set 21.9 and 10.5 after one and two epochs, on the test set 21.8 and 10.6 (seed
    0, trained on nine tenths of the pairs, embeddings of standard deviation 0.012); expected 18 to 23 and 9 to 11.
Deviations: an epoch is 227 batches of pairs drawn with replacement, a quarter of each batch from each quartile of the
lengths;
    one vocabulary of 13,642 words for both languages, split at signs and spaces rather than by the rules of spaCy; the
    published model has 7,853 German and 5,893 English words; embeddings have the initial size of the published model.
"""

from flaxformer import (
    POST,
    AdamW,
    Attention,
    Constant,
    Dense,
    LanguageModel,
    LearnedPositions,
    ModelConfig,
    PairedFiles,
    Run,
    TextPair,
    Tokens,
    Training,
)

EPOCH = 227

run = Run(
    model=ModelConfig(
        vocabulary=13645,
        inputs=Tokens(scale_exponent=0.5, std=0.0157),
        layers=3,
        d_model=256,
        attention=Attention(heads=8),
        feed_forward=Dense(d_ff=512),
        norm=POST,
        positions=LearnedPositions(max_length=100, std=0.075),
        head=LanguageModel(bias=True),
        dropout=0.1,
    ).with_encoder(),
    task=PairedFiles(
        source_path="data/multi30k/train.de",
        target_path="data/multi30k/train.en",
        validation=TextPair(source_path="data/multi30k/val.de", target_path="data/multi30k/val.en"),
        tokenizer="data/multi30k/words.json",
        max_length=48,
        buckets=4,
        batch_size=128,
        evaluation_batches=8,
    ),
    optimizer=AdamW(learning_rate=5e-4, decay=Constant(), beta2=0.999, clip=1.0),
    training=Training(steps=8 * EPOCH, evaluate_every=EPOCH),
)
