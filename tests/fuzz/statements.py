"""What a statement of a random program may be, what it may return, what may happen before a call.

Templates with the holes of `expressions.py`; besides, a small letter after `+` is a target, a fresh
name or a known one, and after `*` a fresh one that nothing else assigns to; `{block}` stands for
statements, indented as the hole is.
"""

# One a line.
SIMPLE = """
{+m} = {M}
{+m} = {M}
{+m} = {M}
{+v} = {V}
{+s} = {S}
{+n} = {N}
{+m}, {+v} = {M}, {V}
{+m}, {+m} = {L}[:2]
{+n}, *_ = [{N}, {N}]
{m} += {V}
{m}.add_({N})
{m}.mul_({c}).clamp_(-9, 9)
{m}[{c} % 4] = {V}
{m}[:, {c} % 4] = {N}
{m}[1:] += {M}[:-1]
{m}[{m} > {c}] = 0
{m}.copy_({M})
{m}.t().sub_({V})
{m}[1:3, 1:].zero_()
{v}.add_({V})
{v} -= {N}
torch.add({M}, {c}, out={m})
{m}.masked_fill_({m} < 0, {c})
{m}.clamp_(min={N})
w.memory.copy_({M})
w.memory.add_({N}).clamp_(-9, 9)
w.memory[{c} % 4] = {V}
w.memory = {M}
w.tensors[0].add_({c})
w.tensors[{c} % 2] = {V}
w.part.mean = {V}
w.last = {M}
w.last = {X}
w.count += 1
w.count = {N}
w.scale = {N}
w.maybe = {N}
w.on = {B}
w.on = not w.on
w.name = {T}
del w.last; w.last = None
setattr(w, "maybe", {c})
w.__dict__.pop("maybe", None)
w.items.append({N})
w.items[{c} % 2] = {N}
w.items = [{N}] + w.items[:4]
w.items.pop() if len(w.items) > 2 else None
w.items.sort()
w.items.extend(range({c}))
w.items[:] = sorted(w.items, key=lambda i: -i)[:5]
w.table[{k}] = {N}
w.table.update(c={N})
w.table.pop("c", None)
w.table.setdefault({k}, {c})
w.tally[{k}] += {c}
w.queue.append({N})
w.queue.rotate(1)
w.seen.add({T})
w.thing.count = {N}
w.thing.total = {N}
w.thing.note({T})
w.thing = Louder({N})
w.thing, w.stash = w.thing, [w.thing]
w.config.width = {N}
w.config = w.config.widened({c})
w.mode = Mode.MUL if {B} else Mode.ADD
w.stash.append({m})
w.stash[:] = [{M}, {N}]
TABLE[{k}] = {N}
LOG.append({N})
LOG.append({m})
LOG.append({T})
LOG.clear()
LIMITS[0] = {N}
Thing.level = {c}
globals()["CALLS"] = {c}
print({T}, {N})
print("value", {S}.item())
print({V})
print({k}, end=" ")
random.shuffle(w.items)
random.seed({c})
torch.manual_seed({c})
assert {B}, {T}
{+m} = [{M}, {M}][{N} % 2]
decorated({M}, by={N})
w.notes.append({n})
raise Failure({T}) from None
raise {E}({T})
fail({N})
{+m} = sum({M} + i for i in range({c} + 1))
{+n} = sum([w.thing.note(i) for i in range({c})])
{+m} = {{i: t for i, t in enumerate({L})}}[0]
CALLS += 1
CALLS = {N}
{+m} = rest[0] if rest else {M}
{+n} = named.get("bonus", {c})
items.append({N})
items[0] += 1
{+n} = len(items) + sum(items) % 5
options["last"] = {X}
{+m} = options["last"] if isinstance(options.get("last"), torch.Tensor) else {M}
{+m} = [opaque({m}, LOG) for _ in range(2)][1]
"""

# Between blank lines.
COMPOUND = """
if {B}:
    {block}

if {B}:
    {block}

if {B}:
    {block}
else:
    {block}

if {B}:
    {block}
elif {B}:
    {block}
else:
    {block}

if {B}:
    return {X}

for {*n} in range({c}):
    {block}

for {*n} in range({N} % 4):
    {block}

for {*n} in w.items[:4]:
    {block}

for {*m} in {L}:
    {block}

for {*n}, {*m} in enumerate({L}):
    {block}

for {*n} in range(5):
    {block}
    if {B}:
        break

for {*n} in range(4):
    if {B}:
        continue
    {block}

for {*m} in produce({M}, {c}):
    {block}
else:
    {block}

for {*k}, {*n} in w.table.items():
    {+m} = {M} + {n}

{*n} = 0
while {S} > {c} and {n} < 6:
    {n} += 1
    {block}

{*m}, {*n} = {M}, 0
while {m}.abs().sum() > {c}:
    {m}, {n} = ({m} / 2).trunc(), {n} + 1
    if {n} > 12:
        break

{*n} = {N} % 5
while {n} > 0:
    {n} -= 1
    {block}

try:
    {block}
except {E} as error:
    {+s} = torch.tensor(float(len(str(error))))
    w.notes.append(type(error).__name__)

try:
    {block}
    raise {E}({T})
except {E}:
    {block}

try:
    {+m} = {M} @ torch.ones(3, 3)
except RuntimeError as error:
    print(type(error).__name__, len(str(error)) > 3)
    {block}

try:
    {+s} = {M}.sum(5)
except (IndexError, KeyError) as error:
    {+m} = {M}

try:
    {+n} = w.table[{k}]
except KeyError as error:
    {+n} = len(error.args)

try:
    fail({N})
except ValueError as error:
    w.notes.append(str(error))

try:
    {+n} = {N} // {N}
except ZeroDivisionError:
    {block}

try:
    {block}
finally:
    w.notes.append("finally")
    {block}

try:
    {block}
except {E}:
    {block}
else:
    {block}

try:
    try:
        fail({N})
    except ValueError as error:
        raise Failure({T}, {N}) from error
except Failure as error:
    w.notes.append((str(error), error.code, str(error.__cause__)))

with Noted(w.notes):
    {block}

with Noted(w.notes, True):
    {block}
    fail({N})

with Noted(LOG) as noted, scoped(w.notes, {T}) as {*n}:
    {block}

with scoped(w.notes, "block"):
    {block}

with torch.no_grad():
    {block}

with contextlib.suppress({E}):
    {block}

match {N} % 3:
    case 0:
        {block}
    case 1 | 2 if {B}:
        {block}
    case _:
        {block}

match {X}:
    case [{*x}, *_]:
        {block}
    case Pair(first={*x}):
        {block}
    case None:
        {block}
    case _:
        pass

total = {M}
def inner(t, by={N}):
    nonlocal total
    total = total + t
    return total - by
{+m} = inner({M})
{+m} = inner({M}, {c}) + total

seen = []
def visit(t):
    seen.append(t)
    print("visit", len(seen))
    return t + len(seen)
{+m} = sum(map(visit, {L}))

def walk(t):
    for step in range(3):
        w.notes.append(step)
        yield t + step
walked = walk({M})
{+m} = next(walked)
{+m} = {M} + next(walked)

pending = produce({M}, 3)
{+m} = next(pending)
w.stash.append(pending)

if ({+n} := {N}) > {c}:
    {block}

def handed(*args, scale=1, **kwargs):
    args[0].add_(scale)
    kwargs["extra"] = len(args)
    return args[-1], kwargs
{+m}, handed_on = handed({M}, {M}, scale={N}, other={N})

class Local(Thing):
    level = {N}
    def step(self, t):
        w.count += 1
        return super().step(t) - self.level
{+m} = Local({c}).step({M})
"""

RESULTS = """
{X}
{X}
{X}, {X}
{M}, {V}, {N}
[{m}, {X}]
{{"result": {m}, "more": {X}}}
{m}, {m}
{M}, {T}
"""

# What may happen before a call, as statements over `args` (a list), `named` (a dict), `w`, `g`.
BETWEEN = """
args[0] = torch.arange(16.0).reshape(4, 4) - 5
args[0] = -args[0].clone()
args[0] = torch.ones(4, 4)
args[0] = torch.arange(16.0).reshape(4, 4).t() % 5
args[0] = torch.zeros(6, 6)[1:5, 1:5] + 2
args[0] = args[0].double()
args[1] = args[0]
args[1] = args[0].t()
args[1] = torch.full((4, 4), 3.0)
args[1] = args[0][:1].expand(4, 4).clone()
args[2] = torch.tensor([3.0, -1, 0, 2])
args[2] = args[0][0]
args[2] = args[0][:, 1]
args[3] += 1
args[3] = 0
args[3] = -2
args[3] = True
args[4] = not args[4]
args[5].append(3)
args[5] = [7, 7]
args[6].clear()
args.append(torch.eye(4))
named["bonus"] = 4
named.pop("bonus", None)
w.count = 10
w.items.append(4)
w.on = not w.on
w.thing = g["Louder"](2)
w.thing = g["Thing"](0)
w.thing.count += 3
w.table["b"] = 5
w.table.pop("a", None)
w.last = None
w.part.mean = torch.zeros(4)
w.memory.zero_()
w.stash.clear()
w.notes.extend([list(made)[:9] for made in w.stash if hasattr(made, "send")])
g["CALLS"] = 0
g["TABLE"]["a"] = 4
g["LOG"].clear()
g["Thing"].level = 5
g["decorated"] = lambda t, by=0: t * 2
g["Thing"].step = lambda self, t: t - 1
w.part = w.other
w.part.weight.data.mul_(-1)
w.part.weight.data = torch.eye(4)
w.maybe = 3
w.config.label = "other"
"""
