"""Make the figures of docs/interpretability.md: python docs/make_head_figures.py [DIR].

DIR is the folder of results of experiments/studies/induction_heads.py, by default runs/induction_heads. Copies the
figures of heads and of the logit lens from its report, and draws the attention of one sequence from the kept weights of
seed 0.
"""

import shutil
import sys
from pathlib import Path

import jax
import matplotlib as mpl

import flaxformer
from flaxformer.interpret import attention_maps
from flaxformer.report.drawing import COLUMN, STYLE
from flaxformer.report.figures import save
from flaxformer.report.heads_figure import attention_figure

FIGURES = Path(__file__).parent / "figures"
LETTERS = "abcdefghijklmnop"


def main(folder: Path) -> None:
    """Copy and draw the figures."""
    for name, shown in (("heads", "induction_heads"), ("lens", "induction_lens")):
        shutil.copy(folder / "figures" / f"{name}.svg", FIGURES / f"{shown}.svg")
    params, run = flaxformer.results(folder).weights(seed=0)
    tokens = run.task.load().evaluation().inputs[0, 0]
    maps = {path: jax.device_get(weights) for path, weights in attention_maps(params, run.model, tokens).items()}
    with mpl.rc_context(STYLE):
        figure = attention_figure(maps, 1.5 * COLUMN, [LETTERS[token] for token in tokens])
        assert figure is not None, "a model of attention has maps"
        save(figure, FIGURES, "induction_maps")
    for kind in ("png", "pdf"):
        (FIGURES / f"induction_maps.{kind}").unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/induction_heads"))
