"""The public surface: what ``import outlines_phi`` offers, and nothing by accident."""

import ast
import importlib
import importlib.metadata
import subprocess
import sys
import types
from pathlib import Path

import pytest

import outlines_phi

PUBLIC = [
    "AuditReport",
    "AutoPhi",
    "BannedPhrases",
    "BigramDPPhi",
    "BudgetError",
    "Draw",
    "Draws",
    "Effort",
    "EmptyLanguageError",
    "ExactPhi",
    "FidelityWarning",
    "FieldsPhi",
    "FitWarning",
    "FreeText",
    "Generator",
    "GrammarError",
    "Guarantee",
    "LearnedPhi",
    "LocalPhi",
    "LookaheadPhi",
    "Marginals",
    "OneStepPhi",
    "OutlinesPhiError",
    "PhiLogitsProcessor",
    "PhiTransformers",
    "Probabilities",
    "Progress",
    "SMC",
    "SamplingSettings",
    "SchemaWarning",
    "Special",
    "StateValues",
    "TextConstraint",
    "Thinking",
    "Tools",
    "UnsupportedError",
    "ValueReadError",
    "Vocabulary",
    "audit",
    "ban",
    "custom_generate",
    "from_guidance",
    "from_language_model",
    "from_transformers",
    "from_vllm_offline",
    "generate",
    "install",
    "limits",
    "register_backend",
    "samplers",
    "structural_tag",
    "uninstall",
    "wrap",
]
"""A name that leaves this list breaks somebody's program. There are 44 at most; what few applications need is in a folder."""

FOLDERS = ["drafting", "errors", "fidelity", "guides", "lm", "phi", "ray", "sampling", "testing"]
"""The folders that `import outlines_phi` reaches by a dot without an import of their own."""

LISTED = sorted(PUBLIC + FOLDERS)


def test_the_list_is_pinned() -> None:
    assert outlines_phi.__all__ == LISTED


def test_every_name_is_there_and_documented() -> None:
    assert [name for name in PUBLIC if not getattr(outlines_phi, name).__doc__] == []


def printed(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_nothing_heavy_is_imported_before_it_is_used() -> None:
    heavy = "print(sorted({'torch', 'transformers', 'outlines'} & set(sys.modules)))"
    assert printed(f"import sys, outlines_phi.cli.app; {heavy}") == "[]"
    assert (
        printed("import sys, outlines_phi; outlines_phi.Generator; print('transformers.modeling_utils' in sys.modules)")
        == "False"
    )


def test_a_folder_is_there_without_an_import_of_its_own() -> None:
    """Each in a process of its own, where none of the others has imported it."""
    names = [printed(f"import outlines_phi; print(outlines_phi.{folder}.__name__)") for folder in FOLDERS]
    assert names == [f"outlines_phi.{folder}" for folder in FOLDERS]


def test_nothing_else_is_public() -> None:
    others = {name for name in vars(outlines_phi) if not name.startswith("_")} - set(PUBLIC)
    assert all(isinstance(getattr(outlines_phi, name), types.ModuleType) for name in others - {"lazy_loader"})
    assert dir(outlines_phi) == sorted([*LISTED, "__version__"])


@pytest.mark.parametrize("folder", ["drafting", "fidelity", "guides", "lm", "phi", "sampling", "testing"])
def test_folders_offer_what_few_applications_need(folder: str) -> None:
    module = importlib.import_module(f"outlines_phi.{folder}")
    assert module.__all__
    assert [name for name in module.__all__ if not getattr(module, name).__doc__] == []
    assert set(module.__all__).isdisjoint(PUBLIC)


@pytest.mark.parametrize(("name", "folder"), [("FirstOf", "drafting"), ("JSONGuide", "guides"), ("TableModel", "lm")])
def test_a_name_of_a_folder_is_refused_by_the_name_that_it_has_there(name: str, folder: str) -> None:
    with pytest.raises(AttributeError, match=f"^Use outlines_phi.{folder}.{name}: "):
        getattr(outlines_phi, name)
    with pytest.raises(AttributeError, match="FirstOff"):
        outlines_phi.FirstOff  # noqa: B018


def test_every_name_is_re_exported_by_itself() -> None:
    """``from .x import A as A``: type checkers and editors then know that it is public."""
    source = Path(outlines_phi.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    imports = [node for node in ast.parse(source).body if isinstance(node, ast.ImportFrom) and node.level]
    assert sorted(alias.name for node in imports for alias in node.names) == LISTED
    assert all(alias.asname == alias.name for node in imports for alias in node.names)


def test_the_version_is_that_of_the_distribution() -> None:
    pyproject = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{outlines_phi.__version__}"' in pyproject
    try:
        installed = importlib.metadata.version("outlines_phi")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("outlines_phi is not installed, only importable")
    assert installed == outlines_phi.__version__
