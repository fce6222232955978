"""Fixtures of the tests that generate code for devices which need not be there."""

from tests.engine.conftest import cpp_loader, site

__all__ = ["cpp_loader", "site"]
