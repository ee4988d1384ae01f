"""The classic API of Outlines 0.x."""

from . import generate as generate
from . import samplers as samplers
