"""The version of the package, for what is written by one version and read by another."""

__version__ = "0.1.0"
