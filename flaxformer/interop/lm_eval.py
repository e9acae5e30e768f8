"""Adapter for lm-eval, the LM Evaluation Harness: a trained language model as an `lm_eval.api.model.LM`.

>>> model = harness_model(*from_folder("runs/shakespeare"), length=256)
>>> lm_eval.simple_evaluate(model, tasks=["lambada_openai"])

The library is imported only here (extra: lm-eval). `TextScorer` computes the same numbers without it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

from flaxformer.checkpoint.config import read_config
from flaxformer.checkpoint.weights import read_weights
from flaxformer.interop.text_scorer import GenerationSettings, TextScorer
from flaxformer.model.weights import Transformer
from flaxformer.system.extras import library
from flaxformer.training.run import Run


class HarnessRequest(Protocol):
    """Request of lm-eval: the texts that it is about, and for a generation, its settings."""

    args: tuple[str, ...]


def from_folder(folder: str | Path, step: int | None = None) -> tuple[Transformer, Run]:
    """Return the weights and the run of a training job, or of a trial whose weights were kept.

    Args:
      folder: the folder of config.json.
      step: a step of the folder; by default the best by validation loss.
    """
    run = read_config(folder)
    return read_weights(folder, run, step), run


class HarnessMethods:
    """Methods that lm-eval calls."""

    scorer: TextScorer

    def loglikelihood(self, requests: Sequence[HarnessRequest], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return (log-likelihood, is greedy) of each (context, continuation)."""
        pairs = [(request.args[0], request.args[1]) for request in requests]
        return [(scored.log_likelihood, scored.is_greedy) for scored in self.scorer.log_likelihoods(pairs)]

    def loglikelihood_rolling(self, requests: Sequence[HarnessRequest], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of each text."""
        return self.scorer.rolling_log_likelihoods([request.args[0] for request in requests])

    def generate_until(self, requests: Sequence[HarnessRequest], disable_tqdm: bool = False) -> list[str]:
        """Return the continuation of each (context, settings); requests with equal settings are computed together."""
        settings = [cast(GenerationSettings, request.args[1]) for request in requests]
        groups: dict[str, list[int]] = {}
        for i, request_settings in enumerate(settings):
            groups.setdefault(repr(sorted(request_settings.items())), []).append(i)
        by_index: dict[int, str] = {}
        for alike in groups.values():
            texts = self.scorer.continuations([requests[i].args[0] for i in alike], settings[alike[0]])
            by_index |= dict(zip(alike, texts, strict=True))
        return [by_index[i] for i in range(len(requests))]

    @property
    def tokenizer_name(self) -> str:
        """Name in the keys of lm-eval's caches of requests."""
        digest = self.scorer.tokenizer.fingerprint.get("tokenizer_sha256", "bytes")
        return f"flaxformer-{digest[:16]}"


def harness_model(
    params: Transformer, run: Run, *, length: int | None = None, batch_size: int = 16, prefix: str = "\n", seed: int = 0
) -> HarnessMethods:
    """Return a model for lm-eval's `simple_evaluate` and `evaluate`, an instance of its class `LM`.

    Args:
      params: weights of the model, as `read_weights` returns them.
      run: run of the weights.
      length, batch_size, prefix, seed: as for `TextScorer`.

    Raises:
      UserError: lm-eval is not installed, or `TextScorer` cannot be made.
    """
    base = library("lm_eval.api.model", "lm-eval", "the adapter for lm-eval").LM
    harness = cast(HarnessMethods, type("FlaxformerModel", (HarnessMethods, base), {})())
    harness.scorer = TextScorer(params, run, length=length, batch_size=batch_size, prefix=prefix, seed=seed)
    return harness
