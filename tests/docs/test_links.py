"""Every relative link of the documentation leads to a file and a heading, and every page is in the navigation."""

import pytest

from docs_pages import DOCS, ROOT, anchors, broken_links, hook, pages

OUTSIDE = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
READMES = sorted(page for folder in ("src", "examples") for page in (ROOT / folder).rglob("*.md"))
FILES = [*pages(), *(ROOT / name for name in OUTSIDE), *READMES]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(file):
    origin = file.relative_to(ROOT).as_posix()
    assert not list(broken_links(file.read_text("utf-8"), origin))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[a](guide/index.md) [b](guide/resume.md#what-is-lost) [c](https://x.y/z) [d](reference/cli/plan.md)", []),
        ("`[a](none.md)`\n```\n[b](none.md)\n```\n", []),
        ("[a](none.md)", ["none.md: there is no such file"]),
        ("[a](guide/resume.md#none)", ["guide/resume.md#none: there is no such heading"]),
        ("![a](../results/none.svg)", ["../results/none.svg: there is no such file"]),
        ("# A b\n[a](#a-b) [b](#c)", ["#c: there is no such heading"]),
    ],
)
def test_a_broken_link_is_found(text, found):
    assert list(broken_links(text, "docs/index.md")) == found


def test_anchors_are_those_of_headings():
    assert anchors("# In the body: `x_y` of a-b\n```\n# no\n```\ntext\n") == {"in-the-body-x_y-of-a-b"}


def test_links_out_of_the_documentation_become_pages():
    links = hook("links")
    text = "[a](../../ARCHITECTURE.md) [b](same-bits.md) [c](../../src/tilewright/errors.py#x) `[d](../../LICENSE)`"
    assert links.rewritten(text, "docs/design/gpu.md", "design/gpu.md", ROOT, "docs") == (
        "[a](../repository/ARCHITECTURE.md) [b](same-bits.md) [c](../repository/src/tilewright/errors.py.md#x) "
        "`[d](../../LICENSE)`"
    )
    text = "[a](docs/design/gpu.md) [b](src/tilewright)"
    assert links.rewritten(text, "README.md", "repository/README.md", ROOT, "docs") == (
        "[a](../design/gpu.md) [b](src/tilewright.md)"
    )


def test_a_folder_of_the_navigation_is_all_of_its_pages():
    navigation = hook("navigation")
    found = list(navigation.expanded(["index.md", {"Guides": ["guide/"]}, {"Verbs": "reference/cli/"}], DOCS))
    guides, verbs = found[1]["Guides"], found[2]["Verbs"]
    assert found[0] == "index.md"
    assert guides[0] == "guide/index.md" and sorted(guides[1:]) == guides[1:] and "guide/mpi.md" in guides
    assert "reference/cli/generate.md" in verbs


def test_make_docs_stops_at_a_broken_link():
    """With --quiet MkDocs does not count warnings, and --strict has no effect."""
    (line,) = (line for line in (ROOT / "Makefile").read_text().splitlines() if "mkdocs build" in line)
    assert "--strict" in line and "quiet" not in line and " -q" not in line
