"""Optimizers: compiled steps are eager's, in parameters, state and everything that a program can see.

`Twins` takes the same steps with two copies of one optimizer, one compiled. Kernels fuse what eager
rounds in between, so tensors are compared at a few ulp of their scale; numbers exactly.
"""

import copy
import io
import itertools
import pickle
import warnings

import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

import preheat

SIZES = ((4, 3), (5,), (2, 3, 2), ())
IMPLEMENTATIONS = {"forloop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


class Twins:
    """Two optimizers over equal parameters: `make(params)`; the second one is compiled."""

    def __init__(self, make, sizes=SIZES, compiled=lambda optimizer: optimizer.step):
        self.params = []
        for _ in range(2):
            torch.manual_seed(3)
            self.params.append([torch.nn.Parameter(torch.randn(size)) for size in sizes])
        self.optimizers = [make(params) for params in self.params]
        self.calls = [
            compiled(self.optimizers[0]),
            preheat.compile(compiled(self.optimizers[1]), options={"cache": False})]
        self.gradients = torch.Generator().manual_seed(5)

    def set_gradients(self, frozen=()):
        for place, pair in enumerate(zip(*self.params)):
            gradient = torch.randn(pair[0].shape, generator=self.gradients)
            for param in pair:
                param.grad = None if place in frozen else gradient.clone()

    def step(self, *args, frozen=()):
        self.set_gradients(frozen)
        first, second = (call(*args) for call in self.calls)
        self.compare()
        return first, second

    def each(self, action):
        """The same change of both."""
        for optimizer, params in zip(self.optimizers, self.params):
            action(optimizer, params)

    def compare(self):
        states = [
            (params, [p.grad for p in params], optimizer.state_dict())
            for optimizer, params in zip(self.optimizers, self.params)]
        alike(*states)


def alike(expected, found, at=""):
    """The same structure, numbers and tensors; of tensors, what fusion may round differently."""
    assert type(expected) is type(found), at
    if isinstance(expected, torch.Tensor):
        assert (expected.dtype, expected.shape) == (found.dtype, found.shape), at
        assert expected.requires_grad == found.requires_grad, at
        largest = expected.detach().abs().nan_to_num(0, 0, 0).max() if expected.numel() else 0
        torch.testing.assert_close(
            found, expected, rtol=1e-6, atol=2e-6 * max(float(largest), 1e-6), equal_nan=True,
            msg=lambda m: f"{at}: {m}")
    elif isinstance(expected, dict):
        assert list(expected) == list(found), at
        for key in expected:
            alike(expected[key], found[key], f"{at}[{key!r}]")
    elif isinstance(expected, (list, tuple)):
        assert len(expected) == len(found), at
        for place, pair in enumerate(zip(expected, found)):
            alike(*pair, f"{at}[{place}]")
    else:
        assert expected == found, at


def captures():
    return preheat.counters()["captures"] + preheat.counters()["interpreted"]


def settled(twins, steps=3, **arguments):
    """After a few steps, others are captured no more."""
    for _ in range(steps):
        twins.step(**arguments)
    before = captures()
    for _ in range(3):
        twins.step(**arguments)
    assert captures() == before


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
                yield pytest.param(info.optim_cls, {**given.kwargs, **chosen}, id=label)


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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            twins.optimizers[0].state  # noqa: B018
    except (RuntimeError, ValueError) as refused:  # a combination that torch does not take
        pytest.skip(str(refused))
    for _ in range(3):
        twins.step()
    before = captures()
    for _ in range(3):
        twins.step()
    assert captures() == before or cls.__name__ in WANDERING


# --------------------------------------------------------------------------- one graph, one variant
def adamw(params, **arguments):
    return torch.optim.AdamW(params, lr=1e-2, **arguments)


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


def test_numbers_that_change_between_steps_cost_no_variant():
    def change(k):
        def action(optimizer, params):
            group = optimizer.param_groups[0]
            group["lr"], group["weight_decay"] = 0.01 / (k + 1), 0.1 + 0.01 * k
            group["betas"], group["eps"] = (0.9 - 0.01 * k, 0.99 + 0.001 * k), 1e-8 * (k + 1)

        return action

    twins = Twins(lambda params: adamw(params, foreach=False))
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
def test_schedulers_between_steps(make):
    twins = Twins(lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True))
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


@pytest.mark.parametrize("capturable", [True, False])
@pytest.mark.parametrize("foreach", [True, False])
def test_a_learning_rate_that_is_a_tensor(capturable, foreach):
    if foreach and not capturable:
        pytest.skip("torch refuses it")
    if capturable:
        pytest.skip("of the CPU, torch refuses it")

    def make(params):
        return torch.optim.AdamW(
            params, lr=torch.tensor(0.01), foreach=foreach, capturable=capturable)

    twins = Twins(make)
    for k in range(5):
        twins.step()
        twins.each(lambda optimizer, params: optimizer.param_groups[0]["lr"].mul_(0.5))


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


# ----------------------------------------------------------------------------- numbers in tensors
def agree(program, *rounds):
    """`program`, compiled, on each of the arguments that `rounds` make, is as in eager."""
    compiled = preheat.compile(program, options={"cache": False})
    for make in rounds:
        first, second = make(), make()
        with torch.no_grad():
            alike(program(*first), compiled(*second))
        alike(first, second)


def counter(start):
    return lambda: (torch.ones(3), torch.tensor(float(start)))


def test_item_of_a_counter_is_a_number_of_the_program():
    def program(x, count):
        count += 1
        return x * (1 - 0.9 ** count.item()), count.item()

    before = captures()
    agree(program, *map(counter, range(6)))
    assert captures() - before == 1


def test_item_that_decides():
    def program(x, count):
        count += 1
        if count.item() > 3:
            return x + count.item()
        return x - 1

    agree(program, *map(counter, (0, 1, 2, 3, 4, 1, 7)))


@pytest.mark.parametrize("change", [
    lambda x, count: x.sum().add_(count), lambda x, count: count.copy_(x[0]) + 1,
    lambda x, count: count.mul_(x[1]), lambda x, count: count.view(1).add_(2),
    lambda x, count: torch.add(x[0], 1, out=count), lambda x, count: count.fill_(7.5).sub_(0.1),
    lambda x, count: (count * 3 - 0.1) / 7, lambda x, count: count.add(1, alpha=0.3),
    lambda x, count: count.div_(0.0), lambda x, count: count.sqrt_(),
    lambda x, count: count.pow_(2).add_(count),
], ids=range(11))
def test_item_of_what_other_ops_have_written(change):
    def program(x, count):
        made = change(x, count)
        return x * made.item(), count.item()

    agree(program, *map(counter, range(1, 5)))


def test_item_of_memory_that_is_written_through_another_tensor():
    def program(x, counts):
        one, two = counts[0], counts[1]
        one += 1
        counts.mul_(2)
        return x * one.item() + two.item()

    agree(program, *[lambda k=k: (torch.ones(2), torch.tensor([float(k), 5.0])) for k in range(4)])


def test_item_of_inputs_that_share_memory():
    def program(x, a, b):
        a += 1
        return x * b.item() + a.item()

    def shared(k):
        both = torch.tensor([float(k), 2.0])
        return torch.ones(2), both[0], both[0]

    def apart(k):
        return torch.ones(2), torch.tensor(float(k)), torch.tensor(2.0)

    agree(program, *[lambda k=k: (shared, apart)[k % 2](k) for k in range(6)])


# ------------------------------------------------------------------------------- a dict of tensors
def test_a_dict_that_finds_tensors():
    def program(table, keys):
        found = [table.get(key) for key in keys]
        for key in keys:
            if key not in table:
                table[key] = key + 1
            table[key] = table[key] * 2
        return found, [table[key] for key in keys]

    def rounds(k):
        keys = [torch.ones(2) * place for place in range(3)]
        return {key: key + k for key in keys[:k % 3]}, [*keys, keys[0]]

    compiled = preheat.compile(program, options={"cache": False})
    for k in range(6):
        (table, keys), (same, same_keys) = rounds(k), rounds(k)
        with torch.no_grad():
            alike(program(table, keys), compiled(same, same_keys))
        alike(list(table.values()), list(same.values()))


def test_a_defaultdict_makes_what_is_missing():
    from collections import defaultdict

    def program(table, names):
        for name in names:
            table[name].append(len(table[name]))
        return dict(table)

    compiled = preheat.compile(program, options={"cache": False})
    tables = defaultdict(list), defaultdict(list)
    for names in itertools.chain(["ab", "ab", "abc", "", "d"] * 2):
        first, second = program(tables[0], names), compiled(tables[1], names)
        assert first == second and tables[0] == tables[1]
    plain = defaultdict(None, {"a": []})
    with pytest.raises(KeyError, match="b"):
        compiled(plain, "ab")
    assert plain == {"a": [0]}


# ------------------------------------------------------------------------------- marks of profilers
def test_marks_of_profilers_break_no_graph():
    def program(x):
        with torch.autograd.profiler.record_function("a"):
            y = x + 1
            try:
                with torch.profiler.record_function("b") as mark:
                    y = y * 2
                    if len(x) > 2:
                        raise ValueError(mark.name)
            except ValueError as error:
                return y, str(error)
        return y, ""

    explanation = preheat.explain(program)(torch.ones(2))
    assert (explanation.graph_count, explanation.break_count) == (1, 0)
    compiled = preheat.compile(program, options={"cache": False})
    for size in (2, 3, 2, 3):
        alike(program(torch.ones(size)), compiled(torch.ones(size)))
    with torch.profiler.profile() as profile:
        compiled(torch.ones(2))
    assert {"a", "b"} <= {event.name for event in profile.events()}


def test_a_mark_that_is_left_by_plain_python():
    def program(x):
        with torch.autograd.profiler.record_function("a"):
            yield x + 1
            yield x + 2

    def consumed(x):
        return sum(program(x))

    agree(consumed, *[lambda: (torch.ones(2),)] * 3)


# --------------------------------------------------------------------------------- the whole step
def training(make, net=None):
    """Model, optimizer and the step that trains it, twice, from the same start."""
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3))
        optimizer, loss_of = make(model.parameters()), torch.nn.CrossEntropyLoss()

        def step(x, y, model=model, optimizer=optimizer, loss_of=loss_of):
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        found.append((model, optimizer, step))
    return found


@pytest.mark.parametrize("make", [
    lambda p: torch.optim.SGD(p, lr=0.1),
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=False),
    lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
], ids=["sgd", "nesterov", "amsgrad", "foreach", "fused", "rmsprop"])
def test_the_whole_step_as_one_function(make):
    (model, optimizer, step), (same, other, same_step) = training(make)
    compiled = preheat.compile(same_step, options={"cache": False})
    generator = torch.Generator().manual_seed(1)
    scheduler, twin = (torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in (optimizer, other))
    for k in range(8):
        x = torch.randn(5, 6, generator=generator)
        y = torch.randint(0, 3, (5,), generator=generator)
        alike(step(x, y).detach(), compiled(x, y).detach())
        for pair in zip(model.parameters(), same.parameters()):
            torch.testing.assert_close(pair[1], pair[0], rtol=2e-4, atol=2e-5)
        if k % 2 and not optimizer.defaults.get("fused"):  # its numbers are pinned
            for one in (scheduler, twin):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    one.step()
        if k == 5:
            before = captures()
    assert captures() == before
    assert list(optimizer.state_dict()) == list(other.state_dict())


def test_the_whole_step_breaks_at_the_backward_alone():
    _, (_, _, step) = training(lambda p: torch.optim.AdamW(p, lr=0.01))
    x, y = torch.randn(5, 6), torch.randint(0, 3, (5,))
    step(x, y)
    explanation = preheat.explain(step)(x, y)
    assert [(row.reason, row.code) for row in explanation.breaks] == [
        ("host_call", "loss.backward()")]
    assert explanation.graph_count == 2


def test_a_tensor_that_is_a_key_and_another_one_on_the_next_call():
    keys = torch.ones(1), torch.ones(1)
    table = {key: torch.full((2,), float(place)) for place, key in enumerate(keys)}

    def program(key):
        return table[key] + 1

    compiled = preheat.compile(program, options={"cache": False})
    with torch.no_grad():
        for place in (0, 0, 1, 1, 0, 1):
            alike(program(keys[place]), compiled(keys[place]))
        table[keys[0]] = torch.full((2,), 7.0)
        for place in (0, 1, 0):
            alike(program(keys[place]), compiled(keys[place]))


def test_two_hundred_parameters_are_two_kernels():
    from preheat.capture.capture import capture
    from preheat.generate.build import host_target
    from preheat.schedule.schedule import schedule
    from preheat.transform.pipeline import lower

    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(64 + 7 * k)) for k in range(200)]
    for p in params:
        p.grad = torch.randn_like(p)
    optimizer = torch.optim.AdamW(params, foreach=False)
    optimizer.step()
    outcome = capture(optimizer.step, (), {}, limits=None)
    (node,) = outcome.nodes
    plan = schedule(lower(node.trace.nodes[0].body), host_target())
    assert len(plan.kernels) == 2 and len(plan.calls) == 400
    assert plan.arena_bytes == 0 and not plan.outputs  # all is written in place


def test_all_guards_of_a_step_are_native():
    from preheat.run.rows import Rows

    twins = Twins(lambda params: adamw(params, foreach=False))
    bound = []
    make = Rows.__init__

    def noting(self, *args, **kwargs):
        make(self, *args, **kwargs)
        bound.append(self)

    Rows.__init__ = noting
    try:
        settled(twins)
    finally:
        Rows.__init__ = make
    assert not bound[-1].in_python and len(bound[-1].words) == 2 * len(SIZES)
