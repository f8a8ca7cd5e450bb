"""The reference is complete: generated pages have every option, name and field, written ones every fact of the code."""

import re

import msgspec
import pytest
import typer

import tilewright as tw
from docs_pages import DOCS, ROOT, hook
from tilewright import errors
from tilewright.cli import VERBS, app
from tilewright.formats import sampling_fields
from tilewright.models.dcgan import DCGANConfig, DCGANLayer
from tilewright.models.gpt2 import GPT2Config
from tilewright.models.textcnn import TextCNNConfig
from tilewright.runtime.load import KINDS


def text_of(page: str) -> str:
    return (DOCS / page).read_text("utf-8")


def test_generated_pages_are_committed_as_the_code_makes_them():
    """So their links work in a clone. After a change of a docstring or an option: `make reference`."""
    made = hook("reference_pages")
    stale = [page for page in made.PAGES if text_of(page) != made.text_of(page)]
    assert not stale, "run `make reference` and commit the pages"
    assert {page.name for page in (DOCS / "reference/cli").iterdir()} == {f"{verb}.md" for verb in VERBS}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_has_a_page_with_every_option(verb):
    assert f"(cli/{verb}.md)" in text_of("reference/index.md")
    page = hook("cli_reference").verb_page(verb)
    assert "x>=" not in page and "<=x" not in page and "&lt;=x" not in page
    group = typer.main.get_command(app)
    command = group.get_command(group.context_class(group), verb)
    for each in (command, *(getattr(command, "commands", None) or {}).values()):
        missing = [o for p in each.params if not getattr(p, "hidden", False) and p.param_type_name == "option"
                   for o in p.opts if o not in page]  # fmt: skip
        assert getattr(each, "hidden", False) or not missing


def test_an_option_without_a_help_text_stops_the_build():
    def silent(depth: int = 3): ...

    lone = typer.Typer()
    lone.command()(silent)
    command = typer.main.get_command(lone)
    with pytest.raises(ValueError, match="has no help text"):
        hook("cli_reference")._options(command, command.context_class(command, info_name="x"))


def test_the_python_page_has_every_public_name():
    page = hook("python_reference").python_page()
    assert not [name for name in tw.__all__ if f"`{name}`" not in page]
    assert "### tw.matmul" in page and "### GPT2.generate" in page


def test_a_public_name_without_a_docstring_stops_the_build():
    def bare(): ...

    with pytest.raises(ValueError, match="bare is public and has no docstring"):
        hook("python_reference")._doc(bare)


def test_docstrings_become_markdown():
    paragraphs = hook("cli_reference").paragraphs
    assert paragraphs("One *two* [three](x) `a*b`.") == r"One \*two\* \[three\](x) `a*b`."
    assert paragraphs("Formula:\n\nout[b] = x[b] * 2\n") == "Formula:\n\n```text\nout[b] = x[b] * 2\n```"
    assert paragraphs("\b\ntilewright plan x") == "```text\ntilewright plan x\n```"


def test_the_sampling_page_has_every_field():
    page = hook("sampling_reference").sampling_page()
    groups = (
        sampling_fields.HONOURED, sampling_fields.HARMLESS, sampling_fields.REFUSED,
        sampling_fields.HARMLESS_IN_BODY, sampling_fields.REFUSED_IN_BODY,
    )  # fmt: skip
    assert not [name for group in groups for name in group if f"`{name}`" not in page]


def test_exit_codes_are_complete():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    page = text_of("reference/exit-codes.md")
    assert not [code for code in {0, 1, *(kind.exit_code for kind in kinds)} if f"\n| {code} |" not in page]


def test_environment_variables_are_complete():
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    found = {name for file in files for name in re.findall(r"TILEWRIGHT_[A-Z]+", file.read_text("utf-8"))}
    page = text_of("reference/environment.md")
    assert len(found) > 4
    assert not [name for name in found if f"`{name}`" not in page]


@pytest.mark.parametrize(
    ("config", "page"),
    [
        (GPT2Config, "reference/models.md"),
        (TextCNNConfig, "tutorials/pytorch-models.md"),
        (DCGANConfig, "tutorials/pytorch-models.md"),
        (DCGANLayer, "tutorials/pytorch-models.md"),
    ],
)
def test_every_field_of_a_configuration_is_told(config, page):
    text = text_of(page)
    assert not [field.name for field in msgspec.structs.fields(config) if f"`{field.name}`" not in text
                and f"{field.name}: " not in text]  # fmt: skip


def test_every_model_family_is_listed():
    page = text_of("reference/models.md")
    assert not [kind for kind in KINDS if f"\n| `{kind}` |" not in page]
