"""The project's own rules for text; a failure names the place and the remedy.

The idea is TigerBeetle's `tidy`: a rule that no tool checks is not followed.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES_MAX = 500
TEST_FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 60
INIT_LINES_MAX = 40
BAG_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields of nodes that hold statements."""
MARKDOWN_LINK = re.compile(r"\[[^\]]*\]\(([^)#]+)(?:#[^)]*)?\)")


def tracked(*suffixes: str) -> list[Path]:
    """Files of the repository with these endings, including uncommitted ones."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [ROOT / line for line in listed.stdout.splitlines()]
    return [path for path in paths if path.suffix in suffixes and path.is_file()]


PYTHON_FILES = tracked(".py")


def is_test(path: Path) -> bool:
    return "tests" in path.relative_to(ROOT).parts


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_files_have_a_bounded_size_a_name_and_a_docstring() -> None:
    """One test for all files: a thousand tests would cost more than the checks."""
    broken = [complaint for path in PYTHON_FILES for complaint in _complaints(path)]
    assert not broken, "\n" + "\n".join(broken)


def _complaints(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    bound = TEST_FILE_LINES_MAX if is_test(path) else FILE_LINES_MAX
    if lines > bound:
        yield f"{name_of(path)} has {lines} lines; split it by responsibility (max {bound})"
    if path.stem in BAG_NAMES:
        yield f"{name_of(path)}: name the file after its content"
    tree = ast.parse(text)
    if path.name == "__init__.py":
        if lines > INIT_LINES_MAX:
            yield f"{name_of(path)}: an __init__ holds a docstring and re-exports"
    elif lines > 5 and not ast.get_docstring(tree):
        yield f"{name_of(path)}: write a module docstring"
    for function in _functions(tree):
        assert function.end_lineno is not None
        length = function.end_lineno - function.lineno + 1
        if length > FUNCTION_LINES_MAX:
            place = f"{name_of(path)}:{function.lineno} {function.name}"
            yield f"{place} has {length} lines (max {FUNCTION_LINES_MAX})"


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions, also nested ones. Expressions contain none, and most nodes are expressions."""
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        for block in BLOCKS:
            nodes += getattr(node, block, ())


def test_links_lead_somewhere() -> None:
    broken = [
        f"{name_of(path)} links to {target}, which does not exist"
        for path in tracked(".md")
        for target in MARKDOWN_LINK.findall(path.read_text(encoding="utf-8"))
        if "://" not in target and not target.startswith("mailto:") and not (path.parent / target).exists()
    ]
    assert not broken, "\n" + "\n".join(broken)


def test_locks_name_no_index() -> None:
    for lock in (ROOT / "requirements").glob("*.lock"):
        text = lock.read_text(encoding="utf-8")
        assert "://" not in text, f"{name_of(lock)} names an index; write it with `make lock`"
        assert "--hash=" in text, f"{name_of(lock)} has no hashes; write it with `make lock`"


def test_every_design_note_is_indexed() -> None:
    design = ROOT / "docs" / "design"
    index = (design / "README.md").read_text(encoding="utf-8")
    for note in sorted(design.glob("*.md")):
        assert note.name == "README.md" or f"({note.name})" in index, (
            f"docs/design/README.md does not list {note.name}"
        )


def test_references_to_design_notes_name_a_section() -> None:
    """Code and docs name a note of docs/design, and often a section of it, by the anchor of its heading."""
    design = ROOT / "docs" / "design"
    anchors = {
        note.name: {
            re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
            for heading in re.findall(r"^#+ (.+)$", note.read_text(encoding="utf-8"), re.MULTILINE)
        }
        for note in design.glob("*.md")
    }
    reference = re.compile(r"\bdesign/([a-z-]+\.md)(?:#([a-z0-9-]+))?")
    inside = re.compile(r"\]\(([a-z-]+\.md)?#([a-z0-9-]+)\)")
    for path in [*PYTHON_FILES, *tracked(".pyx"), *tracked(".md")]:
        text = path.read_text(encoding="utf-8")
        found = reference.findall(text)
        if path.parent == design:
            found += [(name or path.name, anchor) for name, anchor in inside.findall(text)]
        for name, anchor in found:
            assert name in anchors, f"{name_of(path)} names docs/design/{name}, which does not exist"
            assert not anchor or anchor in anchors[name], (
                f"{name_of(path)}: docs/design/{name} has no section #{anchor}"
            )


def test_every_star_max_is_used() -> None:
    """A bound that nothing reads bounds nothing."""
    sources = {path: path.read_text(encoding="utf-8") for path in PYTHON_FILES if not is_test(path)}
    defined = re.compile(r"^\s*([A-Za-z_]*(?:_max|_MAX))\s*(?::[^=\n]*)?=", re.MULTILINE)
    uses = Counter(word for text in sources.values() for word in re.findall(r"\w+", text))
    for path, text in sources.items():
        for name in defined.findall(text):
            assert uses[name] >= 2, f"{name_of(path)} defines {name}, and nothing reads it"
