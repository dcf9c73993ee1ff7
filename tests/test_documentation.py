"""What the pages say is so: their Python runs and prints what they show, their commands and links exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from example_world import example_complaints
from page_rules import (
    DOCTEST,
    ROOT,
    anchors,
    command_fault,
    commands,
    link_faults,
    run_page,
    undocumented,
)

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MODULES = sorted(
    ".".join(("regard", *file.relative_to(ROOT / "src" / "regard").with_suffix("").parts)).removesuffix(
        ".__init__"
    )
    for file in (ROOT / "src" / "regard").rglob("*.py")
    if file.name != "__main__.py"
)


def named(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in pages]


@pytest.mark.parametrize("page", PAGES, ids=named(PAGES))
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page.read_text("utf-8"), page.name)


@pytest.mark.parametrize("page", PAGES, ids=named(PAGES))
def test_the_commands_of_a_page_exist(page: Path) -> None:
    faults = (command_fault(words) for words in commands(page.read_text("utf-8")))
    assert [fault for fault in faults if fault] == []


@pytest.mark.parametrize("page", PAGES, ids=named(PAGES))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert link_faults(page) == []


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    complaints = example_complaints(name, tmp_path, DOCTEST)
    assert not complaints, complaints


def test_everything_public_has_a_docstring() -> None:
    import regard

    assert list(undocumented(regard, "regard")) == []


# The checks themselves, on pages that have a fault.

PAGE = """
# A page, and its heading

```python
x = 1 + 1
print(x)
```

```text
2
```
Prose: `make test` and `QUICK=1 make bench`, and the words make sure.

```python
>>> x + 1
3
```
"""


def test_a_true_page_passes() -> None:
    run_page(PAGE, "page.md")
    assert list(commands(PAGE)) == [["make", "test"], ["make", "bench"]]
    assert anchors(PAGE) == {"a-page-and-its-heading"}


@pytest.mark.parametrize(("right", "wrong"), [("\n2\n", "\n3\n"), ("x + 1", "x + 2"), ("1 + 1", "1 +")])
def test_a_page_that_is_not_true_fails(right: str, wrong: str) -> None:
    with pytest.raises((AssertionError, SyntaxError)):
        run_page(PAGE.replace(right, wrong), "page.md")


def test_output_that_stands_apart_is_not_compared() -> None:
    run_page(PAGE.replace("```text\n2", "Something else:\n```text\nother"), "page.md")


@pytest.mark.parametrize(
    ("command", "good"),
    [
        ("make test lint", True),
        ("make bench QUICK=1", True),
        ("make coffee", False),
        ("regard --help", True),
        ("regard look --demo smollm2", True),
        ("regard look --no-such-option", False),
        ("regard ponder", False),
    ],
)
def test_a_command_that_is_not_there_is_found(command: str, good: bool) -> None:
    assert (command_fault(command.split()) is None) is good


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One\n[a](#one) [b](#two) [c](page.md) [d](gone.md) [e](mailto:x)\n", "utf-8")
    assert link_faults(page) == ["page.md: #two: no such heading", "page.md: gone.md does not exist"]


def test_a_missing_docstring_is_found() -> None:
    class Bare:
        def method(self) -> None:
            pass

    class Documented:
        """A value."""

        def method(self) -> None:
            """Do it."""

    class Child(Documented):
        """A child, whose method means what its parent's means."""

        def method(self) -> None:
            pass

    for kind in (Bare, Documented, Child):
        kind.__module__ = "regard.somewhere"
    assert list(undocumented(Bare, "Bare")) == ["Bare", "Bare.method"]
    assert list(undocumented(Child, "Child")) == []
