"""The rules of the source tree, as functions that list every breach of one as a sentence."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

# Each module may import those of the stages before its own, and its neighbours as long as no circle arises.
STAGES = (
    {"errors", "_native", "extension"},
    {"intervals", "scanning", "indexing", "versions", "dropout", "diagonals", "products", "compiling"},
    {"masks", "biases"},
    {"problem"},
    {"autocast", "listening"},
    {"scores", "ranking", "reference", "online_softmax", "statistics"},
    {"engines"},
    {
        "attention",
        "gradients",
        "statistic_gradients",
        "slicing",
        "torch_drop_in",
        "weights",
        "transposed_weights",
        "asking",
        "weights_html",
        "opaque",
        "short_way",
    },
    {"nn", "recording"},
    {"models", "answers", "checks", "distributed"},
    {"steps"},
    {"viewer"},
    {"cli"},
)
STAGE_OF = {name: number for number, names in enumerate(STAGES) for name in names}
# These stand on top of everything, and nothing imports them.
TOPMOST = {"", "__main__", "testing"}
CORE = {name for names in STAGES[: STAGES.index({"nn", "recording"}) + 1] for name in names}
MODEL_LIBRARIES = {"transformers", "tokenizers", "safetensors", "gguf", "accelerate", "timm", "diffusers"}
OPTIONAL_LIBRARIES = MODEL_LIBRARIES | {"matplotlib", "rich", "starlette", "uvicorn"}

SHARED_BY_ENGINES = {"base"}

MOST_LINES = 400
# Spelled in pieces, so that this file may pass its own check.
LEFTOVERS = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b")


def python_files(package: Path) -> list[Path]:
    return sorted(package.rglob("*.py"))


def module_name(file: Path, package: Path) -> str:
    """Name of a file's module inside the package: "" for the package itself, "masks.causal", …"""
    parts = file.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(file: Path, package: Path, *, inside_functions: bool, for_typing: bool) -> Iterator[str]:
    """Absolute names of everything that a file imports, `from a import b` giving `a.b`.

    With or without what stands inside functions, and what stands under `if TYPE_CHECKING`.
    """
    name = module_name(file, package)
    # The package that a relative import of this file starts from.
    here = ["regard", *name.split(".")] if name else ["regard"]
    if file.name != "__init__.py":
        here = here[:-1]
    for node in statements(ast.parse(file.read_text("utf-8"), file), inside_functions, for_typing):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = here[: len(here) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def statements(node: ast.AST, inside_functions: bool, for_typing: bool) -> Iterator[ast.AST]:
    """Every node of a syntax tree that is not in a place left out."""
    for child in ast.iter_child_nodes(node):
        if not inside_functions and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if not for_typing and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from statements(child, inside_functions, for_typing)


def module_imports(package: Path, *, for_typing: bool = True) -> dict[str, set[str]]:
    """The modules of the package that each of its modules imports, inside functions too."""
    names = {module_name(file, package): file for file in python_files(package)}
    names |= {file.stem: file for file in package.glob("*.pyi")}  # what is compiled stands as its stub alone
    imports: dict[str, set[str]] = {name: set() for name in names}
    for name, file in names.items():
        for target in imported_names(file, package, inside_functions=True, for_typing=for_typing):
            if target != "regard" and not target.startswith("regard."):
                continue
            inner = target.removeprefix("regard").removeprefix(".")
            # `from regard.masks import causal` names a module or something in one: take the longest module.
            while inner not in names and inner:
                inner = inner.rpartition(".")[0]
            imports[name].add(inner)
        imports[name].discard(name)
    return imports


def one_way_faults(package: Path) -> list[str]:
    """Every import that points the wrong way, as a sentence."""
    faults = []
    imports = module_imports(package)
    for name, targets in sorted(imports.items()):
        top = name.partition(".")[0]
        if top in TOPMOST:
            continue
        if top not in STAGE_OF:
            faults.append(f"{name} has no stage: give it one in STAGES")
            continue
        for target in sorted(targets):
            target_top = target.partition(".")[0]
            if target_top in TOPMOST:
                # `import regard` from inside: the importer sees the whole package, so has no stage any more.
                faults.append(f"{name} imports {target or 'regard'}, which stands above everything")
            elif STAGE_OF.get(target_top, 0) > STAGE_OF[top]:
                faults.append(f"{name} imports {target}, which comes after it")
            elif engine_of(name) and engine_of(target) not in {None, engine_of(name)}:
                faults.append(f"{name} imports {target}, another engine")
    # Among neighbours, a name that only annotations use makes no circle.
    tops: dict[str, set[str]] = {}
    for name, targets in module_imports(package, for_typing=False).items():
        tops.setdefault(name.partition(".")[0], set()).update(target.partition(".")[0] for target in targets)
    return faults + [f"a circle: {' -> '.join(circle)}" for circle in circles(tops)]


def engine_of(name: str) -> str | None:
    """The engine that a module is or belongs to; None outside engines/ and for what all engines share."""
    folder, _, rest = name.partition(".")
    engine = rest.partition(".")[0]
    return engine if folder == "engines" and engine and engine not in SHARED_BY_ENGINES else None


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Circles of top-level names that import one another, each found once."""
    found: list[list[str]] = []
    done: set[str] = set()

    def follow(name: str, path: list[str]) -> None:
        if name in path:
            found.append([*path[path.index(name) :], name])
        elif name not in done:
            for target in sorted(imports.get(name, set()) - TOPMOST - {name}):
                follow(target, [*path, name])
            done.add(name)

    for name in sorted(set(imports) - TOPMOST):
        follow(name, [])
    return found


def library_faults(package: Path) -> list[str]:
    """Imports of libraries in places that must do without them, as sentences."""
    faults = []
    for file in python_files(package):
        name = module_name(file, package)
        top = name.partition(".")[0]
        when_imported = imported_names(file, package, inside_functions=False, for_typing=False)
        if top in CORE | TOPMOST:
            foreign = libraries(when_imported) - sys.stdlib_module_names - {"torch", "regard"}
            faults += [f"{name or 'regard'} imports {library} when imported" for library in sorted(foreign)]
        if top == "viewer":
            ever = set(imported_names(file, package, inside_functions=True, for_typing=True))
            faults += [
                f"{name} imports {one}, a model library" for one in sorted(libraries(ever) & MODEL_LIBRARIES)
            ]
            if any(target.startswith("regard.models") for target in ever):
                faults.append(f"{name} imports regard.models, which loads models")
    return faults


def libraries(names: Iterable[str]) -> set[str]:
    """The libraries that imported names belong to."""
    return {name.partition(".")[0] for name in names}


def purpose_fault(file: Path) -> str | None:
    """What is wrong with a file's opening, if anything: its first lines must say what it is for."""
    text = file.read_text("utf-8")
    if file.suffix == ".py":
        try:
            purpose = ast.get_docstring(ast.parse(text))
        except SyntaxError as error:
            return f"{file} does not parse: {error}"
        first = (purpose or "").split("\n")[0]
    else:
        opening = re.match(r"\s*(?:<!doctype html>\s*)?(?://+|/\*+|<!--+)\s*([^\n]*)", text, re.IGNORECASE)
        first = opening[1] if opening else ""
    if len(first.split()) < 4:
        return f"{file} does not open with a line that says its purpose"
    return None


def source_files(root: Path) -> list[Path]:
    """Every file that people read as source: Python, JavaScript, CSS and HTML of all folders."""
    folders = ("src", "tests", "bench", "examples", "csrc", ".ci")
    suffixes = {".py", ".js", ".css", ".html"}
    return sorted(f for d in folders for f in (root / d).rglob("*") if f.suffix in suffixes and f.is_file())


def size_faults(files: list[Path]) -> list[str]:
    lengths = ((file, len(file.read_text("utf-8").splitlines())) for file in files)
    return [
        f"{file} has {length} lines, more than {MOST_LINES}"
        for file, length in lengths
        if length > MOST_LINES
    ]


def leftover_faults(files: list[Path]) -> list[str]:
    return [
        f"{file}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        if LEFTOVERS.search(line)
    ]
