"""What an expression of a random program may be: by kind, templates with holes, one a line.

`{M}`, `{V}`, `{S}` take an expression that is a tensor of sizes [4, 4], [4], []; `{N}`, `{B}`,
`{T}` a whole number, a condition, a text; `{L}` a list of tensors [4, 4]; `{X}` anything. A small
letter takes a name with such a value. `{c}` is a small number, `{k}` a key, `{E}` a class of
exceptions; `{{` is a brace. The world of `world.py` is `w`, and its globals are there.
"""

EXPRESSIONS: dict[str, str] = {
    "M": """
        {m}
        {m}
        {m}
        {M} + {M}
        {M} - {M}
        {M} * {c}
        {M} + {N}
        {M} + {V}
        {M} - {S}
        ({M} * {M}).clamp(-9, 9)
        ({M}.clamp(-9, 9) @ {M}.clamp(-9, 9)).clamp(-9, 9)
        torch.relu({M})
        {M}.t()
        {M}.abs()
        ({M} / 2).floor()
        {M}.flip(0)
        {M}.roll(1, 1)
        {M}.clone()
        {M}.contiguous()
        torch.where({M} > {N}, {M}, {M})
        {M}.masked_fill({M} > {c}, {c})
        torch.maximum({M}, {M})
        {V}.expand(4, 4)
        torch.stack([{V}, {V}, {V}, {V}])
        {V}[:, None] - {V}
        torch.cat([{M}[:2], {M}[2:]])
        {M}.reshape(2, 8).view(4, 4)
        {M}.tril()
        {M}.gather(1, {M}.clamp(0, 3).long())
        {M}[{M}[0].clamp(0, 3).long()]
        ({M}.softmax(-1) * 4 + 0.137).round()
        (F.layer_norm({M}, (4,)) * 2 + 0.137).round()
        {M}.cumsum(0).clamp(-9, 9)
        F.linear({M}.clamp(-9, 9), w.part.weight)
        w.part({M})
        w.parts[0]({M})
        w.memory + {N}
        w.memory
        w.thing.step({M})
        w.thing({M}, {N}, by={c})
        Thing.halved({M})
        Thing.make({N}).step({M})
        decorated({M}, by={N})
        opaque({M}, w.notes)
        recursive({M}, {c})
        sum({L})
        functools.reduce(operator.add, {L})
        {L}[-1]
        {m}[:2].view(-1).expand(2, 8).reshape(4, 4)
        max({L}, key=lambda t: int(t.sum().clamp(-99, 99)))
        [t + {N} for t in {L}][0]
        next(produce({M}, {c} + 1))
        sum(produce({M}, 2))
        (lambda t, by={N}: t + by)({M})
        ({M} if {B} else {M})
        torch.rand(4, 4).mul({c}).floor()
        F.dropout({M}, 0.5)
        torch.from_numpy({M}.numpy() + 1)
        torch.tensor({M}.tolist())
        torch.full((4, 4), float({N}))
        torch.zeros(4, 4)
        {M}.double().float()
        {M}.to(torch.int64).float()
        (w.last if isinstance(w.last, torch.Tensor) else {M})
        torch.as_strided({M}, (4, 4), (1, 4))
        preheat.disable({M}.neg)()
    """,
    "V": """
        {v}
        {v}
        {v}
        {V} + {V}
        {V} * {c}
        {V} - {N}
        {M}[{c} % 4]
        {M}.sum(0).clamp(-99, 99)
        {M}.amax(1)
        {M}.diagonal()
        {M}[:, {c} % 4]
        {V}.flip(0)
        {V}.sort()[0]
        {V}.argsort().float()
        {V}.clamp(-9, 9).cumsum(0)
        {M}.mean(0).floor()
        torch.arange(4.0)
        torch.arange({N} % 5, {N} % 5 + 4).float()
        w.tensors[{c} % 2]
        w.part.mean
        {V}.relu()
        torch.randint(0, 5, (4,)).float()
        F.pad({V}[{V} > 0][:4], (0, 4))[:4]
        {M}.reshape(-1)[::4]
        torch.bincount({V}.clamp(0, 3).long(), minlength=4).float()
        torch.nonzero({V}).float().sum(0).expand(4)
        torch.unique({V}).sum().expand(4)
    """,
    "S": """
        {s}
        {s}
        {V}.sum().clamp(-99, 99)
        {M}.clamp(-99, 99).sum()
        {M}.max()
        {V}[{c} % 4]
        {S} + {S}
        {S} - {N}
        (({M} > 0).sum()).float()
        torch.tensor(float({N}))
        {V}.clamp(-9, 9) @ {V}.clamp(-9, 9)
        {S}.abs()
    """,
    "N": """
        {n}
        {n}
        {c}
        {c}
        {N} + {c}
        {N} - {N}
        {N} * 2 % 7
        -{n}
        abs({n})
        {N} // 2
        w.count
        w.scale
        CALLS
        len(w.items)
        len(LOG)
        TABLE["a"]
        TABLE.get({k}, {c})
        w.table.get({k}, 0)
        int({S})
        int({S}.item())
        round({S}.item()) % 10
        {M}.shape[0]
        {V}.numel()
        sum(w.items) % 10
        max(w.items, default=0)
        w.thing.count
        w.thing.total
        len(w.thing)
        w.thing[{c}]
        w.thing.late_value
        w.config.width
        w.mode.value
        len(w.seen)
        w.queue[0]
        random.randint(0, 5)
        int(random.random() * 4)
        int(numpy.random.randint(0, 4))
        int(numpy.asarray([{n}, {c}]).max())
        int({M}.numpy().max())
        len({T})
        getattr(w, "maybe", {c})
        min({N}, {N})
        math.gcd(abs({N}), 6)
        sorted([{n}, {N}, {c}])[1]
        ({N} if {B} else {N})
        sum(1 for t in {L} if t.sum() > 0)
        len([i for i in range(5) if i % 2 == {c} % 2])
        int({V}.argmax())
        torch.nonzero({M} > 0).shape[0]
        {V}.tolist()[1].__int__()
        LIMITS[{c} % 2]
        len({L})
        w.notes.count("leave")
        Thing.level
        len(Thing.made)
        hash(w.thing)
        max([w.thing, Thing(3)]).count
        ord("a") + {c}
        w.tally["x"]
        {{"a": {n}, "b": {c}}}["a"]
        int({S}.numpy())
        [*w.thing][1]
    """,
    "B": """
        {S} > {c}
        {S} > {N}
        ({M} > {N}).any()
        ({M} > {N}).all()
        {M}.sum() > 0
        bool({V}[0] > 0)
        {S}.item() > {c}
        torch.equal({M}, {M})
        torch.allclose({V}, {V})
        {N} > {c}
        {N} % 2 == 0
        {n} in w.items
        {k} in TABLE
        {k} in w.table
        flag
        not flag
        w.on
        w.last is None
        {B} and {B}
        not {B}
        isinstance(w.thing, Louder)
        hasattr(w, "maybe")
        w.thing == Thing({c})
        w.mode is Mode.ADD
        {m} is {m}
        any(t.sum() > {c} for t in {L})
        len(w.notes) > {c}
        {V}.any()
        {N} < {N} < 5
        w.name == "world"
        {T}.startswith("n")
        random.random() > 0.5
        {M}.is_contiguous()
        {M}.dtype is torch.float32
        callable(w.last)
    """,
    "T": """
        "note"
        f"n={{{n}}}"
        "%3d|" % {N}
        str({N})
        w.name
        repr({n})
        "-".join(str(i) for i in w.items[:3])
        "{{:.1f}}".format({S}.item())
        w.config.label.upper()
        str({S})
        type(w.thing).__name__
        "{{}}-{{}}".format({n}, {c})
        ",".join(sorted(w.table))
    """,
    "L": """
        [{M}, {M}]
        [{m}, {M}, {m}]
        ({M}, {m})
        list({M}.split(2)[0].expand(2, 2, 4).repeat(1, 2, 1))
        [{M} for _ in range(2)]
        list(map(torch.relu, [{M}, {M}]))
        list(produce({M}, 2))
        [t * i for i, t in enumerate([{M}, {M}])]
        [a + b for a, b in zip([{M}], [{M}])]
    """,
    "X": """
        {M}
        {V}
        {S}
        {N}
        {T}
        {L}
        {m}
        {m}, {m}
        {m}, {m}[0], {v}
        {{"a": {M}, {k}: {N}}}
        [{N}, [{M}], ({V},)]
        Pair({M}, {N})
        Config({N}, {T}, {m})
        w.config
        w.config.widened({c})
        w.thing
        Louder({N})
        w.items
        tuple(w.items), {M}
        w.table
        dict(TABLE)
        {m}.reshape(-1)[2:6]
        {m}.t()
        {m}[1]
        {M}.shape
        {m} > {c}
        {{{N}, {c}}}
        collections.OrderedDict(b={N}, a={m})
        {V}.tolist()
        None
        range({c})
        w.mode
        slice({n}, None)
        torch.Size([{c}])
        {M}.numpy()
        x
        y, x
        [rest, named]
        dict(zip("ab", {L}))
        lambda t: t + {n}
        functools.partial(decorated, by={N})
        w.thing.step
        iter([{n}, {c}])
        produce({M}, {c})
        {M}, print({T})
    """,
    "E": "ValueError\nRuntimeError\nKeyError\nIndexError\nException\nZeroDivisionError\nFailure",
    "k": "'a'\n'b'\n'c'",
    "c": "0\n1\n1\n2\n2\n3\n4",
}
