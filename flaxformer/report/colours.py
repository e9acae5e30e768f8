"""Colours of figures, and those that replace them on a dark page."""

GREY, SHADE = "#777777", "#e3e3e3"
COLOURS = ["#004488", "#cc8f1e", "#bb5566", "#000000", "#66a3d9", "#2f7d4f", "#a05fa8", "#8c8c8c"]
VERDICT_COLOURS = {"supported": "#00695c", "refuted": "#b3391f", "inconclusive": "#5c5c5c"}
DARK = {
    "#000000": "#e6e6e3",
    "#777777": "#9b9ea5",
    "#e3e3e3": "#383b42",
    "#e9e9e9": "#303339",
    "#004488": "#5fa0e6",
    "#cc8f1e": "#e3b04b",
    "#bb5566": "#ea8c9b",
    "#66a3d9": "#b9dcff",
    "#2f7d4f": "#62b985",
    "#a05fa8": "#cf92d6",
    "#8c8c8c": "#a8a8a8",
    "#00695c": "#5cc4b3",
    "#b3391f": "#ef8a70",
    "#5c5c5c": "#b5b5b5",
}
"""Colour on a dark page for every colour of a figure."""
PAGE_COLOURS = {
    "ink": ("#1d1f23", "#e6e6e3"),
    "soft": ("#5f636b", "#a3a7ae"),
    "line": ("#dcdcd7", "#3a3c41"),
    "paper": ("#fdfdfb", "#191a1d"),
    "box": ("#f3f3ef", "#24262a"),
    "link": ("#004488", "#8fbcee"),
    "shadow": ("#0004", "#fff5"),
    "cffffff": ("var(--paper)", "var(--paper)"),
    "supported": ("#00695c", "#5cc4b3"),
    "refuted": ("#b3391f", "#ef8a70"),
    "inconclusive": ("#5c5c5c", "#b5b5b5"),
}
"""Light and dark colour by the name of a CSS variable of the page."""
