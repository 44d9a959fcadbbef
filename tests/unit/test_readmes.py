"""The README.md of each package: there, at most a page, and true about the files that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from components.documents.images import ignored, parse_ignore

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    *("infra", "infra/settings", "components", "components/documents", "launcher", "trainer", "tests"),
    *(f"trainyard/{name}" for name in ("k8s", "operator", "kubectl", "workspace")),
    *(f"trainyard/{name}" for name in ("preflight", "policies", "cli")),
    *("trainyard", "local", *(f"local/{name}" for name in ("aws", "cluster", "nodes", "plugins", "tools"))),
)
PAGE_LINES = 45
# What is in back quotes and ends like a file or a directory; names that begin with a dot are made by commands.
NAMED = re.compile(r"`(\w[\w./-]*(?:\.(?:py|md|yaml|toml|c|sh|txt)|/))`")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def missing(page: Path) -> list[str]:
    """Return the files and directories that a page names or links to, and that do not exist."""
    text = page.read_text()
    names = [name for name in NAMED.findall(text) if "<" not in name]
    found = [name for name in names if not any((base / name).exists() for base in (page.parent, ROOT))]
    links = [link for link in LINK.findall(text) if "://" not in link]
    return found + [link for link in links if not (page.parent / link).exists()]


@pytest.mark.parametrize("package", PACKAGES)
def test_readme_of_a_package_is_a_page_of_existing_files(package: str) -> None:
    page = ROOT / package / "README.md"
    assert len(page.read_text().splitlines()) <= PAGE_LINES
    assert missing(page) == []


def test_page_with_a_renamed_file_is_found(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("`gone.py`, `here.py`, [a](lost.md#part), [b](here.py), [c](https://example.com/x.md)\n")
    (tmp_path / "here.py").touch()
    assert missing(page) == ["gone.py", "lost.md"]


def test_architecture_page_links_the_readme_of_each_package() -> None:
    page = ROOT / "docs" / "architecture.md"
    linked = {(page.parent / link).resolve() for link in LINK.findall(page.read_text()) if "://" not in link}
    assert [each for each in PACKAGES if ROOT / each / "README.md" not in linked] == []
    assert missing(page) == []


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = [
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each) for each in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    ]
    return {re.sub(r"[^\w\- ]", "", each.strip().lower()).replace(" ", "-") for each in titles}


def lost_links(page: Path) -> list[str]:
    """Return the links of a page whose file or heading does not exist."""
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        if "://" not in link and not (target.exists() and (not heading or heading in headings(target))):
            lost.append(link)
    return lost


PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("examples/**/*.md"),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert lost_links(page) == []


def test_link_to_a_missing_heading_is_found(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(
        "# `make up`: The first\n[a](#make-up-the-first) [b](#lost) [c](README.md#lost) [d](gone.md)\n"
    )
    assert lost_links(page) == ["#lost", "README.md#lost", "gone.md"]


def decisions() -> list[tuple[str, str]]:
    """The files and functions of the architecture page's table of decisions."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    return re.findall(r"\]\(\.\./([\w/-]+\.py)\), `(\w+)\(\)`", text)


def test_architecture_page_names_functions_of_decisions() -> None:
    assert len(decisions()) >= 6
    lost = [(file, name) for file, name in decisions() if f"def {name}(" not in (ROOT / file).read_text()]
    assert lost == []


@pytest.mark.parametrize(
    "ignore_file", [".dockerignore", "launcher/Dockerfile.dockerignore", "trainer/Dockerfile.dockerignore"]
)
def test_images_contain_no_readme_of_a_package(ignore_file: str) -> None:
    patterns = parse_ignore((ROOT / ignore_file).read_text())
    assert [each for each in PACKAGES if not ignored(f"{each}/README.md", patterns)] == []
