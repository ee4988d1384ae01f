"""``outlines-phi serve``: the command that it becomes, and what it does not take."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

import pytest

from outlines_phi.cli.app import OPTIONS

from .conftest import Cli


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the arguments of the process that it became; vLLM is taken to be here."""
    found: list[Any] = []

    def become(*arguments: Any) -> None:
        found.extend(arguments)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execvpe", become)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    return found


def test_it_prints_the_command_and_becomes_it(cli: Cli, became: list[Any]) -> None:
    result = cli(
        "serve", "some/model", "--port", "8123", "--", "--max-model-len", "512", "--chat-template", "{{ a b }}"
    )
    program, command, environment = became
    assert result.exit_code == 0 and program == command[0] == sys.executable
    assert command[1:] == [
        *("-m", "vllm.entrypoints.openai.api_server", "--model", "some/model", "--port", "8123"),
        *OPTIONS,
        *("--max-model-len", "512", "--chat-template", "{{ a b }}"),
    ]
    assert environment["VLLM_USE_V2_MODEL_RUNNER"] == "0" and environment["PATH"] == os.environ["PATH"]
    said = " ".join(result.stderr.split())
    assert said.startswith("VLLM_USE_V2_MODEL_RUNNER=0 ") and said.endswith("--chat-template '{{ a b }}'")


@pytest.mark.parametrize(
    "given",
    [
        ("--enable-chunked-prefill",),
        ("--no-enable-chunked-prefill",),
        ("--logprobs-mode", "raw_logprobs"),
        ("--logprobs_mode=raw_logprobs",),
        ("--logits-processors", "a:B"),
    ],
    ids=str,
)
def test_an_option_that_would_undo_another_is_refused(given: tuple[str, ...], cli: Cli, became: list[Any]) -> None:
    result = cli("serve", "some/model", "--", *given)
    assert result.exit_code == 2 and "Leave --" in result.stderr and became == []


def test_without_vllm_it_says_what_to_install(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = cli("serve", "some/model")
    assert result.exit_code == 2 and "Install vLLM 0.32" in " ".join(result.stderr.split())


def test_a_model_is_needed(cli: Cli) -> None:
    assert cli("serve").exit_code == 2
