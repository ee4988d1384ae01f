"""The public surface: what ``import outlines_phi`` offers, and nothing by accident."""

from __future__ import annotations

import ast
import importlib.metadata
import types
from pathlib import Path

import pytest

import outlines_phi

PUBLIC = [
    "AdaptedLength",
    "AllOf",
    "AuditReport",
    "AutoPhi",
    "BannedPhrases",
    "BigramDPPhi",
    "BudgetError",
    "CFGGuide",
    "Certificate",
    "ConstraintError",
    "Draft",
    "DraftError",
    "DraftRun",
    "Drafter",
    "Drafting",
    "Draw",
    "Draws",
    "Effort",
    "EmptyLanguageError",
    "EndingDrafter",
    "ExactPhi",
    "FSMGuide",
    "FidelityWarning",
    "FirstOf",
    "ForcedDrafter",
    "FrozenDPPhi",
    "Generator",
    "GrammarError",
    "GrammarWarning",
    "Guarantee",
    "Guide",
    "InterruptedDraws",
    "JSONGuide",
    "LanguageModel",
    "LearnedPhi",
    "LocalPhi",
    "Lookahead1Phi",
    "LookaheadPhi",
    "Member",
    "ModelDrafter",
    "ModelError",
    "OneStepPhi",
    "OutlinesPhiError",
    "PIMH",
    "PhiLogitsProcessor",
    "PhiTransformers",
    "Population",
    "Probabilities",
    "Probability",
    "Progress",
    "PromptLookupDrafter",
    "Ranking",
    "RolloutPhi",
    "SMC",
    "SamplingSettings",
    "SchemaWarning",
    "Site",
    "StateValues",
    "Table",
    "TableModel",
    "TextConstraint",
    "TransformersModel",
    "TreeDrafter",
    "UnsupportedError",
    "ValueReadError",
    "Vocabulary",
    "VocabularyError",
    "audit",
    "ban",
    "custom_generate",
    "from_transformers",
    "generate",
    "install",
    "read_grammar",
    "samplers",
    "uninstall",
    "wrap",
]
"""A name that leaves this list breaks somebody's program."""


def test_the_list_is_pinned() -> None:
    assert outlines_phi.__all__ == PUBLIC


def test_the_list_is_sorted() -> None:
    assert sorted(outlines_phi.__all__) == outlines_phi.__all__


def test_every_name_is_there_and_documented() -> None:
    assert [name for name in PUBLIC if not getattr(outlines_phi, name).__doc__] == []


def test_nothing_else_is_public() -> None:
    names = {
        name
        for name, value in vars(outlines_phi).items()
        if not name.startswith("_") and (name in PUBLIC or not isinstance(value, types.ModuleType))
    }
    assert names == set(PUBLIC)


def test_every_name_is_re_exported_by_itself() -> None:
    """``from .x import A as A``: type checkers and editors then know that it is public."""
    source = Path(outlines_phi.__file__).read_text(encoding="utf-8")
    imports = [node for node in ast.parse(source).body if isinstance(node, ast.ImportFrom) and node.level]
    assert sorted(alias.name for node in imports for alias in node.names) == sorted([*PUBLIC, "__version__"])
    assert all(alias.asname == alias.name for node in imports for alias in node.names)


def test_the_version_is_that_of_the_distribution() -> None:
    pyproject = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{outlines_phi.__version__}"' in pyproject
    try:
        installed = importlib.metadata.version("outlines_phi")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("outlines_phi is not installed, only importable")
    assert installed == outlines_phi.__version__
