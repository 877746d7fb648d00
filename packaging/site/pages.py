"""mkdocs hooks: README.md and CHANGELOG.md as pages of the site, and the order of what docs/ has."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = {
    "Tutorials": "tutorials",
    "How to": "how-to",
    "Reference": "reference",
    "Explanation": "explanation",
    "Decisions": "adr",
}
FIRST = {"how-to": "install.md", "adr": "README.md", "tutorials": "first-job.md"}
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "slurm_energy/DATA-LICENSES.md": "data-licenses.md",
}
"""Pages that lie outside of docs/, and what they are called in the site."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the pages of each folder, the one to begin with first."""
    docs = Path(config.docs_dir)
    navigation: list[object] = [{"Overview": "index.md"}]
    for title, folder in SECTIONS.items():
        names = sorted(path.name for path in (docs / folder).glob("*.md"))
        if folder in FIRST:
            names.remove(FIRST[folder])
            names.insert(0, FIRST[folder])
        navigation.append({title: [f"{folder}/{name}" for name in names]})
    navigation.append({"Project": ["CONTRIBUTING.md", "changelog.md", "data-licenses.md"]})
    config.nav = navigation
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside of docs/."""
    for path, name in OUTSIDE.items():
        text = (ROOT / path).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_rest: object) -> str:
    """Lead links to a file outside of docs/ to the page that stands for it."""
    up = "../" * page.file.src_uri.count("/")
    outside = up if page.file.generated_by else f"../{up}"
    for path, name in OUTSIDE.items():
        markdown = re.sub(rf"\]\({re.escape(outside + path)}(#[^)]*)?\)", rf"]({up}{name}\1)", markdown)
    return markdown
