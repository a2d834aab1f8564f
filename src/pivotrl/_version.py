"""The version, where every module and the build can read it."""

__version__ = "0.1.0"
