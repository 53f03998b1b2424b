"""Random numbers in vectors: Philox4x32-10 where the words of a group lie side by side.

    v3: f32 = uniform v1 at [i0*128 + j]        16 lanes: 4 counters of 4 words, ten times
                                            ->  product = (s & low) * <M0, M1, M0, ..>     vpmuludq
                                                s = swapped(product) ^ (s >> 32) ^ key     vpshufd ...

A multiplication of 32 by 32 bits takes every second word, which are the ones that a round multiplies,
so consecutive numbers cost five instructions a round and no shuffle between lanes. Numbers at other
places are computed one group a lane. The same numbers as `bridge/uniform.py`, bit by bit.
"""

from preheat.generate.llvm import Builder, Value
from preheat.ir.philox import KEY_STEPS, MULTIPLIERS, ROUNDS

GROUP = 4  # words of one counter
_LOW = 0xFFFFFFFF


def consecutive(b: Builder, seed: Value, stream: int, place: Value, lanes: int) -> Value:
    """Numbers place, place + 1, ... in [0, 1). seed, place: plain i64; lanes: a multiple of 4."""
    first = b.binary("ashr", place, b.integer(2))  # lanes before 0 are masked, those behind count
    words = _groups(b, seed, stream, first, lanes)
    within = b.binary("and", place, b.integer(GROUP - 1))
    is_within = b.compare("ne", within, b.integer(0))

    def moved() -> list[Value]:
        """The words from the middle of a group on."""
        following = _groups(b, seed, stream, b.plus(first, b.integer(lanes // GROUP)), GROUP)
        both = b.scratch("i32", lanes + GROUP)
        b.store(words, both)
        b.store(following, b.offset(both, b.integer(lanes), "i32"))
        return [b.load(b.offset(both, within, "i32"), "i32", lanes)]

    (words,) = b.when(is_within, moved, [words])
    return _number(b, words)


def each(b: Builder, seed: Value, stream: int, places: Value) -> Value:
    """The numbers at `places`, an i64 a lane. seed: plain i64"""
    lanes = places.lanes
    group = b.binary("lshr", places, b.constant(2, places))
    state = [
        b.convert("trunc", group, "i32"),
        b.convert("trunc", b.binary("lshr", group, b.constant(32, group)), "i32"),
        b.splat_of(stream, "i32", lanes), b.splat_of(0, "i32", lanes)]
    seeds = b.splat(seed, lanes)
    key = [
        b.convert("trunc", seeds, "i32"),
        b.convert("trunc", b.binary("lshr", seeds, b.constant(32, seeds)), "i32")]
    for _ in range(ROUNDS):
        (high0, low0), (high1, low1) = (
            _product(b, state[2 * k], multiplier) for k, multiplier in enumerate(MULTIPLIERS))
        state = [_mixed(b, high1, state[1], key[0]), low1, _mixed(b, high0, state[3], key[1]), low0]
        key = [b.binary("add", k, b.constant(step, k)) for k, step in zip(key, KEY_STEPS)]
    which = b.convert("trunc", b.binary("and", places, b.constant(GROUP - 1, places)), "i32")
    word = state[0]
    for number in range(1, GROUP):
        word = b.select(b.compare("eq", which, b.constant(number, which)), state[number], word)
    return _number(b, word)


def _groups(b: Builder, seed: Value, stream: int, first: Value, lanes: int) -> Value:
    """The words of lanes / 4 counters from `first` on, side by side."""
    pairs = lanes // 2
    is_counter = b.vector([-1, 0] * (pairs // 2), "i64")
    added = b.vector([n for k in range(pairs // 2) for n in (k, stream)], "i64")
    state = b.binary("add", b.binary("and", b.splat(first, pairs), is_counter), added)
    seeds = b.binary("lshr", b.splat(seed, pairs), b.vector([0, 32] * (pairs // 2), "i64"))
    low = b.constant(_LOW, seeds)
    key = _as(b, b.binary("and", seeds, low), "i32", lanes)
    factors = b.vector([*MULTIPLIERS] * (pairs // 2), "i64")
    steps = b.vector([KEY_STEPS[0], 0, KEY_STEPS[1], 0] * (pairs // 2), "i32")
    backwards = [k ^ 3 for k in range(lanes)]
    for _ in range(ROUNDS):
        product = _as(b, b.binary("mul", b.binary("and", state, low), factors), "i32", lanes)
        swapped = _as(b, b.shuffle(product, backwards), "i64", pairs)
        upper = b.binary("lshr", state, b.constant(32, state))
        state = _mixed(b, swapped, upper, _as(b, key, "i64", pairs))
        key = b.binary("add", key, steps)
    return _as(b, state, "i32", lanes)


def _product(b: Builder, x: Value, factor: int) -> tuple[Value, Value]:
    """The upper and the lower 32 bits of a product."""
    wide = b.convert("zext", x, "i64")
    product = b.binary("mul", wide, b.constant(factor, wide))
    upper = b.binary("lshr", product, b.constant(32, product))
    return b.convert("trunc", upper, "i32"), b.convert("trunc", product, "i32")


def _mixed(b: Builder, x: Value, y: Value, z: Value) -> Value:
    return b.binary("xor", b.binary("xor", x, y), z)


def _as(b: Builder, x: Value, element: str, lanes: int) -> Value:
    """The same bits in lanes of another width."""
    return b.value(f"bitcast {x.operand} to <{lanes} x {element}>", element, lanes)


def _number(b: Builder, words: Value) -> Value:
    """float32 in [0, 1): the upper 24 bits, exactly."""
    upper = b.binary("lshr", words, b.constant(8, words))
    wide = b.convert("sitofp", upper, "float")
    return b.fmul(wide, b.constant(2.0**-24, wide))
