"""Modules that are imported when they are first used: each worker reads every file of tests, and runs a part of them."""

import functools
import importlib


class _Module:
    def __init__(self, name, settings):
        self._name, self._settings = name, settings

    @functools.cached_property
    def _module(self):
        found = importlib.import_module(self._name)
        for name, value in self._settings.items():
            setattr(found, name, value)
        return found

    def __getattr__(self, name):
        if name.startswith(("_", "pytest")):  # pytest looks at what it collects
            raise AttributeError(name)
        return getattr(self._module, name)


def module(name, **settings):
    """What stands for the module; its attributes are set to `settings` when it is imported."""
    return _Module(name, settings)
