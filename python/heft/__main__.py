# SPDX-License-Identifier: Apache-2.0
"""`python -m heft`: the version. The command is `heft`."""

import heft

print("heft", heft.__version__)
