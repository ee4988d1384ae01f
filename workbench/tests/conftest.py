"""The fixtures and hooks of the runtime's tests."""

pytest_plugins = ["tests.conftest", "tests.cli.conftest"]
