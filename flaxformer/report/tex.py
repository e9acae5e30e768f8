"""Tables and texts for LaTeX in plain ASCII, which every LaTeX engine and font can set."""

import re
import unicodedata
from collections.abc import Sequence

from flaxformer.report.sections import StudyReport
from flaxformer.report.table import ItemTable, Table
from flaxformer.report.texts import one_line

LONG = 34
"""Number of characters from which a column of text is wrapped."""

ESCAPED = {character: "\\" + character for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "−": "$-$",
    "\ue000": "$^{",
    "\ue001": "$_{",
    "\ue002": "}$",
    "|": "$|$",
}
PUNCTUATION = {
    "–": "--", "—": "---", "…": r"\dots{}", "‘": "`", "’": "'", "“": "``", "”": "''", '"': "''", "\u00a0": "~",
    "«": r"\guillemotleft{}", "»": r"\guillemotright{}", "§": r"\S{}", "•": r"\textbullet{}", "°": r"$^{\circ}$",
    "ß": r"\ss{}", "æ": r"\ae{}", "ø": r"\o{}", "Æ": r"\AE{}", "Ø": r"\O{}", "ł": r"\l{}", "Ł": r"\L{}", "ı": r"\i{}",
    "′": "'",
}  # fmt: skip
SIGNS = {
    "√": "surd", "±": "pm", "∓": "mp", "×": "times", "·": "cdot", "⋅": "cdot", "÷": "div", "∞": "infty", "≤": "leq",
    "≥": "geq", "≠": "neq", "≈": "approx", "≡": "equiv", "∼": "sim", "∝": "propto", "→": "to", "←": "leftarrow",
    "↔": "leftrightarrow", "↑": "uparrow", "↓": "downarrow", "⇒": "Rightarrow", "∈": "in", "∑": "sum", "∏": "prod",
    "∂": "partial", "∇": "nabla", "∫": "int", "‖": "Vert", "⊙": "odot", "⊗": "otimes", "⊕": "oplus", "∘": "circ",
    "⊤": "top", "⟨": "langle", "⟩": "rangle", "ℓ": "ell", "∀": "forall", "∃": "exists", "∧": "wedge", "∨": "vee",
    "∪": "cup", "∩": "cap", "⊂": "subset", "⌊": "lfloor", "⌋": "rfloor", "⌈": "lceil", "⌉": "rceil", "µ": "mu",
    "✓": "surd", "✗": "times",
}  # fmt: skip
ACCENTS = {0x300: "`", 0x301: "'", 0x302: "^", 0x303: "~", 0x304: "=", 0x306: "u", 0x307: ".", 0x308: '"', 0x30A: "r",
           0x30B: "H", 0x30C: "v", 0x327: "c", 0x328: "k"}  # fmt: skip
MARKS = {"<super>": "\ue000", "<sub>": "\ue001"}
"""Characters of the private range for the beginning of a superscript or subscript; END marks the end."""
END = "\ue002"
RAISED = re.compile(
    "|".join(
        f"[{''.join(c for c in map(chr, range(0x80, 0x2100)) if unicodedata.decomposition(c).startswith(form))}]+"
        for form in MARKS
    )
)
LATIN = {"alpha": "A", "beta": "B", "epsilon": "E", "zeta": "Z", "eta": "H", "iota": "I", "kappa": "K", "mu": "M",
         "nu": "N", "omicron": "O", "rho": "P", "tau": "T", "chi": "X"}  # fmt: skip
"""Latin letters of the Greek capitals that LaTeX has no command for."""


def render(document: StudyReport) -> str:
    """Return the tables of a paper, to copy from or to input."""
    tables = [
        part.in_form("paper") for part in document.parts if isinstance(part, Table | ItemTable) and "paper" in part.on
    ]
    texts = [f"% {text(shown.title)}: needs \\usepackage{{booktabs}}\n{table(shown)}" for shown in tables if shown.rows]
    return "\n".join(texts)


def table(shown: Table) -> str:
    """A `tabular` that needs the package booktabs; long columns of text are wrapped."""
    columns = [max(len(row[i]) for row in (shown.header, *shown.rows)) for i in range(len(shown.header))]
    wrapped = [i for i, width in enumerate(columns) if shown.is_text(i) and width > LONG]
    room = 0.9 - 0.012 * sum(width for i, width in enumerate(columns) if i not in wrapped)
    total = sum(min(columns[i], 80) for i in wrapped)
    form = ""
    for i, width in enumerate(columns):
        share = max(room, 0.3) * min(width, 80) / total if i in wrapped else 0
        form += f"p{{{share:.2f}\\linewidth}}" if i in wrapped else "l" if shown.is_text(i) else "r"

    def line(cells: Sequence[str]) -> str:
        return " & ".join(map(text, map(one_line, cells))) + r" \\"

    top = [r"\begin{tabular}{" + form + "}", r"\toprule", line(shown.header), r"\midrule"]
    remark = [f"% {shown.remark}"] if shown.remark else []
    return "\n".join([*remark, *top, *map(line, shown.rows), r"\bottomrule", r"\end{tabular}"]) + "\n"


def text(words: str) -> str:
    """Return a text in ASCII for LaTeX's text mode; a character without a LaTeX form becomes its code point."""
    words = re.sub(r"(?<![\w-])-(?=[\d∞])", "−", words)  # a minus, not a hyphen
    words = RAISED.sub(_join_marks, words)
    spelled = "".join(_spell(character) for character in words)
    return re.sub(r"(?<!\\)\$\$", "", spelled)  # $a$$b$ is one formula


def _join_marks(match: re.Match[str]) -> str:
    """Return consecutive superscripts or subscripts as one."""
    form = unicodedata.decomposition(match[0][0]).split()[0]
    return MARKS[form] + unicodedata.normalize("NFKC", match[0]).replace("−", "-") + END


def _spell(character: str) -> str:
    for table in (ESCAPED, PUNCTUATION):
        if character in table:
            return table[character]
    if character in SIGNS:
        return f"$\\{SIGNS[character]}$"
    if character.isascii():
        return character
    return _greek(character) or _spell_decomposition(character) or f"[U+{ord(character):04X}]"


def _greek(character: str) -> str:
    """Return the command of a Greek letter, such as \\Sigma, or the Latin capital of the same shape."""
    match = re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER ([A-Z]+)", unicodedata.name(character, ""))
    if not match:
        return ""
    name = match[2].lower().replace("lamda", "lambda")
    if match[1] == "SMALL":
        return "o" if name == "omicron" else f"$\\{name}$"
    return LATIN.get(name) or f"$\\{name.capitalize()}$"


def _spell_decomposition(character: str) -> str:
    """Return the form of a fraction, a compatibility character or an accented letter; empty for any other character."""
    codes = unicodedata.decomposition(character).split()
    if codes and codes[0] == "<fraction>":
        above, _, below = unicodedata.normalize("NFKC", character).partition("\u2044")
        return f"$\\frac{{{above}}}{{{below}}}$"
    if codes and codes[0].startswith("<"):
        return "".join(map(_spell, unicodedata.normalize("NFKC", character)))
    if len(codes) == 2 and int(codes[1], 16) in ACCENTS:
        return f"\\{ACCENTS[int(codes[1], 16)]}{{{_spell(chr(int(codes[0], 16)))}}}"
    return ""
