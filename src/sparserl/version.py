"""The version of the installed package. Part of every cache key and every stored file."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("sparserl")
except PackageNotFoundError:  # run from a source tree that was never installed
    VERSION = "0+source"
