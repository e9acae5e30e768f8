"""Pages of the site that are made when it is built: commands, Python reference, files of the repository.

- `commands.md` is the text of every command's `--help`.
- `api/PACKAGE.md` documents every public function and class of a package, from the docstrings.
- A link from a page to a file of the repository outside docs/ leads to a page with the text of that file.
- A line `<!-- include: PATH -->` in a page is replaced by that Markdown file, without its first heading.
"""

import ast
import functools
import os
import posixpath
import re
import subprocess
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from flaxformer.catalog.index import mechanisms

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "flaxformer"
INCLUDE = re.compile(r"^<!-- include: (\S+) -->$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
IMAGES = (".svg", ".png")
HELP = """
import contextlib
from flaxformer.cli import main
from flaxformer.cli.arguments import COMMANDS
for name in ["", *COMMANDS]:
    print("\\0" + name)
    with contextlib.suppress(SystemExit):
        main([name, "--help"] if name else ["--help"])
"""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the pages of the Python reference in the navigation."""
    reference = next(part["Reference"] for part in config.nav or [] if "Reference" in part)
    reference[-1] = {"Python": ["api/index.md", *(f"api/{name}.md" for name in packages())]}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, and a page for every file of the repository that a page links to."""
    made = {"commands.md": commands(), "api/index.md": reference_index()}
    made |= {f"api/{name}.md": reference(name, modules) for name, modules in packages().items()}
    for uri, text in made.items():
        files.append(File.generated(config, uri, content=text))
    hand_written = {
        file.src_uri: file.content_string for file in files.documentation_pages() if file.src_uri not in made
    }
    linked = {target for uri, text in hand_written.items() for _, target in repository_links(uri, included(text))}
    linked |= {child for path in linked for child in children(path)}
    for path in sorted(path for path in linked if Path(path).suffix in IMAGES):
        files.append(File(path, str(ROOT), config.site_dir, use_directory_urls=False))
    for path in sorted(path for path in linked if Path(path).suffix not in IMAGES):
        page = File.generated(config, f"files/{path}.md", content=file_page(path), inclusion=InclusionLevel.NOT_IN_NAV)
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Include files, and point links to files of the repository at their pages."""
    uri = page.file.src_uri
    markdown = included(markdown)
    for link, target in repository_links(uri, markdown):
        made = target if Path(target).suffix in IMAGES else f"files/{target}.md"
        own = posixpath.relpath(made, posixpath.dirname(uri) or ".")
        markdown = markdown.replace(f"]({link})", f"]({own})")
    return markdown


def included(markdown: str) -> str:
    """A page with the files that it includes; their links are made relative to docs/."""

    def read(match: re.Match[str]) -> str:
        path = match.group(1)
        text = re.sub(r"\A# .*\n", "", (ROOT / path).read_text())
        folder = posixpath.join("..", posixpath.dirname(path))

        def moved(link: re.Match[str]) -> str:
            target = posixpath.normpath(posixpath.join(folder, link[1]))
            return f"]({target.removeprefix('../docs/')}{link[2] or ''})"

        return LINK.sub(moved, text)

    return INCLUDE.sub(read, markdown)


def repository_links(uri: str, markdown: str) -> list[tuple[str, str]]:
    """The links of a page that lead out of docs/ to something that is there, each with its path in the repository."""
    found = []
    for match in LINK.finditer(markdown):
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(uri), match[1]))
        if not path.startswith(("docs/", "..")) and (ROOT / path).exists():
            found.append((match[1], path))
    return found


def children(path: str) -> list[str]:
    """The Python files of a folder of the repository."""
    return [f"{path}/{file.name}" for file in sorted((ROOT / path).glob("*.py"))] if (ROOT / path).is_dir() else []


def file_page(path: str) -> str:
    """The text of a file of the repository, or the list of a folder's Python files."""
    if (ROOT / path).is_dir():
        return f"# {path}\n\n" + "\n".join(f"- [{Path(one).name}](./{Path(path).name}/{Path(one).name}.md)"
                                            for one in children(path)) + "\n"  # fmt: skip
    kind = {".py": "python", ".toml": "toml"}.get(Path(path).suffix, "text")
    return f"# {path}\n\n{mechanism_text(path)}````{kind}\n{(ROOT / path).read_text()}\n````\n"


def mechanism_text(path: str) -> str:
    """The claim of a mechanism's source, and the measured effects, for its file; empty for another file."""
    mechanism = mechanisms().get(Path(path).stem) if path.startswith("flaxformer/catalog/") else None
    if mechanism is None:
        return ""
    lines = [f"**{mechanism.name}**: {mechanism.summary}", "", f"- Published ({mechanism.source}): {mechanism.claim}"]
    lines += [f"- Here: {effect}." for effect in mechanism.effects] or ["- Not compared here."]
    lines += [f"- Cost: {mechanism.cost}", f"- Verified against: {mechanism.verified}", ""]
    why = posixpath.relpath("effects.md#why-these-may-differ-from-what-was-published", f"files/{path}/..")
    lines += [
        f"Gains are of the test loss at equal compute (experts: equal steps); [why they may differ]({why}).",
        "",
    ]
    return "\n".join(lines) + "\n"


@functools.cache
def commands() -> str:
    """The help of every command, as it prints it."""
    environment = os.environ | {"COLUMNS": "84", "NO_COLOR": "1", "TERM": "dumb", "JAX_PLATFORMS": "cpu"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", HELP], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    text = "# Commands\n\nWhat each command prints with `--help`. The exit code is 0, 1 when a run failed, 2 for a "
    text += "mistake in the command or in a file, and 130 when interrupted.\n"
    for part in done.stdout.split("\0")[1:]:
        name, _, shown = part.partition("\n")
        shown = "\n".join(line.rstrip() for line in shown.strip().splitlines())
        text += f"\n## {'flaxformer ' + name if name else 'flaxformer'}\n\n```text\n{shown}\n```\n"
    return text


@functools.cache
def packages() -> dict[str, list[str]]:
    """The modules of each package, by its name; "flaxformer" has those that are in no other package."""
    found: dict[str, list[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        if parts[0] == "templates" or (parts[-1].startswith("_") and not (is_package and len(parts) > 2)):
            continue
        name = f"flaxformer.{parts[0]}" if len(parts) > 1 else "flaxformer"
        found.setdefault(name, []).append(".".join(("flaxformer", *(parts[:-1] if is_package else parts))))
    return dict(sorted(found.items()))


def reference_index() -> str:
    """The list of packages, each with the first line of its docstring."""
    lines = [f"- [`{name}`]({name}.md): {first_line(name)}" for name in packages()]
    text = "# Python reference\n\nMade from the docstrings, with the source of each function. "
    text += "Shapes use the axis names of [`flaxformer.nn`](flaxformer.nn.md).\n\n"
    return text + "\n".join(lines) + "\n"


def tree_of(name: str) -> ast.Module:
    """The syntax tree of a package's `__init__`, or of a module."""
    path = ROOT / name.replace(".", "/")
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())


def first_line(name: str) -> str:
    """The first paragraph of a module's docstring, on one line."""
    text = (ast.get_docstring(tree_of(name)) or "").partition("\n\n")[0].replace("\n", " ")
    return text.replace("<", "&lt;")


def reference(name: str, modules: list[str]) -> str:
    """One page: the docstring of a package, the names that it exports, and every module's functions and classes."""
    options = "    options: {show_root_heading: false, show_root_toc_entry: false"
    text = f"# {name}\n\n::: {name}\n{options}, members: false}}\n"
    if exported := exports(name):
        text += f"\nImport from here: {', '.join(exported)}.\n"
    for module in modules:
        text += f"\n## {module.removeprefix(name).lstrip('.')}\n\n`{module}`\n\n::: {module}\n{options}}}\n"
    return text


def exports(name: str) -> list[str]:
    """The names in a package's `__all__`, functions and classes as links to their documentation."""
    tree, found = tree_of(name), {}
    for node in ast.walk(tree):  # names of lazy packages are imported under TYPE_CHECKING
        if isinstance(node, ast.ImportFrom):
            defined = tree_of(str(node.module)).body if str(node.module).startswith("flaxformer.") else []
            public = {one.name for one in defined if isinstance(one, ast.FunctionDef | ast.ClassDef)}
            found |= {one.name: f"[`{one.name}`][{node.module}.{one.name}]" for one in node.names if one.name in public}
    lists = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and "__all__" in ast.dump(node.targets[0])
    ]
    return [found.get(one, f"`{one}`") for one in (ast.literal_eval(lists[0]) if lists else [])]
