"""A scripted agent that proposes changes to a recipe, as a language model would, without a network.

Run: python examples/agent/agent.py [--attempts N] [--output DIR]. The 40 attempts take about half an hour on 2 CPU
cores. A few proposals help; most have no effect that matters, and some are refused. The agent reads the verdicts alone.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PROPOSALS = [
    ("model.attention.scale_exponent=0.5", "divide the logits by the square root of the width, as published"),
    ("optimizer.learning_rate=0.003", "60 steps are few, so that the rate may be higher"),
    ("optimizer.learning_rate=0.01", "it may be higher still"),
    ("seed=7", "another seed may be luckier"),
    ("task.evaluation_batches=1", "a smaller evaluation set is faster"),
    ("optimizer.beta2=0.99", "a shorter memory of the squares"),
    ("optimizer.weight_decay=0.1", "the usual weight decay of language models"),
    ("model.feed_forward.activation=gelu", "a smooth activation"),
    ("model.norm_kind=RMSNorm()", "a norm without centring"),
    ("model.attention=ScalableSoftmax", "sharper attention for long contexts"),
    *((f"optimizer.epsilon={value}e-9", "another epsilon of AdamW") for value in range(1, 10)),
    *((f"optimizer.beta2=0.99{value}", "another second moment") for value in range(1, 9)),
    *((f"optimizer.weight_decay=0.00{value}", "another weight decay") for value in range(1, 10)),
    *((f"optimizer.beta1=0.90{value}", "another momentum") for value in range(1, 5)),
]
"""Changes with their reasons."""


def improve(output: Path, *words: str) -> tuple[int, dict, str]:
    """Call the command; return its exit code, its object, and its message if there is none."""
    command = [sys.executable, "-m", "flaxformer.cli", "improve", str(HERE / "ledger.py"), "--output", str(output)]
    done = subprocess.run([*command, *words, "--json"], capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr.strip()


def main() -> None:
    """Propose changes in order; confirm the best recipe at the end."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--attempts", type=int, default=len(PROPOSALS), help="number of proposals (default: all)")
    parser.add_argument("--output", type=Path, default=Path("runs/agent"), help="folder of the ledger")
    arguments = parser.parse_args()
    for change, reason in PROPOSALS[: arguments.attempts]:
        code, ledger, message = improve(arguments.output, change, "--reason", reason)
        if code == 2:
            print(f"refused: {change}: {message.removeprefix('error: ')}")
            continue
        attempt = ledger["attempts"][-1]
        print(
            f"{attempt['verdict']} after {attempt['pairs']} pairs: {change} (improvement {attempt['improvement']:.4f})"
        )
    code, ledger, message = improve(arguments.output, "--confirm")
    print(ledger.get("answer", message))
    print(f"Report: {arguments.output / 'report.html'}")


if __name__ == "__main__":
    main()
