"""Optimizers: compiled steps are eager's, in parameters, state and everything that a program can see."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

import preheat
from preheat.run import entry
from tests.training.twins import IMPLEMENTATIONS, SIZES, Twins, adamw, alike, captures, settled


def infos():
    for info in optim_db:
        if info.optim_cls.__name__ in ("LBFGS", "SparseAdam"):  # loops of their own; sparse gradients
            continue
        for name, choice in IMPLEMENTATIONS.items():
            if name not in info.supported_impls and name != "forloop":
                continue
            if name == "fused" and "cpu" not in info.supports_fused_on:
                continue
            for number, given in enumerate(info.optim_inputs_func(device="cpu")):
                chosen = choice if len(info.supported_impls) > 1 else {}
                label = f"{info.optim_cls.__name__}-{name}-{number}"
                marks = [pytest.mark.slow] if number >= 2 else []
                yield pytest.param(
                    info.optim_cls, {**given.kwargs, **chosen}, id=label, marks=marks)


# What goes another way for some of its first steps, by a test of its counter or since it counts in
# Python.
WANDERING = ("RAdam",)


@pytest.mark.parametrize("cls, arguments", infos())
def test_optimizer_of_torch(cls, arguments):
    sizes = ((4, 3), (3, 5)) if cls.__name__ == "Muon" else SIZES

    def make(params):
        return cls(params, **copy.deepcopy(arguments))

    try:
        twins = Twins(make, sizes)
    except (RuntimeError, ValueError) as refused:  # a combination that torch does not take
        pytest.skip(str(refused))
    for _ in range(3):
        twins.step()
    before = captures()
    for _ in range(3):
        twins.step()
    assert captures() == before or cls.__name__ in WANDERING


# --------------------------------------------------------------------------- one graph, one variant
@pytest.mark.parametrize("choice", IMPLEMENTATIONS)
def test_the_first_and_all_other_steps_are_one_graph_each(choice):
    twins = Twins(lambda params: adamw(params, **IMPLEMENTATIONS[choice]))
    twins.set_gradients()
    first = preheat.explain(twins.optimizers[1].step)()
    second = preheat.explain(twins.optimizers[1].step)()
    assert [first.graph_count, first.break_count] == [1, 0]
    assert [second.graph_count, second.break_count] == [1, 0]


def test_new_gradients_each_step_are_the_same_variant():
    twins = Twins(adamw)
    kept = []
    for _ in range(3):
        twins.step()
    before = captures()
    for _ in range(4):
        twins.step()
        kept.append([p.grad for p in twins.params[1]])  # so that no address comes again
    assert captures() == before


@pytest.mark.parametrize("choice", IMPLEMENTATIONS)
def test_numbers_that_change_between_steps_cost_no_variant(choice):
    def change(k):
        def action(optimizer, params):
            group = optimizer.param_groups[0]
            group["lr"], group["weight_decay"] = 0.01 / (k + 1), 0.1 + 0.01 * k
            group["betas"], group["eps"] = (0.9 - 0.01 * k, 0.99 + 0.001 * k), 1e-8 * (k + 1)

        return action

    twins = Twins(lambda params: adamw(params, **IMPLEMENTATIONS[choice]))
    twins.step()
    for k in range(1, 4):
        twins.each(change(k))
        twins.step()
    before = captures()
    for k in range(4, 8):
        twins.each(change(k))
        twins.step()
    assert captures() == before


@pytest.mark.parametrize("make", [
    lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5),
    lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6),
    lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=12),
    lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 / (k + 1)),
], ids=["step", "cosine", "one_cycle", "lambda"])
@pytest.mark.parametrize("fused", [False, True])
def test_schedulers_between_steps(make, fused):
    # torch's fused kernel rounds a product and the sum with it once, generated code both: a parameter that passes by
    # zero on its way, as under the high rates of one cycle, then differs by more ulp than it has
    twins = Twins(lambda params: torch.optim.SGD(
        params, lr=0.1, momentum=0.9, nesterov=True, fused=fused), rtol=1e-5 if fused else 1e-6)
    schedulers = [make(optimizer) for optimizer in twins.optimizers]
    for k in range(10):
        twins.step()
        for scheduler in schedulers:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that a step wrapped by us was never called
                scheduler.step()
        if k == 4:
            before = captures()
    assert captures() == before


def test_betas_that_each_step_replaces_are_not_those_of_the_first(monkeypatch):
    """Numbers in a tuple that is another one on each call, where the check leaves no words: `deep` fetches them."""
    monkeypatch.setattr(entry, "_words", lambda *given: {})
    schedulers = []

    def make(params):
        optimizer = torch.optim.AdamW(params)
        schedulers.append(torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=12))
        return optimizer  # whose step the scheduler has wrapped

    twins = Twins(make)
    for _ in range(6):
        twins.step()
        for scheduler in schedulers:
            scheduler.step()


# ------------------------------------------------------------------------ what programs do between
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("foreach", [True, False])
def test_zero_grad(set_to_none, foreach):
    def compiled(optimizer):
        def step():
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)

        return step

    twins = Twins(lambda params: adamw(params, foreach=foreach), compiled=compiled)
    settled(twins)


def test_a_closure():
    def compiled(optimizer):
        params = optimizer.param_groups[0]["params"]

        def loss():
            optimizer.zero_grad()
            total = sum((p * p).sum() for p in params)
            total.backward()
            return total

        return lambda: optimizer.step(loss)

    twins = Twins(adamw, compiled=compiled)
    for _ in range(5):
        first, second = twins.step()
        torch.testing.assert_close(second.detach(), first.detach())


def test_a_frozen_parameter_between_steps():
    twins = Twins(adamw)
    for frozen in ((), (), (1,), (1,), (), (0, 2), (0, 1, 2, 3), ()):
        twins.step(frozen=frozen)


def test_another_group():
    twins = Twins(adamw)
    twins.step()
    torch.manual_seed(0)
    added = torch.randn(7)

    def add(optimizer, params):
        params.append(torch.nn.Parameter(added.clone()))
        optimizer.add_param_group({"params": [params[-1]], "lr": 0.5})

    twins.step()
    twins.each(add)
    settled(twins)


def test_a_parameter_in_two_groups_of_one_optimizer_and_in_two_optimizers():
    def make(params):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.optim.SGD([params[0], params[1], params[0]], lr=0.1, momentum=0.9)

    settled(Twins(make))

    def compiled(optimizer):
        other = torch.optim.SGD(optimizer.param_groups[0]["params"], lr=0.01, momentum=0.5)

        def step():
            optimizer.step()
            other.step()

        return step

    settled(Twins(adamw, compiled=compiled))


def test_hooks_of_steps():
    seen = [], []

    def hook(place, what):
        return lambda optimizer, args, kwargs: seen[place].append((what, len(optimizer.state)))

    twins = Twins(adamw)
    twins.step()
    twins.step()
    handles = []
    for place, optimizer in enumerate(twins.optimizers):
        handles.append(optimizer.register_step_pre_hook(hook(place, "pre")))
        handles.append(optimizer.register_step_post_hook(hook(place, "post")))
    for _ in range(3):
        twins.step()
    for handle in handles:
        handle.remove()
    twins.step()
    assert seen[0] == seen[1] and len(seen[0]) == 6


def test_scaled_gradients():
    def scaled(optimizer):
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)

        def step(scale):
            params = optimizer.param_groups[0]["params"]
            scaler.scale(torch.ones(()))
            for p in params:
                p.grad.mul_(scaler.get_scale() * scale)
            scaler.step(optimizer)
            scaler.update()
            return scaler.get_scale()

        return step

    for choice in IMPLEMENTATIONS.values():
        twins = Twins(lambda params: adamw(params, **choice), compiled=scaled)
        for scale in (1.0, 1.0, float("inf"), 1.0, float("nan"), 1.0, 1.0):
            first, second = twins.step(scale)
            assert first == second


def test_state_dict_round_trips():
    twins = Twins(adamw)
    settled(twins)
    kept = [copy.deepcopy(optimizer.state_dict()) for optimizer in twins.optimizers]
    twins.step()
    for optimizer, state in zip(twins.optimizers, kept):
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        optimizer.load_state_dict(torch.load(file))
    twins.compare()
    settled(twins)


def test_copies_and_pickles_step_like_the_original():
    twins = Twins(adamw)
    settled(twins)
    copies = [copy.deepcopy(optimizer) for optimizer in twins.optimizers]
    loaded = [pickle.loads(pickle.dumps(optimizer)) for optimizer in twins.optimizers]
    for pair in (copies, loaded):
        for optimizer in pair:
            for p in optimizer.param_groups[0]["params"]:
                p.grad = torch.ones_like(p)
        pair[0].step()
        preheat.compile(pair[1].step, options={"cache": False})()
        alike(pair[0].state_dict(), pair[1].state_dict())
    twins.compare()


# ------------------------------------------------------------------------------------------- traps
def test_a_gradient_that_is_another_parameters_gradient():
    twins = Twins(lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9), sizes=((4,), (4,)))
    for shared in (False, False, True, True, False):
        twins.set_gradients()
        if shared:
            twins.each(lambda optimizer, params: setattr(params[1], "grad", params[0].grad))
        for call in twins.calls:
            call()
        twins.compare()


def test_a_gradient_that_is_a_view_of_its_parameter():
    twins = Twins(lambda params: torch.optim.SGD(params, lr=0.1), sizes=((4,), (4,)))
    for place in (None, None, 0, 0, 1, None):
        twins.set_gradients()
        if place is not None:
            twins.each(lambda optimizer, params: setattr(
                params[place], "grad", params[0].detach()))
        for call in twins.calls:
            call()
        twins.compare()


def test_gradients_in_one_buffer_that_overlap_or_not():
    twins = Twins(lambda params: torch.optim.SGD(params, lr=0.1, maximize=True), sizes=((4,), (4,)))
    for distance in (4, 4, 2, 4, 0, 4):
        def share(optimizer, params, distance=distance):
            flat = torch.arange(8.0) / 10
            params[0].grad, params[1].grad = flat[:4], flat[distance:distance + 4]

        twins.each(share)
        for call in twins.calls:
            call()
        twins.compare()


def test_the_gradient_becomes_its_own_step():
    """zero_(): the gradients are written, and read before that."""

    def compiled(optimizer):
        def step():
            optimizer.step()
            for p in optimizer.param_groups[0]["params"]:
                p.grad.zero_()
                p.grad += 1
            optimizer.step()

        return step

    settled(Twins(lambda params: torch.optim.SGD(params, lr=0.1), compiled=compiled))


def test_gradients_of_other_layouts_and_dtypes_between_steps():
    twins = Twins(lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9), sizes=((4, 3),))
    for turn in (False, False, True, True, False):
        twins.set_gradients()
        if turn:
            twins.each(lambda optimizer, params: setattr(
                params[0], "grad", params[0].grad.t().contiguous().t()))
        for call in twins.calls:
            call()
        twins.compare()


def test_parameters_whose_memory_is_exchanged_between_steps():
    twins = Twins(adamw)
    settled(twins)

    def exchange(optimizer, params):
        params[0].data = params[0].detach() * 2

    twins.each(exchange)
    settled(twins)


TENSOR_RATES = {
    **{f"{cls.__name__}-{choice}": (cls, IMPLEMENTATIONS[choice])
       for cls in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)
       for choice in ("forloop", "fused")},
    **{cls.__name__: (cls, {"foreach": False})
       for cls in (torch.optim.RMSprop, torch.optim.Adadelta, torch.optim.NAdam, torch.optim.Adamax)},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", TENSOR_RATES)
def test_a_learning_rate_that_is_a_tensor(name, dtype):
    """One graph, which takes the number out of the tensor anew on each call."""
    cls, choice = TENSOR_RATES[name]
    twins = Twins(lambda params: cls(params, lr=torch.tensor(0.01, dtype=dtype), weight_decay=0.1, **choice))
    for k in range(6):
        if k == 3:
            before = captures()
        twins.step()
        twins.each(lambda optimizer, params: optimizer.param_groups[0]["lr"].mul_(0.5))
    assert captures() == before
    twins.set_gradients()
    told = preheat.explain(twins.optimizers[1].step)()
    assert (told.graph_count, told.break_count) == (1, 0)


FUSED = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1, fused=True),
    "SGD-momentum": lambda params: torch.optim.SGD(
        params, lr=0.1, momentum=0.9, dampening=0.2, weight_decay=0.1, fused=True),
    "SGD-nesterov": lambda params: torch.optim.SGD(
        params, lr=0.1, momentum=0.9, nesterov=True, maximize=True, fused=True),
    "Adam": lambda params: torch.optim.Adam(params, weight_decay=0.1, fused=True),
    "Adam-amsgrad": lambda params: torch.optim.Adam(params, amsgrad=True, maximize=True, fused=True),
    "AdamW": lambda params: torch.optim.AdamW(params, fused=True),
    "AdamW-amsgrad": lambda params: torch.optim.AdamW(params, amsgrad=True, maximize=True, fused=True),
    "AdamW-tensor": lambda params: torch.optim.AdamW(params, lr=torch.tensor(0.01), fused=True),
    "Adagrad": lambda params: torch.optim.Adagrad(
        params, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.2, fused=True),
}


@pytest.mark.parametrize("name", FUSED)
def test_fused_steps_with_scaled_gradients_and_infinities(name):
    """What GradScaler gives a fused step: it takes the scale out of the gradients, and where an
    infinity was found it does nothing."""
    twins = Twins(FUSED[name])
    found = (0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0)
    for k, is_found in enumerate(found):
        if k == 4:
            before = captures()
        twins.set_gradients()
        for params, optimizer in zip(twins.params, twins.optimizers):
            optimizer.grad_scale = torch.tensor(2.0 ** (k + 3))
            optimizer.found_inf = torch.tensor(is_found)
            for param in params:
                param.grad.mul_(optimizer.grad_scale)
            if is_found:
                params[0].grad[0] = float("inf")
        for call in twins.calls:
            call()
        twins.compare()
    assert captures() == before
    told = preheat.explain(twins.optimizers[1].step)()
    assert (told.graph_count, told.break_count) == (1, 0)


@pytest.mark.parametrize("name", FUSED)
def test_fused_steps_are_kernels_that_write_in_place(name):
    twins = Twins(FUSED[name], sizes=((64, 3), (5,), (2, 30, 2), (7,), (1,), (100,)))
    for _ in range(3):
        twins.step()
    optimizer = twins.optimizers[1]
    places = [p.data_ptr() for p in twins.params[1]]
    twins.step()
    assert places == [p.data_ptr() for p in twins.params[1]]
    twins.set_gradients()
    told = preheat.explain(optimizer.step)()
    assert (told.graph_count, told.break_count) == (1, 0) and 1 <= told.kernels <= 4


def test_fused_steps_of_other_dtypes_are_torchs_own():
    def make(params):
        return torch.optim.AdamW([torch.nn.Parameter(p.detach().bfloat16()) for p in params], fused=True)

    twins = Twins(make)
    for _ in range(4):
        for optimizer in twins.optimizers:
            for k, param in enumerate(optimizer.param_groups[0]["params"]):
                param.grad = torch.full_like(param, 0.1 * k + 0.1)
        for call in twins.calls:
            call()
        for a, b in zip(*(o.param_groups[0]["params"] for o in twins.optimizers)):
            assert torch.equal(a, b)


def test_differentiable_steps():
    def run(compile_step):
        torch.manual_seed(0)
        p = torch.randn(4, requires_grad=True)
        rate = torch.tensor(0.1, requires_grad=True)
        value = p.clone()
        optimizer = torch.optim.SGD([value], lr=0.1, momentum=0.9, differentiable=True)
        step = preheat.compile(optimizer.step, options={"cache": False}) if compile_step else optimizer.step
        for k in range(3):
            value.grad = torch.full((4,), k + 1.0) * rate
            step()
        (value * value).sum().backward()
        return p.grad, rate.grad

    alike(run(False), run(True))


def test_counters_that_count_on_from_large_numbers():
    """float32 counts no further than 2**24."""
    twins = Twins(lambda params: torch.optim.Adam(params, lr=0.01, foreach=False))
    twins.step()

    def jump(optimizer, params):
        for state in optimizer.state.values():
            state["step"].fill_(2.0**24 - 2)

    twins.each(jump)
    for _ in range(5):
        twins.step()
    assert all(float(s["step"]) == 2.0**24 for s in twins.optimizers[1].state.values())
