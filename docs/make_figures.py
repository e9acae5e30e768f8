"""Make the pictures of the tutorial by the tutorial's own commands: python docs/make_figures.py.

Runs the commands of docs/first_ablation.md on its file, in a temporary folder (about four minutes on 2 CPU cores), and
copies the figures that the page shows from the output folder to docs/figures/.
"""

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
FIGURES = Path("runs/induction/figures")


def main() -> None:
    """Run the tutorial as far as its figures, and copy them."""
    page = (DOCS / "first_ablation.md").read_text()
    files = re.findall(r'^```python title="([^"]+)"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL)
    shown = re.findall(r"\]\(figures/([^)]+\.svg)\)", page)
    before = page[: page.rindex("](figures/")]
    lines = re.findall(r"^flaxformer .*$", before, re.MULTILINE)
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files:
            (Path(folder) / name).write_text(text)
        for line in lines:
            words = shlex.split(line, comments=True)
            subprocess.run([sys.executable, "-m", "flaxformer.cli", *words[1:]], cwd=folder, check=True)
        (DOCS / "figures").mkdir(exist_ok=True)
        for name in shown:
            shutil.copy(Path(folder) / FIGURES / name, DOCS / "figures" / name)


if __name__ == "__main__":
    main()
