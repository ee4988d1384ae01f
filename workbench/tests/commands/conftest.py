"""The command line as the tests of the runtime call it."""

from tests.cli.conftest import Cli, cli, folder, other_model

__all__ = ["Cli", "cli", "folder", "other_model"]
