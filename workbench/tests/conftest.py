"""The fixtures and hooks of the runtime's tests."""

from tests.cli.conftest import *  # noqa: F403
from tests.conftest import *  # noqa: F403
