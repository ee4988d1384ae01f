"""The plugin of a server of the tests: the processor without its coin, whose draws are wrong."""

from outlines_phi.plugin.hosts.vllm_server import served_walks
from outlines_phi.plugin.hosts.vllm_server.phi_attempts import PhiAttempts as WithoutCoin
from tests.hosts.fake_engine import without_coin

__all__ = ["WithoutCoin"]

served_walks.descend = without_coin
