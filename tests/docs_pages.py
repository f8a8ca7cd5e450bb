"""The documentation as tests see it: its pages, their code blocks, and the modules that generate the reference."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
OPENING = re.compile(r"^(`{3,})(\w*)(.*)$")
DIRECTIVE = re.compile(r"^<!-- (.*) -->$")
NOT_TESTED = "not tested: "
INSERT = re.compile(r"insert into (\S+) before: (.*)")


@dataclass(frozen=True)
class Block:
    """A fenced block. line: of its opening, from 1. directive: the comment on the line before; "" for none."""

    page: Path
    line: int
    language: str
    title: str
    directive: str
    text: str

    @property
    def where(self) -> str:
        """ "docs/page.md:12"."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def reason(self) -> str:
        """Why it is not tested; "" if it is."""
        return self.directive.removeprefix(NOT_TESTED) if self.directive.startswith(NOT_TESTED) else ""


@dataclass(frozen=True)
class Command:
    """A command of a console block, and the lines that the page shows after it."""

    text: str
    shown: tuple[str, ...]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    lines = page.read_text("utf-8").splitlines()
    at = 0
    while at < len(lines):
        opening = OPENING.match(lines[at])
        if opening:
            end = next(i for i in range(at + 1, len(lines)) if lines[i] == opening[1])
            title = re.search(r'title="([^"]+)"', opening[3])
            above = DIRECTIVE.match(lines[at - 1]) if at else None
            text = "".join(f"{line}\n" for line in lines[at + 1 : end])
            found.append(Block(page, at + 1, opening[2], title[1] if title else "", above[1] if above else "", text))
            at = end
        at += 1
    return found


def commands(block: Block) -> list[Command]:
    """The commands of a console block. A here-document belongs to its command."""
    found: list[Command] = []
    until = ""
    for line in block.text.splitlines():
        if until:
            found[-1] = Command(f"{found[-1].text}\n{line}", ())
            until = "" if line == until else until
        elif line.startswith("$ "):
            found.append(Command(line[2:], ()))
            heredoc = re.search(r"<<'?(\w+)'?", line)
            until = heredoc[1] if heredoc else ""
        else:
            found[-1] = Command(found[-1].text, (*found[-1].shown, line))
    return found


def pages(*folders: str) -> list[Path]:
    """The pages of these folders of the documentation; of all without one."""
    return sorted(page for folder in folders or (".",) for page in (DOCS / folder).rglob("*.md"))


def hook(name: str) -> ModuleType:
    """A module of docs/_hooks that needs no MkDocs."""
    if str(DOCS / "_hooks") not in sys.path:
        sys.path.append(str(DOCS / "_hooks"))
    return import_module(name)


def broken_links(text: str, origin: str) -> Iterator[str]:
    """Targets of a text's relative links that are not there, as in a clone. origin: its path in the repository. An
    anchor must be a heading of the file."""
    links = hook("links")
    for match in links.links(text):
        target, anchor = match[3], re.sub(r"[>\s\"].*", "", match[4].removesuffix(")")).removeprefix("#")
        if ":" in target or not (target or anchor):
            continue
        path = links.resolved(target, origin, ROOT) if target else origin
        if path is None:
            yield f"{target}: there is no such file"
        elif anchor and anchor not in anchors((ROOT / path).read_text("utf-8") if target else text):
            yield f"{target}#{anchor}: there is no such heading"


def anchors(text: str) -> set[str]:
    """The anchors that Python-Markdown gives the headings of a text."""
    headings = (line for part, is_code in hook("links").blocks(text) if not is_code for line in part.splitlines())
    plain = (re.sub(r"[^\w\s-]", "", heading.lstrip("# ")).strip().lower() for heading in headings
             if heading.startswith("#"))  # fmt: skip
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}
