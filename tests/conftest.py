"""Settings of hypothesis for all tests: no time limit for an example (the machine is shared), many where asked for."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")
