"""Tables for other documents: Markdown, and LaTeX with booktabs rules."""

from collections.abc import Sequence

TEX = str.maketrans(
    {character: "\\" + character for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {
        "√": r"$\surd$",
        "−": "$-$",
        "±": r"$\pm$",
        "∞": r"$\infty$",
        "≤": r"$\le$",
        "≥": r"$\ge$",
        "<": "$<$",
        ">": "$>$",
    }
    | {"σ": r"$\sigma$", "·": r"$\cdot$", "×": r"$\times$", "²": "$^2$", "⁴": "$^4$", "ᵀ": r"$^\top$", "→": r"$\to$"}
)
"""What LaTeX reads otherwise, or does not have in its text fonts."""


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in GitHub's Markdown."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(header), "|" + " --- |" * len(header), *map(line, rows)]) + "\n"


def latex(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A `tabular` that needs the package booktabs."""

    def line(cells: Sequence[str]) -> str:
        return " & ".join(cell.translate(TEX) for cell in cells) + r" \\"

    body = [r"\begin{tabular}{" + "l" * len(header) + "}", r"\toprule", line(header), r"\midrule", *map(line, rows)]
    return "\n".join([*body, r"\bottomrule", r"\end{tabular}"]) + "\n"
