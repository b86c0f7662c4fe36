"""offload=k: averages of every k-th iterate in the host's memory, for extended optimizers and AdamW."""

import copy
import io
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import optim

import o2nc
from o2nc.averages import Running
from o2nc.backends import host
from problem import parameters, set_gradients
from test_extend import steps
from test_windows import weights

PLACES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
MAKERS = {
    "AdamW": lambda ps, **options: o2nc.AdamW(ps, lr=0.02, **options),
    "extended NAdam": lambda ps, **options: o2nc.extend(optim.NAdam(ps, lr=0.02), **options),
}
EVERY = pytest.mark.parametrize("name", MAKERS)


@pytest.fixture(params=["themselves", "copies"])
def kept(request, monkeypatch):
    """As parameters on a CPU are taken in, and as those of another device are: from copies."""
    if request.param == "copies":
        refresh = host.HostCopies.refresh

        def elsewhere(self, params):
            strangers = [torch.nn.Parameter(p.detach().clone()) for p in params]
            for stranger, p in zip(strangers, params, strict=True):
                stranger.grad = None if p.grad is None else p.grad.clone()
            return refresh(self, strangers)

        monkeypatch.setattr(host.HostCopies, "refresh", elsewhere)


@dataclass(frozen=True)
class Steep(Running):
    """A window of the user's own."""

    start: int = 0

    def discount(self, n):
        return (n - self.start - 1) / (n - self.start + 3) if n > self.start else 0.0


def push(params, t):
    for p in params:
        p.grad = torch.sin(3 * p.detach() + t)


@EVERY
@pytest.mark.parametrize("window", [0.9, o2nc.Polynomial(3), o2nc.Polynomial(2, start=7)], ids=str)
@pytest.mark.parametrize("every", [1, 4])
def test_averages_are_the_sums_over_every_kth_iterate(name, window, every, kept):
    params, twins = parameters(), parameters()
    opt, plain = MAKERS[name](params, average=window, offload=every), MAKERS[name](twins)
    xs, gs = steps(opt, params, 18)
    steps(plain, twins, 18)
    assert all(map(torch.equal, params, twins))  # it moves as it would alone
    xs, gs = xs[::every], gs[::every]
    thin = {0.9: 0.9**every}.get(window) or o2nc.Polynomial(window.power, -(-window.start // every))
    p = weights(thin, len(xs))
    mean = p @ xs
    found = opt.certificate(2.0)
    assert found.gradient == pytest.approx(float((p @ gs).norm()), rel=1e-10)
    assert found.spread == pytest.approx(float(p @ (xs - mean).square().sum(1)), rel=1e-9)
    assert found.ess == pytest.approx(float(1 / p.square().sum()), rel=1e-10)
    with opt.averaged():
        torch.testing.assert_close(torch.cat([q.detach().flatten() for q in params]), mean, rtol=1e-12, atol=1e-13)
    assert len(opt.output()) == len(params)


@pytest.mark.parametrize("start", [0, 6])
def test_a_window_of_ones_own_gives_every_kth_iterate_its_weight(start):
    params = parameters()
    opt = o2nc.AdamW(params, lr=0.02, average=Steep(start), offload=4)
    xs, _ = steps(opt, params, 18)
    p = torch.tensor([math.prod(map(Steep(start).discount, range(t + 1, 18))) for t in range(1, 18, 4)])
    p = p.double() / p.sum()
    assert (p > 0).sum() == (5 if not start else 3)  # t = 1, 5, 9, 13, 17
    assert opt.certificate().ess == pytest.approx(float(1 / p.square().sum()), rel=1e-6)
    with opt.averaged():
        found = torch.cat([q.detach().flatten() for q in params])
        torch.testing.assert_close(found, p @ xs[::4], rtol=1e-6, atol=0)


@EVERY
@pytest.mark.parametrize("place", PLACES)
def test_only_the_host_has_averages(name, place):
    params = [torch.nn.Parameter(p.detach().to(place, torch.float32)) for p in parameters()]
    opt = MAKERS[name](params, average=0.99, offload=2)
    for t in range(3):
        push(params, t)
        opt.step()
    for p in params:
        averages = {key: opt.state[p][key] for key in ("average", "gradient", "spread", "output")}
        assert {value.device.type for value in averages.values()} == {"cpu"}
    opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert all(opt.state[p]["average"].device.type == "cpu" for p in params)
    opt.certificate()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_they_are_those_beside_the_parameters():
    start = [
        p.detach().to("cuda", dtype)
        for p, dtype in zip(parameters(), [torch.float32, torch.bfloat16] * 9, strict=False)
    ]
    there, here = ([torch.nn.Parameter(x.clone()) for x in start] for _ in range(2))
    opt, plain = MAKERS["AdamW"](there, average=0.9, offload=1), MAKERS["AdamW"](here, average=0.9, fused=False)
    for t in range(1, 12):
        for made, params in ((opt, there), (plain, here)):
            push(params, t)
            made.step()
    assert all(map(torch.equal, there, here))
    assert opt.certificate().value == pytest.approx(plain.certificate().value, rel=1e-5)
    with opt.averaged(), plain.averaged():
        for p, q in zip(there, here, strict=True):
            torch.testing.assert_close(p, q)


@EVERY
def test_a_checkpoint_goes_on_to_the_bit(name):
    def made(ps, **options):
        return MAKERS[name](ps, average=o2nc.Polynomial(3), scaling=o2nc.Gamma(16), seed=5, **options)

    params, twins = parameters(torch.float32), parameters(torch.float32)
    opt = made(params, offload=3)
    steps(opt, params, 8)
    buffer = io.BytesIO()
    torch.save(opt.state_dict(), buffer)
    buffer.seek(0)
    for p, q in zip(params, twins, strict=True):
        q.data.copy_(p.data)
    other = made(twins, offload=3)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    steps(opt, params, 5, first=9)
    steps(other, twins, 5, first=9)
    assert all(map(torch.equal, params, twins))
    assert opt.certificate() == other.certificate()
    assert all(map(torch.equal, opt.output(), other.output()))


def test_a_checkpoint_says_where_averages_are():
    params, twins = parameters(), parameters()
    opt = MAKERS["AdamW"](params, average=0.9)
    steps(opt, params, 3)
    other = MAKERS["AdamW"](twins, average=0.9, offload=2)
    with pytest.warns(UserWarning, match="average_offload=None"):
        other.load_state_dict(opt.state_dict())
    steps(opt, params, 2, first=4)
    with torch.no_grad():
        for p, q in zip(params, twins, strict=True):
            q.copy_(p)
    steps(other, twins, 2, first=4)
    assert other.param_groups[0]["average_averaged"] == 5


@EVERY
def test_averages_that_a_checkpoint_lacks_begin_with_the_next_step_where_they_were_to(name):
    params, twins = parameters(), parameters()
    bare = MAKERS[name](params, scaling=o2nc.Jitter(0.25))
    steps(bare, params, 6)
    opt = MAKERS[name](twins, scaling=o2nc.Jitter(0.25), average=0.9, offload=4)
    with pytest.warns(UserWarning, match="has no averages") as warned:
        opt.load_state_dict(bare.state_dict())
    assert len(warned) == 1
    assert opt.param_groups[0]["average_offload"] == 4
    steps(opt, twins, 3, first=7)
    assert opt.param_groups[0]["average_averaged"] == 2  # x_7, with which they begin, and x_9


def test_a_checkpoint_from_before_offload_goes_on_as_it_was():
    params = parameters()
    opt = MAKERS["AdamW"](params, average=o2nc.Polynomial(3))
    steps(opt, params, 3)
    saved = opt.state_dict()
    del saved["param_groups"][0]["average_offload"]
    other = MAKERS["AdamW"](parameters(), average=o2nc.Polynomial(3), offload=2)
    with pytest.warns(UserWarning, match="average_offload=None"):
        other.load_state_dict(saved)
    assert other.certificate() == opt.certificate()


@pytest.mark.parametrize(("made", "wanted"), [(None, 2), (2, None), (2, 3)])
def test_averages_do_not_move_in_mid_run(made, wanted):
    params = parameters()
    opt = MAKERS["AdamW"](params, average=0.9, offload=made)
    steps(opt, params, 2)
    opt = copy.deepcopy(opt)
    opt.param_groups[0]["average_offload"] = wanted
    with pytest.raises(RuntimeError, match=f"average_offload was changed to {wanted} .* those of {made}"):
        steps(opt, opt.param_groups[0]["params"], 1)
    opt.param_groups[0]["average_offload"] = made
    steps(opt, opt.param_groups[0]["params"], 1)


def test_numbers_of_numpy_do_not_keep_a_checkpoint_from_being_read():
    window, law = o2nc.Polynomial(np.float32(3)), o2nc.Jitter(np.float64(0.25))
    opt = o2nc.AdamW(parameters(), lr=np.float64(0.02), average=window, scaling=law, offload=np.int64(2))
    buffer = io.BytesIO()
    torch.save(opt.state_dict(), buffer)
    buffer.seek(0)
    other = o2nc.AdamW(parameters(), average=o2nc.Polynomial(3), scaling=o2nc.Jitter(0.25), offload=2)
    other.load_state_dict(torch.load(buffer, weights_only=True))


def test_parameters_that_are_exchanged_or_taken_out_leave_the_others_alone():
    params = parameters()
    opt = MAKERS["AdamW"](params, average=0.9, offload=2)
    steps(opt, params, 3)
    params[0] = opt.param_groups[0]["params"][0] = torch.nn.Parameter(params[0].detach().clone())
    steps(opt, params, 2, first=4)
    assert len(opt.certificate().by_parameter) == len(params)
    del opt.param_groups[0]["params"][0]
    steps(opt, params[1:], 2, first=6)
    assert len(opt.certificate().by_parameter) == len(params) - 1


@EVERY
def test_iterates_count_of_parameters_that_move_between_two_turns_only(name, kept):
    params = parameters()
    opt = MAKERS[name](params, average=o2nc.Polynomial(0), offload=2)
    xs = []
    for t in range(1, 10):
        set_gradients(params, t)
        for p in params[t % 2 :: 2]:
            p.grad = None  # half of them have gradients at odd steps, the others at even ones
        xs.append([p.detach().clone() for p in params])
        opt.step()
    assert len(opt.certificate().by_parameter) == len(params)
    with opt.averaged():
        for p, *iterates in zip(params, *xs[::2], strict=True):
            torch.testing.assert_close(p.detach(), torch.stack(iterates).mean(0))


def test_a_parameter_without_gradients_is_caught_up_with(kept):
    params = parameters()
    opt = MAKERS["AdamW"](params, average=o2nc.Polynomial(0), offload=2, weight_decay=0.0)
    xs = []
    for t in range(1, 8):
        set_gradients(params, t)
        if t > 1:
            params[0].grad = None
        if t % 2:
            xs.append(params[0].detach().clone())
        opt.step()
    with opt.averaged():
        torch.testing.assert_close(params[0].detach(), torch.stack(xs).mean(0))


@EVERY
@pytest.mark.parametrize("law", [None, o2nc.Exponential()], ids=str)
def test_averages_that_are_switched_off_between_two_turns_are_put_away(name, law, kept, tmp_path):
    """With a parameter that is new just then, and a log, which goes on when they are on again."""
    params, twins = parameters(), parameters()
    opt = MAKERS[name](params, scaling=law, average=0.9, offload=5)
    alone = MAKERS[name](twins, scaling=law)
    log = o2nc.CertificateLogger(opt, tmp_path / "certificate.csv", every=1)
    for t in range(1, 12):
        opt.param_groups[0]["average"] = 0.9 if t < 4 or t > 7 else None
        for ps in (params, twins):
            push(ps, t)
            ps[1].grad = None if t < 4 else ps[1].grad
        opt.step()
        alone.step()
        assert all(map(torch.equal, params, twins))
        assert any("average" in state for state in opt.state.values()) == (t < 4 or t > 7)
    assert len(log.path.read_text().splitlines()) == 1 + 3 + 4
    assert opt.certificate().gradient > 0


def test_a_step_that_is_called_off_counts_for_nothing():
    params = parameters(torch.float32)
    opt = o2nc.extend(optim.AdamW(params, lr=0.02, fused=True), average=0.9, offload=2)
    steps(opt, params, 1)
    before = opt.certificate()
    opt.found_inf, opt.grad_scale = torch.tensor(1.0), torch.tensor(4.0)
    for t in (2, 3):
        set_gradients(params, t)
        opt.step()
    assert opt.certificate() == before
    assert opt.param_groups[0]["scaling_step"] == 1
    opt.zero_grad()
    opt.step()
    assert opt.param_groups[0]["scaling_step"] == 1  # nor does one without gradients


def test_what_makes_no_sense_is_refused():
    params = parameters()
    for bad in (0, -1, 1.5, True, "4"):
        with pytest.raises((TypeError, ValueError), match="offload"):
            o2nc.AdamW(params, average=0.9, offload=bad)
    with pytest.raises(ValueError, match="offload=4 says where averages are kept"):
        o2nc.AdamW(params, offload=4)
    with pytest.raises(ValueError, match=r"offload must be an integer from 1 to 10, the length of average=0\.9"):
        o2nc.AdamW(params, average=0.9, offload=11)
    o2nc.AdamW(params, average=0.999, offload=1000)
    opt = o2nc.AdamW(params, average=0.9, offload=4)
    with pytest.raises(RuntimeError, match="nothing is averaged"):
        opt.certificate()
    steps(opt, params, 1)
    with pytest.raises(RuntimeError, match="not with offload=4"):
        opt.progress  # noqa: B018
    late = o2nc.AdamW(parameters(), average=o2nc.Polynomial(3, start=10), offload=4)
    steps(late, [p for group in late.param_groups for p in group["params"]], 12)
    with pytest.raises(RuntimeError, match="begin after 10 steps"):
        late.certificate()


def test_memory_of_copies_is_used_again():
    p = torch.nn.Parameter(torch.ones(3))
    assert host.HostCopies().refresh([p])[0] is p  # on a CPU no copy is needed
    kept = host._copied(torch.ones(2), None)
    assert host._copied(torch.zeros(2), kept) is kept
    assert not kept.any()
    assert host._copied(torch.zeros(3), kept) is not kept


class Elsewhere(torch.nn.Parameter):
    """A parameter that claims to be on another device."""

    device = torch.device("xpu", 0)


def test_a_copy_is_never_made_in_a_parameter():
    p, q = torch.nn.Parameter(torch.ones(3)), Elsewhere(torch.zeros(3))
    copies = host.HostCopies()
    assert copies.refresh([p])[0] is p
    q.grad = torch.full((3,), 2.0)
    copy = copies.refresh([q])[0]  # in its place
    assert copy is not q
    assert torch.equal(p, torch.ones(3))
    assert p.grad is None
    assert torch.equal(copy, torch.zeros(3))
    assert torch.equal(copy.grad, q.grad)
