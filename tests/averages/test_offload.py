"""offload=True: the averages are kept in the host's memory, and are the same."""

import copy

import pytest
import torch

import fused_device as rig
import o2nc
from o2nc.averages.offload import HostCopies
from registry import OURS, PAPER, claims, identical, ours_of, params_of

PLACES = ["cpu", pytest.param("cuda", marks=rig.needs_cuda)]
EVERY = pytest.mark.parametrize("name", [name for name in OURS if name not in PAPER])
KEPT = ("average", "gradient", "spread")


@pytest.fixture(params=["themselves", "copies"])
def taken(request, monkeypatch):
    """As parameters on a CPU are averaged, and as those of another device are: from copies."""
    if request.param == "copies":

        def copies(self, rows, gradients):
            pairs = enumerate((row.x, row.g if gradients else None) for row in rows)
            return [
                [None if x is None else self._copy(2 * i + k, x) for k, x in enumerate(pair)] for i, pair in pairs
            ]

        monkeypatch.setattr(HostCopies, "__call__", copies)


def run(name, dtype=torch.float64, place="cpu", steps=range(1, 14), **options):
    """Train with a parameter that joins late, between two turns, and others that are absent now and then."""
    params = rig.begin(place, dtype, shapes=[(3, 2), (4,), (5,)])
    opt = OURS[name](params, average=o2nc.Polynomial(2, start=2, every=4), **options)
    for t in steps:
        rig.set_noise(params, t, [i for i, away in ((1, t % 3 == 0), (2, t < 6)) if away])
        opt.step()
    return opt, params


@EVERY
@pytest.mark.parametrize("place", PLACES)
def test_the_host_alone_has_what_is_otherwise_beside_the_parameters(name, place, taken):
    opt, params = run(name, place=place, offload=True)
    if place == "cpu":
        identical(claims(opt), claims(run(name)[0]))
    for _ in range(2):
        assert {ours_of(opt, p)[key].device.type for p in params for key in KEPT} == {"cpu"}
        opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    opt.certificate()
    with opt.averaged():
        assert {p.device.type for p in params} == {place}


@rig.needs_cuda
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_on_a_gpu_they_are_those_beside_the_parameters(name):
    found = [
        claims(run(name, torch.bfloat16, "cuda", **options)[0]) for options in ({"offload": True}, {"fused": False})
    ]
    assert all(map(torch.equal, found[0]["x"], found[1]["x"]))
    assert found[0]["certificate"].value == pytest.approx(found[1]["certificate"].value, rel=1e-5)
    torch.testing.assert_close(found[0]["average"], found[1]["average"])


def test_parameters_that_are_exchanged_or_taken_out_leave_the_others_alone():
    opt, params = run("AdamW", offload=True)
    params[0] = opt.param_groups[0]["params"][0] = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.float64))
    rig.advance(opt, params, range(14, 20))
    assert len(opt.certificate().by_parameter) == 3
    del opt.param_groups[0]["params"][0]
    rig.advance(opt, params[1:], range(20, 26))
    assert len(opt.certificate().by_parameter) == 2 == len(params_of(opt))
