# SPDX-License-Identifier: Apache-2.0
"""Which process of a job this is, by what launchers say: torchrun, mpirun (Open MPI, MPICH), srun."""

from __future__ import annotations

import os

NAMES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


def rank_and_size() -> tuple[int, int]:
    for rank, size in NAMES:
        if rank in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1
