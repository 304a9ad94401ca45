# SPDX-License-Identifier: Apache-2.0
"""torchvision beside a PyTorch that it was not built for.

Engines import it for image processors, which language models never call. Where its C++ operators
cannot be loaded, importing it fails as it registers shapes for them; that registration is left out.
"""

from __future__ import annotations

import importlib
import sys
import types

_REGISTRATION = "torchvision._meta_registrations"


def make_importable() -> None:
    """Import torchvision; where that fails on its operators, without their registration."""
    try:
        importlib.import_module("torchvision")
        return
    except ModuleNotFoundError:
        return  # not installed: whoever needs it says so
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    sys.modules[_REGISTRATION] = types.ModuleType(_REGISTRATION)
    importlib.import_module("torchvision")
