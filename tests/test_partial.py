"""Optimizers that have only a part of the parameters, and no way to the others: FSDP1 and ZeRO-1.

Averages, certificates and joint norms would be every process's own, too small each; they are refused. What is played
by coordinate is right.
"""

from pathlib import Path

import pytest
import torch

from processes import torchrun

WORKER = Path(__file__).parent / "partial_worker.py"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("partial")
    torchrun(WORKER, folder)
    return {file.name: file.read_text() for file in folder.iterdir()}


@pytest.mark.some(9)
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch is built without processes")
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", ["averages", "joint norm", "original"])
@pytest.mark.parametrize("way", ["FSDP1", "FSDP1 after", "ZeRO"])
def test_what_needs_all_is_refused(outcomes, way, name, rank):
    outcome = outcomes[f"{way}, {name}, {rank}"]
    assert "has only a part of the parameters" in outcome
    assert {"F": "FSDP1", "Z": "ZeroRedundancyOptimizer"}[way[0]] in outcome
    assert "fully_shard" in outcome


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch is built without processes")
@pytest.mark.parametrize("name", ["by coordinate", "plain"])
@pytest.mark.parametrize("way", ["FSDP1", "ZeRO"])
def test_what_is_played_by_coordinate_is_right(outcomes, way, name):
    """On two processes as on one."""
    assert {outcomes[f"{way}, {name}, {rank}"] for rank in (0, 1)} == {"same"}
