"""Small programs, one language feature each, that the machine must run as CPython does.

Each is the source of a module with a function `main()`. What it returns, prints or raises is compared.
`SINCE` names the first Python version of a program that uses newer syntax.
"""

PROGRAMS = {
    "arithmetic": """
def main():
    a, b = 7, 3
    return [a + b, a - b, a * b, a / b, a // b, a % b, a ** b, a << b, a >> b, a & b, a | b, a ^ b, -a, +a, ~a, not a]
""",
    "in_place_operators": """
def main():
    a, l, s, d = 5, [1], {1}, {1: 2}
    a += 1; a -= 2; a *= 3; a /= 2; a //= 1; a **= 2; a %= 7
    l += (2, 3); l *= 2; s |= {2}; s &= {1, 2}; s ^= {5}; d |= {3: 4}
    return a, l, s, d
""",
    "comparison_chains": """
def main():
    x = 5
    return 1 < x < 10, 1 < x > 10, x == 5 != 6, x in [1, 5], x not in (1, 5), x is None, x is not None
""",
    "short_circuits": """
def main():
    log = []
    def t(v):
        log.append(v); return v
    out = [t(0) or t(2), t(1) and t(0), t([]) or t(()) or t("x"), not t(0)]
    return out, log
""",
    "loops": """
def main():
    out = []
    for i in range(10):
        if i == 2: continue
        if i == 6: break
        out.append(i)
    else:
        out.append("else")
    while len(out) < 8:
        out.append(-1)
    else:
        out.append("done")
    return out
""",
    "comprehensions": """
def main():
    n = 3
    return ([x * n for x in range(4) if x], {x: y for x, y in zip("ab", (1, 2))}, {x % 2 for x in range(5)},
            list(x + y for x in (1, 2) for y in (10, 20)), [[j for j in range(i)] for i in range(3)])
""",
    "closures": """
def main():
    def counter():
        n = 0
        def add(k=1):
            nonlocal n
            n += k
            return n
        def reset():
            nonlocal n
            del n
        return add, reset
    add, reset = counter()
    out = [add(), add(5)]
    reset()
    try:
        add()
    except NameError as e:
        out.append(str(e))
    return out
""",
    "globals": """
total = 0
def bump(n):
    global total, fresh
    total += n
    fresh = total
def main():
    bump(2); bump(3)
    out = [total, fresh]
    global fresh2
    fresh2 = 1
    del fresh2
    try:
        fresh2
    except NameError as e:
        out.append((str(e), e.name))
    return out
""",
    "signatures": """
def f(a, b=2, /, c=3, *rest, d, e=5, **more):
    return a, b, c, rest, d, e, more
def main():
    out = [f(1, d=4), f(1, 2, 3, 4, 5, d=6, z=7), f(*[1, 2], **{"d": 3, "q": 4}), f(0, *(1,), *[2, 9], d=1, **{}, **{"x": 1})]
    for call in (lambda: f(), lambda: f(1), lambda: f(1, a=2, d=3), lambda: f(1, 2, 3, c=4, d=5), lambda: main(1),
                 lambda: (lambda x: x)(1, 2), lambda: (lambda *, k: k)(j=1), lambda: f(*5), lambda: f(**5),
                 lambda: f(1, **{"d": 1}, **{"d": 2})):
        try:
            call()
        except TypeError as e:
            out.append(str(e))
    return out
""",
    "generators": """
def gen(log):
    try:
        x = yield 1
        log.append(x)
        try:
            y = yield 2
        except ValueError as e:
            log.append(repr(e)); y = "caught"
        log.append(y)
        yield 3
        return "end"
    finally:
        log.append("closed")
def main():
    log = []
    g = gen(log)
    out = [next(g), g.send("sent"), g.throw(ValueError("v"))]
    try:
        next(g)
    except StopIteration as e:
        out.append(e.value)
    h = gen(log); next(h); h.close()
    def outer():
        r = yield from gen(log)
        yield r
    out.append(list(outer()))
    k = outer(); next(k)
    try:
        k.throw(KeyError("deep"))
    except KeyError as e:
        out.append(str(e))
    return out, log
""",
    "generator_pipelines": """
def main():
    def naturals():
        n = 0
        while True:
            yield n
            n += 1
    import itertools
    squares = (n * n for n in naturals())
    first = list(itertools.islice(squares, 5))
    return first, next(squares), sum(x for x in range(10) if x % 3), dict((k, v) for k, v in [(1, 2)]), any(x > 3 for x in first)
""",
    "generator_stop_iteration": """
def main():
    def g():
        yield 1
        raise StopIteration("inner")
    it = g(); next(it)
    try:
        next(it)
    except RuntimeError as e:
        return str(e), repr(e.__cause__)
""",
    "exceptions": """
def main():
    log = []
    def f(kind):
        try:
            log.append("try")
            if kind == "value": raise ValueError("v")
            if kind == "key": return {}["k"]
            if kind == "return": return "r"
            log.append("body")
        except ValueError as e:
            log.append(str(e))
            return "handled"
        else:
            log.append("else")
        finally:
            log.append("finally")
        return "end"
    out = [f("value"), f("return"), f("")]
    try:
        f("key")
    except KeyError as e:
        out.append(repr(e))
    try:
        e
    except UnboundLocalError as error:
        out.append(str(error))
    return out, log
""",
    "exception_context": """
def main():
    out = []
    try:
        try:
            1 / 0
        except ZeroDivisionError:
            {}["x"]
    except KeyError as e:
        out.append((repr(e), repr(e.__context__), e.__suppress_context__))
    try:
        try:
            int("x")
        except ValueError as e:
            raise RuntimeError("r") from e
    except RuntimeError as e:
        out.append((repr(e.__cause__), e.__cause__ is e.__context__))
    try:
        try:
            int("x")
        except ValueError:
            raise RuntimeError("r") from None
    except RuntimeError as e:
        out.append((e.__cause__, repr(e.__context__), e.__suppress_context__))
    try:
        raise ValueError
    except ValueError:
        try:
            raise
        except ValueError as e:
            out.append(e.__context__)
    return out
""",
    "exception_errors": """
def main():
    out = []
    for make in (lambda: 5, lambda: int, lambda: "text"):
        try:
            raise make()
        except TypeError as e:
            out.append(str(e))
    try:
        try: 1 / 0
        except 5: pass
    except TypeError as e:
        out.append((str(e), repr(e.__context__)))
    try:
        raise
    except RuntimeError as e:
        out.append(str(e))
    class Odd(Exception):
        def __new__(cls): return 7
    try:
        raise Odd
    except TypeError as e:
        out.append("should have returned" in str(e))
    return out
""",
    "exception_groups": """
def main():
    out = []
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), KeyError(2), ExceptionGroup("h", [OSError(3)])])
        except* ValueError as e:
            out.append(repr(e.exceptions))
        except* OSError as e:
            out.append(repr(e.exceptions))
    except ExceptionGroup as rest:
        out.append(repr(rest))
    try:
        try:
            raise ValueError("plain")
        except* ValueError as e:
            raise TypeError("new")
    except ExceptionGroup as e:
        out.append(repr(e))
    except TypeError as e:
        out.append((repr(e), repr(e.__context__)))
    return out
""",
    "exc_info": """
import sys
def inner():
    return sys.exc_info()[0].__name__, type(sys.exception()).__name__
def main():
    out = [sys.exc_info()]
    try:
        1 / 0
    except ZeroDivisionError:
        out.append(inner())
        def g():
            yield inner()
            try: {}[1]
            except KeyError: yield inner()
            yield inner()
        out.append(list(g()))
    out.append(sys.exc_info())
    return out
""",
    "traceback_lines": """
import traceback
def deep(n):
    if n == 0:
        return [][1]
    return deep(n - 1)
def main():
    try:
        max([1, 2], key=lambda v: deep(2))
    except IndexError as e:
        return [(f.name, f.lineno, f.colno, f.line) for f in traceback.extract_tb(e.__traceback__)][-4:]
""",
    "with_statements": """
class Manager:
    def __init__(self, log, swallow): self.log, self.swallow = log, swallow
    def __enter__(self): self.log.append("enter"); return self
    def __exit__(self, kind, error, tb): self.log.append((kind and kind.__name__, str(error))); return self.swallow
import contextlib
@contextlib.contextmanager
def managed(log):
    log.append("in")
    try:
        yield 5
    except KeyError as e:
        log.append(repr(e))
    finally:
        log.append("out")
def main():
    log = []
    with Manager(log, False) as a, Manager(log, True) as b:
        log.append(a is b)
    with Manager(log, True):
        raise ValueError("swallowed")
    with managed(log) as v:
        log.append(v)
        raise KeyError("k")
    def early():
        for i in range(3):
            with Manager(log, False):
                if i == 1: return "early"
    log.append(early())
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        stack.callback(log.append, "callback")
        raise OSError
    try:
        with 5: pass
    except TypeError as e:
        log.append(str(e))
    return log
""",
    "classes": """
class Meta(type):
    def __new__(m, name, bases, space, **kw):
        space["kw"] = kw
        return super().__new__(m, name, bases, space)
    def __call__(cls, *args):
        made = super().__call__(*args)
        made.called = True
        return made
    @property
    def meta_property(cls): return cls.__name__ * 2
    def __getattr__(cls, name):
        if name == "dynamic": return "from meta"
        raise AttributeError(name)
class Base(metaclass=Meta, flag=1):
    x: int = 1
    def __init_subclass__(cls, **kw): cls.sub = kw
    def __init__(self, v): self.v = v
    def who(self): return type(self).__name__, __class__.__name__
class Child(Base, option=3):
    __slots__ = ("v", "called", "w")
    y = [x for x in range(3)]
    def __init__(self, v):
        super().__init__(v + 1)
        self.w = super().who()
def main():
    c = Child(4)
    return (Base.kw, Child.sub, c.v, c.w, c.called, Base.meta_property, Base.dynamic, hasattr(Base, "none"), Child.y,
            Base.__annotations__, Child.__mro__[1].__name__, Child.__qualname__, Base.who.__qualname__)
""",
    "class_statement_in_function": """
def main():
    out = []
    captured = "outer"
    class A:
        captured = captured
        inner = captured + "!"
        def f(self): return captured, __class__
        class B:
            z = 1
        for i in range(3): last = i
        del i
    a = A()
    out += [A.captured, A.inner, a.f()[0], a.f()[1] is A, A.B.z, A.last, hasattr(A, "i"), A.__module__ == __name__, A.__qualname__]
    T = type("T", (), {"k": 2})
    out += [T.k, T.__module__ == __name__]
    return out
""",
    "init_and_new": """
class Cached:
    made = {}
    def __new__(cls, key):
        return cls.made.setdefault(key, object.__new__(cls))
    def __init__(self, key): self.n = getattr(self, "n", 0) + 1
class Other:
    def __new__(cls): return 5
class Bad:
    def __init__(self): return 3
class Plain: pass
class Tuple(tuple):
    def __new__(cls, *args): return super().__new__(cls, args)
def main():
    a, b = Cached("k"), Cached("k")
    out = [a is b, a.n, Other(), Tuple(1, 2), type(Tuple()).__name__]
    for call in (lambda: Bad(), lambda: Plain(1), lambda: Cached()):
        try:
            call()
        except TypeError as e:
            out.append(str(e))
    return out
""",
    "operator_dunders": """
log = []
class V:
    def __init__(self, x): self.x = x
    def __add__(self, o): log.append("add"); return V(self.x + o.x) if isinstance(o, V) else NotImplemented
    def __radd__(self, o): log.append("radd"); return V(o + self.x)
    def __iadd__(self, o): log.append("iadd"); self.x += 100; return self
    def __matmul__(self, o): return "mat"
    def __neg__(self): return V(-self.x)
    def __invert__(self): return "inv"
    def __eq__(self, o): log.append("eq"); return isinstance(o, V) and self.x == o.x
    def __lt__(self, o): return self.x < o.x
    def __hash__(self): return hash(self.x)
    def __repr__(self): return f"V({self.x})"
    def __divmod__(self, o): return "dm"
    def __pow__(self, o, mod=None): return ("pow", o, mod)
    def __index__(self): return self.x
    def __float__(self): return float(self.x)
    def __round__(self, n=None): return ("round", n)
    def __abs__(self): return "abs"
class W(V):
    def __radd__(self, o): log.append("W.radd"); return "W"
def main():
    a, b = V(1), V(2)
    out = [a + b, 5 + a, a @ b, -a, ~a, a == b, a != b, a < b, a > b, a == 1, divmod(a, b), a ** 2, pow(a, 2, 3),
           [10, 20, 30][a], int(a), float(a), round(a), round(a, 2), abs(a), a + W(1), sorted([b, a]), {a: 1}[V(1)],
           [1] + [2], "x" * a, a in [V(1)], [a, b].index(V(2)), max(a, b), hash(a)]
    a += b
    out.append(a)
    for call in (lambda: a + "s", lambda: a <= b, lambda: a - b, lambda: b'' + a):
        try:
            out.append(call())
        except TypeError as e:
            out.append(str(e))
    return out, log
""",
    "container_dunders": """
class Box:
    def __init__(self): self.d, self.log = {}, []
    def __getitem__(self, k): self.log.append(("get", k)); return self.d[k]
    def __setitem__(self, k, v): self.log.append(("set", k)); self.d[k] = v
    def __delitem__(self, k): self.log.append(("del", k)); del self.d[k]
    def __contains__(self, k): return k in self.d
    def __len__(self): return len(self.d)
    def __iter__(self): return iter(self.d)
    def __call__(self, *a, **k): return a, k
    def __bool__(self): self.log.append("bool"); return len(self.d) > 1
    def __missing__(self, k): return "missing"
class Indexed:
    def __getitem__(self, i):
        if i > 2: raise IndexError
        return i * 10
class Defaults(dict):
    def __missing__(self, k): return k * 2
class Row:
    def __class_getitem__(cls, k): return cls.__name__, k
def main():
    b = Box()
    b["x"] = 1; b["y"] = 2; b[1:2] = 3
    del b["x"]
    out = [b["y"], "y" in b, len(b), list(b), b(1, k=2), bool(b), not b, 1 if b else 0, b[1:2], list(Indexed()),
           20 in Indexed(), [x for x in Indexed()], Defaults()["a"], Row[1], [*b], {**{1: 2}, 3: 4}, (*Indexed(),)]
    try:
        b["none"]
    except KeyError as e:
        out.append(repr(e))
    x, y, z = Indexed()
    first, *rest = Indexed()
    return out, b.log, x, y, z, first, rest
""",
    "iterator_protocol": """
class Count:
    def __init__(self, n): self.n = n
    def __iter__(self): return self
    def __next__(self):
        if not self.n: raise StopIteration
        self.n -= 1
        return self.n
class NotIterator:
    def __iter__(self): return 5
def main():
    out = [list(Count(3)), [x for x in Count(2)], sum(Count(4)), next(Count(0), "default"), dict(zip(Count(2), "ab")),
           max(Count(5)), list(map(str, Count(2))), list(enumerate(Count(2))), tuple(reversed([1, 2])), 1 in Count(3)]
    for call in (lambda: [*NotIterator()], lambda: next(Count(0)), lambda: iter(5)):
        try:
            call()
        except (TypeError, StopIteration) as e:
            out.append(repr(e))
    it = iter(Count(3))
    def delegate(): yield from it
    out.append(list(delegate()))
    return out
""",
    "attribute_protocol": """
class Field:
    def __set_name__(self, owner, name): self.name = name
    def __get__(self, o, cls=None): return self if o is None else o.__dict__.get(self.name, "unset")
    def __set__(self, o, v): o.__dict__[self.name] = ("set", v)
    def __delete__(self, o): o.__dict__.pop(self.name)
class NonData:
    def __get__(self, o, cls=None): return "nondata"
class A:
    f = Field(); n = NonData()
    def __init__(self): self.log = []
    def __getattr__(self, name):
        if name.startswith("_") or name == "log": raise AttributeError(name)
        return "ga:" + name
    def __setattr__(self, name, v):
        object.__setattr__(self, name, v)
    @property
    def p(self): return "p"
    @p.setter
    def p(self, v): self.log.append(("p", v))
    @p.deleter
    def p(self): self.log.append("del p")
    @property
    def broken(self): raise AttributeError("inside")
    @classmethod
    def c(cls): return cls.__name__
    @staticmethod
    def s(x): return x
class All:
    def __getattribute__(self, name):
        if name == "known": return object.__getattribute__(self, "real")
        return super().__getattribute__(name)
    real = 7
def main():
    a = A()
    out = [a.f, a.n, a.p, a.q, a.c(), a.s(3), A.s(4), A.c(), a.broken, type(A.f).__name__]
    a.f = 5; out.append(a.f)
    del a.f; out.append(a.f)
    a.__dict__["n"] = "instance"; out.append(a.n)
    a.p = 9; del a.p
    out += [a.log, All().known, getattr(a, "zz"), getattr(All(), "no", "dflt"), hasattr(All(), "no"), vars(a).keys() >= {"n"}]
    for call in (lambda: All().no, lambda: setattr(A, "p2", 1) or a.p2, lambda: object().x, lambda: (1).y, lambda: A.zz):
        try:
            out.append(call())
        except AttributeError as e:
            out.append((str(e), e.name))
    return out
""",
    "getattribute_after_object_s": """
class All:
    real = 7
    def __getattribute__(self, name):
        if name == "plain": return object.__getattribute__(self, "real")
        return "custom " + name
class Later:
    def __init__(self): self.v = 1
    def f(self): return "f"
def main():
    o, l = All(), Later()
    out = [o.plain, o.real, o.plain, o.real, l.v, l.f(), l.v]
    Later.__getattribute__ = lambda self, name: "replaced"
    out += [l.v, l.f]
    del Later.__getattribute__
    Later.v = property(lambda self: "property")
    out += [l.v, l.f()]
    Later.f = 5
    out += [l.f]
    l.__dict__["f"] = 6
    return out + [l.f]
""",
    "bound_methods": """
class A:
    def m(self, x): return (self.k, x)
    k = 1
import functools, operator
def main():
    a = A()
    m, u = a.m, A.m
    p = functools.partial(a.m, 5)
    q = functools.partial(u, x=3)
    a.m2 = lambda x: x + 1
    return m(2), u(a, 3), p(), q(a), a.m2(4), m == a.m, m.__self__ is a, operator.attrgetter("k")(a), operator.methodcaller("m", 1)(a)
""",
    "super_forms": """
class A:
    def f(self): return "A"
    @classmethod
    def c(cls): return cls.__name__
    @property
    def p(self): return "Ap"
class B(A):
    def f(self): return "B" + super().f()
    @classmethod
    def c(cls): return "B" + super().c()
    @property
    def p(self): return "B" + super().p
class C(A):
    def f(self): return "C" + super(C, self).f()
class D(B, C):
    def f(self):
        def inner(): return super(D, self).f()
        return "D" + inner()
    def missing(self): return super().nothing
def main():
    d = D()
    try:
        d.missing()
    except AttributeError as e:
        return d.f(), d.c(), D.c(), d.p, str(e)
""",
    "match_statements": """
from dataclasses import dataclass
@dataclass
class P:
    x: int
    y: int
class Q:
    __match_args__ = ("a",)
    a = 1
def kind(v):
    match v:
        case 0 | 1: return "small"
        case int(n) if n > 100: return ("big", n)
        case int(): return "int"
        case "a" | "b" as s: return s
        case [x, y, *rest]: return ("seq", x, y, rest)
        case []: return "empty"
        case {"k": val, **more}: return ("map", val, more)
        case {}: return "anymap"
        case P(0, y=yy): return ("P0", yy)
        case P(x, y): return ("P", x, y)
        case Q(1): return "Q"
        case None | True: return "const"
        case str(): return "str"
        case _: return "other"
def main():
    out = [kind(v) for v in (0, 500, 7, "b", [1, 2, 3], (), {"k": 1, "z": 2}, {}, P(0, 5), P(3, 4), Q(), None, "zzz", 1.5, {1})]
    try:
        match P(1, 2):
            case P(1, 2, 3): pass
    except TypeError as e:
        out.append(str(e))
    return out
""",
    "formatting": """
class F:
    def __format__(self, spec): return f"<{spec}>"
    def __str__(self): return "str"
    def __repr__(self): return "rep\\u00e9"
class G:
    def __repr__(self): return "g"
class Bad:
    def __str__(self): return 5
def main():
    x, w = 3.14159, 8
    out = [f"{x:.2f}", f"{x:{w}.3f}|", f"{F()}", f"{F():abc}", f"{F()!s}", f"{F()!r}", f"{F()!a}", f"{x=}", f"{G()} {G()!r:>3}",
           "%s %r %d" % ("a", "b", 3), "{} {k!r}".format(1, k=2), str(F()), repr(G()), format(F(), "z"), ascii("\\u00e9"), "a" "b"]
    try:
        str(Bad())
    except TypeError as e:
        out.append(str(e))
    print("printed", G(), F(), sep="-")
    return out
""",
    "unpacking": """
def main():
    a, (b, *c), d = 1, (2, 3, 4), 5
    *e, f = "xyz"
    [g, h] = {1: 2, 3: 4}
    a, b = b, a
    out = [a, b, c, d, e, f, g, h, [*range(3), *"ab"], {*[1, 2], 3}, {**{"a": 1}, "b": 2}, (lambda *a, **k: (a, k))(*[1], 2, *[3], **{"z": 1})]
    for bad in ((1,), (1, 2, 3), 5):
        try:
            x, y = bad
        except (ValueError, TypeError) as error:
            out.append(str(error))
    try:
        x, *y, z = (1,)
    except ValueError as error:
        out.append(str(error))
    i = [0]
    i[0], i[-1] = 5, 6
    (n := 10)
    out.append([y for x in range(3) if (y := x * n)])
    return out, i
""",
    "deletion": """
def main():
    x = 1
    del x
    out = []
    try:
        x
    except UnboundLocalError as e:
        out.append(str(e))
    l = [1, 2, 3, 4]; del l[0], l[1:]
    d = {"a": 1}; del d["a"]
    class O: pass
    o = O(); o.z = 1; del o.z
    out += [l, d, hasattr(o, "z")]
    try:
        del o.z
    except AttributeError as e:
        out.append(str(e))
    return out
""",
    "builtins_with_callbacks": """
import functools, re
def main():
    log = []
    def key(x): log.append(x); return -x
    l = [3, 1, 2]
    out = [sorted(l, key=key), max(l, key=key), min(l, key=lambda x: x), list(map(lambda a, b: a * b, l, l)),
           list(filter(lambda x: x > 1, l)), functools.reduce(lambda a, b: a * 10 + b, l), any(map(lambda x: x == 2, l)),
           all(x for x in l), re.sub("[a-c]", lambda m: m[0].upper(), "abcd"), list(filter(None, [0, 1]))]
    l.sort(key=lambda x: x % 3)
    try:
        sorted(l, key=lambda x: 1 / 0)
    except ZeroDivisionError as e:
        out.append(str(e))
    @functools.lru_cache
    def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
    @functools.wraps(fib)
    def wrapped(n): "doc"; return fib(n)
    out += [fib(20), wrapped(10), wrapped.__name__, l, functools.cmp_to_key(lambda a, b: b - a)(1) < functools.cmp_to_key(lambda a, b: b - a)(2)]
    return out, log
""",
    "instance_checks": """
import abc, collections.abc, typing
class Meta(type):
    def __instancecheck__(cls, o): return o == 42
    def __subclasscheck__(cls, c): return c is int
class M(metaclass=Meta): pass
class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...
    @classmethod
    def __subclasshook__(cls, c): return hasattr(c, "area") or NotImplemented
class Sq:
    def area(self): return 4
def main():
    out = [isinstance(42, M), isinstance(41, M), issubclass(int, M), issubclass(str, M), isinstance(Sq(), Shape), isinstance(1, (str, int)),
           isinstance([], collections.abc.Sequence), isinstance(1, int | str), issubclass(bool, int), isinstance(5, (M, (str, int)))]
    for call in (lambda: Shape(), lambda: isinstance(1, 5), lambda: issubclass(1, int)):
        try:
            call()
        except TypeError as e:
            out.append(str(e))
    return out
""",
    "frame_introspection": """
import sys, inspect
def who(): return sys._getframe(1).f_code.co_name, sys._getframe().f_lineno
def main():
    a = 1
    def inner():
        b = a
        return sorted(locals()), who(), sys._getframe().f_back.f_code.co_name
    out = [sorted(locals()), inner(), globals() is main.__globals__, eval("a + 1"), inspect.currentframe().f_code.co_name,
           sys._getframe().f_globals is globals(), sorted(k for k in vars() if len(k) == 1), sorted(dir())[:1]]
    exec("made = 5", globals())
    out.append(made)
    space = {}
    exec("def f(x): return x * 2", space)
    out.append(space["f"](4))
    return out
""",
    "imports": """
import os.path as p
from math import sqrt, floor as fl
def main():
    import collections.abc
    from os import path
    from importlib import machinery
    out = [p is path, sqrt(4), fl(2.5), collections.abc.Mapping.__name__, machinery.__name__]
    try:
        from os import nothing_here
    except ImportError as e:
        out.append(str(e).split("(")[0])
    try:
        import no_such_module_at_all
    except ModuleNotFoundError as e:
        out.append(e.name)
    return out
""",
    "dataclasses_and_enums": """
import dataclasses, enum, collections, typing
@dataclasses.dataclass(order=True)
class D:
    x: int
    y: list = dataclasses.field(default_factory=list)
    def __post_init__(self): self.z = self.x + 1
@dataclasses.dataclass(frozen=True, slots=True)
class Fr:
    a: int = 1
class Color(enum.Enum):
    RED = 1
    BLUE = enum.auto()
    @property
    def low(self): return self.name.lower()
class Flag(enum.IntFlag):
    A = 1; B = 2
NT = collections.namedtuple("NT", "a b", defaults=[5])
class TN(typing.NamedTuple):
    k: int
    def double(self): return self.k * 2
def main():
    d = D(1)
    out = [d, d.z, D(1) < D(2), D(1) == d, dataclasses.replace(d, x=9), dataclasses.asdict(d), Fr(), hash(Fr()) == hash(Fr(1)),
           Color.RED, Color(2), Color["RED"], Color.BLUE.low, list(Color), Flag.A | Flag.B, NT(1), NT(1, 2)._replace(a=3), TN(4).double()]
    for call in (lambda: setattr(Fr(), "a", 2), lambda: Color(9), lambda: D(), lambda: NT()):
        try:
            call()
        except Exception as e:
            out.append((type(e).__name__, str(e)))
    return out
""",
    "function_objects": """
def deco(tag):
    def wrap(f):
        f.tag = tag
        return f
    return wrap
@deco("t")
def f(a: int, b: "str" = "x", *, c: float = 1.0) -> list:
    "doc"
    return [a, b, c]
def main():
    def g(x=[]): x.append(1); return x
    h = lambda n: n and h(n - 1)
    out = [f.tag, f.__doc__, f.__annotations__, f.__defaults__, f.__kwdefaults__, g(), g(), h(5), g.__qualname__, h.__name__, g.__module__ == __name__]
    f2 = lambda x, *a, k=1, **kw: (x, a, k, kw)
    out.append(f2(1, 2, k=3, z=4))
    return out
""",
    "recursion": """
import sys
def depth(n): return 0 if n == 0 else 1 + depth(n - 1)
def forever(): return forever()
class P:
    @property
    def p(self): return self.p
def main():
    out = [depth(700)]
    for call in (forever, lambda: P().p):
        try:
            call()
        except RecursionError as e:
            out.append(str(e)[:32])
    return out
""",
    "asynchronous": """
import asyncio
async def work(n):
    await asyncio.sleep(0)
    return n * 2
async def agen():
    yield 1
    yield 2
def main():
    async def top():
        return await asyncio.gather(work(1), work(2)), [x async for x in agen()]
    return asyncio.run(top())
""",
    "assertions": """
def main():
    try:
        assert 1 == 2, "message"
    except AssertionError as e:
        return str(e)
""",
    "warnings": """
import warnings
def helper(): warnings.warn("careful", UserWarning, stacklevel=2)
def main():
    with warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        helper()
        warnings.warn("here")
        return [(x.lineno, str(x.message), x.category.__name__) for x in w]
""",
    "sorting_with_dunders": """
class K:
    def __init__(self, v): self.v = v
    def __lt__(self, o): return self.v > o.v
    def __repr__(self): return f"K{self.v}"
def main():
    l = [K(1), K(3), K(2)]
    import heapq, bisect
    h = [K(1), K(5)]; heapq.heapify(h); heapq.heappush(h, K(9))
    return sorted(l), max(l, key=lambda k: k.v), min(l), h[0]
""",
    "string_and_bytes_methods": """
def main():
    s = "a-b-c"
    return s.split("-"), "-".join(x for x in s), s.replace("-", ""), s.encode().hex(), "%05.1f" % 2.25, b"ab"[0], "abc"[::-1], s.partition("-"), str.upper("q")
""",
    "generators_that_call_c_in_the_middle": """
import contextlib, time
log = []
def said(*words): log.append(" ".join(map(str, words))); return time.perf_counter() > 0
def each(n):
    try:
        for i in range(n):
            said("give", i)
            got = yield i
            said("got", got)
        return said("end")
    finally:
        said("closed")
def outer(n):
    try:
        a = yield from each(n)
        said(a)
        b = yield from each(n - 1)
    except KeyError as e:
        said("caught", repr(e)); yield 9
    return b
@contextlib.contextmanager
def named(name):
    said("enter", name)
    try: yield name
    except ValueError as e: said("swallowed", e)
    finally: said("leave", name)
def again(me):
    try: next(me[0])
    except ValueError as e: said(e)
    yield 1
    said(list(zip(each(2), "ab")))
    yield 2
def main():
    for i, x in enumerate(outer(2)): said("body", i, x)
    g = outer(2); said(next(g), g.send(5))
    try: said(g.throw(KeyError(1)), next(g))
    except UnboundLocalError as e: said(e)
    with named("a") as a, named("b"): said("inside", a); raise ValueError("v")
    me = []; me.append(again(me)); said([x for x in me[0]])
    try:
        with named("c"): raise LookupError
    except LookupError: said("out")
    h = each(3); next(h); h.close(); k = each(1); next(k); del k
    def stops(): said("stops"); next(iter(())); yield
    try: next(stops())
    except RuntimeError as e: said(repr(e), repr(e.__cause__))
    return log
""",
    "mutating_methods": """
def main():
    l, d, s = [3, 1], {}, set()
    l.append(2); l.extend(x for x in (7, 8)); l.insert(0, 9); l.remove(1); l.pop(); l.reverse(); l[1:2] = [0, 0]
    d.setdefault("a", []).append(1); d.update(b=2); d.update([("c", 3)]); d.pop("b")
    s.add(1); s.update([2, 3]); s.discard(1)
    return l, d, s, d.get("a"), d.get("q"), d.get("q", 5), list(d.items()), [*d.keys()], "a" in d, len(d)
""",
    "raises_out": """
class Custom(Exception):
    def __init__(self, a, b): super().__init__(a); self.b = b
def main():
    try:
        {}["k"]
    finally:
        raise Custom(1, 2)
""",
    "prints_then_raises": """
def main():
    print("before")
    for i in range(3):
        print(i, end=" ")
        if i == 1:
            raise SystemExit(3)
""",
    "annotations_in_functions": """
from __future__ import annotations
class A:
    x: undefined_name
    def f(self, y: also_undefined) -> nothing: ...
def main():
    z: int = 5
    return A.__annotations__, A.f.__annotations__, z
""",
    "copying": """
import collections, copy, pickle
class Plain:
    def __init__(self): self.a, self.b = 1, [2, {"c": 3}]
class Slotted:
    __slots__ = ("x", "y", "__dict__")
    def __init__(self): self.x, self.z = [1], 2
class Table(dict):
    tag = 0
class Row(list):
    pass
class Stateful(Plain):
    def __getstate__(self): return {"a": self.a * 10}
    def __setstate__(self, state): self.__dict__.update(state, seen=True)
class New(tuple):
    def __new__(cls, a, b): return super().__new__(cls, (a, b))
    def __getnewargs__(self): return tuple(self)
class Own(Plain):
    def __reduce__(self): return Own, ()
class Bound:
    def __init__(self): self.me, self.f = self, self.go
    def go(self): return 5
def shown(o):
    inner = sorted((k, v) for k, v in getattr(o, "__dict__", {}).items() if k not in ("me", "f"))
    return type(o).__name__, inner, getattr(o, "x", None), list(o) if isinstance(o, (list, tuple)) else dict(o) if isinstance(o, dict) else None
def main():
    table, row = Table(k=[1]), Row([1, [2]])
    table.tag, row.name = 7, "r"
    out = []
    empty = Plain()
    empty.__dict__.clear()
    out.append(empty.__reduce_ex__(4)[2])
    for o in (Plain(), Slotted(), table, row, Stateful(), New(1, [2]), Own(), Bound(), collections.OrderedDict(a=1), collections.Counter("aab")):
        a, b = copy.copy(o), copy.deepcopy(o)
        out += [shown(a), shown(b), a is o, type(a) is type(o)]
    p = Plain()
    q, r = copy.copy(p), copy.deepcopy(p)
    out += [q.b is p.b, r.b is p.b, r.b == p.b, p.__reduce_ex__(2)[1:3], table.__reduce_ex__(4)[2]]
    b = copy.deepcopy(Bound())
    out += [b.me is b, b.f.__self__ is b, b.f()]
    try:
        object.__reduce_ex__(iter([]), 0)
    except TypeError as e:
        out.append(str(e))
    return out
""",
    "nested_scopes_in_comprehension": """
def main():
    fs = [lambda: i for i in range(3)]
    x = 1
    class A:
        y = [x for _ in range(2)]
    gs = [(lambda k: lambda: k * x)(k) for k in range(3)]
    return [f() for f in fs], A.y, [g() for g in gs], [[(i, j) for j in range(i)] for i in range(3)]
""",
}

SINCE: dict[str, tuple[int, int]] = {}
