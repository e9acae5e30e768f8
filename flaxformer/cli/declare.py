"""The command `flaxformer declare FILE`."""

from rich.console import Console
from rich.text import Text

from flaxformer.analysis.analysis import Analysis, analyse
from flaxformer.analysis.claim_history import seeds_in_words
from flaxformer.cli.arguments import Declare
from flaxformer.cli.terminal import print_json
from flaxformer.report import phrasing, verdicts
from flaxformer.runner.execution import Execution
from flaxformer.runner.launch import check_recipes, declare, plan_of, store_of
from flaxformer.store import declaration_log
from flaxformer.store.store import Store
from flaxformer.study.load import load_study
from flaxformer.study.seeds import parse_seeds
from flaxformer.system.digests import JsonObject
from flaxformer.system.wording import count_of


def main(arguments: Declare, console: Console) -> int:
    """Write the declaration of a study into its folder, and print it with its digest; nothing is trained."""
    seeds = None if arguments.seeds is None else parse_seeds(arguments.seeds)
    declared = load_study(arguments.file, arguments.overrides, seeds)
    execution = Execution(output=arguments.output)
    plan = plan_of(declared, execution)
    store = store_of(plan.study, execution)
    check_recipes(plan, store)
    declare(plan, store, arguments.on_code_change)
    declaration = describe(store, analyse(store))
    if arguments.json:
        print_json(declaration)
    else:
        show(console, declaration)
    return 0


def describe(store: Store, analysis: Analysis) -> JsonObject:
    """Return the declaration as plain data, with the digest of its line in the log."""
    log, study = declaration_log.read(store), analysis.study
    entry = log.declarations[-1]
    place = next(digest for digest, logged in log.at_digest.items() if logged is entry)
    return {
        "study": study.name,
        "folder": str(store.root),
        "time": entry.time,
        "digest": place,
        "question": study.question,
        "metric": study.metric,
        "seeds": study.seeds,
        "arms": [arm.labels for arm in analysis.arms],
        "runs": len(study.trials),
        "claims": [
            {
                "text": claim.text,
                "claimed": phrasing.claim_text(claim),
                "terms": claim.terms,
                "constant": claim.constant,
                "declared": verdicts.when_declared(claim),
            }
            for claim in analysis.claims
        ],
        "caveats": study.caveats,
        "code": entry.code,
    }


def show(console: Console, declaration: JsonObject) -> None:
    """Print a text to publish before the runs."""
    lines = [
        declaration["question"],
        f"Study '{declaration['study']}', declared on {declaration['time']}, before it runs with this declaration.",
        f"{count_of(len(declaration['arms']), 'arm')} at the seeds {seeds_in_words(declaration['seeds'])}: "
        f"{count_of(declaration['runs'], 'run')}, judged on {declaration['metric']}.",
    ]
    for number, claim in enumerate(declaration["claims"], start=1):
        lines.append(f"Claim {number}: {claim['text']} (claimed {claim['claimed']}; declared {claim['declared']}).")
    lines += ["No claim is declared."] if not declaration["claims"] else []
    lines += [f"Limit: {caveat}" for caveat in declaration["caveats"]]
    lines += [f"Code: {name} {digest}" for name, digest in declaration["code"].items()]
    for line in lines:
        console.print(Text(line))
    console.print(Text(f"Digest: {declaration['digest']}", style="bold"))
    console.print(f"Written to {declaration['folder']}; 'flaxformer run' continues it.", soft_wrap=True)
