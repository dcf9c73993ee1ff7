"""The front end's files as one script and one style sheet: no build step, no network, one concept a file.

Scripts are plain ES modules. A page opened from disk may not import its neighbours, so each module becomes
a function that returns what it exports, in an order in which every import is already there.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class)\b)", re.MULTILINE)
_EXPORTED = re.compile(r"^export (?:async )?(?:function|const|class) (\w+)", re.MULTILINE)
_STYLES = ("theme.css", "layout.css", "grid.css", "head.css", "text.css", "answers.css", "lesson.css")


def read_asset(name: str) -> str:
    """The text of a file below `assets/`."""
    return (resources.files("regard.viewer") / "assets" / name).read_text(encoding="utf-8")


@cache
def script(entry: str = "main.js") -> str:
    """Every module that `entry` needs, itself last, as one script."""
    done: dict[str, str] = {}
    _visit(entry, done, ())
    return '"use strict";\nconst modules = {};\n' + "\n".join(done.values())


@cache
def style() -> str:
    """The style sheets, joined in order."""
    return "\n".join(read_asset(f"css/{name}") for name in _STYLES)


def _visit(name: str, done: dict[str, str], path: tuple[str, ...]) -> None:
    if name in done:
        return
    if name in path:
        raise ValueError(f"the scripts import one another in a circle: {' -> '.join((*path, name))}")
    source = read_asset(f"js/{name}")
    for match in _IMPORT.finditer(source):
        _visit(match[2], done, (*path, name))
    body = _IMPORT.sub(lambda match: f'const {{{match[1]}}} = modules["{match[2]}"];\n', source)
    if re.search(r"^import\b", body, re.MULTILINE):
        raise ValueError(
            f'{name} has an import that is not of the form `import {{ a, b }} from "./file.js";`'
        )
    exported = ", ".join(_EXPORTED.findall(source))
    done[name] = f'modules["{name}"] = (() => {{\n{_EXPORT.sub("", body)}\nreturn {{ {exported} }};\n}})();\n'
