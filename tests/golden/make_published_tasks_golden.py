"""Write published_tasks.json: counts of examples of the published generators of the catalog's tasks.

    python make_published_tasks_golden.py FOLDER BODIES

BODIES is a file with `json.dumps(Lano().bodies)`, the grammar for the published generator of sentences. FOLDER has the
repositories HazyResearch+zoology (d88d6f5), athms+mad-lab (0f49a45), facebookresearch+PhysicsLM4 (7580696),
dtsip+in-context-learning (3383371) and NVIDIA+RULER (c3f5e3b), as git directories `repo` in folders of these names.
Needs torch and NumPy. Run by hand. Of each file, the definitions that are needed are executed as they are, without the
assertions on `token_type`, which is not defined there.
"""

import ast
import collections
import itertools
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

FOLDER = Path(sys.argv[1])
COUNT = 4000
HERE = Path(__file__).parent


def text_of(repository, path):
    git = ["git", "--git-dir", str(FOLDER / repository / "repo"), "show", f"HEAD:{path}"]
    return subprocess.run(git, capture_output=True, text=True, check=True).stdout


def definitions(repository, path, *, names=None, **given):
    """Execute the definitions of a file, of these names or of all, and return them."""
    tree = ast.parse(text_of(repository, path))
    kept = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and (not names or n.name in names)]
    for node in ast.walk(tree):
        if hasattr(node, "body") and isinstance(node.body, list):
            node.body = [n for n in node.body if not (isinstance(n, ast.Assert) and "token_type" in ast.unparse(n))]
    space = {"np": np, "torch": torch, "random": random} | given
    space |= {name: getattr(collections, name) for name in ("defaultdict", "deque")}
    exec(compile(ast.Module(kept, []), path, "exec"), space)
    return space


def histogram(numbers, edges):
    return np.histogram(np.asarray(numbers).reshape(-1), edges)[0].tolist()


def recall(counts):
    space = definitions(
        "HazyResearch+zoology", "zoology/data/multiquery_ar.py", names=["multiquery_ar"], DataSegment=lambda *a, **k: a
    )
    inputs, labels = (
        np.asarray(a)
        for a in space["multiquery_ar"](
            vocab_size=8192, num_examples=COUNT, input_seq_len=64, seed=0, num_kv_pairs=4, random_non_queries=False
        )[:2]
    )
    counts["MQAR places"] = histogram(np.nonzero(labels != -100)[1], np.arange(8, 66, 2))
    counts["MQAR keys"] = histogram(inputs[:, 0:8:2], np.linspace(1, 4096, 17))
    counts["MQAR values"] = histogram(inputs[:, 1:8:2], np.linspace(4096, 8192, 17))


def mad(counts):
    space = definitions(
        "athms+mad-lab", "mad/data/instances.py", tp=__import__("typing"), permutations=itertools.permutations
    )
    dice = np.random.default_rng(0)
    np.random.seed(0)  # of the places in selective copying

    def drawn(name, **settings):
        pairs = [space[f"generate_{name}_instance"](rng=dice, **settings) for _ in range(COUNT)]
        return [np.stack(part) for part in zip(*pairs, strict=True)]

    settings = {"is_training": False, "multi_query": True}
    inputs, targets = drawn("in_context_recall", vocab_size=16, seq_len=128, noise_vocab_size=0, **settings)
    counts["recall scored"] = histogram((targets != -100).sum(1), np.arange(48, 60))
    counts["recall tokens"] = histogram(inputs, np.arange(17))
    inputs, targets = drawn("noisy_in_context_recall", **settings)
    counts["noisy scored"] = histogram((targets != -100).sum(1), np.arange(24, 60, 2))
    counts["noisy noise"] = histogram((inputs >= 16).sum(1), np.arange(0, 60, 2))
    counts["noisy tokens"] = histogram(inputs, np.arange(33))
    inputs, targets = drawn("fuzzy_in_context_recall", **settings)
    counts["fuzzy scored"] = histogram((targets != -100).sum(1), np.arange(14))
    counts["fuzzy padding"] = histogram((inputs == 15).sum(1), np.arange(18))
    counts["fuzzy tokens"] = histogram(inputs, np.arange(17))
    inputs, _ = drawn("fuzzy_in_context_recall", multi_query=True)
    counts["fuzzy training padding"] = histogram((inputs == 15).sum(1), np.arange(18))
    counts["fuzzy training tokens"] = histogram(inputs, np.arange(17))
    inputs, _ = drawn("selective_copying")
    places = np.nonzero(inputs < 14)[1].reshape(COUNT, 16)
    counts["copying first"] = histogram(places[:, 0], np.arange(0, 40, 3))
    counts["copying eighth"] = histogram(places[:, 7], np.arange(60, 180, 8))
    counts["copying tokens"] = histogram(inputs, np.arange(17))
    inputs, targets = drawn("memorization")
    counts["memorization keys"] = histogram(inputs[:, ::2], np.arange(0, 129, 8))
    counts["memorization values"] = histogram(targets[:, 1::2], np.arange(127, 256, 8))
    inputs, _ = drawn("compression")
    counts["compression tokens"] = histogram(inputs, np.arange(17))


def physics(counts):
    where, given = "facebookresearch+PhysicsLM4", {"bos_token_id": 9999, "eos_token_id": 9998, "rng": random.Random(0)}
    given["random"] = random
    depo = definitions(where, "data-synthetic-pretrain/Depo/depo.py", **given)["depo_data"]
    rows = [depo(N=30, K=8, mini_vocab=5, min_tlen=1, max_tlen=3) for _ in range(COUNT)]
    texts = [row[0] for row in rows]
    counts["depo length"] = histogram([len(text) for text in texts], np.arange(10, 300, 12))
    counts["depo steps"] = histogram([t - 9000 for text in texts for t in text if 9000 < t < 9100], np.arange(1, 10))
    counts["depo scored"] = histogram([sum(row["label"]) for row in rows], np.arange(6, 46, 2))
    counts["depo letters"] = histogram([t for text in texts for t in text if t < 100], np.arange(1, 12))
    brevo = definitions(where, "data-synthetic-pretrain/Brevo/brevo.py", **given)["topsort_data"]
    rows = [brevo(N=20, multi=False) for _ in range(COUNT)]
    edges = [row[0].index(9997) // 2 for row in rows]
    counts["brevo edges"] = histogram(edges, np.arange(1, 60, 3))
    counts["brevo answer"] = histogram([len(r[0]) - r[0].index(9998) - 2 for r in rows], np.arange(2, 22))
    mano = definitions(where, "data-synthetic-pretrain/Mano/mano.py", value_mod=23, **given)["encode_pure_arithmetic"]
    lengths = list(range(1, 11))
    texts = [mano(given["rng"], qids=lengths, lens=lengths, ops=list("+-*")) for _ in range(COUNT)]
    counts["mano length"] = histogram([len(text) for text in texts], np.arange(6, 28, 2))
    counts["mano operations"] = histogram([t for text in texts for t in text[2:-2] if t < 10], np.arange(1, 9))
    counts["mano results"] = histogram([text[-1] - 5000 for text in texts], np.arange(24))
    counts["mano second"] = histogram([text[3] >= 5000 for text in texts if len(text) > 7], np.arange(3))


def lano(counts):
    layers = [*json.loads(Path(sys.argv[2]).read_text()), [None] * 3]
    given = {name: __import__(name) for name in ("json", "os")}
    path = "data-synthetic-pretrain/Lano-cfg/data_cfg.py"
    config_class = definitions("facebookresearch+PhysicsLM4", path, names=["CFG_Node", "CFG_Config"], **given)[
        "CFG_Config"
    ]
    nodes = [[{"name": "", "children": body and [list(b) for b in body]} for body in layer] for layer in layers]
    graph = {"depth": 6, "num_sym": 3, "vocab_size": 3, "sizes": [1, *[3] * 6], "ptb": None, "all": nodes}
    graph["idx"] = [[3 * (6 - layer) + number + 1 for number in range(3)] for layer in range(7)]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(json.dumps(graph))
        file.flush()
        config = config_class.from_graph(file.name)
    config.ptb, dice = None, random.Random(0)
    texts = [config.generate_onedata_pure(dice) for _ in range(COUNT)]
    counts["lano length"] = histogram([len(text) for text in texts], np.arange(120, 420, 15))
    counts["lano first"] = histogram([9 * a + 3 * b + c - 13 for a, b, c, *_ in texts], np.arange(28))
    counts["lano last"] = histogram([9 * text[-1] + 3 * text[-2] + text[-3] - 13 for text in texts], np.arange(28))


def regression(counts):
    torch.manual_seed(0)
    space = definitions("dtsip+in-context-learning", "src/samplers.py", names=["DataSampler", "GaussianSampler"])
    more = definitions("dtsip+in-context-learning", "src/tasks.py", names=["Task", "LinearRegression"])
    x = space["GaussianSampler"](20).sample_xs(41, COUNT)
    y = more["LinearRegression"](20, COUNT).evaluate(x)
    counts["regression first y"] = histogram(y[:, 0], np.linspace(-15, 15, 17))
    counts["regression product"] = histogram(y[:, 1] * y[:, 0], np.linspace(-60, 60, 17))
    counts["regression x"] = histogram(x[:, 3], np.linspace(-3, 3, 17))


def needles(counts):
    class Settings:
        num_needle_k, num_needle_v, num_needle_q, type_haystack = 2, 1, 1, "noise"
        type_needle_k, type_needle_v, random_seed, template = "words", "numbers", 0, "{context}|{query}"

    names = ["generate_input_output", "generate_random", "generate_random_number", "generate_random_word"]
    hay, path = "The grass is green.", "scripts/data/synthetic/niah.py"
    given = {"args": Settings, "haystack": hay, "words": [f"w{i}" for i in range(1000)]}
    space = definitions("NVIDIA+RULER", path, names=names, needle="{type_needle_v} {key} {value}", **given)
    random.seed(0)
    places, digits = [], []
    for _ in range(COUNT):
        text, answers = space["generate_input_output"](16)
        lines = text.split("|")[0].split("\n")
        inserted = [i for i, line in enumerate(lines) if line != hay]
        places += [place - before for before, place in enumerate(inserted)]
        digits += [int(answers[0][0]), 10 + int(answers[0][3])]
    counts["needle places"], counts["needle digits"] = (
        histogram(places, np.arange(17)),
        histogram(digits, np.arange(21)),
    )


if __name__ == "__main__":
    counts = {"lano bodies": json.loads(Path(sys.argv[2]).read_text())}
    for part in (recall, mad, physics, regression, needles, lano):
        part(counts)
    text = ",\n".join(f'"{name}": {json.dumps(row)}' for name, row in counts.items())
    (HERE / "published_tasks.json").write_text("{\n" + text + "\n}\n")
